"""ModelOpt on a tiny model, each format end to end: export, audit, reference, reruns, refusals."""

from __future__ import annotations

import copy
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from quantize.audit import Expected, audit_checkpoint
from quantize.checkpoint import quantize_checkpoint
from quantize.corpora import calibration_batch, load_corpus, load_tokenizer
from quantize.emulation import emulated_block_quantization
from quantize.plan import plan_quantization, read_config
from quantize.ptq import build_config, forward_loop, load_model, round_pre_quant_scales
from quantize.quiet import quiet
from quantize.reference import ReferenceModel, load_reference_model
from tests.support.tiny import write_tiny_llama
from trtforge.formats.elements import fake_quant_e4m3_rows
from trtforge.formats.table import format_row, quantizing_formats
from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.ground.progress import SilentProgress
from trtforge.ground.safetensors_header import read_headers
from trtforge.machine.memory import Memory
from trtforge.recipe.schema import Quantize

pytestmark = pytest.mark.slow

#: a scale of each row's own largest value puts many values of this tiny model in the middle between two codes
TIES = ("fp8_rowwise",)
CALIBRATION = {"samples": 4, "sequence_length": 64}
FORMATS = {
    "fp8": Quantize(format="fp8", kv_cache="fp8", calibration=CALIBRATION),
    "nvfp4": Quantize(format="nvfp4", kv_cache="fp8", calibration=CALIBRATION),
    "int4_awq": Quantize(format="int4_awq", kv_cache="fp8", group_size=64, calibration=CALIBRATION),
    "fp8_rowwise": Quantize(format="fp8_rowwise", kv_cache="fp8", calibration=CALIBRATION),
    "nvfp4_awq": Quantize(format="nvfp4_awq", kv_cache="fp8", calibration=CALIBRATION),
    "w4a16_nvfp4": Quantize(format="w4a16_nvfp4", kv_cache="fp8", calibration=CALIBRATION),
    "int4_wo": Quantize(format="int4_wo", kv_cache="fp8", group_size=32, calibration=CALIBRATION),
    "int4_gptq": Quantize(format="int4_gptq", kv_cache="fp8", group_size=64, calibration=CALIBRATION),
    "int8_sq": Quantize(format="int8_sq", kv_cache="fp8", calibration=CALIBRATION),
    "int8_wo": Quantize(format="int8_wo", kv_cache="fp8", calibration=CALIBRATION),
    "w4a8_awq": Quantize(format="w4a8_awq", kv_cache="fp8", group_size=64, calibration=CALIBRATION),
    "kv_only": Quantize(format="none", kv_cache="fp8", calibration=CALIBRATION),
    "cast": Quantize(format="fp8", kv_cache="fp8_cast", calibration=CALIBRATION),
    "mixed": Quantize(format="fp8", exclude=["lm_head", "down_proj", "model.layers.1"], calibration=CALIBRATION),
}


