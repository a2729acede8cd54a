"""Mixtures of experts: how many calibration tokens each expert saw, what is judged, and what an export holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quantize.audit import Expected, audit_checkpoint
from quantize.experts import Coverage, in_model, judge, quantizer_prefix
from quantize.plan import plan_quantization, read_config
from tests.support.tiny_moe import CHOSEN, EXPERTS, LAYERS, write_tiny_moe
from trtforge.formats.mixing import load_mixing
from trtforge.ground.errors import ForgeError
from trtforge.ground.safetensors_header import read_headers
from trtforge.recipe.schema import ExpertGate, Experts, Quantize

TOKENS = 48
CALIBRATION = {"samples": 3, "sequence_length": 16}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_moe(tmp_path_factory.mktemp("qwen"))


def _quantized(source: Path, out: Path, loading: Any = "whole", **keys: Any) -> dict[str, Any]:
    from quantize.checkpoint import quantize_checkpoint

    section = Quantize(**{"format": "fp8", "calibration": CALIBRATION, **keys})
    plan = plan_quantization(read_config(source), read_headers(source), section)
    summary = quantize_checkpoint(source, out, section=section, base_dir=out, loading=loading)
    report = audit_checkpoint(out, Expected.from_plan(plan), base=source)
    assert report.passed, [finding.headline for finding in report.findings]
    return summary


def test_every_token_is_counted_for_the_experts_that_it_went_to(source: Path, tmp_path: Path) -> None:
    found = _quantized(source, tmp_path / "out")["experts"]
    assert found["calibrated"] == "routed" and found["tokens"] == TOKENS
    assert found["layers"] == LAYERS and found["experts"] == LAYERS * EXPERTS
    for counts in found["tokens_of_experts"].values():
        assert len(counts) == EXPERTS and sum(counts) == TOKENS * CHOSEN
    every = [tokens for counts in found["tokens_of_experts"].values() for tokens in counts]
    assert found["below"] == sum(tokens < found["min_tokens"] for tokens in every) > 0
    assert found["never"] == every.count(0) and found["fewest"][0]["tokens"] == min(every)


@pytest.mark.parametrize("calibrate", ["routed", "all"])
def test_layer_by_layer_the_experts_see_the_same(source: Path, tmp_path: Path, calibrate: str) -> None:
    asked = {"experts": {"calibrate": calibrate}}
    whole = _quantized(source, tmp_path / "whole", **asked)["experts"]
    assert _quantized(source, tmp_path / "layers", "by_layer", **asked)["experts"] == whole


def test_all_experts_see_all_tokens_and_the_answers_stay_those_of_the_routed(source: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    found = _quantized(source, tmp_path / "all", experts={"calibrate": "all"})["experts"]
    assert found["calibrated"] == "all" and found["below"] == 0
    assert {tokens for counts in found["tokens_of_experts"].values() for tokens in counts} == {TOKENS}
    _quantized(source, tmp_path / "routed")
    routed, every = (load_file(tmp_path / name / "model.safetensors") for name in ("routed", "all"))
    scale = "model.layers.0.mlp.experts.0.down_proj.input_scale"
    assert every[scale] >= routed[scale], "the inputs of all experts reach at least as far"
    # what goes on to the next layer is what the router chose
    attention = "model.layers.1.self_attn.q_proj.input_scale"
    torch.testing.assert_close(every[attention], routed[attention])


def test_a_format_for_attention_beside_one_for_experts(source: Path, tmp_path: Path) -> None:
    _quantized(source, tmp_path / "out", format="nvfp4", mixed={"fp8": ["self_attn"]})
    record = json.loads((tmp_path / "out" / "hf_quant_config.json").read_text(encoding="utf-8"))["quantization"]
    layers = {name: one["quant_algo"] for name, one in record["quantized_layers"].items()}
    assert {layers[f"model.layers.{n}.mlp.experts"] for n in range(LAYERS)} == {"NVFP4"}
    assert layers["model.layers.0.self_attn.q_proj"] == "FP8"


def test_an_expert_has_the_format_of_its_layer(source: Path) -> None:
    section = Quantize(format="nvfp4", mixed={"fp8": ["layers.0.mlp.experts.3"]})
    with pytest.raises(ForgeError) as error:
        plan_quantization(read_config(source), read_headers(source), section)
    assert error.value.code == "TF-QNT-018" and "experts" in error.value.message


def test_mixtrals_names_are_those_of_its_checkpoints(tmp_path: Path) -> None:
    source = write_tiny_moe(tmp_path, "mixtral")
    assert any(".block_sparse_moe.experts.0.w1." in name for name in read_headers(source))
    _quantized(source, tmp_path / "out", scope="experts")
    assert f"model.layers.0.block_sparse_moe.experts.{EXPERTS - 1}.w2.weight_scale" in read_headers(tmp_path / "out")


def test_names_in_the_model() -> None:
    assert in_model("model.layers.0.block_sparse_moe.experts.3.w3") == "model.layers.0.mlp.experts.3.up_proj"
    assert in_model("model.layers.0.self_attn.o_proj") == "model.layers.0.self_attn.o_proj"
    assert quantizer_prefix("m.mlp.experts.3.up_proj") == "m.mlp.experts*" and quantizer_prefix("m.q") == "m.q."


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
@pytest.mark.parametrize(
    "keys",
    [
        {"format": "fp8"},
        {"format": "nvfp4"},
        {"format": "fp8_rowwise"},
        {"format": "nvfp4", "mixed": {"fp8": ["self_attn"]}},
    ],
    ids=["fp8", "nvfp4", "fp8_rowwise", "mixed"],
)
def test_the_reference_computes_experts_as_they_were_calibrated(
    tmp_path: Path, family: str, keys: dict[str, Any]
) -> None:
    import torch

    from quantize import ptq
    from quantize.by_layer.reference import LayeredReference
    from quantize.emulation import emulated_block_quantization
    from quantize.reference import load_reference_model
    from trtforge.ground.progress import SilentProgress

    source = write_tiny_moe(tmp_path / "source", family)
    _quantized(source, tmp_path / "out", **keys)
    section = Quantize(**{"calibration": CALIBRATION, **keys})
    config = read_config(source)
    plan = plan_quantization(config, read_headers(source), section)
    batch = ptq.calibration_batch_of(plan, section, config, source, tmp_path, {})
    calibrated = ptq.calibrated_model(plan, source, config, batch, section, SilentProgress())
    reference = load_reference_model(tmp_path / "out")
    states = torch.randn(48, 64)
    chosen = torch.stack([torch.randperm(EXPERTS)[:CHOSEN] for _ in range(len(states))])
    shares = torch.rand(len(states), CHOSEN)
    with torch.no_grad(), emulated_block_quantization():
        wanted, found, unhooked = (
            experts(states, chosen, shares)
            for model in (calibrated, reference.model, load_reference_model(source).model)
            for experts in [model.model.layers[0].mlp.experts]
        )
    # inputs left as they are would be 2 % away at least: a value of FP8 has three bits behind its first
    assert (found - wanted).norm() < 0.01 * wanted.norm() < (unhooked - wanted).norm()
    ids = torch.arange(7, 55)
    layered = LayeredReference(tmp_path / "out").logits(ids)
    torch.testing.assert_close(layered, reference.logits(ids), rtol=0, atol=0)


@pytest.mark.parametrize("format", ["int4_awq", "w4a8_awq", "nvfp4_awq", "int4_wo", "int4_gptq", "int8_sq"])
def test_a_format_that_experts_cannot_have_is_refused_by_the_headers(source: Path, format: str) -> None:
    config, headers = read_config(source), read_headers(source)
    with pytest.raises(ForgeError) as error:
        plan_quantization(config, headers, Quantize(format=format))
    assert error.value.code == "TF-QNT-028" and "quantize.format: fp8" in error.value.remedies
    group = 32 if format.startswith(("int4", "w4a8")) else None
    plan_quantization(config, headers, Quantize(format=format, group_size=group, exclude=["lm_head", "experts"]))


@pytest.mark.parametrize("format", load_mixing().experts)
def test_every_format_of_experts_is_exported_and_read(source: Path, tmp_path: Path, format: str) -> None:
    import torch

    from quantize.reference import load_reference_model

    _quantized(source, tmp_path / "out", format=format)
    ids = torch.arange(7, 55)
    plain, found = (load_reference_model(path).logits(ids) for path in (source, tmp_path / "out"))
    assert 0 < (found - plain).norm() < 0.5 * plain.norm()


def test_hooked_experts_go_with_their_layer(source: Path, tmp_path: Path) -> None:
    """No cycle of references: with one layer in memory, its weights must be gone before the next is read."""
    import gc
    import weakref

    from quantize.by_layer.reference import LayeredReference

    _quantized(source, tmp_path / "out")
    reference = LayeredReference(tmp_path / "out")
    gc.disable()
    try:
        layer = reference.layer(0)
        gone = weakref.ref(layer.model.layers[0].mlp.experts)
        del layer
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("damage", ["has_bias", "is_transposed", "without"])
def test_experts_that_compute_otherwise_are_refused(source: Path, tmp_path: Path, damage: str) -> None:
    from quantize.fused_experts import hook_experts
    from quantize.reference import load_reference_model
    from trtforge.formats.base import InputOperation

    model = load_reference_model(source).model
    experts = model.model.layers[1].mlp.experts
    if damage == "without":
        del experts.has_gate
    else:
        setattr(experts, damage, True)
    operation = InputOperation(lambda x: x)
    inputs = {"model.layers.0.mlp.experts.0.up_proj": operation, "model.layers.0.self_attn.q_proj": operation}
    assert [*hook_experts(model, inputs)] == ["model.layers.0.self_attn.q_proj"], "the other layer is as it should be"
    with pytest.raises(ForgeError) as error:
        hook_experts(model, {"model.layers.1.mlp.experts.0.up_proj": operation})
    assert error.value.code == "TF-QNT-032" and error.value.asked == "model.layers.1.mlp.experts"


@pytest.mark.parametrize("loading", ["whole", "by_layer"])
def test_a_search_quantizes_what_is_no_expert(source: Path, tmp_path: Path, loading: str) -> None:
    keys = {"format": "int4_awq", "group_size": 32, "exclude": ["lm_head", "experts"]}
    summary = _quantized(source, tmp_path / "out", loading, **keys)
    assert summary["quantized_linears"] == 4 * LAYERS
    assert "model.layers.0.self_attn.q_proj.weight_scale" in read_headers(tmp_path / "out")


def test_a_part_of_a_layers_experts_is_refused(source: Path) -> None:
    section = Quantize(format="fp8", exclude=["lm_head", "layers.1.mlp.experts.3"])
    with pytest.raises(ForgeError) as error:
        plan_quantization(read_config(source), read_headers(source), section)
    assert error.value.code == "TF-QNT-018" and "model.layers.1.mlp.experts" in error.value.message


class TestGate:
    def _found(self, counts: list[int], asked: Experts) -> dict[str, Any]:
        coverage = Coverage(False)
        coverage.counts, coverage.tokens = {"layers.0.experts": counts}, 100
        found = coverage.summary(asked)
        assert found is not None
        return found

    @pytest.mark.parametrize(("few", "passed"), [(1, True), (2, False)])
    def test_the_share_of_starved_experts_is_judged(self, few: int, passed: bool) -> None:
        asked = Experts(gate=ExpertGate(min_tokens=10, max_below=0.05))
        verdict, said = judge(self._found([3] * few + [10] * (20 - few), asked), asked)
        assert verdict is passed and f"{few} of 20 experts saw fewer than 10 of 100 tokens" in said
        assert ("samples" in said and "corpus" in said and "experts.calibrate: all" in said) is not passed

    def test_a_dense_model_has_no_experts(self) -> None:
        assert Coverage(False).summary(Experts()) is None

    def test_the_share_is_one(self) -> None:
        with pytest.raises(ValueError, match="share"):
            ExpertGate(max_below="150%")


@pytest.mark.parametrize(("calibrate", "passed"), [("routed", False), ("all", True)])
def test_the_stage_judges_what_the_experts_saw(source: Path, tmp_path: Path, calibrate: str, passed: bool) -> None:
    from types import SimpleNamespace

    from trtforge.ground.progress import SilentProgress
    from trtforge.pipeline.stage import StageContext
    from trtforge.pipeline.stages.quantize import QuantizeStage
    from trtforge.recipe.load import recipe_from_mapping

    quantize = {"format": "fp8", "calibration": CALIBRATION, "experts": {"calibrate": calibrate}}
    recipe = recipe_from_mapping({"name": "x", "model": {"source": "m"}, "quantize": quantize}, tmp_path).recipe
    for folder in ("out", "scratch"):
        (tmp_path / folder).mkdir()
    intake: Any = SimpleNamespace(path=source)
    context = StageContext(
        recipe, tmp_path, {}, {"intake": intake}, tmp_path / "out", tmp_path / "scratch", SilentProgress()
    )
    result = QuantizeStage().run(context)
    gates = {gate.name: gate for gate in result.gates}
    assert gates["audit"].passed and gates["expert_coverage"].passed is passed
    assert gates["expert_coverage"].measured == result.summary["experts"]["share_below"]
