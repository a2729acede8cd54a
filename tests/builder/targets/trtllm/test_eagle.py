"""EAGLE's drafter beside the model: every tensor that TensorRT-LLM's model declares, and no drafter of another one."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builder.targets import engine_info
from builder.targets.trtllm.eagle import refuse_engine
from builder.targets.trtllm.medusa import MedusaHeads
from builder.targets.trtllm.source import Checkpoint
from builder.targets.trtllm_engine import target as engine_target
from tests.builder.quantized_tiny import Quantizer, read_tensors
from tests.builder.targets.trtllm.deshard import deshard, load_ranks
from tests.builder.targets.trtllm.fake_trtllm import install
from tests.builder.targets.trtllm.llama_parameters import parameters
from tests.builder.targets.trtllm.test_checkpoint import SHAPE, share_global_scales
from tests.support.tiny import to_bfloat16_bits, write_safetensors, write_tiny_llama
from trtforge.ground.errors import ForgeError
from trtforge.ground.safetensors_header import read_header
from trtforge.recipe.schema import Build, Speculation

WIDTH, VOCAB, FFN, HEAD = 128, 515, 192, 64
TREE = ((0,), (1,), (0, 0), (1, 0), (0, 0, 0))
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": WIDTH,
    "intermediate_size": FFN,
    "max_position_embeddings": 2048,
    "model_type": "llama",
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": HEAD,
    "num_hidden_layers": 1,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float16",
    "vocab_size": VOCAB,
}


def write_drafter(
    directory: Path, *, drop: str | None = None, add: dict[str, tuple[int, ...]] | None = None, **config: Any
) -> dict[str, np.ndarray]:
    """A drafter as the EAGLE releases lay it out, in F16; returns the values. Shapes are of CONFIG."""
    directory.mkdir(parents=True)
    layers = config.get("num_hidden_layers", 1)
    shapes: dict[str, tuple[int, ...]] = {
        "embed_tokens.weight": (VOCAB, WIDTH),
        "fc.weight": (WIDTH, 2 * WIDTH),
        "fc.bias": (WIDTH,),
    }
    for layer in range(layers):
        name = f"layers.{layer}"
        if layer:
            shapes[f"{name}.input_layernorm.weight"] = (WIDTH,)
        shapes |= {
            f"{name}.post_attention_layernorm.weight": (WIDTH,),
            **{f"{name}.self_attn.{kind}_proj.weight": (4 * HEAD, WIDTH) for kind in "qkv"},
            f"{name}.self_attn.o_proj.weight": (WIDTH, 4 * HEAD),
            f"{name}.mlp.gate_proj.weight": (FFN, WIDTH),
            f"{name}.mlp.up_proj.weight": (FFN, WIDTH),
            f"{name}.mlp.down_proj.weight": (WIDTH, FFN),
        }
    shapes |= add or {}
    shapes.pop(drop or "", None)
    rng = np.random.default_rng(0)
    values = {name: rng.standard_normal(shape).astype(np.float16) for name, shape in sorted(shapes.items())}
    write_safetensors(directory / "model.safetensors", {name: ("F16", v) for name, v in values.items()})
    (directory / "config.json").write_text(json.dumps({**CONFIG, **config}))
    return values


def make_target(directory: Path, fmt: str, **options: Any) -> Path:
    write_tiny_llama(directory, **{**SHAPE, **options})
    quantizer = Quantizer(directory, fmt, kv_fp8=False)
    if fmt == "nvfp4":
        share_global_scales(directory, quantizer)
    return directory


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_target(tmp_path_factory.mktemp("target") / "model", "fp8")


def build(target: Path, out: Path, draft: Path | None, *, tp: int = 1, **speculation: Any) -> dict[str, Any]:
    asked = {"method": "eagle", "draft": "drafter", "choices": TREE, **speculation}
    limits = {"max_batch_size": 4, "max_num_tokens": 16, "max_seq_len": 256}
    settings = {"target": "trtllm-engine", "parallel": {"tp": tp}, "limits": limits}
    return engine_target.build_engine(
        target,
        out,
        name="tiny",
        build=Build.model_validate(settings),
        speculation=Speculation.model_validate(asked),
        draft=draft,
    )


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("fmt", ["none", "fp8", "int4_awq", "nvfp4"])
def test_a_rank_holds_what_the_model_declares(tmp_path: Path, fmt: str, tp: int) -> None:
    target = make_target(tmp_path / "model", fmt)
    write_drafter(tmp_path / "drafter", num_hidden_layers=2)
    build(target, tmp_path / "out", tmp_path / "drafter", tp=tp)
    config = json.loads((tmp_path / "out" / "checkpoint" / "config.json").read_text())
    wanted = parameters(config)
    assert len([name for name in wanted if name.startswith("eagle_nets.2.")]) == 17
    for rank in range(tp):
        header, _ = read_header(tmp_path / "out" / "checkpoint" / f"rank{rank}.safetensors")
        assert {name: (info.dtype, info.shape) for name, info in header.items()} == wanted


def test_the_configuration_says_how_it_drafts(target: Path, tmp_path: Path) -> None:
    write_drafter(tmp_path / "drafter")
    engine = build(target, tmp_path / "out", tmp_path / "drafter", tp=2)
    config, _ = load_ranks(tmp_path / "out" / "checkpoint")
    assert config["architecture"] == "EagleForCausalLM"
    # five nodes, three deep; two of level one have children, one of level two has
    assert (config["max_draft_len"], config["num_eagle_layers"], config["max_non_leaves_per_layer"]) == (5, 3, 2)
    assert config["quantization"]["quant_algo"] == "FP8"
    assert config["quantization"]["exclude_modules"] == ["lm_head", "eagle_nets*"]
    net = config["eagle_net_config"]
    assert net["architecture"] == "LlamaForCausalLM" and net["quantization"]["quant_algo"] is None
    assert (net["num_hidden_layers"], net["intermediate_size"], net["num_attention_heads"]) == (1, FFN, 4)
    assert net["mapping"] == config["mapping"] and net["dtype"] == config["dtype"]
    words = engine["arguments"]
    assert words[words.index("--speculative_decoding_mode") + 1] == "eagle"
    assert words[words.index("--max_draft_len") + 1] == "5"
    # three layers of the model and one of the drafter, two of four KV heads a rank
    assert engine["kv_bytes_per_token"] == 2 * (3 + 1) * 2 * HEAD * 2


@pytest.mark.parametrize("tp", [1, 2])
def test_the_ranks_hold_model_and_drafter(target: Path, tmp_path: Path, tp: int) -> None:
    halves = write_drafter(tmp_path / "drafter")
    build(target, tmp_path / "out", tmp_path / "drafter", tp=tp)
    _, ranks = load_ranks(tmp_path / "out" / "checkpoint")

    def whole(name: str, axis: int = 0) -> np.ndarray:
        return np.concatenate([rank[name].astype(np.float32) for rank in ranks], axis=axis)

    def rounded(name: str) -> np.ndarray:
        bits = to_bfloat16_bits(halves[name].astype(np.float32))
        return (bits.astype(np.uint32) << 16).view(np.float32)

    for level in range(3):
        net = f"eagle_nets.{level}.drafter"
        embedding = whole(f"{net}.vocab_embedding.weight")
        assert np.array_equal(embedding[:VOCAB], rounded("embed_tokens.weight")) and not embedding[VOCAB:].any()
        for theirs, ours, axis in (
            ("fc.weight", "fc.weight", 0),
            ("fc.bias", "fc.bias", 0),
            ("layers.0.self_attn.o_proj.weight", "layers.0.attention.dense.weight", 1),
            ("layers.0.mlp.gate_proj.weight", "layers.0.mlp.fc.weight", 0),
            ("layers.0.mlp.up_proj.weight", "layers.0.mlp.gate.weight", 0),
            ("layers.0.mlp.down_proj.weight", "layers.0.mlp.proj.weight", 1),
        ):
            assert np.array_equal(whole(f"{net}.{ours}", axis), rounded(theirs)), ours
        fused = [np.split(rank[f"{net}.layers.0.attention.qkv.weight"].astype(np.float32), 3) for rank in ranks]
        for index, kind in enumerate("qkv"):
            found = np.concatenate([parts[index] for parts in fused])
            assert np.array_equal(found, rounded(f"layers.0.self_attn.{kind}_proj.weight")), kind
        for rank in ranks:
            norm = rank[f"{net}.layers.0.post_layernorm.weight"].astype(np.float32)
            assert np.array_equal(norm, rounded("layers.0.post_attention_layernorm.weight"))
            assert np.array_equal(rank[f"eagle_nets.{level}.lm_head.weight"], rank["lm_head.weight"])
    model, source = deshard(tmp_path / "out" / "checkpoint"), read_tensors(target)
    assert np.array_equal(model["model.norm.weight"], source["model.norm.weight"].astype(np.float32))


def test_a_head_of_its_own_and_a_missing_bias(tmp_path: Path) -> None:
    target = make_target(tmp_path / "model", "none", tie=False)
    write_drafter(tmp_path / "drafter", drop="fc.bias")
    build(target, tmp_path / "out", tmp_path / "drafter")
    _, (rank,) = load_ranks(tmp_path / "out" / "checkpoint")
    assert np.array_equal(rank["eagle_nets.1.lm_head.weight"], read_tensors(target)["lm_head.weight"])
    assert not np.array_equal(rank["eagle_nets.1.lm_head.weight"], rank["transformer.vocab_embedding.weight"])
    assert not rank["eagle_nets.0.drafter.fc.bias"].any() and rank["eagle_nets.0.drafter.fc.bias"].shape == (WIDTH,)


def test_build_sh_compiles_it_and_the_record_is_read_back(target: Path, tmp_path: Path) -> None:
    """The builder's own room for drafts is no difference; another number of levels is one."""
    write_drafter(tmp_path / "drafter")
    out = tmp_path / "out"
    build(target, out, tmp_path / "drafter")
    environment = {**os.environ, **install(tmp_path / "machine")}
    subprocess.run(["sh", str(out / "build.sh")], env=environment, capture_output=True, text=True, check=True)
    path = out / "trtllm" / "config.json"
    config = json.loads(path.read_text())
    assert config["build_config"]["max_seq_len"] == 256 + 5 + 3
    assert config["build_config"]["max_num_tokens"] == 32  # a block, which is more than 4 * (5 + 1)
    info = engine_info(out)
    assert info["findings"] == [] and info["engine"]["settings"]["speculative_decoding_mode"] == 32
    config["pretrained_config"]["num_eagle_layers"] = 4
    path.write_text(json.dumps(config))
    assert [item["code"] for item in engine_info(out)["findings"]] == ["TF-BLD-064"]
    config["pretrained_config"]["num_eagle_layers"] = 3
    config["build_config"]["max_seq_len"] -= 1
    path.write_text(json.dumps(config))
    assert [item["code"] for item in engine_info(out)["findings"]] == ["TF-BLD-063"]


