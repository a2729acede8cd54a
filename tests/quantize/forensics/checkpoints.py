"""Small checkpoints as each tool writes them: names, types and shapes from the tools' own sources, values made up.

Every function returns tensors and config sections; :func:`write` puts them on disk with what travels beside them. The
values are random but right: no two scales alike, those of fused linears the same where the tool makes them so.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.tiny import write_safetensors

Tensors = dict[str, tuple[str, np.ndarray]]
HIDDEN, KV, FFN, VOCAB, LAYERS, EXPERTS = 64, 32, 128, 320, 2, 4
ATTENTION = {"q_proj": (HIDDEN, HIDDEN), "k_proj": (KV, HIDDEN), "v_proj": (KV, HIDDEN), "o_proj": (HIDDEN, HIDDEN)}
MLP = {"gate_proj": (FFN, HIDDEN), "up_proj": (FFN, HIDDEN), "down_proj": (HIDDEN, FFN)}
_TYPES = {
    "F32": "<f4",
    "BF16": "<u2",
    "F16": "<f2",
    "F8_E4M3": "u1",
    "U8": "u1",
    "I8": "i1",
    "I32": "<i4",
    "I64": "<i8",
}


def rng(seed: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(seed.encode()))


def linears(*, moe: bool = False, layers: int = LAYERS) -> dict[str, tuple[int, int]]:
    """Module → [N, K] of every linear of the layers."""
    found = {}
    for layer in range(layers):
        found |= {f"model.layers.{layer}.self_attn.{name}": shape for name, shape in ATTENTION.items()}
        if moe:
            for expert in range(EXPERTS):
                found |= {f"model.layers.{layer}.mlp.experts.{expert}.{name}": shape for name, shape in MLP.items()}
        else:
            found |= {f"model.layers.{layer}.mlp.{name}": shape for name, shape in MLP.items()}
    return found


def plain(*shape: int) -> tuple[str, np.ndarray]:
    return ("BF16", np.full(shape, 0x3C00, "<u2"))


def outside(*, moe: bool = False, head: bool = True, layers: int = LAYERS) -> Tensors:
    """Embedding, head, norms and routers."""
    tensors: Tensors = {"model.embed_tokens.weight": plain(VOCAB, HIDDEN), "model.norm.weight": plain(HIDDEN)}
    if head:
        tensors["lm_head.weight"] = plain(VOCAB, HIDDEN)
    for layer in range(layers):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{norm}.weight"] = plain(HIDDEN)
        if moe:
            tensors[f"model.layers.{layer}.mlp.gate.weight"] = plain(EXPERTS, HIDDEN)
    return tensors


def codes(dtype: str, *shape: int, seed: str) -> tuple[str, np.ndarray]:
    """Weights: any bytes but E4M3's NaN."""
    high = {"F8_E4M3": 0x7E, "U8": 255, "I8": 127}.get(dtype, 2**31 - 1)
    return (dtype, rng(seed).integers(0, high, shape).astype(_TYPES[dtype]))


def scale(dtype: str, *shape: int, seed: str, low: float = 0.001, high: float = 0.02) -> tuple[str, np.ndarray]:
    """Scales; E4M3 ones between a quarter and two, powers of two around 2^-8."""
    random = rng(seed)
    if dtype == "F8_E4M3":
        return (dtype, random.integers(0x28, 0x40, shape).astype("u1"))
    if dtype == "U8":
        return (dtype, random.integers(115, 124, shape).astype("u1"))
    values = random.uniform(low, high, shape).astype("<f4")
    if dtype == "BF16":
        return (dtype, (values.view("<u4") >> 16).astype("<u2"))
    return (dtype, values.astype(_TYPES[dtype]))


def parent(module: str) -> str:
    """What fused linears share: their scales are seeded with it."""
    return module.rpartition(".")[0]


# --- ModelOpt -----------------------------------------------------------------------------------


def _kv(tensors: Tensors, style: str) -> None:
    for layer in range(LAYERS):
        for kind in "kv":
            name = f"model.layers.{layer}.self_attn." + (
                f"{kind}_proj.{kind}_scale" if style == "modelopt" else f"{kind}_scale"
            )
            tensors[name] = scale("F32", *(() if style == "modelopt" else (1,)), seed=name)


