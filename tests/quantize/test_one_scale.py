"""Fused FP8 linears get one scale before the checkpoint is evaluated, and a conversion has nothing left to change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from builder.targets.trtllm.checkpoint import convert_checkpoint
from quantize.one_scale import share_scales
from tests.builder.quantized_tiny import Quantizer, read_tensors
from tests.support.tiny import write_tiny_llama
from trtforge.ground.e4m3 import decode, largest_change, rescale_table
from trtforge.targets import TARGETS


def checkpoint(folder: Path, fmt: str = "fp8") -> Path:
    write_tiny_llama(folder, width=128, heads=8, kv_heads=4, ffn=256, vocab=515, layers=2)
    Quantizer(folder, fmt, kv_fp8=True)
    return folder


def number(tensors: dict[str, np.ndarray], name: str) -> float:
    return float(np.asarray(tensors[name], dtype=np.float32).reshape(-1)[0])


@pytest.mark.parametrize("target", ["trtllm-engine", "trtllm-llmapi"])
def test_one_scale_a_product_and_weights_within_one_rounding(tmp_path: Path, target: str) -> None:
    before = {k: np.array(v) for k, v in read_tensors(checkpoint(tmp_path)).items()}
    report = share_scales(tmp_path, TARGETS[target])
    after = read_tensors(tmp_path)
    assert report is not None and set(after) == set(before)
    changed = 0
    for layer in ("model.layers.0", "model.layers.1"):
        for parts in (("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), ("mlp.gate_proj", "mlp.up_proj")):
            own = [number(before, f"{layer}.{part}.weight_scale") for part in parts]
            assert len(set(own)) > 1, "the test's checkpoint has scales to share"
            for part, scale in zip(parts, own, strict=True):
                name = f"{layer}.{part}"
                assert number(after, f"{name}.weight_scale") == max(own)
                was = before[f"{name}.weight"].astype(np.float32) * scale
                now = after[f"{name}.weight"].astype(np.float32) * max(own)
                assert (np.abs(now - was) <= np.maximum(np.abs(was) / 16, max(own) * 2.0**-10) * 1.0001).all()
                changed += was.size if scale != max(own) else 0
        shared_kv = [number(after, f"{layer}.self_attn.{kind}_proj.{kind}_scale") for kind in "kv"]
        own_kv = [number(before, f"{layer}.self_attn.{kind}_proj.{kind}_scale") for kind in "kv"]
        assert shared_kv == ([max(own_kv)] * 2 if target == "trtllm-engine" else own_kv)
    assert report["weights"] == changed > 0 and 0 < report["largest_relative_change"] <= 1 / 16
    untouched = [name for name in before if "o_proj.weight" in name or "down_proj" in name or "embed" in name]
    assert all(before[n].tobytes() == after[n].tobytes() for n in untouched)
    again = share_scales(tmp_path, TARGETS[target])
    assert again == {"linears": 0, "weights": 0, "largest_relative_change": 0.0, "kv_layers": 0}


def test_the_conversion_has_nothing_left_to_round(tmp_path: Path) -> None:
    loose = convert_checkpoint(checkpoint(tmp_path / "loose"), tmp_path / "a")["requantized"]
    assert loose["weights"] > 0 and loose["kv_layers"] == 2
    share_scales(tmp_path / "loose", TARGETS["trtllm-engine"])
    found = convert_checkpoint(tmp_path / "loose", tmp_path / "b")["requantized"]
    assert found == {"linears": 0, "weights": 0, "largest_relative_change": 0.0, "kv_layers": 0}


def test_other_targets_and_formats_keep_every_byte(tmp_path: Path) -> None:
    for fmt, target in (("fp8", "torch"), ("fp8", "tensorrt"), ("nvfp4", "trtllm-llmapi"), ("none", "trtllm-llmapi")):
        folder = checkpoint(tmp_path / f"{fmt}-{target}", fmt)
        before = (folder / "model.safetensors").read_bytes()
        report = share_scales(folder, TARGETS[target])
        assert report is None or report["weights"] == 0
        assert (folder / "model.safetensors").read_bytes() == before


def test_the_change_of_a_ratio_is_what_the_table_does() -> None:
    assert largest_change(1.0) == 0.0
    assert largest_change(0.5) == 0.0, "a power of two moves exponents only"
    table, codes = rescale_table(0.7), np.arange(8, 0x7F, dtype=np.uint8)
    exact = decode(codes).astype(np.float64) * 0.7
    normal = exact >= 2.0**-6
    changes = np.abs(decode(table[codes])[normal] / exact[normal] - 1)
    assert largest_change(0.7) == pytest.approx(changes.max(), abs=1e-6)
