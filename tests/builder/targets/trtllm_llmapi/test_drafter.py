"""A drafter of any dialect reaches the ``trtllm-llmapi`` artifact in the one that its TensorRT-LLM loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from builder.targets.trtllm.settings import LlmSettings
from builder.targets.trtllm_llmapi import target as llmapi_target
from tests.support.tiny import write_tiny_llama
from tests.trtforge.drafting import checkpoints
from tests.trtforge.drafting.checkpoints import TARGET_LAYERS, WIDTH, Spec, write
from trtforge.drafting.inspection import inspect_folder
from trtforge.drafting.statements import RECORD
from trtforge.ground.errors import ForgeError
from trtforge.ground.safetensors_header import read_headers
from trtforge.recipe.schema import Build, Speculation

SPOKEN = Speculation(method="eagle3", draft="drafter", max_draft_len=3)
SETTINGS = LlmSettings(
    {"model": "checkpoint", "speculative_config": {"decoding_type": "Eagle3", "speculative_model": "draft"}},
    ("trtllm-serve", "checkpoint"),
    "o.yaml",
    "a: 1\n",
)
SHIFTED, FORMATS = (2, 5, 9), ("specforge", "speculators", "modelopt", "tensorrt-llm")


@pytest.fixture(autouse=True)
def _vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drafters are for the tiny model's vocabulary."""
    monkeypatch.setattr(checkpoints, "VOCAB", 512)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "target", layers=TARGET_LAYERS, width=WIDTH)


def build(target: Path, draft: Path, out: Path, stack: str | None = None) -> dict[str, Any]:
    asked = Build.model_validate({"target": "trtllm-llmapi"})
    return llmapi_target.build_engine(
        target, out, name="tiny", build=asked, settings=SETTINGS, speculation=SPOKEN, stack=stack, draft=draft
    )


@pytest.mark.parametrize("dialect", FORMATS)
@pytest.mark.parametrize("stack", ["trtllm-1.3", "trtllm-1.2.1"])
def test_the_artifact_holds_the_drafter_in_the_dialect_that_is_loaded(
    dialect: str, stack: str, target: Path, tmp_path: Path
) -> None:
    draft = write(tmp_path / "drafter", Spec(dialect, taps=SHIFTED))
    engine = build(target, draft, tmp_path / "out", stack)
    placed = inspect_folder(tmp_path / "out" / "draft", target)
    assert placed.dialect is not None and placed.dialect.name == "tensorrt-llm" and placed.errors == []
    assert placed.head is not None and placed.head.taps == SHIFTED
    drafter = engine["drafter"]
    assert (drafter["from"], drafter["dialect"], drafter["taps"]) == (dialect, "tensorrt-llm", list(SHIFTED))
    assert drafter["converted"] is (dialect != "tensorrt-llm")
    assert (tmp_path / "out" / "draft" / RECORD).is_file() is drafter["converted"]
    before = load_file(draft / "model.safetensors")["lm_head.weight"]
    assert np.array_equal(load_file(tmp_path / "out" / "draft" / "model.safetensors")["lm_head.weight"], before)


def test_the_same_drafter_gives_the_same_bytes(target: Path, tmp_path: Path) -> None:
    draft = write(tmp_path / "drafter", Spec("speculators", taps=SHIFTED))
    for name in ("one", "two"):
        build(target, draft, tmp_path / name)
    for path in sorted((tmp_path / "one" / "draft").iterdir()):
        assert path.read_bytes() == (tmp_path / "two" / "draft" / path.name).read_bytes()


def test_an_embedding_that_is_the_targets_is_left_out(target: Path, tmp_path: Path) -> None:
    draft = write(tmp_path / "drafter", Spec("specforge", own_embedding=True))
    with pytest.raises(ForgeError) as caught:
        build(target, draft, tmp_path / "refused")
    assert caught.value.code in ("TF-DRF-013", "TF-DRF-020") and not (tmp_path / "refused" / "engine.json").exists()
    spec = Spec("specforge", own_embedding=True)
    same = write(tmp_path / "same", spec, embed_tokens__weight=("BF16", _embedding(target)))
    engine = build(target, same, tmp_path / "out")
    assert engine["drafter"]["lost"] == []
    assert "embed_tokens.weight" not in load_file(tmp_path / "out" / "draft" / "model.safetensors")


def _embedding(target: Path) -> np.ndarray:
    """The target's embedding as its bits."""
    info = read_headers(target)["model.embed_tokens.weight"]
    raw = (target / info.file).read_bytes()[info.offset : info.offset + info.nbytes]
    return np.frombuffer(raw, dtype=np.uint16).reshape(info.shape)


@pytest.mark.parametrize(
    ("spec", "stack", "code"),
    [
        (Spec("speculators", norm_before_residual=True), "trtllm-1.3", "TF-DRF-016"),
        (Spec("speculators", qk_norm=True), "trtllm-1.3", "TF-DRF-016"),
        (Spec("specforge", fc_norm=True), "trtllm-1.2.1", "TF-DRF-030"),
        (Spec("speculators", norm_output=True), "trtllm-1.2.1", "TF-DRF-030"),
        (Spec("tensorrt-llm", norm_output=True), "trtllm-1.2.1", "TF-DRF-030"),
        (Spec("tensorrt-llm", taps=(9, 5, 2)), "trtllm-1.3", "TF-DRF-011"),
        (Spec("modelopt", taps=(2, 5, 12)), "trtllm-1.3", "TF-DRF-011"),
    ],
)
def test_what_the_release_would_ignore_is_refused(
    spec: Spec, stack: str, code: str, target: Path, tmp_path: Path
) -> None:
    draft = write(tmp_path / "drafter", spec)
    with pytest.raises(ForgeError) as caught:
        build(target, draft, tmp_path / "out", stack)
    assert caught.value.code == code and caught.value.remedies
    assert not (tmp_path / "out" / "draft").exists() and not (tmp_path / "out" / "engine.json").exists()


@pytest.mark.parametrize("spec", [Spec("specforge", fc_norm=True), Spec("speculators", norm_output=True)])
def test_the_newer_release_reads_what_the_older_one_does_not(spec: Spec, target: Path, tmp_path: Path) -> None:
    build(target, write(tmp_path / "drafter", spec), tmp_path / "out", "trtllm-1.3")
    placed = inspect_folder(tmp_path / "out" / "draft", target).head
    assert placed is not None and (placed.fc_norm, placed.norm_output) == (spec.fc_norm, spec.norm_output)
