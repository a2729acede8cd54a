"""Bytes of ``quantize.mixed``: the planner's are those of the tensors that the quantizer plans to store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.planner.facts import model_from_folder, served_precision
from builder.planner.weights import in_precision
from quantize.plan import plan_quantization, read_config
from quantize.sensitivity import stored_bytes
from tests.support.tiny import write_tiny_llama
from trtforge.ground.safetensors_header import read_headers
from trtforge.recipe.load import recipe_from_mapping


def _bytes(source: Path, quantize: dict[str, Any]) -> tuple[int, int]:
    """Of all linears and their scales: as the planner counts them, and as the quantizer's plan stores them."""
    data = {"name": "x", "model": {"source": "m", "dtype": "bfloat16"}, "quantize": quantize}
    recipe, headers = recipe_from_mapping(data, source).recipe, read_headers(source)
    known = model_from_folder(source)
    planned = in_precision(known.groups, served_precision(recipe, known.facts))
    plan = plan_quantization(read_config(source), headers, recipe.quantize)
    stored = sum(stored_bytes(plan, headers, name) for name in plan.linears if f"{name}.weight" in headers)
    others = sum(group.bytes for group in planned if group.part in ("norms", "embedding"))
    return round(sum(group.bytes for group in planned) - others), stored


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("m"), layers=3, tie=False)


@pytest.mark.parametrize(
    ("own", "mixed"),
    [
        ("fp8", {}),
        ("nvfp4", {"fp8": ["down_proj", "layers.0.self_attn"]}),
        ("fp8", {"nvfp4": ["layers.1", "layers.2.mlp"]}),
        ("int8_wo", {"fp8_rowwise": ["layers.0"], "int4_wo:32": ["layers.1.mlp"]}),
        ("fp8", {"nvfp4": ["*"]}),
    ],
)
def test_each_linear_has_the_bytes_of_its_own_format(source: Path, own: str, mixed: dict[str, list[str]]) -> None:
    counted, stored = _bytes(source, {"format": own, "mixed": mixed})
    assert counted == stored


def test_what_is_excluded_stays_out_of_a_mixture(source: Path) -> None:
    quantize = {"format": "nvfp4", "mixed": {"fp8": ["self_attn"]}, "exclude": ["lm_head", "layers.0.self_attn"]}
    counted, stored = _bytes(source, quantize)
    assert counted == stored > _bytes(source, quantize | {"exclude": ["lm_head"]})[0]
