"""Starter recipes for every target and GPU: what is written passes preflight, what cannot work is refused at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.planner.advice.losses import expected_loss
from tests.support.preflight import FORMATS, SMALL, report
from tests.support.public_models import public
from trtforge.ground.errors import ForgeError
from trtforge.recipe.starter import MAX_INCREASE, starter_text
from trtforge.recipe.starter_target import starter_target
from trtforge.tables import architecture_table

MODEL = public("meta-llama/Llama-3.1-8B-Instruct")
ROWS = architecture_table().rows
WEIGHTS = ("none", "fp8", "int4_awq", "nvfp4")
PAIRS = [(target, row.name) for row in ROWS for target in row.targets if target != "torch"]


def started(target: str, architecture: str | None, weights: str) -> str:
    built = starter_target(target, architecture, weights)
    return starter_text("x", "pypi:x==1#x.gguf", MODEL, FORMATS[weights], SMALL, built)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(("target", "architecture"), [("torch", None), *PAIRS])
def test_what_is_written_passes_preflight(target: str, architecture: str | None, weights: str) -> None:
    try:
        text = started(target, architecture, weights)
    except ForgeError as refused:
        row = next(row for row in ROWS if row.name == architecture)
        assert refused.code == "TF-CLI-052" and row.support(weights, target) not in ("yes", "disputed")
        return
    settings = yaml.safe_load(text)
    assert settings["build"]["target"] == target
    pool = settings["build"].get("kv_cache", {})
    assert ("memory" in pool) == (target == "torch"), "a pool of this machine's memory is for this machine"
    found = report(settings, model=MODEL, machine=None).findings
    assert [f"{item.code} {item.message}" for item in found if item.severity == "error"] == []


def test_the_format_s_name_stays_what_was_asked() -> None:
    assert yaml.safe_load(started("trtllm-engine", "sm_90", "fp8"))["quantize"]["kv_cache"] == "fp8"
    assert yaml.safe_load(started("trtllm-engine", "sm_89", "fp8"))["quantize"]["kv_cache"] == "none"
    assert yaml.safe_load(started("trtllm-llmapi", "sm_90", "int4_awq"))["quantize"]["kv_cache"] == "none"
    assert yaml.safe_load(started("tensorrt-rtx", "sm_75", "none"))["model"]["dtype"] == "float16"


@pytest.mark.parametrize(
    ("changes", "cache", "why"),
    [
        ({"architecture": "Qwen2ForCausalLM"}, "none", "models of this class have keys with large biases"),
        ({"architecture": "Qwen2ForCausalLM", "key_bias": 3.5}, "fp8", "calibrated scales"),
        ({"key_bias": 158.0}, "none", "not fp8: the biases of the keys reach 158"),
        ({}, "fp8", "calibrated scales"),
    ],
)
def test_keys_with_outliers_keep_their_cache(changes: dict[str, Any], cache: str, why: str) -> None:
    """What init writes raises no finding of preflight, and says why it leaves the cache alone."""
    model = replace(MODEL, **changes)
    text = starter_text("x", "pypi:x==1#x.gguf", model, FORMATS["fp8"], SMALL, starter_target("torch", None, "fp8"))
    (line,) = [line for line in text.splitlines() if line.startswith("  kv_cache: ") and "block_size" not in line]
    assert line.startswith(f"  kv_cache: {cache}  # ") and why in line
    token = 2 * model.layers * model.kv_heads * model.head_size * (2 if cache == "none" else 1)
    assert f"{token} bytes a token" in text
    assert "TF-K8-005" not in [item.code for item in report(yaml.safe_load(text), model=model).findings]


@pytest.mark.parametrize(
    ("weights", "parameters", "said"),
    [
        ("fp8", 134_515_008, "# fp8 cost 3.2% (perplexity of SmolLM2-135M-Instruct"),
        ("nvfp4", 134_515_008, "this gate is likely to be missed (--format fp8, or a gate that allows it)"),
        ("int4_awq", 8_030_261_248, "# int4_awq cost 5.7% (MMLU of Llama 3.1 8B"),
        ("none", 134_515_008, None),
    ],
)
def test_the_gate_s_outlook_is_said_with_the_measurement(weights: str, parameters: int, said: str | None) -> None:
    figure = expected_loss(FORMATS[weights], parameters)
    lost = None if figure is None else (figure.loss, figure.metric)
    built = starter_target("torch", None, weights)
    text = starter_text("x", "pypi:x==1#x.gguf", MODEL, FORMATS[weights], SMALL, built, lost=lost)
    before = text.splitlines()[text.splitlines().index(next(g for g in text.splitlines() if "max_increase" in g)) - 1]
    assert said in before if said else "cost" not in text
    assert ("likely to be missed" in before) is (lost is not None and lost[0] > MAX_INCREASE)
    assert yaml.safe_load(text)["evals"]["perplexity"]["gate"] == {"max_increase": "5%"}


@pytest.mark.parametrize(
    ("target", "architecture", "weights", "code", "remedy"),
    [
        ("trtllm-engin", None, "fp8", "TF-CLI-050", "--target trtllm-engine"),
        ("trtllm-engine", None, "fp8", "TF-CLI-051", "--arch sm_90 (Hopper (H100, H200))"),
        ("trtllm-engine", "sm_75", "fp8", "TF-CLI-051", "--arch sm_90 (Hopper (H100, H200))"),
        ("trtllm-engine", "sm90", "fp8", "TF-CLI-051", "--arch sm_90 (Hopper (H100, H200))"),
        ("torch", "sm_90", "fp8", "TF-CLI-051", "--target tensorrt"),
        ("trtllm-engine", "sm_80", "fp8", "TF-CLI-052", "--format int4_awq"),
    ],
)
def test_what_cannot_work_is_refused(
    target: str, architecture: str | None, weights: str, code: str, remedy: str
) -> None:
    with pytest.raises(ForgeError) as caught:
        starter_target(target, architecture, weights)
    assert caught.value.code == code and remedy in caught.value.remedies


def test_the_machine_s_gpu_is_taken_where_none_is_named(tmp_path: Path) -> None:
    built = starter_target("trtllm-engine", None, "fp8", here=("sm_75", "sm_90"))
    assert built.architecture is not None and built.architecture.name == "sm_90"
