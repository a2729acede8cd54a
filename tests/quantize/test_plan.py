"""What is quantized follows from headers and config; refusals come before any weight is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quantize.plan import plan_quantization, read_config
from tests.support.tiny import write_tiny_llama
from trtforge.ground.errors import ForgeError
from trtforge.ground.safetensors_header import read_headers
from trtforge.recipe.schema import Quantize


def plan(directory: Path, **section):
    return plan_quantization(read_config(directory), read_headers(directory), Quantize(**section))


def test_all_linears_but_the_tied_head(tmp_path: Path) -> None:
    result = plan(write_tiny_llama(tmp_path), format="fp8", kv_cache="fp8")
    assert len(result.quantized) == 14
    assert result.excluded == ("lm_head",)
    assert result.tied
    assert result.linears["model.layers.0.self_attn.q_proj"] == (256, 64)
    assert result.linears["lm_head"] == (512, 64)
    assert not any("embed" in name for name in result.linears)


def test_nothing_to_do(tmp_path: Path) -> None:
    assert plan(write_tiny_llama(tmp_path), format="none").does_nothing
    only_kv = plan(tmp_path, format="none", kv_cache="fp8")
    assert not only_kv.does_nothing
    assert only_kv.quantized == ()


@pytest.mark.parametrize(
    ("pattern", "count"), [("model.layers.0", 7), ("down_proj", 12), ("*.self_attn.*", 6), ("model.layers.1.mlp", 11)]
)
def test_exclude_patterns(tmp_path: Path, pattern: str, count: int) -> None:
    result = plan(write_tiny_llama(tmp_path), format="fp8", exclude=["lm_head", pattern])
    assert len(result.quantized) == count
    assert result.idle_patterns == ()


def test_pattern_without_a_match_is_reported(tmp_path: Path) -> None:
    result = plan(write_tiny_llama(tmp_path), format="fp8", exclude=["lm_head", "down_porj"])
    assert result.idle_patterns == ("down_porj",)


def test_untied_head_is_quantized_when_not_excluded(tmp_path: Path) -> None:
    directory = write_tiny_llama(tmp_path, tie=False)
    assert "lm_head" in plan(directory, format="fp8", exclude=[]).quantized
    assert "lm_head" in plan(directory, format="fp8").excluded


def test_tied_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ForgeError) as caught:
        plan(write_tiny_llama(tmp_path), format="fp8", exclude=["down_proj"])
    assert caught.value.code == "TF-K6-001"
    assert caught.value.remedies == ["quantize.exclude: ['down_proj', 'lm_head']"]


def test_group_is_checked_against_quantized_linears_only(tmp_path: Path) -> None:
    directory = write_tiny_llama(tmp_path, width=96, heads=4, ffn=128)
    with pytest.raises(ForgeError) as caught:
        plan(directory, format="int4_awq", group_size=64)
    assert caught.value.code == "TF-K4-001"
    assert caught.value.numbers["works"] == [32]
    keep = ["lm_head", "q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"]
    assert plan(directory, format="int4_awq", group_size=64, exclude=keep).group == 64


def test_odd_rows_do_not_pack(tmp_path: Path) -> None:
    directory = write_tiny_llama(tmp_path, tie=False, vocab=513)
    with pytest.raises(ForgeError) as caught:
        plan(directory, format="int4_awq", group_size=64, exclude=[])
    assert caught.value.code == "TF-QNT-007"
    assert caught.value.numbers["rows"] == {"lm_head": 513}


def test_quantized_source_is_refused(tmp_path: Path) -> None:
    directory = write_tiny_llama(tmp_path)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "gptq"}}))
    with pytest.raises(ForgeError) as caught:
        plan(directory, format="fp8")
    assert caught.value.code == "TF-QNT-005"
    assert plan(directory, format="none").does_nothing


def test_missing_config(tmp_path: Path) -> None:
    with pytest.raises(ForgeError) as caught:
        read_config(tmp_path)
    assert caught.value.code == "TF-QNT-008"
