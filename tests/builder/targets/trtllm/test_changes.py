"""What trtllm-build changes by itself: the flags say it beforehand, and an engine that has it is what was asked."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from builder.targets import engine_info
from builder.targets.trtllm.changes import has_fp8_attention, recorded, settled
from builder.targets.trtllm.flags import settings_of
from builder.targets.trtllm_engine import target as engine_target
from tests.builder.targets.trtllm.fake_trtllm import install
from tests.builder.targets.trtllm.test_checkpoint import make
from trtforge.recipe.schema import Build, Speculation

LIMITS = {"max_batch_size": 4, "max_num_tokens": 256, "max_seq_len": 768}
#: made checkpoint (format, FP8 KV cache), architecture → paged and FP8 context attention of the engine
CASES = [
    ("fp8", True, "sm_90", True, True),
    ("fp8", True, "sm_100", True, True),
    ("fp8", False, "sm_90", True, False),
    ("fp8", True, "sm_86", False, False),
    ("nvfp4", True, "sm_100", True, True),
    ("int4_awq", True, "sm_90", False, False),
    ("int4_awq", False, "sm_90", True, False),
    ("none", False, "sm_80", True, False),
]


def build(folder: Path, out: Path, **change: Any) -> dict[str, Any]:
    asked = Build.model_validate({"target": "trtllm-engine", "limits": LIMITS, **change})
    return engine_target.build_engine(folder, out, name="tiny", build=asked)


def value_of(words: list[str], flag: str) -> str:
    return words[words.index(flag) + 1]


@pytest.mark.parametrize("fp8_asked", [False, True])
@pytest.mark.parametrize(("form", "kv", "architecture", "paged", "fp8"), CASES)
def test_flags_engine_and_read_back_agree(
    tmp_path: Path, form: str, kv: bool, architecture: str, paged: bool, fp8: bool, fp8_asked: bool
) -> None:
    """build.sh against a command that behaves as builder.py does: nothing of it is a surprise."""
    make(tmp_path / "model", form, kv=kv)
    wish = {"architectures": [architecture], "trtllm": {"fp8_context_attention": fp8_asked}}
    engine = build(tmp_path / "model", tmp_path / "out", **wish)
    words = engine["arguments"]
    assert value_of(words, "--use_paged_context_fmha") == ("enable" if paged else "disable")
    assert value_of(words, "--use_fp8_context_fmha") == ("enable" if fp8 else "disable")
    changed = {row["setting"] for row in engine["changed_by_builder"]}
    assert changed == {
        *(["use_fp8_context_fmha"] if fp8 != fp8_asked else []),
        *([] if paged else ["use_paged_context_fmha"]),
    }
    environment = {**os.environ, **install(tmp_path / "machine"), "FAKE_SM": architecture.removeprefix("sm_")}
    subprocess.run(["sh", str(tmp_path / "out" / "build.sh")], env=environment, capture_output=True, check=True)
    assert engine_info(tmp_path / "out")["findings"] == []


def test_an_artifact_whose_flags_said_otherwise_still_reads_back(tmp_path: Path) -> None:
    """Engines built from earlier artifacts, whose words asked for FP8 context attention to be off."""
    make(tmp_path / "model", "fp8", kv=True)
    out = tmp_path / "out"
    engine = build(tmp_path / "model", out)
    engine["settings"]["use_fp8_context_fmha"] = False
    del engine["architectures"], engine["changed_by_builder"]
    (out / "engine.json").write_text(json.dumps(engine))
    environment = {**os.environ, **install(tmp_path / "machine")}
    subprocess.run(["sh", str(out / "build.sh")], env=environment, capture_output=True, check=True)
    assert engine_info(out)["findings"] == []


@pytest.mark.parametrize(("tokens", "becomes"), [(256, 256), (4000, 3072), (3072, 3072), (8, 32)])
def test_the_step_s_tokens_are_clipped_as_the_builder_does(tokens: int, becomes: int) -> None:
    asked = settings_of(Build.model_validate({"limits": {**LIMITS, "max_num_tokens": tokens}}), Speculation())
    found, changed = settled(asked, {})
    assert found["max_num_tokens"] == becomes and bool(changed) == (tokens != becomes)
    assert settled(found, {}) == (found, [])


def test_room_for_drafts_is_added_after_the_clip() -> None:
    build = Build.model_validate({"limits": {**LIMITS, "max_num_tokens": 32}})
    asked = settings_of(build, Speculation(method="draft_target", draft="d", max_draft_len=9))
    said = recorded(asked, {})
    assert said["max_seq_len"] == 777 and said["max_num_tokens"] == 40


@pytest.mark.parametrize(
    ("names", "has"), [([], True), (["sm_86"], False), (["sm_89"], True), (["sm_80", "sm_90"], True)]
)
def test_fp8_attention_by_architecture(names: list[str], has: bool) -> None:
    assert has_fp8_attention(names) is has


@pytest.mark.parametrize(
    ("paged", "quantization"),
    [
        (False, {}),
        (True, {"quant_algo": "W4A16_AWQ", "kv_cache_quant_algo": "FP8"}),
        (True, {"quant_algo": "W8A16", "kv_cache_quant_algo": "INT8"}),
        (False, {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}),
    ],
)
def test_eagle_has_paged_context_attention_whatever_turned_it_off(paged: bool, quantization: dict[str, str]) -> None:
    asked = {"use_paged_context_fmha": paged, "use_fp8_context_fmha": False, "speculative_decoding_mode": "eagle"}
    said = recorded(asked, {"quantization": quantization}, ["sm_90"])
    assert said["use_paged_context_fmha"] is True and said["use_fp8_context_fmha"] is False