def test_every_format_is_exported_here() -> None:
    assert {section.format for section in FORMATS.values()} == {"none", *quantizing_formats()}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def exports(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Every format of FORMATS, exported once."""
    made = {}
    for name, section in FORMATS.items():
        made[name] = tmp_path_factory.mktemp(name)
        quantize_checkpoint(source, made[name], section=section, base_dir=source)
    return made


def prompt(directory: Path, tokens: int = 96) -> torch.Tensor:
    corpus = load_corpus("builtin:python-topics", directory, "evaluation")
    return torch.tensor(load_tokenizer(directory).encode(corpus.text[:4000]).ids[:tokens])


def hashes(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


@pytest.mark.parametrize("name", FORMATS)
def test_export_passes_the_audit(exports: dict[str, Path], source: Path, name: str) -> None:
    plan = plan_quantization(read_config(source), read_headers(source), FORMATS[name])
    report = audit_checkpoint(exports[name], Expected.from_plan(plan))
    assert report.findings == []
    assert report.kv_cache == FORMATS[name].kv_cache


@pytest.mark.parametrize("name", FORMATS)
def test_companions_and_records(exports: dict[str, Path], source: Path, name: str) -> None:
    for file in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (exports[name] / file).read_bytes() == (source / file).read_bytes()
    assert not (exports[name] / ".exporting").exists()
    summary = json.loads((exports[name] / "quantize.json").read_text())
    assert summary["format"] == FORMATS[name].format
    assert len(summary["calibration"]["corpus_sha256"]) == 64
    assert "timings" not in summary
    config = read_config(exports[name])
    assert {**read_config(source), "quantization_config": config["quantization_config"]} == config
    dtypes = {info.dtype for key, info in read_headers(exports[name]).items() if key.endswith("norm.weight")}
    assert dtypes == {"BF16"}
    assert "lm_head.weight" not in read_headers(exports[name])


@pytest.mark.parametrize("name", ["fp8", "nvfp4", "int4_awq"])
def test_a_rerun_gives_the_same_bytes(exports: dict[str, Path], source: Path, tmp_path: Path, name: str) -> None:
    quantize_checkpoint(source, tmp_path, section=FORMATS[name], base_dir=source)
    assert hashes(tmp_path) == hashes(exports[name])


def modelopt_logits(
    source: Path, section: Quantize, ids: torch.Tensor, exported: ReferenceModel | None = None
) -> torch.Tensor:
    """Logits of ModelOpt's own fake-quantized model, weights folded, as it stands right before the export.

    With ``exported`` on that export's weights: ModelOpt's exporter divides by a scale where its simulation multiplies,
    and a weight in the middle between two codes then goes the other way. There are few, each by one code; behind them
    every rounding of an input is another one.
    """
    with quiet():
        import modelopt.torch.export.unified_export_hf as unified
        import modelopt.torch.quantization as mtq
    plan = plan_quantization(read_config(source), read_headers(source), section)
    batch = calibration_batch(
        load_corpus(section.calibration.corpus, source, "calibration"),
        load_tokenizer(source),
        samples=section.calibration.samples,
        sequence_length=section.calibration.sequence_length,
        seed=section.calibration.seed,
        max_positions=None,
    )
    settings = build_config(plan, "0.47.0")
    model = load_model(source)
    with quiet(), torch.no_grad(), emulated_block_quantization():
        mtq.quantize(model, settings, forward_loop=forward_loop(model, batch, plan, settings, SilentProgress()))
        round_pre_quant_scales(model, torch.bfloat16)
        folded: Any = copy.deepcopy(model)
        # the exporter unifies scales of linears that share an input, and moves factors into the norms
        unified.requantize_resmooth_fused_llm_layers(folded)
        for module_name, module in folded.named_modules():
            if module_name.endswith("norm"):
                module.weight.data = module.weight.data.bfloat16().float()
        mtq.fold_weight(folded)
        for module_name in () if exported is None else plan.quantized:
            theirs, ours = (model.get_submodule(module_name).weight for model in (folded, exported.model))
            apart = (theirs - ours).abs() > 1e-5 * ours.abs().amax()
            assert apart.float().mean() < 5e-3, module_name
            theirs.copy_(ours)
        return folded(ids.view(1, -1), use_cache=False).logits[0].float()


@pytest.mark.parametrize("name", [name for name, section in FORMATS.items() if name == section.format])
def test_reference_reproduces_modelopts_fake_quantized_model(exports: dict[str, Path], source: Path, name: str) -> None:
    ids = prompt(source)
    reference, ties = load_reference_model(exports[name]), name in TIES
    ours = reference.logits(ids)
    theirs = modelopt_logits(source, FORMATS[name], ids, reference if ties else None)
    plain = load_reference_model(source).logits(ids)
    difference = (ours - theirs).abs().max()
    ours_top, theirs_top = ours.argmax(-1, keepdim=True), theirs.argmax(-1, keepdim=True)
    assert (ours_top == theirs_top).float().mean() >= (0.9 if ties else 0.96)
    # where they disagree, ModelOpt's own margin is within twice the numerical difference: a near tie
    assert (theirs.gather(-1, theirs_top) - theirs.gather(-1, ours_top)).max() <= 2 * difference
    # rounding differs by units in the last place (a product against a quotient), and then crosses code borders
    assert difference < (0.7 if ties else 0.25) * (plain - theirs).abs().max()
    # beside weights of eight bits the cache's rounding is most of what there is
    most = 0.25 if ties else 0.05 if format_row(name).weight_only and name.startswith("int8") else 0.01
    assert (ours - theirs).pow(2).mean() < most * (plain - theirs).pow(2).mean()


@given(st.integers(0, 99), st.integers(1, 5), st.sampled_from((64, 96, 576)))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_a_scale_a_token_is_modelopts_but_in_the_middle_between_two_codes(seed: int, rows: int, width: int) -> None:
    """ModelOpt multiplies by the scale's reciprocal: a value at a border may go to the code on its other side."""
    with quiet():
        from modelopt.torch.quantization.config import QuantizerAttributeConfig
        from modelopt.torch.quantization.nn import TensorQuantizer

    asked = QuantizerAttributeConfig(num_bits=(4, 3), type="dynamic", block_sizes={-1: None})
    x = (
        torch.randn(1, rows, width, generator=torch.Generator().manual_seed(seed))
        * torch.logspace(-2, 2, rows)[:, None]
    )
    theirs, ours = TensorQuantizer(asked)(x), fake_quant_e4m3_rows(x)
    apart = (theirs - ours).abs() > 1e-6 * x.abs().amax(-1, keepdim=True)
    assert apart.float().mean() < 0.01
    # one code further: an eighth of the value, or the step of the smallest codes
    assert ((theirs - ours).abs() <= x.abs() / 7 + x.abs().amax(-1, keepdim=True) / 448 * 2**-9).all()


def test_reference_of_the_unquantized_checkpoint_is_transformers(source: Path) -> None:
    ids = prompt(source)
    with torch.no_grad():
        expected = load_model(source)(ids.view(1, -1)).logits[0]
    reference = load_reference_model(source)
    torch.testing.assert_close(reference.logits(ids), expected, rtol=1e-5, atol=1e-5)
    assert reference.quant_format == "none"
    assert not reference.emulated


def test_kv_cache_changes_the_reference_only_when_asked(exports: dict[str, Path], source: Path) -> None:
    ids = prompt(source)
    plain = load_reference_model(source).logits(ids)
    without = load_reference_model(exports["kv_only"], emulate_kv=False).logits(ids)
    with_kv = load_reference_model(exports["kv_only"]).logits(ids)
    torch.testing.assert_close(without, plain)
    assert 0 < (with_kv - plain).abs().max() < 1.0


def test_greedy_generation_follows_the_logits(exports: dict[str, Path], source: Path) -> None:
    reference = load_reference_model(exports["fp8"])
    ids = prompt(source, 24)
    made = reference.generate_greedy(ids, 6)
    full = torch.cat((ids, torch.tensor(made)))
    rows = reference.logits(full)[len(ids) - 1 : -1]
    for token, row in zip(made, rows, strict=True):
        # a cache changes summation order only
        assert row.max() - row[token] < 1e-3


def test_bfloat16_reference_is_close(exports: dict[str, Path], source: Path) -> None:
    ids = prompt(source, 32)
    exact, rounded = (
        load_reference_model(exports["fp8"], dtype=dtype).logits(ids) for dtype in ("float32", "bfloat16")
    )
    assert 0 < (exact - rounded).abs().mean() < 0.1 * exact.std()


@pytest.mark.parametrize("name", ["fp8", "int4_awq"])
def test_rounded_activations_are_as_far_away_as_a_bfloat16_model(exports: dict[str, Path], name: str) -> None:
    ids = torch.arange(3, 60)
    reference = load_reference_model(exports[name])
    exact = reference.logits(ids)
    rounded = (reference.rounded_logits(ids, "bfloat16") - exact).abs().mean()
    real = (load_reference_model(exports[name], dtype="bfloat16").logits(ids) - exact).abs().mean()
    assert 0 < (reference.rounded_logits(ids, "float16") - exact).abs().mean() < rounded
    assert 0.3 * real < rounded < 3 * real
    assert torch.equal(reference.logits(ids), exact), "the hooks are gone"


def test_untied_head_is_quantized_and_read_back(tmp_path: Path) -> None:
    directory = write_tiny_llama(tmp_path / "untied", tie=False)
    out = tmp_path / "out"
    section = Quantize(format="fp8", exclude=[], calibration=CALIBRATION)
    quantize_checkpoint(directory, out, section=section, base_dir=tmp_path)
    assert read_headers(out)["lm_head.weight"].dtype == "F8_E4M3"
    plan = plan_quantization(read_config(directory), read_headers(directory), section)
    assert audit_checkpoint(out, Expected.from_plan(plan)).passed
    ids = prompt(directory, 32)
    gap = (load_reference_model(out).logits(ids) - load_reference_model(directory).logits(ids)).abs().mean()
    assert gap < 0.5


def test_float16_source_stays_float16(tmp_path: Path) -> None:
    directory = write_tiny_llama(tmp_path / "half", dtype="float16")
    quantize_checkpoint(directory, tmp_path / "out", section=FORMATS["int4_awq"], base_dir=tmp_path)
    headers = read_headers(tmp_path / "out")
    assert {info.dtype for key, info in headers.items() if key.endswith("norm.weight")} == {"F16"}
    assert {info.dtype for key, info in headers.items() if key.endswith("pre_quant_scale")} == {"F16"}


def test_format_none_copies_the_checkpoint(source: Path, tmp_path: Path) -> None:
    quantize_checkpoint(source, tmp_path, section=Quantize(), base_dir=source)
    assert (tmp_path / "model.safetensors").read_bytes() == (source / "model.safetensors").read_bytes()
    assert audit_checkpoint(tmp_path, Expected("none", "none")).passed


def test_interrupt_leaves_nothing_that_looks_finished(source: Path, tmp_path: Path) -> None:
    class Interrupting(SilentProgress):
        def start(self, description: str, total: float | None = None) -> None:
            if description.startswith("finishing"):
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_checkpoint(source, tmp_path, section=FORMATS["fp8"], base_dir=source, progress=Interrupting())
    assert list(tmp_path.iterdir()) == []


def test_progress_counts_every_sample(source: Path, tmp_path: Path) -> None:
    class Counting(SilentProgress):
        total, done = 0.0, 0.0

        def start(self, description: str, total: float | None = None) -> None:
            self.total += total or 0

        def advance(self, amount: float = 1.0) -> None:
            self.done += amount

    progress = Counting()
    quantize_checkpoint(source, tmp_path, section=FORMATS["int4_awq"], base_dir=source, progress=progress)
    assert progress.total == 2 * CALIBRATION["samples"]  # AWQ passes twice over the prompts
    assert progress.done == pytest.approx(progress.total)


def test_refusals_come_before_torch_work(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantize.checkpoint._Job.run", lambda *_: pytest.fail("the model was loaded"))
    for code, section in {
        "TF-QNT-027": Quantize(format="fp8", calibration={"samples": 1, "sequence_length": 4096}),
        "TF-QNT-026": Quantize(format="fp8", calibration={"samples": 100_000, "sequence_length": 512}),
        "TF-K6-001": Quantize(format="fp8", exclude=[]),
    }.items():
        with pytest.raises(ForgeError) as caught:
            quantize_checkpoint(source, tmp_path, section=section, base_dir=source)
        assert caught.value.code == code


def test_too_little_memory(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quantize.loading.memory", lambda: Memory(total=24 << 30, available=1000))
    with pytest.raises(EnvironmentLacks) as caught:
        quantize_checkpoint(source, tmp_path, section=FORMATS["fp8"], base_dir=source)
    assert caught.value.code == "TF-QNT-012"
    assert caught.value.numbers["available_bytes"] == 1000


def test_scales_that_are_not_finite(tmp_path: Path) -> None:
    directory = write_tiny_llama(tmp_path / "nan")
    header = read_headers(directory)["model.layers.0.mlp.up_proj.weight"]
    with (directory / header.file).open("r+b") as file:
        file.seek(header.offset)
        file.write(b"\xc0\x7f" * 8)  # bfloat16 NaN
    with pytest.raises(ForgeError) as caught:
        quantize_checkpoint(directory, tmp_path / "out", section=FORMATS["fp8"], base_dir=tmp_path)
    assert caught.value.code == "TF-QNT-011"


def test_modelopts_operation_is_put_back() -> None:
    with quiet():
        import modelopt.torch.quantization.tensor_quant as tensor_quant
    before = tensor_quant.dynamic_block_quantize_op
    with pytest.raises(RuntimeError), emulated_block_quantization() as emulated:
        assert emulated == (not torch.cuda.is_available())
        raise RuntimeError
    assert tensor_quant.dynamic_block_quantize_op is before


def test_nvfp4_packer_equals_modelopts() -> None:
    with quiet():
        from modelopt.torch.quantization.qtensor import NVFP4QTensor
    from trtforge.formats.elements import dequantize_two_level, quantize_two_level, two_level_scale

    weight = torch.randn(64, 128, generator=torch.Generator().manual_seed(3)) * 0.05
    weight[3, 16:32] = 0
    scale = two_level_scale(weight.abs().max())
    theirs, their_scales, _ = NVFP4QTensor.quantize(weight.clone(), 16, weights_scaling_factor_2=scale)
    packed, scales = quantize_two_level(weight, scale)
    assert torch.equal(packed, theirs._quantized_data)
    assert torch.equal(scales.view(torch.uint8), their_scales.view(torch.uint8))
    back = theirs.dequantize(torch.float32, scale=their_scales, double_scale=scale, block_sizes={-1: 16})
    assert torch.equal(dequantize_two_level(packed, scales, scale), back)


def test_int4_packer_equals_modelopts() -> None:
    with quiet():
        from modelopt.torch.export.quant_utils import pack_int4_in_uint8
    from trtforge.formats.int4_awq import pack_rows

    values = torch.randint(-8, 8, (6, 64), generator=torch.Generator().manual_seed(4), dtype=torch.int8)
    theirs = pack_int4_in_uint8(values.float(), torch.ones(6, 2), 32)
    assert torch.equal(pack_rows(values), theirs)


def test_package_table_imports_no_torch() -> None:
    import subprocess

    modules = "trtforge.formats.int4_awq, trtforge.formats.nvfp4, quantize.plan, quantize.corpora, quantize.audit"
    code = f"import {modules}, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2])
