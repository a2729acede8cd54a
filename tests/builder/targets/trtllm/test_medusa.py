"""Medusa heads beside the model: every rank's rows together are the heads, and heads of another model are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builder.targets.trtllm.flags import settings_of
from builder.targets.trtllm.medusa import narrow
from builder.targets.trtllm_engine import target as engine_target
from tests.builder.quantized_tiny import read_tensors
from tests.builder.targets.trtllm.deshard import deshard, load_ranks
from tests.builder.targets.trtllm.test_checkpoint import make
from tests.support.tiny import to_bfloat16_bits, write_safetensors
from trtforge.ground.errors import ForgeError
from trtforge.recipe.schema import Build, Speculation

HEADS, LAYERS, WIDTH, VOCAB = 3, 1, 128, 515


def write_heads(directory: Path, *, vocab: int = VOCAB, width: int = WIDTH, **config: Any) -> dict[str, np.ndarray]:
    """Heads as the Medusa project publishes them, in F16; returns the values."""
    directory.mkdir(parents=True)
    rng = np.random.default_rng(0)
    values: dict[str, np.ndarray] = {}
    for head in range(HEADS):
        values[f"{head}.0.linear.weight"] = rng.standard_normal((width, width))
        values[f"{head}.0.linear.bias"] = rng.standard_normal(width)
        values[f"{head}.1.weight"] = rng.standard_normal((vocab, width))
    halves = {name: value.astype(np.float16) for name, value in values.items()}
    write_safetensors(directory / "medusa_lm_head.safetensors", {name: ("F16", v) for name, v in halves.items()})
    (directory / "config.json").write_text(
        json.dumps({"medusa_num_heads": HEADS, "medusa_num_layers": LAYERS, "base_model_name_or_path": "x", **config})
    )
    return halves


def build(checkpoint: Path, out: Path, draft: Path | None, **speculation: Any) -> dict[str, Any]:
    asked = {"method": "medusa", "max_draft_len": 5, "draft": "heads", **speculation}
    return engine_target.build_engine(
        checkpoint,
        out,
        name="tiny",
        build=Build.model_validate({"target": "trtllm-engine", "parallel": {"tp": 2}}),
        speculation=Speculation.model_validate(asked),
        draft=draft,
    )


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "model"
    make(folder, "none")
    return folder


def test_the_ranks_hold_model_and_heads(checkpoint: Path, tmp_path: Path) -> None:
    halves = write_heads(tmp_path / "heads")
    engine = build(checkpoint, tmp_path / "out", tmp_path / "heads")
    assert engine["settings"]["speculative_decoding_mode"] == "medusa"
    config, ranks = load_ranks(tmp_path / "out" / "checkpoint")
    assert config["architecture"] == "MedusaForCausalLM" and config["max_draft_len"] == 5
    assert (config["num_medusa_heads"], config["num_medusa_layers"]) == (HEADS, LAYERS)
    assert config["quantization"]["exclude_modules"] == ["lm_head", "medusa_heads*"]
    names = {"0.linear.weight": "medusa_layers.0.linear.weight", "0.linear.bias": "medusa_layers.0.linear.bias"}
    for head in range(HEADS):
        for theirs, ours in {**names, "1.weight": "lm_head.weight"}.items():
            parts = [rank[f"medusa_heads.{head}.{ours}"].astype(np.float32) for rank in ranks]
            whole, wanted = np.concatenate(parts), halves[f"{head}.{theirs}"].astype(np.float32)
            rounded = (to_bfloat16_bits(wanted).astype(np.uint32) << 16).view(np.float32)
            assert np.array_equal(whole[: len(wanted)], rounded) and not whole[len(wanted) :].any()
    model = deshard(tmp_path / "out" / "checkpoint")
    for name, values in read_tensors(checkpoint).items():
        assert np.array_equal(model[name], values.astype(np.float32)), name


@pytest.mark.parametrize(
    ("config", "speculation"),
    [
        ({"medusa_num_heads": 4}, {}),
        ({"medusa_num_layers": 2}, {}),
        ({"medusa_num_heads": "many"}, {}),
        ({}, {"heads": 5}),
    ],
)
def test_heads_that_do_not_fit_are_refused(
    checkpoint: Path, tmp_path: Path, config: dict[str, Any], speculation: dict[str, Any]
) -> None:
    write_heads(tmp_path / "heads", **config)
    with pytest.raises(ForgeError) as caught:
        build(checkpoint, tmp_path / "out", tmp_path / "heads", **speculation)
    assert caught.value.code == "TF-BLD-038" and not (tmp_path / "out" / "engine.json").exists()


def test_heads_of_another_vocabulary_and_pickles_are_refused(checkpoint: Path, tmp_path: Path) -> None:
    write_heads(tmp_path / "other", vocab=99)
    with pytest.raises(ForgeError, match=r"0\.1\.weight is \[99, 128\], not \[515, 128\]"):
        build(checkpoint, tmp_path / "out", tmp_path / "other")
    write_heads(tmp_path / "pickled")
    (tmp_path / "pickled" / "medusa_lm_head.safetensors").unlink()
    (tmp_path / "pickled" / "medusa_lm_head.pt").write_bytes(b"\x80\x04N.")
    with pytest.raises(ForgeError) as caught:
        build(checkpoint, tmp_path / "out2", tmp_path / "pickled")
    assert caught.value.code == "TF-SRC-028"


def test_a_tree_says_how_many_draft_tokens_there_are() -> None:
    tree = Speculation.model_validate({"method": "medusa", "choices": [[0], [1], [0, 0], [0, 1]]})
    assert settings_of(Build(), tree)["max_draft_len"] == 4


def test_narrowing_is_to_the_nearest_even() -> None:
    values = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    assert np.array_equal(narrow(values, "BF16"), to_bfloat16_bits(values))
    assert np.array_equal(narrow(values, "F16").view(np.float16), values.astype(np.float16))
