"""Engine directories read back: everything that was asked is compared, and what is no engine is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from builder.targets import read_engine
from builder.targets.trtllm.flags import settings_of
from builder.targets.trtllm.readback import compare_engine, is_trtllm_engine, read_trtllm_engine
from tests.builder.targets.trtllm.fake_trtllm import write_engine
from triton_repo.layouts import native
from triton_repo.trtllm_engine import describe_engine
from trtforge.ground.errors import ForgeError
from trtforge.recipe.schema import Build, Speculation

CHECKPOINT = {
    "architecture": "LlamaForCausalLM",
    "dtype": "bfloat16",
    "vocab_size": 512,
    "num_hidden_layers": 2,
    "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
    "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "group_size": 128, "has_zero_point": False},
}


def expected(build: dict[str, Any] | None = None, speculation: dict[str, Any] | None = None) -> dict[str, Any]:
    settings = settings_of(Build.model_validate(build or {}), Speculation.model_validate(speculation or {}))
    return {"version": "1.2.1", "settings": settings, "checkpoint": CHECKPOINT}


def test_an_engine_as_asked_has_no_findings(tmp_path: Path) -> None:
    engine = read_trtllm_engine(write_engine(tmp_path / "engine"))
    assert compare_engine(engine, expected()) == []
    shown = engine.to_json()
    assert shown["settings"]["max_batch_size"] == 32 and shown["ranks"] == {"0": 4}
    assert is_trtllm_engine(tmp_path / "engine") and not is_trtllm_engine(tmp_path)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"version": "1.2.0"}, "TF-BLD-062"),
        ({"build_config.max_batch_size": 16}, "TF-BLD-063"),
        ({"build_config.max_input_len": 1024}, "TF-BLD-063"),
        ({"build_config.kv_cache_type": "CONTINUOUS"}, "TF-BLD-063"),
        ({"build_config.plugin_config.tokens_per_block": 64}, "TF-BLD-063"),
        ({"build_config.plugin_config.use_paged_context_fmha": False}, "TF-BLD-063"),
        ({"build_config.plugin_config.use_fp8_context_fmha": False}, "TF-BLD-063"),
        ({"build_config.max_num_tokens": None}, "TF-BLD-063"),
        ({"pretrained_config.dtype": "float16"}, "TF-BLD-064"),
        ({"pretrained_config.quantization.kv_cache_quant_algo": None}, "TF-BLD-064"),
        ({"pretrained_config.num_hidden_layers": 3}, "TF-BLD-064"),
    ],
)
def test_each_difference_has_its_code(tmp_path: Path, change: dict[str, Any], code: str) -> None:
    engine = read_trtllm_engine(write_engine(tmp_path, change))
    findings = compare_engine(engine, expected())
    assert [finding.code for finding in findings] == [code], findings
    assert findings[0].to_json()["message"]


def test_speculation_is_compared_by_the_mode_s_number(tmp_path: Path) -> None:
    wish = {"method": "lookahead"}
    asked = expected(speculation=wish)
    length = asked["settings"]["max_draft_len"]
    room = {"build_config.max_seq_len": 2048 + length}  # what the builder adds by itself
    change = {"build_config.speculative_decoding_mode": 8, "build_config.max_draft_len": length, **room}
    assert compare_engine(read_trtllm_engine(write_engine(tmp_path / "a", change)), asked) == []
    other = read_trtllm_engine(write_engine(tmp_path / "b", {**change, "build_config.speculative_decoding_mode": 4}))
    assert [finding.code for finding in compare_engine(other, asked)] == ["TF-BLD-063"]


def test_rank_files_are_counted(tmp_path: Path) -> None:
    write_engine(tmp_path, ranks=2)
    (tmp_path / "rank1.engine").unlink()
    (tmp_path / "rank0.engine").write_bytes(b"")
    (tmp_path / "rank7.engine").write_bytes(b"plan")
    messages = [f.message for f in compare_engine(read_trtllm_engine(tmp_path), {}) if f.code == "TF-BLD-061"]
    assert messages == [
        "rank1.engine is missing",
        "rank7.engine is of no rank: there are 2",
        "rank0.engine is empty",
    ]


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"version": 1, "pretrained_config": [], "build_config": {}}'])
def test_what_is_no_engine_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(ForgeError) as caught:
        read_trtllm_engine(tmp_path)
    assert caught.value.code == "TF-BLD-060"


def codes(directory: Path, asked: dict[str, Any] | None = None) -> set[str]:
    return {finding.code for finding in compare_engine(read_trtllm_engine(directory), asked or {})}


@pytest.mark.parametrize(
    "change",
    [
        {"pretrained_config.mapping": "x"},
        {"pretrained_config.mapping": [1]},
        {"pretrained_config.quantization": "FP8"},
        {"pretrained_config.mapping.world_size": "two"},
        {"pretrained_config.mapping.world_size": 0},
        {"pretrained_config.mapping.world_size": True},
        {"pretrained_config.mapping.tp_size": "x"},
        {"pretrained_config.mapping": {"world_size": 1, "tp_size": 2, "pp_size": 2}},
        {"pretrained_config.mapping.cp_size": 2},
    ],
)
def test_a_configuration_that_contradicts_itself_is_a_finding(tmp_path: Path, change: dict[str, Any]) -> None:
    write_engine(tmp_path, change)
    assert "TF-BLD-065" in codes(tmp_path)
    assert "TF-BLD-065" in codes(tmp_path, expected())
    assert read_trtllm_engine(tmp_path).to_json()["ranks"] == {"0": 4}


def test_a_context_parallel_engine_is_whole(tmp_path: Path) -> None:
    write_engine(tmp_path, {"pretrained_config.mapping": {"world_size": 4, "tp_size": 2, "cp_size": 2}}, ranks=4)
    assert codes(tmp_path) == set()
    write_engine(tmp_path / "old", {"pretrained_config.mapping": None})
    assert codes(tmp_path / "old") == set()


@pytest.mark.parametrize("world", [30_000_000, 10**30])
def test_a_world_beyond_counting_is_answered_at_once(tmp_path: Path, world: int) -> None:
    write_engine(tmp_path, {"pretrained_config.mapping": {"world_size": world, "tp_size": world, "pp_size": 1}})
    messages = [finding.message for finding in compare_engine(read_trtllm_engine(tmp_path), {})]
    assert messages[0] == "rank1.engine is missing"
    assert messages[-1] == f"and {world - 9} plans of other ranks are missing"
    assert len(messages) == 9


def test_an_engine_without_plans_or_with_strangers_is_not_whole(tmp_path: Path) -> None:
    write_engine(tmp_path)
    (tmp_path / "rank0.engine").unlink()
    (tmp_path / "rank00.engine").write_bytes(b"plan")
    assert codes(tmp_path) == {"TF-BLD-061"}


def test_plans_alone_look_like_an_engine_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "rank0.engine").write_bytes(b"plan")
    assert is_trtllm_engine(tmp_path)
    for text in ("{", "[" * 200_000):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(ForgeError, match="TF-BLD-060"):
            read_trtllm_engine(tmp_path)


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    os.mkfifo(tmp_path / "engine.json")
    assert not is_trtllm_engine(tmp_path)
    with pytest.raises(ForgeError, match="TF-BLD-060"):
        read_trtllm_engine(tmp_path)
    with pytest.raises(ForgeError, match="TF-BLD-020"):
        read_engine(tmp_path)
    with pytest.raises(ForgeError, match="TF-TRI-002"):
        native.read_engine(tmp_path)
    with pytest.raises(ForgeError, match="TF-TRI-063"):
        describe_engine(tmp_path)
