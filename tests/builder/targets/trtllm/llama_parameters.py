"""The parameters that TensorRT-LLM's Llama, Qwen, Phi-3 and EAGLE models declare, stated from their definitions alone.

From config.json of a checkpoint to name, type and shape of every parameter of a rank, in the form in which a
checkpoint holds them (``preprocess_weights`` renames and packs the rest when it is loaded). Written from
https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/tensorrt_llm/models/llama/model.py (LLaMADecoderLayer, LLaMAModel,
LLaMAForCausalLM), models/qwen/model.py (QWenDecoderLayer), models/phi3/model.py (Phi3DecoderLayer),
models/eagle/model.py (EagleNet, EagleForCausalLM), layers/linear.py, layers/attention.py, layers/mlp.py,
layers/embedding.py, and quantization/quantize.py (which modules a pattern excludes).
"""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

Declared = Iterator[tuple[str, tuple[str, tuple[int, ...]]]]
TYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


def parameters(config: dict[str, Any]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name → (safetensors type, shape) of the parameters of any tensor-parallel rank; no pipeline."""
    return dict(_Model(config).declared())


class _Model:
    def __init__(self, config: dict[str, Any]) -> None:
        self.config, self.tp = config, config["mapping"]["tp_size"]
        assert config["mapping"]["pp_size"] == 1 and config["use_parallel_embedding"]
        self.quantization = config["quantization"]

    def declared(self) -> Declared:
        yield from self.llama("transformer", self.config, norm_first=True, last_norm=True, fc=False)
        yield from self.head("lm_head", self.config)
        for level in range(self.config.get("num_eagle_layers", 0)):
            net = self.config["eagle_net_config"]
            yield from self.llama(f"eagle_nets.{level}.drafter", net, norm_first=False, last_norm=False, fc=True)
            yield from self.head(f"eagle_nets.{level}.lm_head", net)

    def llama(self, name: str, config: dict[str, Any], *, norm_first: bool, last_norm: bool, fc: bool) -> Declared:
        width, dtype = config["hidden_size"], TYPES[config["dtype"]]
        yield f"{name}.vocab_embedding.weight", (dtype, (-(-config["vocab_size"] // self.tp), width))
        for index in range(config["num_hidden_layers"]):
            yield from self.layer(f"{name}.layers.{index}", config, has_norm=norm_first or index > 0)
        if fc:
            yield from self.column(f"{name}.fc", 2 * width, width, dtype, bias=True)
        if last_norm:
            yield f"{name}.ln_f.weight", (dtype, (width,))

    def layer(self, name: str, config: dict[str, Any], *, has_norm: bool) -> Declared:
        width, dtype, ffn = config["hidden_size"], TYPES[config["dtype"]], config["intermediate_size"]
        if has_norm:
            yield f"{name}.input_layernorm.weight", (dtype, (width,))
        size, heads, kv_heads = config["head_size"], config["num_attention_heads"], config["num_key_value_heads"]
        kv_of_rank = -(-kv_heads // self.tp)
        out = self.tp * (heads // self.tp + 2 * kv_of_rank) * size
        yield from self.column(f"{name}.attention.qkv", width, out, dtype, bias=config["attn_bias"])
        qwen = config.get("qwen_type")  # its dense never has a bias; qwen3 has norms of the heads of q and k
        yield from self.row(
            f"{name}.attention.dense", heads * size, width, dtype, bias=config["attn_bias"] and not qwen
        )
        for part in "qk" if qwen == "qwen3" else "":
            yield f"{name}.attention.{part}_layernorm.weight", (dtype, (size,))
        if self.quantization["kv_cache_quant_algo"]:
            yield f"{name}.attention.kv_cache_scaling_factor", ("F32", (1,))
        if config["architecture"] == "Phi3ForCausalLM":  # an MLP of one linear for both halves of swiglu
            yield from self.column(f"{name}.mlp.fc", width, 2 * ffn, dtype, bias=config["mlp_bias"])
        else:
            yield from self.column(f"{name}.mlp.fc", width, ffn, dtype, bias=config["mlp_bias"])
            yield from self.column(f"{name}.mlp.gate", width, ffn, dtype, bias=config["mlp_bias"])
        yield from self.row(f"{name}.mlp.proj", ffn, width, dtype, bias=config["mlp_bias"])
        yield f"{name}.post_layernorm.weight", (dtype, (width,))

    def head(self, name: str, config: dict[str, Any]) -> Declared:
        padded = -(-config["vocab_size"] // self.tp) * self.tp
        yield from self.column(name, config["hidden_size"], padded, TYPES[config["dtype"]], bias=False)

    def column(self, name: str, inputs: int, outputs: int, dtype: str, *, bias: bool) -> Declared:
        yield from self.linear(name, inputs, outputs // self.tp, dtype)
        if bias:
            yield f"{name}.bias", (dtype, (outputs // self.tp,))

    def row(self, name: str, inputs: int, outputs: int, dtype: str, *, bias: bool) -> Declared:
        yield from self.linear(name, inputs // self.tp, outputs, dtype)
        if bias:
            yield f"{name}.bias", (dtype, (outputs,))

    def linear(self, name: str, inputs: int, outputs: int, dtype: str) -> Declared:
        algorithm, group = self.quantization["quant_algo"], self.quantization["group_size"]
        if any(fnmatchcase(name, pattern) for pattern in self.quantization["exclude_modules"]):
            algorithm = None
        if algorithm is None:
            yield f"{name}.weight", (dtype, (outputs, inputs))
        elif algorithm == "FP8":
            yield f"{name}.weight", ("F8_E4M3", (outputs, inputs))
            yield f"{name}.weights_scaling_factor", ("F32", (1,))
            yield f"{name}.activation_scaling_factor", ("F32", (1,))
        elif algorithm == "NVFP4":
            yield f"{name}.weight", ("U8", (outputs, inputs // 2))
            yield f"{name}.weights_scaling_factor", ("F8_E4M3", (outputs, inputs // 16))
            yield f"{name}.weights_scaling_factor_2", ("F32", (1,))
            yield f"{name}.activation_scaling_factor", ("F32", (1,))
        else:
            assert algorithm == "W4A16_AWQ"
            yield f"{name}.weight", ("I8", (outputs // 2, inputs))
            yield f"{name}.weights_scaling_factor", ("F32", (outputs, inputs // group))
            yield f"{name}.prequant_scaling_factor", (dtype, (inputs,))