@pytest.mark.parametrize(
    ("plant", "says"),
    [
        ({"drop": "layers.0.mlp.up_proj.weight"}, r"layers\.0\.mlp\.up_proj\.weight is missing"),
        ({"drop": "embed_tokens.weight"}, r"embed_tokens\.weight is missing"),
        ({"hidden_size": 256}, "hidden_size is 256, the target's 128"),
        ({"vocab_size": 512}, "vocab_size is 512, the target's 515"),
        ({"head_dim": 128}, "head_size is 128, the target's 64"),
        ({"num_key_value_heads": 2}, "num_key_value_heads is 2, the target's 4"),
        ({"rope_theta": 500000.0}, "rope is .*500000"),
        ({"intermediate_size": 256}, r"layers\.0\.mlp\.gate_proj\.weight is \[192, 128\], not \[256, 128\]"),
        ({"num_attention_heads": 8}, r"q_proj\.weight is \[256, 128\], not \[512, 128\]"),
        ({"architectures": ["GPT2LMHeadModel"]}, "config.json of the drafter cannot be used"),
        ({"add": {"layers.0.input_layernorm.weight": (WIDTH,)}}, "no place in TensorRT-LLM's: layers.0.input"),
        ({"add": {"norm.weight": (WIDTH,)}}, r"no place in TensorRT-LLM's: norm\.weight"),
        ({"add": {"fc.weight": (WIDTH, 3 * WIDTH)}}, "EAGLE-3"),
        ({"add": {"d2t": (VOCAB,)}}, "EAGLE-3"),
    ],
)
def test_a_drafter_that_does_not_fit_is_refused(target: Path, tmp_path: Path, plant: dict[str, Any], says: str) -> None:
    write_drafter(tmp_path / "drafter", **plant)
    with pytest.raises(ForgeError, match=says) as caught:
        build(target, tmp_path / "out", tmp_path / "drafter")
    assert caught.value.code == "TF-BLD-067" and caught.value.remedies
    assert not (tmp_path / "out" / "engine.json").exists()


