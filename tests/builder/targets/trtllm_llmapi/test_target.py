"""The trtllm-llmapi target: the checkpoint as it is, and the settings that server and LLM() share."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from builder.targets import engine_info, read_engine
from builder.targets.trtllm.settings import LlmSettings
from builder.targets.trtllm_llmapi import target as llmapi_target
from tests.builder.targets.trtllm.test_checkpoint import make
from tests.support.tiny import write_tiny_llama
from trtforge.ground.errors import ForgeError
from trtforge.recipe.schema import Build, Speculation

SETTINGS = LlmSettings(
    {"model": "checkpoint"}, ("trtllm-serve", "checkpoint", "--host", "127.0.0.1"), "o.yaml", "a: 1\n"
)
DRAFTING = LlmSettings(
    {"model": "checkpoint", "speculative_config": {"decoding_type": "Draft_Target", "speculative_model": "draft"}},
    ("trtllm-serve", "checkpoint"),
    "o.yaml",
    "a: 1\n",
)


def build(checkpoint: Path, out: Path, settings: LlmSettings = SETTINGS, **options: Any) -> dict[str, Any]:
    asked = Build.model_validate({"target": "trtllm-llmapi", "parallel": {"tp": 2}})
    return llmapi_target.build_engine(checkpoint, out, name="tiny", build=asked, settings=settings, **options)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "model"
    make(folder, "fp8")
    return folder


def test_the_artifact_carries_the_checkpoint_and_the_settings(checkpoint: Path, tmp_path: Path) -> None:
    engine = build(checkpoint, tmp_path / "out")
    out = tmp_path / "out"
    assert engine == read_engine(out) and engine["compiled"] is False
    assert engine["llm_args"] == {"model": "checkpoint"} and engine["stack"] == "trtllm-1.3"
    for name in ("model.safetensors", "config.json", "hf_quant_config.json", "tokenizer.json"):
        assert (out / "checkpoint" / name).read_bytes() == (checkpoint / name).read_bytes()
    assert (out / "tokenizer.json").is_file() and (out / "o.yaml").read_text() == "a: 1\n"
    assert shlex.split(engine_info(out)["serve_command"]) == list(SETTINGS.command)
    assert engine["kv_cache"] == {"format": "fp8", "block_size": 32}
    # 3 layers, 4 KV heads over 2 ranks, 64 values, one byte each, keys and values
    assert engine["kv_bytes_per_token"] == 2 * 3 * 2 * 64


def test_a_draft_model_travels_along(checkpoint: Path, tmp_path: Path) -> None:
    draft = write_tiny_llama(tmp_path / "draft", layers=1)
    spoken = Speculation(method="draft_target", draft="draft", max_draft_len=3)
    engine = build(checkpoint, tmp_path / "out", DRAFTING, speculation=spoken, draft=draft)
    assert "drafter" not in engine
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "out" / "draft" / name).read_bytes() == (draft / name).read_bytes()
    with pytest.raises(ForgeError) as caught:
        build(checkpoint, tmp_path / "other", DRAFTING, speculation=spoken)
    assert caught.value.code == "TF-BLD-044" and not (tmp_path / "other" / "engine.json").exists()


def test_a_stack_that_builds_engines_only_is_no_stack_of_it(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(ForgeError) as caught:
        build(checkpoint, tmp_path / "out", stack="torch-2.13")
    assert caught.value.code == "TF-BLD-043"


def test_a_window_that_the_model_does_not_read_is_refused(tmp_path: Path) -> None:
    """Only a window that is shorter than max_seq_len (2048 where a recipe says nothing) changes what is computed."""
    model = {"architecture": "Qwen2ForCausalLM", "max_window_layers": 1, "max_positions": 8192}
    source = write_tiny_llama(tmp_path / "short", sliding_window=64, **model)
    with pytest.raises(ForgeError) as caught:
        build(source, tmp_path / "out")
    assert caught.value.code == "TF-BLD-069" and not (tmp_path / "out" / "checkpoint").exists()
    source = write_tiny_llama(tmp_path / "long", sliding_window=4096, **model)
    assert build(source, tmp_path / "out")["architecture"] == "Qwen2ForCausalLM"