def _modelopt_linear(tensors: Tensors, module: str, rows: int, columns: int, algorithm: str) -> None:
    if algorithm == "FP8":
        tensors[f"{module}.weight"] = codes("F8_E4M3", rows, columns, seed=module)
        tensors[f"{module}.weight_scale"] = scale("F32", seed=module)
        tensors[f"{module}.input_scale"] = scale("F32", seed=f"{parent(module)}.in")
    elif algorithm in ("NVFP4", "W4A16_NVFP4"):
        tensors[f"{module}.weight"] = codes("U8", rows, columns // 2, seed=module)
        tensors[f"{module}.weight_scale"] = scale("F8_E4M3", rows, columns // 16, seed=module)
        tensors[f"{module}.weight_scale_2"] = scale("F32", seed=f"{parent(module)}.w")
        if algorithm == "NVFP4":
            tensors[f"{module}.input_scale"] = scale("F32", seed=f"{parent(module)}.in")
    else:
        tensors[f"{module}.weight"] = codes("U8", rows // 2, columns, seed=module)
        tensors[f"{module}.weight_scale"] = scale("F32", rows, columns // 64, seed=module)
        tensors[f"{module}.pre_quant_scale"] = scale("BF16", columns, seed=f"{parent(module)}.pre", low=0.5, high=2)


def modelopt(algorithm: str = "FP8", *, kv: bool = False, moe: bool = False) -> tuple[Tensors, dict[str, Any]]:
    """A unified export: hf_quant_config.json and the same in config.json."""
    tensors = outside(moe=moe)
    layers: dict[str, Any] = {}
    for module, (rows, columns) in linears(moe=moe).items():
        own = ("FP8" if "self_attn" in module else "NVFP4") if algorithm == "MIXED_PRECISION" else algorithm
        _modelopt_linear(tensors, module, rows, columns, own)
        layers[module] = {"quant_algo": own, **({"group_size": 16} if own == "NVFP4" else {})}
    section: dict[str, Any] = {
        "quant_algo": algorithm,
        "kv_cache_quant_algo": "FP8" if kv else None,
        "exclude_modules": ["lm_head", *(["model.layers.*.mlp.gate"] if moe else [])],
    }
    if algorithm == "MIXED_PRECISION":
        section["quantized_layers"] = layers
    elif algorithm in ("NVFP4", "W4A16_AWQ"):
        section["group_size"] = 16 if algorithm == "NVFP4" else 64
    if kv:
        _kv(tensors, "modelopt")
    embedded = {"quant_method": "modelopt", "quant_algo": algorithm, "ignore": section["exclude_modules"]}
    record = {"producer": {"name": "modelopt", "version": "0.47.0"}, "quantization": section}
    return tensors, {"quantization_config": embedded, "hf_quant_config.json": record}


# --- compressed-tensors -------------------------------------------------------------------------


def compressed(form: str, *, kv: bool = False, moe: bool = False, **options: Any) -> tuple[Tensors, dict[str, Any]]:
    """save_pretrained(save_compressed=True) of llm-compressor; options: symmetric, strategy, dynamic, actorder."""
    symmetric, strategy = options.get("symmetric", True), options.get("strategy")
    tensors = outside(moe=moe)
    weights: dict[str, Any] = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False}
    inputs: dict[str, Any] | None = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
    for module, (rows, columns) in linears(moe=moe).items():
        if form == "pack-quantized":
            tensors[f"{module}.weight_packed"] = codes("I32", rows, columns // 8, seed=module)
            tensors[f"{module}.weight_scale"] = scale("BF16", rows, columns // 32, seed=module)
            tensors[f"{module}.weight_shape"] = ("I64", np.array([rows, columns], "<i8"))
            if not symmetric:
                tensors[f"{module}.weight_zero_point"] = codes("I32", rows // 8, columns // 32, seed=f"{module}.z")
            if options.get("actorder"):
                tensors[f"{module}.weight_g_idx"] = ("I32", np.arange(columns, dtype="<i4") // 32)
        elif form == "nvfp4-pack-quantized":
            tensors[f"{module}.weight_packed"] = codes("U8", rows, columns // 2, seed=module)
            tensors[f"{module}.weight_scale"] = scale("F8_E4M3", rows, columns // 16, seed=module)
            tensors[f"{module}.weight_global_scale"] = scale("F32", 1, seed=f"{parent(module)}.w", low=2e3, high=2e4)
            tensors[f"{module}.input_global_scale"] = scale("F32", 1, seed=f"{parent(module)}.in", low=50, high=500)
        elif form == "mxfp4-pack-quantized":
            tensors[f"{module}.weight_packed"] = codes("U8", rows, columns // 2, seed=module)
            tensors[f"{module}.weight_scale"] = scale("U8", rows, columns // 32, seed=module)
        elif form == "int-quantized":
            tensors[f"{module}.weight"] = codes("I8", rows, columns, seed=module)
            tensors[f"{module}.weight_scale"] = scale("BF16", rows, 1, seed=module)
        else:
            tensors[f"{module}.weight"] = codes("F8_E4M3", rows, columns, seed=module)
            if strategy == "channel":
                tensors[f"{module}.weight_scale"] = scale("BF16", rows, 1, seed=module)
            elif strategy == "block":
                tensors[f"{module}.weight_scale"] = scale("F32", -(-rows // 16), -(-columns // 16), seed=module)
            else:
                tensors[f"{module}.weight_scale"] = scale("BF16", 1, seed=module)
                tensors[f"{module}.input_scale"] = scale("BF16", 1, seed=f"{parent(module)}.in")
    if form == "pack-quantized":
        weights |= {"num_bits": 4, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": 32}
        weights["actorder"] = options.get("actorder")
        inputs = None
    elif form == "nvfp4-pack-quantized":
        weights |= {"num_bits": 4, "strategy": "tensor_group", "group_size": 16}
        inputs = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "dynamic": "local"}
    elif form == "mxfp4-pack-quantized":
        weights |= {"num_bits": 4, "strategy": "group", "group_size": 32}
        inputs = None
    elif form == "int-quantized":
        weights |= {"type": "int", "strategy": "channel"}
    else:
        weights["strategy"] = strategy or "tensor"
        if strategy == "block":
            weights["block_structure"] = [16, 16]
        if strategy is None:
            inputs = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True} if kv else None
    if kv:
        _kv(tensors, "compressed")
    gates = [f"model.layers.{layer}.mlp.gate" for layer in range(LAYERS)] if moe else []
    section = {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": inputs}},
        "ignore": ["lm_head", *gates],
        "kv_cache_scheme": scheme,
    }
    return tensors, {"quantization_config": section}


# --- AWQ, GPTQ, FP8, MXFP4 ----------------------------------------------------------------------


def awq(*, moe: bool = False, zero: bool = True) -> tuple[Tensors, dict[str, Any]]:
    """AutoAWQ's GEMM form."""
    tensors = outside(moe=moe)
    for module, (rows, columns) in linears(moe=moe).items():
        tensors[f"{module}.qweight"] = codes("I32", columns, rows // 8, seed=module)
        tensors[f"{module}.qzeros"] = codes("I32", columns // 32, rows // 8, seed=f"{module}.z")
        tensors[f"{module}.scales"] = scale("F16", columns // 32, rows, seed=module)
    section = {
        "quant_method": "awq",
        "bits": 4,
        "group_size": 32,
        "zero_point": zero,
        "version": "gemm",
        "modules_to_not_convert": ["mlp.gate"] if moe else None,
    }
    return tensors, {"quantization_config": section}


def gptq(*, version: str = "gptq", desc_act: bool = False) -> tuple[Tensors, dict[str, Any]]:
    """GPTQModel's: zero points less one in version gptq, themselves in gptq_v2; g_idx always."""
    tensors = outside()
    zero = 0x77777777 if version == "gptq" else 0x88888888
    for module, (rows, columns) in linears().items():
        tensors[f"{module}.qweight"] = codes("I32", columns // 8, rows, seed=module)
        tensors[f"{module}.qzeros"] = ("I32", np.full((columns // 32, rows // 8), zero, "<u4").view("<i4"))
        tensors[f"{module}.scales"] = scale("F16", columns // 32, rows, seed=module)
        order = np.arange(columns, dtype="<i4") // 32
        tensors[f"{module}.g_idx"] = ("I32", rng(module).permutation(order).astype("<i4") if desc_act else order)
    section = {
        "quant_method": "gptq",
        "bits": 4,
        "group_size": 32,
        "desc_act": desc_act,
        "sym": True,
        "lm_head": False,
        "checkpoint_format": version,
    }
    return tensors, {"quantization_config": section}


def fp8_blocks(*, moe: bool = True) -> tuple[Tensors, dict[str, Any]]:
    """DeepSeek-V3's and Qwen3-FP8's: weight_scale_inv for blocks (of 16 here, 128 there)."""
    tensors = outside(moe=moe)
    for module, (rows, columns) in linears(moe=moe).items():
        tensors[f"{module}.weight"] = codes("F8_E4M3", rows, columns, seed=module)
        tensors[f"{module}.weight_scale_inv"] = scale("F32", -(-rows // 16), -(-columns // 16), seed=module)
    section = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [16, 16]}
    return tensors, {"quantization_config": section}


def fp8_static() -> tuple[Tensors, dict[str, Any]]:
    """AutoFP8's static form."""
    tensors = outside()
    for module, (rows, columns) in linears().items():
        _modelopt_linear(tensors, module, rows, columns, "FP8")
    section = {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}
    return tensors, {"quantization_config": section}


def mxfp4() -> tuple[Tensors, dict[str, Any]]:
    """gpt-oss: experts of one tensor in blocks of 32, everything else plain."""
    tensors = outside()
    for layer in range(LAYERS):
        base = f"model.layers.{layer}"
        for name, shape in ATTENTION.items():
            tensors[f"{base}.self_attn.{name}.weight"] = plain(*shape)
            tensors[f"{base}.self_attn.{name}.bias"] = plain(shape[0])
        tensors[f"{base}.self_attn.sinks"] = plain(4)
        tensors[f"{base}.mlp.router.weight"] = plain(EXPERTS, HIDDEN)
        tensors[f"{base}.mlp.router.bias"] = plain(EXPERTS)
        for name, (rows, columns) in {"gate_up_proj": (2 * FFN, HIDDEN), "down_proj": (HIDDEN, FFN)}.items():
            stem = f"{base}.mlp.experts.{name}"
            tensors[f"{stem}_blocks"] = codes("U8", EXPERTS, rows, columns // 32, 16, seed=stem)
            tensors[f"{stem}_scales"] = scale("U8", EXPERTS, rows, columns // 32, seed=stem)
            tensors[f"{stem}_bias"] = plain(EXPERTS, rows)
    alone = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    return tensors, {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": alone}}


def unquantized(*, head: bool = True) -> tuple[Tensors, dict[str, Any]]:
    tensors = outside(head=head)
    tensors |= {f"{module}.weight": plain(*shape) for module, shape in linears().items()}
    return tensors, {}


# --- on disk ------------------------------------------------------------------------------------

TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


def write(
    directory: Path,
    tensors: Tensors,
    sections: dict[str, Any],
    *,
    shards: int = 1,
    config: dict[str, Any] | None = None,
) -> Path:
    """The checkpoint with config, tokenizer, template and generation settings; more than one shard brings the index."""
    directory.mkdir(parents=True, exist_ok=True)
    moe = any(".experts." in name for name in tensors)
    values = {
        "architectures": [
            "GptOssForCausalLM"
            if any("_blocks" in n for n in tensors)
            else "Qwen3MoeForCausalLM"
            if moe
            else "LlamaForCausalLM"
        ],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "vocab_size": VOCAB,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": FFN,
        "tie_word_embeddings": False,
        "rope_theta": 10000.0,
        "max_position_embeddings": 1024,
        "eos_token_id": 2,
        **({"num_experts": EXPERTS} if moe else {}),
    }
    for name, value in sections.items():
        if name.endswith(".json"):
            (directory / name).write_text(json.dumps(value))
        else:
            values[name] = value
    (directory / "config.json").write_text(json.dumps(values | (config or {})))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    tokenizer = {"model": {"type": "BPE", "vocab": {"a": 0}}, "added_tokens": [{"id": 1, "content": "<|im_start|>"}]}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    names = sorted(tensors)
    if shards == 1:
        write_safetensors(directory / "model.safetensors", tensors)
        return directory
    weight_map = {}
    for number in range(shards):
        file = f"model-{number + 1:05d}-of-{shards:05d}.safetensors"
        mine = names[number::shards]
        write_safetensors(directory / file, {name: tensors[name] for name in mine})
        weight_map |= dict.fromkeys(mine, file)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def trtllm(directory: Path, *, ranks: int = 2, kv: bool = True, calibrated: bool = True) -> Path:
    """A TensorRT-LLM checkpoint in FP8, a file a rank; without calibration there are no scales of activations."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "architecture": "LlamaForCausalLM",
        "dtype": "bfloat16",
        "num_hidden_layers": LAYERS,
        "rotary_scaling": None,
        "quantization": {
            "quant_algo": "FP8",
            "kv_cache_quant_algo": "FP8" if kv else None,
            "exclude_modules": ["lm_head"],
        },
        "mapping": {"world_size": ranks, "tp_size": ranks, "pp_size": 1},
        "producer": {"name": "modelopt"},
    }
    (directory / "config.json").write_text(json.dumps(config))
    for rank in range(ranks):
        tensors: Tensors = {
            "transformer.vocab_embedding.weight": plain(VOCAB, HIDDEN),
            "transformer.ln_f.weight": plain(HIDDEN),
            "lm_head.weight": plain(VOCAB // ranks, HIDDEN),
        }
        for layer in range(LAYERS):
            base = f"transformer.layers.{layer}"
            tensors[f"{base}.input_layernorm.weight"] = plain(HIDDEN)
            for name, shape in {
                "attention.qkv": (128, 64),
                "attention.dense": (64, 64),
                "mlp.fc": (128, 64),
                "mlp.proj": (64, 128),
            }.items():
                stem = f"{base}.{name}"
                tensors[f"{stem}.weight"] = codes("F8_E4M3", *shape, seed=stem)
                tensors[f"{stem}.weights_scaling_factor"] = scale("F32", 1, seed=stem)
                if calibrated:
                    tensors[f"{stem}.activation_scaling_factor"] = scale("F32", 1, seed=f"{stem}.in")
            if kv:
                tensors[f"{base}.attention.kv_cache_scaling_factor"] = scale("F32", 1, seed=f"{base}.kv")
        write_safetensors(directory / f"rank{rank}.safetensors", tensors)
    return directory
