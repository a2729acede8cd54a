"""``speculative_config`` by release: every key of a recipe under that release's name and shape, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.version import Version

from tests.triton_repo.test_llmapi_layout import recipe
from triton_repo.layouts import llmapi
from triton_repo.layouts.llmapi_settings import llm_arguments, serve_options
from triton_repo.lint.llm_arguments import load_arguments
from triton_repo.lint.run import lint_repository
from trtforge.ground.errors import ForgeError
from trtforge.recipe.llm_speculation import keys_asked, speculation_table
from trtforge.recipe.schema import Speculation
from trtforge.tables import stack_table

OLD, NEW = "trtllm-1.2.1", "trtllm-1.3"
CHAIN = {"method": "eagle3", "draft": "/d", "max_draft_len": 4}
MODEL = {"method": "draft_target", "draft": "/d", "max_draft_len": 3}
NGRAM = {"method": "ngram", "max_draft_len": 4}
TREE = {"method": "eagle3", "draft": "/d", "dynamic_tree": {"depth": 4, "top_k": 4, "total": 12}}
GATE = {"acceptance_rate_threshold": "0.4", "acceptance_rate_window_size": 50}
FIRST = {"decoding_type": "Eagle3", "max_draft_len": 4, "speculative_model": "d"}


def written(stack: str, **asked: Any) -> dict[str, Any]:
    settings = llm_arguments(recipe(speculation=asked, stack=stack), "m", draft="d")["speculative_config"]
    assert isinstance(settings, dict)
    return settings


def refused(stack: str, **asked: Any) -> ForgeError:
    with pytest.raises(ForgeError) as caught:
        written(stack, **asked)
    assert caught.value.code == "TF-TRI-065" and caught.value.remedies
    return caught.value


@pytest.mark.parametrize(
    ("stack", "asked", "expected"),
    [
        (
            NEW,
            TREE,
            {**FIRST, "use_dynamic_tree": True, "dynamic_tree_max_topK": 4, "max_total_draft_tokens": 12},
        ),
        (NEW, {**CHAIN, "max_concurrency": 8}, {**FIRST, "max_concurrency": 8}),
        (
            NEW,
            {**CHAIN, "draft_len_schedule": {16: 2, 4: 4}},
            {**FIRST, "draft_len_schedule": {4: 4, 16: 2}},
        ),
        (
            NEW,
            {**CHAIN, **GATE},
            {**FIRST, "acceptance_rate_threshold": 0.4, "acceptance_rate_window_size": 50},
        ),
        (NEW, {**CHAIN, "ngram_on_top": True}, {**FIRST, "sa_config": {"threshold": 2}}),
        (
            NEW,
            {**CHAIN, "ngram_on_top": True, "ngram": {"min_matching_ngram_size": 5}},
            {**FIRST, "sa_config": {"threshold": 5}},
        ),
        (
            NEW,
            {**NGRAM, "ngram": {"max_matching_ngram_size": 3, "min_matching_ngram_size": 1}, "max_concurrency": 4},
            {"decoding_type": "NGram", "max_draft_len": 4, "max_matching_ngram_size": 3, "max_concurrency": 4},
        ),
        (
            OLD,
            {**NGRAM, "draft_len_schedule": {4: 4, 16: 2}},
            {
                "decoding_type": "NGram",
                "max_draft_len": 4,
                "max_matching_ngram_size": 8,
                # lengths hold from their batch on here, and batch 1 has one
                "draft_len_schedule": {1: 4, 5: 2, 17: 0},
            },
        ),
        (
            OLD,
            {**MODEL, "max_concurrency": 8},
            {"decoding_type": "DraftTarget", "max_draft_len": 3, "speculative_model_dir": "d", "max_concurrency": 8},
        ),
    ],
)
def test_keys_have_the_release_s_names_and_shapes(stack: str, asked: dict[str, Any], expected: dict[str, Any]) -> None:
    assert written(stack, **asked) == expected


@pytest.mark.parametrize("batch", range(1, 40))
def test_both_ways_to_count_batches_draft_the_same(batch: int) -> None:
    asked = {**NGRAM, "draft_len_schedule": {3: 4, 8: 3, 9: 1, 32: 2}}
    older, newer = (written(stack, **asked)["draft_len_schedule"] for stack in (OLD, NEW))
    up_to = next((length for key, length in sorted(newer.items()) if batch <= key), 0)
    begun = [length for key, length in sorted(older.items()) if key <= batch]
    assert begun[-1] == up_to


@pytest.mark.parametrize(
    ("stack", "asked", "key"),
    [
        (OLD, TREE, "dynamic_tree"),
        (OLD, {**CHAIN, "max_concurrency": 8}, "max_concurrency"),
        (OLD, {**CHAIN, "draft_len_schedule": {4: 4}}, "draft_len_schedule"),
        (OLD, {**CHAIN, "ngram_on_top": True}, "ngram_on_top"),
        (OLD, {**CHAIN, **GATE}, "acceptance_rate_threshold"),
        (OLD, {**NGRAM, **GATE}, "acceptance_rate_window_size"),
        (NEW, {**NGRAM, **GATE}, "acceptance_rate_threshold"),
        (NEW, {**CHAIN, "choices": [[0], [1], [0, 0]]}, "choices"),
        (NEW, {**MODEL, "ngram_on_top": True}, "ngram_on_top"),
        (NEW, {**TREE, "ngram_on_top": True}, "ngram_on_top"),
        (NEW, {**TREE, "max_concurrency": 8}, "max_concurrency"),
        (NEW, {**TREE, "draft_len_schedule": {4: 4}}, "draft_len_schedule"),
        (NEW, {**TREE, **GATE}, "acceptance_rate_threshold"),
        (NEW, {**CHAIN, "ngram_on_top": True, "ngram": {"max_matching_ngram_size": 6}}, "max_matching_ngram_size"),
        (NEW, {**CHAIN, "ngram": {"min_matching_ngram_size": 3}}, "min_matching_ngram_size"),
        (NEW, {**NGRAM, "ngram": {"min_matching_ngram_size": 3}}, "min_matching_ngram_size"),
        (NEW, {**TREE, "dynamic_tree": {"depth": 4, "top_k": 4, "total": 17}}, "dynamic_tree"),
        (NEW, {**CHAIN, "draft_len_schedule": {4: 3, 8: 4}}, "draft_len_schedule"),
    ],
)
def test_what_a_release_would_not_follow_is_refused_by_name(stack: str, asked: dict[str, Any], key: str) -> None:
    error = refused(stack, **asked)
    assert key in (error.why or "")


def test_every_key_of_the_recipe_s_section_has_a_place() -> None:
    """A key that the schema gains is written, refused or known not to ask for anything."""
    other = {"method", "draft", "max_draft_len", "heads", "lookahead", "adaptive", "ngram"}
    table = {row.key for row in speculation_table().lacks}
    sizes = {f"ngram.{name}" for name in type(Speculation().ngram).model_fields}
    assert table == (set(Speculation.model_fields) - other) | sizes
    assert keys_asked(Speculation()) == {}


@pytest.mark.parametrize("stack", [OLD, NEW])
def test_names_are_those_that_lint_knows(stack: str) -> None:
    lint, version = load_arguments(), Version(_version(stack))
    names = speculation_table().named(version)
    assert names.draft in lint.known["speculative_config"]
    for kind in names.types.values():
        row = lint.decoding_types[kind]
        assert row.since is None or version >= Version(f"{row.since}rc0")
        assert row.until is None or version < Version(f"{row.until}.99")
    for asked in (CHAIN, MODEL, NGRAM):
        assert set(written(stack, **asked)) <= set(lint.known["speculative_config"])
    if stack == NEW:
        for more in (TREE, {**CHAIN, **GATE, "ngram_on_top": True, "draft_len_schedule": {4: 4}}):
            assert set(written(stack, **more)) <= set(lint.known["speculative_config"])


def _version(stack: str) -> str:
    row = stack_table().row(stack)
    version = row.version_of("TensorRT-LLM") if row is not None else None
    assert version is not None
    return version


def test_the_server_s_file_says_the_same() -> None:
    asked = recipe(speculation={**CHAIN, "draft_len_schedule": {4: 4, 16: 2}}, stack=NEW)
    text = serve_options(asked, "m", draft="d", taps=(2, 5, 9)).file_text
    config = yaml.safe_load(text)["speculative_config"]
    assert config == llm_arguments(asked, "m", draft="d", taps=(2, 5, 9))["speculative_config"]
    assert config["eagle3_layers_to_capture"] == [2, 5, 9] and config["draft_len_schedule"] == {4: 4, 16: 2}


WRITTEN = [
    (NEW, TREE),
    (NEW, {**CHAIN, **GATE, "ngram_on_top": True, "draft_len_schedule": {4: 4, 16: 2, 32: 0}}),
    (NEW, {**CHAIN, "max_concurrency": 8}),
    (NEW, {**NGRAM, "draft_len_schedule": {1: 4, 2: 1}}),
    (NEW, {**MODEL, **GATE}),
    (OLD, CHAIN),
    (OLD, {**NGRAM, "draft_len_schedule": {4: 4, 16: 2}}),
    (OLD, {**MODEL, "max_concurrency": 8}),
]


@pytest.mark.parametrize(("stack", "asked"), WRITTEN)
def test_lint_has_nothing_against_what_is_written(stack: str, asked: dict[str, Any], tmp_path: Path) -> None:
    llmapi.emit(recipe(speculation=asked, stack=stack), tmp_path / "r", draft_reference="/d", taps=(2, 5, 9))
    found = [item for item in lint_repository(tmp_path / "r").findings if "speculative" in item.message + item.title]
    assert [(item.code, item.message) for item in found] == []


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ("decoding_type: MTP", None),
        ("decoding_type: MTP, max_draft_len: 3", None),
        ("decoding_type: NGram, max_draft_len: 1", None),
        ("decoding_type: NGram, max_draft_len: 4, draft_len_schedule: {8: 4, 64: 4}", None),
        ("decoding_type: NGram, max_draft_len: 4, draft_len_schedule: {64: 4, 8: 3}", "TF-TRI-265"),
        ("decoding_type: NGram, max_draft_len: 4, draft_len_schedule: off", None),
        ("decoding_type: Eagle3, speculative_model: /d, max_draft_len: 4, use_dynamic_tree: true", "TF-TRI-266"),
        (
            "decoding_type: Eagle3, speculative_model: /d, max_draft_len: 4, use_dynamic_tree: true, "
            "dynamic_tree_max_topK: 4, max_total_draft_tokens: 4",
            None,
        ),
        (
            "decoding_type: Eagle3, speculative_model: /d, max_draft_len: 4, use_dynamic_tree: true, "
            "dynamic_tree_max_topK: 4, max_total_draft_tokens: 3",
            "TF-TRI-266",
        ),
        ("decoding_type: Eagle3, speculative_model: /d, max_draft_len: 2, eagle_choices: [[1], [0], [1, 0]]", None),
        (
            "decoding_type: MTP, max_draft_len: 3, acceptance_rate_threshold: 1.0, acceptance_rate_window_size: 1",
            None,
        ),
        ("decoding_type: MTP, max_draft_len: 3, acceptance_rate_window_size: 8", None),
        ("decoding_type: MTP, acceptance_rate_threshold: -0.1, acceptance_rate_window_size: 8", "TF-TRI-225"),
        ("decoding_type: MTP, acceptance_rate_threshold: 0.1", "TF-TRI-267"),
        ("decoding_type: SA, max_draft_len: 3, max_matching_ngram_size: -1", None),
    ],
)
def test_lint_knows_the_borders_of_llm_s_own_checks(lines: str, code: str | None, tmp_path: Path) -> None:
    llmapi.emit(recipe(), tmp_path / "r")
    path = tmp_path / "r" / "tensorrt_llm" / "1" / "model.yaml"
    path.write_text(path.read_text() + f"speculative_config: {{{lines}}}\n")
    rules = ("TF-TRI-225", "TF-TRI-265", "TF-TRI-266", "TF-TRI-267")
    assert {item.code for item in lint_repository(tmp_path / "r").findings if item.code in rules} == ({code} - {None})
