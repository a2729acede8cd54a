"""Weights and KV bytes against aiconfigurator 0.12; benchmarks/aiconfigurator_compare.py writes the stored figures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from builder.planner.types import ParallelPlan, Precision
from builder.planner.weights import groups_from_facts, in_precision, rank_weights
from tests.builder.planner.models import known, reference
from trtforge.models.kv import kv_bytes_per_token
from trtforge.models.record import Model

_MOE_FORMATS = {"w4a16_mxfp4": "mxfp4"}
#: rows whose weights differ for a reason, with the reason's arithmetic in a test of its own
EXPLAINED = frozenset({"Qwen/Qwen3-1.7B", "deepseek-ai/DeepSeek-V3", "openai/gpt-oss-120b"})
ROWS = reference()["rows"]


def _name(row: dict[str, Any]) -> str:
    arguments = row["arguments"]
    return f"{row['model'].split('/')[-1]}-{row['system']}-tp{arguments['tp_size']}-{arguments['gemm_quant_mode']}"


def _planned(row: dict[str, Any], model: Model | None = None, without: tuple[str, ...] = ()) -> float:
    """Bytes of weights on a GPU without some parts, averaged over the stages as aiconfigurator does."""
    arguments, model = row["arguments"], model or known(row["model"])
    parallel = ParallelPlan(arguments["tp_size"], arguments["pp_size"], arguments["moe_ep_size"] or 1)
    moe = arguments["moe_quant_mode"]
    exclude: tuple[str, ...] = ("lm_head",)
    weights = arguments["gemm_quant_mode"]
    if moe in _MOE_FORMATS and weights == "bfloat16":
        weights, exclude = _MOE_FORMATS[moe], ("lm_head", "*self_attn*")
    groups = in_precision(groups_from_facts(model), Precision(weights, exclude=exclude))
    stages = [rank_weights(groups, model, parallel, stage) for stage in range(parallel.pp)]
    kept = [size for parts in stages for part, size in parts.items() if part not in without]
    return sum(kept) / len(stages)


def test_the_reference_says_where_it_comes_from() -> None:
    document = reference()
    assert document["version"] == "0.12.0" and document["command"] and document["backend_versions"]["default"]
    assert len(ROWS) >= 12 and len({row["model"] for row in ROWS}) >= 8


@pytest.mark.parametrize("row", [row for row in ROWS if row["model"] not in EXPLAINED], ids=_name)
def test_weights_within_two_per_cent(row: dict[str, Any]) -> None:
    assert _planned(row) == pytest.approx(row["weights_bytes"], rel=0.02)


@pytest.mark.parametrize("row", ROWS, ids=_name)
def test_kv_bytes_exactly(row: dict[str, Any]) -> None:
    arguments, model = row["arguments"], known(row["model"])
    found = kv_bytes_per_token(model.kv, arguments["kvcache_quant_mode"], tp=arguments["tp_size"])
    assert found == row["kv_bytes_per_token"]


def test_a_tied_head_is_one_matrix() -> None:
    """aiconfigurator counts embedding and head even where they are one tensor."""
    row = next(row for row in ROWS if row["model"] == "Qwen/Qwen3-1.7B")
    model = known(row["model"])
    assert model.tied
    assert _planned(row) < 0.8 * row["weights_bytes"]
    assert _planned(row, replace(model, tied=False)) == pytest.approx(row["weights_bytes"], rel=0.02)


def test_mxfp4_has_block_scales_and_a_mixture_has_an_embedding() -> None:
    """aiconfigurator counts 4 bits a value for MXFP4, not 4.25, and no embedding in mixtures of experts."""
    row = next(row for row in ROWS if row["model"] == "openai/gpt-oss-120b")
    assert _planned(row) > 1.02 * row["weights_bytes"]
    assert _planned(row, without=("scales", "embedding")) == pytest.approx(row["weights_bytes"], rel=0.02)


def test_deepseeks_first_layers_are_dense() -> None:
    """aiconfigurator counts experts in all 61 layers; the first three have an ordinary MLP."""
    row = next(row for row in ROWS if row["model"] == "deepseek-ai/DeepSeek-V3")
    model = known(row["model"])
    assert model.moe is not None and model.moe.dense_layers == 3
    everywhere = replace(model, moe=replace(model.moe, dense_layers=0))
    assert abs(_planned(row) / row["weights_bytes"] - 1) > 0.02
    assert _planned(row, everywhere) == pytest.approx(row["weights_bytes"], rel=0.025)
