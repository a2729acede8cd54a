"""The engine's record of speculation: written, read back, refused where it makes no sense."""

from __future__ import annotations

from typing import Any

import pytest

from builder.speculation import record_of
from trtforge.drafting.record import DRAFT_DIR, read_speculation
from trtforge.ground.errors import ForgeError
from trtforge.recipe.schema import Speculation

RECIPES: dict[str, dict[str, Any]] = {
    "ngram": {"method": "ngram", "max_draft_len": 8, "ngram": {"min_matching_ngram_size": 3}},
    "chain": {"method": "eagle3", "draft": "head", "max_draft_len": 4, "adaptive": False, "max_concurrency": 8},
    "static tree": {"method": "eagle3", "draft": "head", "choices": [[0], [1], [0, 0]], "ngram_on_top": True},
    "dynamic tree": {"method": "eagle3", "draft": "head", "dynamic_tree": {"depth": 4, "top_k": 4, "total": 16}},
    "model": {
        "method": "draft_target",
        "draft": "small",
        "max_draft_len": 4,
        "draft_len_schedule": {8: 2, 4: 4},
        "acceptance_rate_threshold": "20%",
        "acceptance_rate_window_size": 64,
    },
}


@pytest.mark.parametrize("name", RECIPES)
def test_what_is_written_is_read_back(name: str) -> None:
    speculation = Speculation.model_validate(RECIPES[name])
    taps = (2, 4, 6) if speculation.method == "eagle3" else ()
    record = record_of(speculation, taps=taps, drafter={"dialect": "specforge"})
    assert record is not None
    assert read_speculation({"speculation": record.to_json()}) == record
    assert record.draft == (None if name == "ngram" else DRAFT_DIR)
    assert (record.ngram is not None) is (name in ("ngram", "static tree"))


def test_lengths_follow_the_tree() -> None:
    grown = record_of(Speculation.model_validate(RECIPES["dynamic tree"]), taps=(1, 2, 3))
    fixed = record_of(Speculation.model_validate(RECIPES["static tree"]), taps=(1, 2, 3))
    assert grown is not None and (grown.max_draft_len, grown.most_tokens) == (4, 16)
    assert fixed is not None and (fixed.max_draft_len, fixed.most_tokens) == (2, 3)
    model = record_of(Speculation.model_validate(RECIPES["model"]))
    assert model is not None and model.policy.draft_len_schedule == ((4, 4), (8, 2))


def test_engines_without_a_record_draft_nothing() -> None:
    assert read_speculation({}) is None
    assert record_of(Speculation()) is None


@pytest.mark.parametrize(
    "keys", [{"method": "medusa", "draft": "x", "max_draft_len": 4}, {"method": "eagle3", "draft": "x"}]
)
def test_what_the_runtime_has_not_is_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ForgeError) as caught:
        record_of(Speculation.model_validate(keys))
    assert caught.value.code == "TF-BLD-120" and caught.value.remedies


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("ngram", {"version": 2}),
        ("ngram", {"method": "lookahead"}),
        ("ngram", {"ngram": None}),
        ("ngram", {"max_draft_len": 0}),
        ("ngram", {"draft": "../elsewhere"}),
        ("chain", {"draft": None}),
        ("chain", {"taps": []}),
        ("chain", {"taps": [1, -2]}),
        ("model", {"taps": [1, 2, 3]}),
        ("model", {"policy": {"draft_len_schedule": [[8, 2], [4, 4]]}}),
        ("static tree", {"tree": {"kind": "static", "choices": []}}),
        ("static tree", {"tree": {"kind": "wild"}}),
        ("model", {"tree": {"kind": "dynamic", "depth": 2, "top_k": 2, "total": 4}}),
        ("model", {"policy": []}),
        ("model", {"policy": {"draft_len_schedule": 5}}),
        ("model", {"policy": {"draft_len_schedule": "ab"}}),
        ("model", {"policy": {"draft_len_schedule": [5]}}),
        ("model", {"policy": {"acceptance_rate_threshold": True}}),
        ("model", {"policy": {"acceptance_rate_threshold": float("nan")}}),
        ("chain", {"drafter": 1}),
        ("chain", {"drafter": [1]}),
        ("chain", {"drafter": "head"}),
        ("static tree", {"tree": {"kind": "static", "choices": 5}}),
        ("static tree", {"tree": {"kind": "static", "choices": {"0": [0]}}}),
        ("static tree", {"tree": {"kind": "dynamic", "depth": 17, "top_k": 2, "total": 20}}),
        ("static tree", {"tree": {"kind": "dynamic", "depth": 2, "top_k": 10**9, "total": 20}}),
        ("static tree", {"tree": {"kind": "dynamic", "depth": 2, "top_k": 2, "total": 64}}),
    ],
)
def test_records_that_make_no_sense_are_named(name: str, change: dict[str, Any]) -> None:
    speculation = Speculation.model_validate(RECIPES[name])
    record = record_of(speculation, taps=(2, 4, 6) if speculation.method == "eagle3" else ())
    assert record is not None
    with pytest.raises(ValueError, match="speculation"):
        read_speculation({"speculation": {**record.to_json(), **change}})
