"""Every row of the decoder table through the stages: intake, quantization, TensorRT-LLM's checkpoint, RTX's compiler,
and what preflight and the planner count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from builder.graphs.build import build_graph
from builder.planner import model as planner
from builder.targets.trtllm.checkpoint import convert_checkpoint
from builder.targets.trtllm_llmapi.target import LlmSettings
from builder.targets.trtllm_llmapi.target import build_engine as build_llm_api
from quantize.audit import Expected, audit_checkpoint
from quantize.checkpoint import quantize_checkpoint
from quantize.intake import fetch_checkpoint, inspect_source
from quantize.plan import plan_quantization, read_config
from quantize.reference import load_reference_model
from tests.builder.quantized_tiny import Quantizer, read_tensors
from tests.builder.targets.rtx.models import compiles, rtx_build
from tests.builder.targets.trtllm.deshard import load_ranks
from tests.builder.targets.trtllm.llama_parameters import parameters
from tests.builder.targets.trtllm.test_checkpoint import share_global_scales
from tests.families.support import FULL, QUANTIZED, ROWS, VARIANTS, assert_exact, checkpoint
from tests.families.test_computation import executor
from tests.quantize.test_ptq import FORMATS, modelopt_logits, prompt
from tests.runtime.executor_support import PROMPTS, blocks_of, make_batch
from tests.support.decoder_models import variants, write_decoder
from tests.support.engines import build_engine
from tests.support.preflight import codes as preflight_codes
from tests.support.refusals import refusal
from tests.support.tiny_gguf import read_float32, write_tiny_gguf
from trtforge.ground.safetensors_header import read_header, read_headers
from trtforge.models.shape import linears
from trtforge.recipe.schema import Build
from trtforge.tables.decoders import decoders, gguf_decoders

rows = pytest.mark.parametrize("name", ROWS)
every_variant = pytest.mark.parametrize(("name", "kind"), VARIANTS)
formats = pytest.mark.parametrize("fmt", QUANTIZED)
#: a class with factors, and one with fused projections
FACTORED = ("GraniteForCausalLM", "Phi3ForCausalLM")


def elements(directory: Path) -> int:
    return sum(info.elements for info in read_headers(directory).values())


@every_variant
def test_intake_takes_what_transformers_writes(root: Path, tmp_path: Path, name: str, kind: str) -> None:
    """It counts what is there, and what it writes means the same."""
    source = checkpoint(root, name, kind)
    info = inspect_source(str(source), tmp_path)
    assert info is not None and info.model.parameters == elements(source)
    row, config = decoders()[name], read_config(source)
    assert (info.model.architecture, info.model.family) == (name, row.family)
    biased = any("k_proj.bias" in key for key in read_headers(source))
    assert info.model.attention_bias == row.bias("qkv", config) == biased
    taken = fetch_checkpoint(str(source), tmp_path / "out", base_dir=tmp_path, cache_dir=tmp_path / "cache")
    read = (taken.model.parameters, taken.model.sliding_window or None)
    assert read == (info.model.parameters, config.get("sliding_window"))
    reference = load_reference_model(tmp_path / "out")
    assert_exact([reference.logits(torch.tensor(tokens)).numpy() for tokens in PROMPTS], source, PROMPTS)


@every_variant
def test_preflight_and_planner_count_what_is_there(root: Path, tmp_path: Path, name: str, kind: str) -> None:
    """From intake's record and from config.json alone."""
    source = checkpoint(root, name, kind)
    info = inspect_source(str(source), tmp_path)
    assert info is not None
    planned = planner.from_config(read_config(source))
    assert not planned.assumed and planned.parameters == info.model.parameters == elements(source)
    assert planned.windows == info.model.windows and planned.kv == info.model.kv
    wanted = {
        key.removesuffix(".weight"): value.shape
        for key, value in read_headers(source).items()
        if len(value.shape) == 2 and "embed" not in key and key != "lm_head.weight"
    }
    counted = {module: (linear.rows, linear.columns) for linear in linears(info.model) for module in linear.names}
    assert counted.pop("lm_head") == (info.model.vocab, info.model.hidden) and counted == wanted


