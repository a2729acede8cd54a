"""Flags of trtllm-build: rows by version, and what a recipe becomes."""

from __future__ import annotations

from typing import Any

import pytest

from builder.targets.trtllm.flags import (
    FlagTable,
    build_arguments,
    flag_table,
    flags_of,
    lookahead_draft_len,
    settings_of,
)
from trtforge.ground.errors import ForgeError
from trtforge.recipe.keys import find_key
from trtforge.recipe.schema import Build, Lookahead, Speculation


def arguments(build: dict[str, Any] | None = None, speculation: dict[str, Any] | None = None) -> list[str]:
    settings = settings_of(Build.model_validate(build or {}), Speculation.model_validate(speculation or {}))
    return build_arguments("1.2.1", settings)


def value_of(words: list[str], flag: str) -> str | None:
    return words[words.index(flag) + 1] if flag in words else None


def test_rows_name_real_settings_keys_and_flags_once() -> None:
    table = flag_table()
    flags = [row.flag for row in table.flags]
    assert len(set(flags)) == len(flags)
    full = {"lora": {"adapters": {"a": "b"}}, "gather_context_logits": True, "timing_cache": "x"}
    settings = settings_of(Build.model_validate({"trtllm": full}), Speculation(), "cache")
    assert {row.setting for row in table.flags} - {"output_timing_cache"} == set(settings)
    assert all(find_key(tuple(row.key.split("."))) for row in table.flags if row.key)
    for row in table.flags:
        assert row.config is None or row.config.startswith("build_config.")


def test_a_recipe_without_wishes_says_everything_that_shapes_the_engine() -> None:
    words = arguments()
    assert value_of(words, "--max_batch_size") == "32"
    assert value_of(words, "--max_seq_len") == "2048" and value_of(words, "--max_input_len") == "2047"
    assert value_of(words, "--kv_cache_type") == "paged" and value_of(words, "--tokens_per_block") == "32"
    assert value_of(words, "--use_paged_context_fmha") == "enable"
    assert value_of(words, "--use_fp8_context_fmha") == "disable"  # on by default in 1.2
    for absent in ("--speculative_decoding_mode", "--lora_plugin", "--gather_context_logits", "--input_timing_cache"):
        assert absent not in words


def test_every_wish_becomes_its_flag() -> None:
    words = arguments(
        {
            "limits": {"max_batch_size": 8, "max_num_tokens": 512, "max_seq_len": 1024, "max_input_len": 900},
            "kv_cache": {"block_size": 64},
            "trtllm": {
                "paged_context_attention": False,
                "fp8_context_attention": True,
                "max_beam_width": 4,
                "gather_context_logits": True,
                "gather_generation_logits": True,
                "lora": {"max_rank": 16, "target_modules": ["attn_q", "attn_v"]},
                "workers": 2,
            },
        }
    )
    assert value_of(words, "--max_input_len") == "900" and value_of(words, "--tokens_per_block") == "64"
    assert value_of(words, "--use_paged_context_fmha") == "disable"
    assert value_of(words, "--use_fp8_context_fmha") == "enable"
    assert value_of(words, "--max_beam_width") == "4" and value_of(words, "--workers") == "2"
    assert "--gather_context_logits" in words and "--gather_generation_logits" in words
    place = words.index("--lora_target_modules")
    assert words[place + 1 : place + 3] == ["attn_q", "attn_v"]
    assert value_of(words, "--lora_plugin") == "auto" and value_of(words, "--max_lora_rank") == "16"


@pytest.mark.parametrize(
    ("speculation", "mode", "length"),
    [
        ({"method": "draft_target", "max_draft_len": 5}, "draft_tokens_external", "5"),
        ({"method": "medusa", "max_draft_len": 63}, "medusa", "63"),
        ({"method": "eagle", "max_draft_len": 63}, "eagle", "63"),
        (
            {"method": "lookahead", "lookahead": {"window": 7, "ngram": 7, "verification": 7}},
            "lookahead_decoding",
            "83",
        ),
    ],
)
def test_speculation_modes(speculation: dict[str, Any], mode: str, length: str) -> None:
    words = arguments(speculation=speculation)
    assert value_of(words, "--speculative_decoding_mode") == mode and value_of(words, "--max_draft_len") == length


def test_lookahead_lengths_are_the_examples_of_tensorrt_llm() -> None:
    # https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/examples/lookahead/README.md: (7, 7, 7) needs 83
    assert lookahead_draft_len(Lookahead(window=7, ngram=7, verification=7)) == 83
    assert lookahead_draft_len(Lookahead(window=1, ngram=1, verification=1)) == 0


@pytest.mark.parametrize(
    ("speculation", "code"),
    [
        ({"method": "ngram", "max_draft_len": 3}, "TF-BLD-041"),
        ({"method": "eagle3", "max_draft_len": 3}, "TF-BLD-041"),
        ({"method": "draft_target"}, "TF-BLD-042"),
    ],
)
def test_speculation_that_cannot_be_is_refused(speculation: dict[str, Any], code: str) -> None:
    with pytest.raises(ForgeError) as caught:
        arguments(speculation=speculation)
    assert caught.value.code == code and caught.value.remedies


def test_no_room_for_an_answer_is_refused() -> None:
    with pytest.raises(ForgeError) as caught:
        arguments({"limits": {"max_seq_len": 100, "max_input_len": 100}})
    assert caught.value.code == "TF-BLD-013"


def test_unknown_versions_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ForgeError) as caught:
        flags_of("1.3.0rc22")
    assert caught.value.code == "TF-BLD-040"
    assert caught.value.numbers["known"] == ["1.2.0", "1.2.1"]


def test_flags_come_and_go_with_versions() -> None:
    rows = [
        {"flag": "--old", "setting": "a", "kind": "value", "key": None, "config": None, "removed": "2.0"},
        {"flag": "--new", "setting": "a", "kind": "value", "key": None, "config": None, "since": "2.0"},
    ]
    source = {"url": "https://example.com/x", "says": "y"}
    table = FlagTable.model_validate(
        {"versions": ["1.9", "2.0", "2.1rc1"], "sources": [source], "flags": rows, "speculation": []}
    )
    assert [flag.flag for flag in table.flags if flag.exists_in("1.9")] == ["--old"]
    assert [flag.flag for flag in table.flags if flag.exists_in("2.0")] == ["--new"]
    assert [flag.flag for flag in table.flags if flag.exists_in("2.1rc1")] == ["--new"]
