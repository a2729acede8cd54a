"""Deep-merge and overrides: laws that hold for any mappings, and the refusals."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtforge.ground.errors import ForgeError
from trtforge.recipe.merge import apply_overrides, deep_merge, parse_override

_KEYS = st.sampled_from(["a", "b", "c", "d"])
_LEAVES = st.one_of(st.none(), st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=2))
_TREES: st.SearchStrategy[Any] = st.recursive(
    st.dictionaries(_KEYS, _LEAVES, max_size=3),
    lambda inner: st.dictionaries(_KEYS, st.one_of(_LEAVES, inner), max_size=3),
)


@given(_TREES)
def test_merging_with_nothing_or_itself_changes_nothing(tree: dict[str, Any]) -> None:
    assert deep_merge(tree, {}) == tree == deep_merge({}, tree) == deep_merge(tree, tree)


@given(_TREES, _TREES)
def test_every_key_of_both_is_there_and_leaves_of_the_upper_win(base: dict[str, Any], over: dict[str, Any]) -> None:
    merged = deep_merge(base, over)
    assert set(merged) == set(base) | set(over)
    for key, value in over.items():
        if not isinstance(value, dict) or not isinstance(base.get(key), dict):
            assert merged[key] == value


@given(_TREES, _TREES)
def test_inputs_are_not_changed_and_nothing_is_shared(base: dict[str, Any], over: dict[str, Any]) -> None:
    before = copy.deepcopy((base, over))
    merged = deep_merge(base, over)
    _spoil(merged)
    assert (base, over) == before


@given(_TREES, _TREES)
def test_merging_the_same_layer_twice_is_merging_it_once(base: dict[str, Any], over: dict[str, Any]) -> None:
    once = deep_merge(base, over)
    assert deep_merge(once, over) == once


def _spoil(tree: Any) -> None:
    if isinstance(tree, dict):
        for value in list(tree.values()):
            _spoil(value)
        tree["spoilt"] = True
    elif isinstance(tree, list):
        tree.append("spoilt")


def test_lists_and_null_replace() -> None:
    base = {"bench": {"concurrency": [1, 4]}, "gate": {"max_increase": 0.05}}
    assert deep_merge(base, {"bench": {"concurrency": [8]}, "gate": None}) == {
        "bench": {"concurrency": [8]},
        "gate": None,
    }


@pytest.mark.parametrize(
    ("text", "keys", "value"),
    [
        ("quantize.format=fp8", ("quantize", "format"), "fp8"),
        ("bench.concurrency=[1, 8]", ("bench", "concurrency"), [1, 8]),
        ("build.limits.max_seq_len=512", ("build", "limits", "max_seq_len"), 512),
        ("evals.perplexity.gate=null", ("evals", "perplexity", "gate"), None),
        ("evals.perplexity.gate=", ("evals", "perplexity", "gate"), None),
        ("model.source=pypi:a==1#b=c", ("model", "source"), "pypi:a==1#b=c"),
        ("waive.TF-K4-001=it is fine", ("waive", "TF-K4-001"), "it is fine"),
        ("model.allow_remote_code=true", ("model", "allow_remote_code"), True),
    ],
)
def test_override_values_are_yaml(text: str, keys: tuple[str, ...], value: object) -> None:
    assert parse_override(text) == (keys, value)


@pytest.mark.parametrize("text", ["quantize.format", "=fp8", "a..b=1", ".a=1", "", "extends=x.yaml"])
def test_malformed_overrides(text: str) -> None:
    with pytest.raises(ForgeError) as caught:
        parse_override(text)
    assert caught.value.code == "TF-RCP-010"
    assert caught.value.remedies


def test_an_override_through_a_value_is_refused() -> None:
    with pytest.raises(ForgeError) as caught:
        apply_overrides({"name": "x"}, ["name.first=1"])
    assert caught.value.code == "TF-RCP-010"
    assert caught.value.numbers == {"name": "x"}


def test_a_section_that_was_null_comes_back() -> None:
    assert apply_overrides({"gate": None}, ["gate.max_increase=5%"]) == {"gate": {"max_increase": "5%"}}


def test_later_overrides_win() -> None:
    assert apply_overrides({}, ["a.b=1", "a.c=2", "a.b=3"]) == {"a": {"b": 3, "c": 2}}