@pytest.mark.slow
@formats
@rows
def test_from_modelopt_to_the_engine(root: Path, tmp_path: Path, name: str, fmt: str) -> None:
    """ModelOpt's export passes the audit, and reference and engine compute what it fake-quantized."""
    source, section, out = checkpoint(root, name, FULL), FORMATS[fmt], tmp_path / "quantized"
    quantize_checkpoint(source, out, section=section, base_dir=tmp_path)
    before = read_headers(source)
    plan = plan_quantization(read_config(source), before, section)
    modules = {key.removesuffix(".weight") for key, info in before.items() if len(info.shape) == 2}
    assert {*plan.quantized, "lm_head", "model.embed_tokens"} == modules and plan.excluded == ("lm_head",)
    assert audit_checkpoint(out, Expected.from_plan(plan)).findings == []
    after = read_headers(out)
    kept = {key for key, info in before.items() if len(info.shape) == 1}
    assert {key: after[key].dtype for key in kept} == dict.fromkeys(kept, "BF16")

    ids = prompt(source, 80)
    reference = load_reference_model(out).logits(ids)
    theirs, plain = modelopt_logits(source, section, ids), load_reference_model(source).logits(ids)
    assert (reference - theirs).pow(2).mean() < 0.1 * (plain - theirs).pow(2).mean()

    program = executor(out, kv="fp8")
    tokens = ids.tolist()
    found, done = [], 0
    for step in (tokens[:50], tokens[50:51], tokens[51:52], tokens[52:]):
        found.append(program.execute(make_batch([(step, done, blocks_of(0))])).clone())
        done += len(step)
    # a value that rounds to another code moves the logits behind it; few rows of INT4 run in bfloat16
    error = (torch.cat(found) - reference).abs() / reference.abs().max()
    assert error.median() < 1e-2 and error.max() < 0.2


@pytest.mark.parametrize("fmt", ["none", *QUANTIZED])
@rows
def test_tensorrt_llm_finds_every_parameter_and_no_other(tmp_path: Path, name: str, fmt: str) -> None:
    row = decoders()[name]
    changes = variants(row)[FULL]
    if not row.trtllm.o_bias and isinstance(row.o_bias, str):
        changes[row.o_bias] = False  # its class has no place for one, and a test of its own
    source = write_decoder(tmp_path / "model", name, changes)
    quantizer = Quantizer(source, fmt, kv_fp8=fmt != "none")
    if fmt == "nvfp4":
        share_global_scales(source, quantizer)
    if not row.trtllm.engine:
        assert refusal(convert_checkpoint, source, tmp_path / "out", tp=2).code == "TF-BLD-124"
        return
    convert_checkpoint(source, tmp_path / "out", tp=2)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architecture"] == name and row.trtllm.config.items() <= config.items()
    for rank in range(2):
        written = read_header(tmp_path / "out" / f"rank{rank}.safetensors")[0]
        assert {key: (info.dtype, info.shape) for key, info in written.items()} == parameters(config)