@pytest.mark.parametrize(
    "speculation",
    [
        {"heads": 4},  # the tree is three deep
        {"max_draft_len": 4},  # and has five nodes
        {"choices": None, "max_draft_len": 62},  # the server's default tree has 63
        {"choices": None, "heads": 5, "max_draft_len": 63},  # and is four deep
    ],
)
def test_a_tree_that_does_not_fit_is_refused(target: Path, tmp_path: Path, speculation: dict[str, Any]) -> None:
    write_drafter(tmp_path / "drafter")
    with pytest.raises(ForgeError) as caught:
        build(target, tmp_path / "out", tmp_path / "drafter", **speculation)
    assert caught.value.code == "TF-BLD-067" and "nodes" in caught.value.message


def test_without_a_tree_it_is_built_for_the_servers(target: Path, tmp_path: Path) -> None:
    write_drafter(tmp_path / "drafter")
    build(target, tmp_path / "out", tmp_path / "drafter", choices=None, max_draft_len=63)
    config = json.loads((tmp_path / "out" / "checkpoint" / "config.json").read_text())
    assert (config["max_draft_len"], config["num_eagle_layers"], config["max_non_leaves_per_layer"]) == (63, 4, 10)


def test_pickles_and_no_drafter_are_refused(target: Path, tmp_path: Path) -> None:
    write_drafter(tmp_path / "drafter")
    (tmp_path / "drafter" / "model.safetensors").unlink()
    (tmp_path / "drafter" / "pytorch_model.bin").write_bytes(b"\x80\x04N.")
    with pytest.raises(ForgeError) as caught:
        build(target, tmp_path / "out", tmp_path / "drafter")
    assert caught.value.code == "TF-SRC-028"
    with pytest.raises(ForgeError) as caught:
        build(target, tmp_path / "out", None)
    assert caught.value.code == "TF-BLD-067"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"parallel": {"pp": 2}}, "over pp 2"),
        ({"trtllm": {"fp8_context_attention": True}}, "with FP8 context attention"),
        ({"trtllm": {"paged_context_attention": False}}, "without paged context attention"),
    ],
)
def test_an_engine_that_eagle_has_not_is_refused(target: Path, change: dict[str, Any], says: str) -> None:
    source = Checkpoint.open(target)
    refuse_engine(source, Build.model_validate({"target": "trtllm-engine"}))
    with pytest.raises(ForgeError, match=says) as caught:
        refuse_engine(source, Build.model_validate({"target": "trtllm-engine", **change}))
    assert caught.value.code == "TF-BLD-037" and len(caught.value.remedies) == 2


def test_a_model_that_eagle_does_not_take_is_refused(target: Path, tmp_path: Path) -> None:
    build_settings = Build.model_validate({"target": "trtllm-engine"})
    source = Checkpoint.open(target)
    other = replace(source, config=replace(source.config, architecture="OtherForCausalLM"))
    with pytest.raises(ForgeError, match="beside a model of OtherForCausalLM"):
        refuse_engine(other, build_settings)
    with pytest.raises(ForgeError, match="beside a model of OtherForCausalLM"):
        MedusaHeads.open(tmp_path, target=other, heads=None, max_draft_len=3)
    with pytest.raises(ForgeError, match="with KV cache FP8"):
        refuse_engine(replace(source, kv_algorithm="FP8"), build_settings)
    headers = {**source.headers, "lm_head.weight_scale": source.headers["model.norm.weight"]}
    with pytest.raises(ForgeError, match="beside a quantized output head"):
        refuse_engine(replace(source, headers=headers), build_settings)
