"""Keys with outliers are told by the biases that intake read, else by the model's class."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.preflight import SMALL, report
from tests.support.public_models import public
from tests.trtforge.preflight.settings import merged, quant
from trtforge.models.record import Model
from trtforge.models.shape import LARGE_KEY_BIAS, outlier_keys
from trtforge.preflight.engine import Finding

FP8 = quant(format="fp8", kv_cache="fp8")


def qwen(**changes: Any) -> Model:
    return public("Qwen/Qwen2.5-0.5B-Instruct", architecture="Qwen2ForCausalLM", **changes)


def found(settings: dict[str, Any], model: Model) -> list[Finding]:
    return [item for item in report(settings, model=model, machine=SMALL).findings if item.code == "TF-K8-005"]


def test_the_class_decides_where_no_bias_was_read() -> None:
    (finding,) = found(FP8, qwen())
    assert finding.severity == "warning" and "large biases" in finding.message
    assert finding.numbers["key_bias"] is None and str(finding.source).startswith("https://github.com/")
    assert finding.remedies == ("quantize.kv_cache: none",)
    llama = public("HuggingFaceTB/SmolLM2-135M-Instruct")
    normed = public("Qwen/Qwen2.5-0.5B-Instruct", architecture="Qwen3ForCausalLM")
    assert outlier_keys(llama) is None and outlier_keys(normed) is None


@pytest.mark.parametrize("architecture", ["Qwen2ForCausalLM", "LlamaForCausalLM"])
def test_what_was_read_decides_over_the_class(architecture: str) -> None:
    (finding,) = found(
        FP8,
        qwen(key_bias=211.0)
        if "Qwen" in architecture
        else public("HuggingFaceTB/SmolLM2-135M-Instruct", key_bias=211.0),
    )
    assert "reach 211" in finding.message and finding.numbers["large"] == LARGE_KEY_BIAS
    assert not found(FP8, qwen(key_bias=LARGE_KEY_BIAS / 2))


@pytest.mark.parametrize("kv_cache", ["fp8", "fp8_cast"])
def test_every_quantized_cache_is_meant_and_no_other(kv_cache: str) -> None:
    (finding,) = found(quant(format="fp8", kv_cache=kv_cache), qwen())
    assert finding.asked == f"quantize.kv_cache: {kv_cache}"
    assert not found(merged(FP8, quant(kv_cache="none")), qwen())


def test_a_cache_that_the_checkpoint_sets_is_changed_there() -> None:
    (finding,) = found(quant(format="none"), qwen(prequantized="fp8", prequantized_kv_cache="fp8"))
    assert "kv_cache_quant_algo" in finding.asked
    assert all(way.by_hand for way in finding.ways) and "hf_quant_config.json" in finding.remedies[0]
