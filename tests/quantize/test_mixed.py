"""Mixed precision on a tiny model: planned, exported, audited, and read by the reference and the graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quantize.audit import Expected, audit_checkpoint
from quantize.plan import QuantPlan, plan_quantization, read_config
from tests.support.tiny import write_tiny_llama
from trtforge.ground.errors import ForgeError
from trtforge.ground.safetensors_header import read_headers
from trtforge.recipe.schema import Quantize

CALIBRATION = {"samples": 2, "sequence_length": 64}
ATTENTION = "model.layers.0.self_attn"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("source"))


def _section(**keys: Any) -> Quantize:
    return Quantize(**{"format": "nvfp4", "calibration": CALIBRATION, **keys})


def _plan(source: Path, section: Quantize) -> QuantPlan:
    return plan_quantization(read_config(source), read_headers(source), section)


class TestPlan:
    def test_linears_have_the_formats_that_their_patterns_say(self, source: Path) -> None:
        plan = _plan(source, _section(mixed={"int4_wo:32": ["down_proj"], "fp8": ["layers.0.self_attn"]}))
        assert {plan.row_of(name).name for name in plan.quantized if name.endswith("down_proj")} == {"int4_wo"}
        assert plan.group_of("model.layers.0.mlp.down_proj") == 32 and plan.group_of(f"{ATTENTION}.q_proj") is None
        assert plan.row_of("model.layers.1.self_attn.q_proj").name == "nvfp4"
        assert plan.algorithm == "MIXED_PRECISION" and plan.title == "nvfp4 and int4_wo:32 and fp8"
        assert sorted(sum(plan.mixed.values(), ())) == sorted(plan.quantized)

    def test_one_format_for_all_is_no_mixture(self, source: Path) -> None:
        plan = _plan(source, _section(mixed={"fp8": ["*"]}))
        assert plan.algorithm == "FP8" and plan.mixed == {} and plan.title == "fp8"
        assert _plan(source, _section(mixed={"nvfp4": ["down_proj"]})).algorithm == "NVFP4"

    def test_patterns_that_fit_nothing_are_told(self, source: Path) -> None:
        assert _plan(source, _section(mixed={"fp8": ["down_proj", "lm_head"]})).idle_patterns == ("lm_head",)

    @pytest.mark.parametrize(
        ("mixed", "code"),
        [
            ({"int4_awq:64": ["down_proj"]}, "TF-QNT-017"),
            ({"fp8": [f"{ATTENTION}.q_proj"]}, "TF-QNT-018"),
            ({"fp8": ["down_proj"], "int8_wo": ["layers.0.mlp.down_proj"]}, "TF-QNT-019"),
            ({"int4_wo": ["o_proj"], "fp8": ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"]}, None),
            ({"int4_wo": ["self_attn"]}, "TF-K4-001"),
            ({"fp9": ["down_proj"]}, "TF-QNT-001"),
        ],
    )
    def test_what_cannot_be_is_refused(self, source: Path, mixed: dict[str, list[str]], code: str | None) -> None:
        section = _section(mixed=mixed)
        if code is None:
            assert len(_plan(source, section).formats) == 3
            return
        with pytest.raises(ForgeError) as error:
            _plan(source, section)
        assert error.value.code == code and error.value.remedies

    def test_excluding_a_part_of_a_product_tears_it_too(self, source: Path) -> None:
        section = _section(mixed={"fp8": ["down_proj"]}, exclude=("lm_head", f"{ATTENTION}.q_proj"))
        with pytest.raises(ForgeError) as error:
            _plan(source, section)
        assert error.value.code == "TF-QNT-018"

    @pytest.mark.parametrize("keys", [{"format": "none"}, {"mixed": {"none": ["down_proj"]}}])
    def test_unquantized_linears_are_excluded_ones(self, keys: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=r"quantize.(format, which is none|exclude)"):
            _section(**{"mixed": {"fp8": ["down_proj"]}, **keys})

    def test_null_takes_the_mixture_of_a_base_away(self) -> None:
        assert _section(mixed=None).mixed == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("own", "mixed"),
    [
        ("nvfp4", {"fp8": ["down_proj", "layers.0.self_attn"]}),
        ("int8_wo", {"fp8_rowwise": ["layers.0"], "w4a16_nvfp4": ["layers.1.mlp"]}),
    ],
)
def test_what_is_exported_is_what_was_planned(source: Path, tmp_path: Path, own: str, mixed: dict[str, Any]) -> None:
    import torch

    from builder.graphs.tensors import CheckpointTensors
    from quantize.checkpoint import quantize_checkpoint
    from quantize.reference import load_reference_model

    section = _section(format=own, kv_cache="fp8", mixed=mixed)
    plan, out = _plan(source, section), tmp_path / "out"
    summary = quantize_checkpoint(source, out, section=section, base_dir=tmp_path)
    assert set(summary["mixed"]) == {own, *mixed} and summary["quantized_linears"] == len(plan.quantized)
    record = json.loads((out / "hf_quant_config.json").read_text(encoding="utf-8"))["quantization"]
    assert record["quant_algo"] == "MIXED_PRECISION" and record["kv_cache_quant_algo"] == "FP8"
    algorithms = {name: one["quant_algo"] for name, one in record["quantized_layers"].items()}
    assert algorithms == {name: plan.row_of(name).algorithm for name in plan.quantized}
    report = audit_checkpoint(out, Expected.from_plan(plan), base=source)
    assert report.passed and not report.findings

    tensors = CheckpointTensors(out)
    for name in plan.quantized:
        assert tensors.linear(name, plan.linears[name]).format == plan.row_of(name).layout

    ids = torch.arange(3, 60)
    reference = load_reference_model(out)
    assert reference.quant_format == "+".join(sorted({row.name for row in plan.rows}))
    plain = load_reference_model(source).logits(ids)
    quantized = reference.logits(ids)
    error = float((quantized - plain).square().mean() / plain.square().mean())
    assert 0 < error < 0.1
    # the wrong recipe for this checkpoint is found by the audit
    other = _plan(source, _section(format=own, kv_cache="fp8", mixed={"fp8": ["o_proj"]}))
    assert "TF-QNT-042" in {found.code for found in audit_checkpoint(out, Expected.from_plan(other)).findings}
    uniform = _plan(source, _section(format=own, kv_cache="fp8"))
    assert "TF-QNT-042" in {found.code for found in audit_checkpoint(out, Expected.from_plan(uniform)).findings}