def test_tensorrt_llm_is_told_every_factor_and_rotation(tmp_path: Path) -> None:
    """Scores are multiplied by the root of the head size less: TensorRT-LLM divides by it besides."""
    granite, phi = (write_decoder(tmp_path / name, name, variants(decoders()[name])[FULL]) for name in FACTORED)
    convert_checkpoint(granite, tmp_path / "granite")
    config = json.loads((tmp_path / "granite" / "config.json").read_text())
    wanted = {"embedding_multiplier": 3.3, "residual_multiplier": 0.37, "attention_multiplier": 0.11 * 8}
    assert {key: config[key] for key in wanted} == pytest.approx(wanted)
    assert config["output_multiplier_scale"] == pytest.approx(1 / 1.7)
    convert_checkpoint(phi, tmp_path / "phi")
    config = json.loads((tmp_path / "phi" / "config.json").read_text())
    assert (config["position_embedding_type"], config["rotary_pct"]) == ("long_rope", 0.75)
    assert len(config["longrope_scaling_long_factors"]) == len(config["longrope_scaling_short_factors"]) == 24
    assert config["original_max_position_embeddings"] == 4 and config["rotary_scaling"] is None


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_fused_projections_are_cut_by_heads_and_halves(tmp_path: Path, tp: int) -> None:
    """Each rank has its rows of q, k and v, and of up above those of gate."""
    name = FACTORED[1]
    source = write_decoder(tmp_path / "model", name)
    convert_checkpoint(source, tmp_path / "out", tp=tp)
    stored = read_tensors(source)
    q, k, v = np.split(stored["model.layers.1.self_attn.qkv_proj.weight"], [256, 384])
    gate, up = np.split(stored["model.layers.1.mlp.gate_up_proj.weight"], 2)
    for rank, tensors in enumerate(load_ranks(tmp_path / "out")[1]):
        heads = slice(rank * 256 // tp, (rank + 1) * 256 // tp)
        first = rank * 2 // tp * 64
        keys = slice(first, first + max(128 // tp, 64))
        assert np.array_equal(
            tensors["transformer.layers.1.attention.qkv.weight"], np.concatenate([q[heads], k[keys], v[keys]])
        )
        rows = slice(rank * 128 // tp, (rank + 1) * 128 // tp)
        assert np.array_equal(tensors["transformer.layers.1.mlp.fc.weight"], np.concatenate([up[rows], gate[rows]]))


@rows
def test_what_tensorrt_llm_lacks_is_said_before_anything_runs(root: Path, tmp_path: Path, name: str) -> None:
    """By preflight and by the LLM API's build, both from the row."""
    info, row = inspect_source(str(checkpoint(root, name, "plain")), tmp_path), decoders()[name]
    assert info is not None
    for target, known in (("trtllm-engine", row.trtllm.engine), ("trtllm-llmapi", row.trtllm.llm_api), ("torch", True)):
        found = preflight_codes({"build": {"target": target}}, model=info.model)
        assert ("TF-K13-010" in found) is not known
    if not row.trtllm.llm_api:
        settings = LlmSettings({"model": "checkpoint"}, ("trtllm-serve",), "o.yaml", "a: 1\n")
        build = Build.model_validate({"target": "trtllm-llmapi"})
        error = refusal(
            build_llm_api, checkpoint(root, name, "plain"), tmp_path / "out", name="x", build=build, settings=settings
        )
        assert error.code == "TF-BLD-124" and name in error.message


@pytest.mark.parametrize("architecture", [row.architecture for row in gguf_decoders().values()])
def test_gguf_comes_back_exactly(root: Path, tmp_path: Path, architecture: str) -> None:
    """Names, biases and norms; rows of q and k in the order in which the class has them."""
    source = checkpoint(root, architecture, "plain")
    path = write_tiny_gguf(tmp_path / "m.gguf", source, matrix_type="BF16", pre="qwen2")
    info = fetch_checkpoint(
        str(path), tmp_path / "out", base_dir=tmp_path, cache_dir=tmp_path / "cache", dtype="float32"
    )
    before, after = read_float32(source), read_float32(tmp_path / "out")
    assert before.keys() == after.keys()
    for name, values in before.items():
        assert np.array_equal(after[name], values), name
    assert (info.model.architecture, info.model.head_size) == (architecture, 64)
    made: dict[str, Any] = json.loads((tmp_path / "out" / "config.json").read_text())
    given = read_config(source)
    for key in ("model_type", "num_key_value_heads", "rms_norm_eps", "rope_parameters", "tie_word_embeddings"):
        assert made[key] == given[key], key
    assert made.get("use_sliding_window", False) is False


@pytest.mark.parametrize(("name", "fmt"), [(name, ("fp8", "int4_awq")[i % 2]) for i, name in enumerate(ROWS)])
class TestRtx:
    pytestmark = compiles

    def test_it_compiles(self, tmp_path: Path, name: str, fmt: str) -> None:
        model = write_decoder(tmp_path / "model", name, variants(decoders()[name])[FULL], dtype="float16")
        Quantizer(model, fmt, scale_type="F16")
        info = build_graph(model, model, dtype="float16", mode="native")
        target = "sm_89" if fmt == "fp8" else "sm_86"
        engine = build_engine(model, tmp_path / "engine", name="tiny", build=rtx_build(target))
        assert (tmp_path / "engine" / f"{target}.rtx").stat().st_size > 0
        assert engine["quantized_linears"] == sum(linear.format == fmt for linear in info.linears) > 0
        windows = (info.sliding_window, list(info.full_attention_layers))
        assert (engine["sliding_window"], engine["full_attention_layers"]) == windows
