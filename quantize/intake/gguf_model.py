"""A GGUF file as a Hugging Face checkpoint: configuration, tensor names, de-quantized weights.

Policy: the conversion is our own table over the ``gguf`` package's de-quantization because the general one loses
what a build needs to keep: rope scaling (a field or the ``rope_freqs`` tensor), the tokenizer's splitting rules and
its special tokens. It streams one tensor at a time and needs neither torch nor the whole model in memory. What
cannot be carried over exactly is refused (``TF-SRC-015``), never approximated.

llama.cpp stores the query and key rows of a Llama in its own rotary order (pairs interleaved); they are put back
into the half-split order here, on the still quantized rows, since a row is quantized on its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quantize.intake.gguf_header import GgufHeader, GgufTensor
from quantize.intake.info import CheckpointInfo
from quantize.intake.model_config import ModelShape, architectures, check_config, expected_tensors
from quantize.intake.writer import TARGETS, TensorPlan, convert
from trtforge.errors import EnvironmentLacks, ForgeError

#: general.architecture → the class that reads it (llama.cpp stores Mistral's models as llama, too)
ARCHITECTURES = {"llama": "LlamaForCausalLM"}
_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FACTORS = "rope_freqs.weight"
_NAME = re.compile(r"^(?:blk\.(?P<layer>\d+)\.)?(?P<part>[a-z_]+)\.(?P<kind>weight|bias)$")
_PIECE_BYTES = 16 << 20


def _unsupported(what: str, *remedies: str, **numbers: Any) -> ForgeError:
    return ForgeError(
        "TF-SRC-015",
        f"the GGUF file cannot be converted: {what}",
        numbers=numbers,
        why="A conversion that drops it would load and answer wrongly.",
        remedies=[*remedies, "use the model's safetensors checkpoint instead"],
    )


def hf_name(name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor, ``None`` when the family has no such tensor."""
    match = _NAME.match(name)
    if match is None:
        return None
    table = _OUTER if match["layer"] is None else _INNER
    part = table.get(match["part"])
    if part is None:
        return None
    prefix = "" if match["layer"] is None else f"model.layers.{match['layer']}."
    return f"{prefix}{part}.{match['kind']}"


def gguf_config(header: GgufHeader) -> dict[str, Any]:
    """config.json of a GGUF file.

    Raises:
        ForgeError: ``TF-SRC-009`` architecture, ``TF-SRC-015`` something the conversion would lose.
    """
    name = header.get("general.architecture")
    if name not in ARCHITECTURES:
        raise ForgeError(
            "TF-SRC-009",
            f"the architecture {name} is not supported as a GGUF file",
            asked=str(name),
            numbers={"supported": list(ARCHITECTURES), "supported_as_safetensors": list(architectures())},
            why="Each architecture needs its own table of names and a graph that computes it exactly.",
            remedies=[
                f"use a GGUF of architecture {', '.join(ARCHITECTURES)}",
                "use a model of a supported architecture",
            ],
        )
    if header.get("split.count", 1) > 1:
        raise _unsupported(
            "it is one part of several", "merge the parts: gguf-split --merge", parts=header.get("split.count")
        )
    if header.get(f"{name}.expert_count", 0):
        raise _unsupported("it is a mixture of experts", experts=header.get(f"{name}.expert_count"))

    def field(key: str, default: Any = None) -> Any:
        value = header.get(f"{name}.{key}", default)
        if isinstance(value, list):
            raise _unsupported(f"{name}.{key} differs from layer to layer")
        if value is None:
            raise _unsupported(f"its metadata lacks {name}.{key}")
        return value

    heads, width = field("attention.head_count"), field("embedding_length")
    head_size = field("attention.key_length", field("rope.dimension_count", width // max(heads, 1)))
    if field("rope.dimension_count", head_size) != head_size:
        raise _unsupported("its rotary embedding covers a part of the head", head=head_size)
    if field("attention.value_length", head_size) != head_size:
        raise _unsupported("keys and values have different head sizes")
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise _unsupported("it has no token_embd.weight: a vocabulary-only file, or an adapter")
    tokens = {key: header.get(f"tokenizer.ggml.{key}") for key in ("bos_token_id", "eos_token_id", "padding_token_id")}
    return {
        "architectures": [ARCHITECTURES[name]],
        "model_type": architectures()[ARCHITECTURES[name]]["model_type"],
        "attention_bias": "blk.0.attn_output.bias" in header.tensors or "blk.0.attn_q.bias" in header.tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in header.tensors,
        "attention_dropout": 0.0,
        "bos_token_id": tokens["bos_token_id"],
        "eos_token_id": tokens["eos_token_id"],
        "pad_token_id": tokens["padding_token_id"],
        "head_dim": head_size,
        "hidden_act": "silu",
        "hidden_size": width,
        "initializer_range": 0.02,
        "intermediate_size": field("feed_forward_length"),
        "max_position_embeddings": field("context_length"),
        "num_attention_heads": heads,
        "num_hidden_layers": field("block_count"),
        "num_key_value_heads": field("attention.head_count_kv", heads),
        "rms_norm_eps": _shortest(field("attention.layer_norm_rms_epsilon")),
        "rope_parameters": _rope(header, name, head_size),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "use_cache": True,
        "vocab_size": embedding.shape[0],
    }


def _shortest(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-05 instead of 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _rope(header: GgufHeader, name: str, head_size: int) -> dict[str, Any]:
    theta = _shortest(header.get(f"{name}.rope.freq_base", 10000.0))
    kind = header.get(f"{name}.rope.scaling.type")
    factor = header.get(f"{name}.rope.scaling.factor", header.get(f"{name}.rope.scale_linear", 1.0))
    if _ROPE_FACTORS in header.tensors:
        if kind not in (None, "none"):
            raise _unsupported("it has rope factors and a rope scaling at once")
        return {"rope_type": "llama3", "rope_theta": theta}  # its numbers need the tensor: see llama3_rope
    if kind is None:
        kind = "linear" if factor != 1.0 else "none"
    if kind == "none":
        return {"rope_type": "default", "rope_theta": theta}
    if kind == "linear":
        return {"rope_type": "linear", "rope_theta": theta, "factor": _shortest(factor)}
    if kind == "yarn":
        extra = [key for key in header.metadata if key.startswith(f"{name}.rope.scaling.") and "yarn_" in key]
        if extra:
            raise _unsupported(f"its yarn rope has settings of its own ({', '.join(extra)})")
        rope = {"rope_type": "yarn", "rope_theta": theta, "factor": _shortest(factor)}
        original = header.get(f"{name}.rope.scaling.original_context_length")
        return rope if original is None else {**rope, "original_max_position_embeddings": original}
    raise _unsupported(f"its rope scaling {kind!r} is not supported")


def llama3_rope(factors: npt.NDArray[Any], theta: float, head_size: int) -> dict[str, Any]:
    """Llama 3's rope settings that give ``factors`` [E/2], the per-frequency divisors that llama.cpp stores.

    Every published Llama 3.x has low 1, high 4 and original context 8192; the factor is the largest divisor.
    Settings that do not reproduce the tensor are refused.
    """
    factor = float(str(np.float32(factors.max())))
    low, high, original = 1.0, 4.0, 8192
    wavelength = 2 * math.pi * theta ** (np.arange(0, head_size, 2, dtype=np.float64) / head_size)
    smooth = np.clip((original / wavelength - low) / (high - low), 0.0, 1.0)
    expected = 1.0 / ((1.0 - smooth) / factor + smooth)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-4):
        raise _unsupported("its rope factors are not those of a published Llama 3")
    return {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def gguf_shape(header: GgufHeader, factors: npt.NDArray[Any] | None) -> tuple[dict[str, Any], ModelShape]:
    """Configuration and its figures; ``factors`` is the content of ``rope_freqs.weight`` when there is one."""
    config = gguf_config(header)
    if factors is not None:
        config["rope_parameters"] = llama3_rope(factors, config["rope_parameters"]["rope_theta"], config["head_dim"])
    elif config["rope_parameters"]["rope_type"] == "llama3":
        # Headers alone: the settings of Llama 3.1, replaced by the true ones when the weights are read.
        config["rope_parameters"].update(
            factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
        )
    shape = check_config(config)
    _require_tensors(header, shape)
    return config, shape


def _require_tensors(header: GgufHeader, shape: ModelShape) -> None:
    expected = expected_tensors(shape)
    found = {hf_name(name) or name: tensor for name, tensor in header.tensors.items() if name != _ROPE_FACTORS}
    missing = sorted(expected.keys() - found.keys())
    unexpected = sorted(found.keys() - expected.keys())
    wrong = sorted(name for name, size in expected.items() if name in found and found[name].shape != size)
    if missing or unexpected or wrong:
        parts = {"missing": missing, "unexpected": unexpected, "wrong shape": wrong}
        text = "; ".join(f"{len(v)} {k}: {', '.join(v[:4])}{' …' if len(v) > 4 else ''}" for k, v in parts.items() if v)
        raise ForgeError(
            "TF-SRC-022",
            f"the tensors are not those of a {shape.architecture} with this metadata ({text})",
            numbers={key.replace(" ", "_"): len(value) for key, value in parts.items()},
            why="A model with tensors missing or left over loads in some tools and answers wrongly.",
            remedies=["download the file again", "use the model's safetensors checkpoint instead"],
        )


def gguf_info(header: GgufHeader, source: str, origin: dict[str, Any], path: Path | None = None) -> CheckpointInfo:
    """The record of a GGUF file as it lies there (``path``: where, when it is not inside an archive)."""
    from quantize.intake.folder import count_parameters, shape_fields

    _, shape = gguf_shape(header, None if path is None else read_rope_factors(path, header))
    stored = common_type(header)
    return CheckpointInfo(
        source=source,
        sha256=None,
        origin=origin,
        architecture=shape.architecture,
        family=shape.family,
        dtype=stored,
        source_dtype=stored,
        parameters=count_parameters(shape),
        bytes=sum(tensor.nbytes for tensor in header.tensors.values()),
        **shape_fields(shape),
    )


def common_type(header: GgufHeader) -> str:
    """The tensor type that holds most bytes, as ``gguf:Q4_1``."""
    sizes: dict[str, int] = {}
    for tensor in header.tensors.values():
        sizes[tensor.type] = sizes.get(tensor.type, 0) + tensor.nbytes
    return f"gguf:{max(sorted(sizes), key=lambda name: sizes[name])}"


def read_rope_factors(path: Path, header: GgufHeader) -> npt.NDArray[Any] | None:
    """The content of ``rope_freqs.weight`` [E/2] in float32, or ``None``."""
    tensor = header.tensors.get(_ROPE_FACTORS)
    if tensor is None:
        return None
    return np.concatenate(list(_dequantized(path, tensor, None)))


def tensor_plans(path: Path, header: GgufHeader, shape: ModelShape, dtype: str) -> list[TensorPlan]:
    """Every tensor to write, in name order, in ``dtype``; pieces are de-quantized when they are asked for."""
    target = TARGETS[dtype]
    plans = []
    for name, tensor in header.tensors.items():
        renamed = hf_name(name)
        if renamed is None:
            continue
        heads = {"attn_q": shape.heads, "attn_k": shape.kv_heads}.get(name.split(".")[-2])

        def pieces(tensor: GgufTensor = tensor, heads: int | None = heads) -> Iterator[npt.NDArray[Any]]:
            for piece in _dequantized(path, tensor, heads):
                yield convert(piece, "F32", target, tensor.name)

        plans.append(TensorPlan(renamed, target, tensor.shape, pieces))
    return sorted(plans, key=lambda plan: plan.name)


def _dequantized(path: Path, tensor: GgufTensor, heads: int | None) -> Iterator[npt.NDArray[Any]]:
    """float32 values of ``tensor``, rows at a time, flattened; rows of ``heads`` put back into half-split order."""
    try:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError:
        raise EnvironmentLacks(
            "TF-SRC-027",
            "reading a GGUF file needs the package gguf",
            remedies=["pip install 'trtforge[quantize]'", "pip install gguf"],
        ) from None
    kind = GGMLQuantizationType[tensor.type]
    rows = tensor.shape[0]
    raw = np.memmap(path, dtype=np.uint8, mode="r", offset=tensor.offset, shape=(tensor.nbytes,)).reshape(rows, -1)
    order = np.arange(rows)
    if heads is not None:
        order = order.reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(-1)
    columns = tensor.shape[1] if len(tensor.shape) > 1 else 1
    if len(tensor.shape) == 1 and heads is None:  # a vector may be quantized across its length
        yield np.asarray(dequantize(raw.reshape(-1), kind), dtype=np.float32).reshape(-1)
        return
    step = max(1, _PIECE_BYTES // (4 * columns))
    for start in range(0, rows, step):
        block = np.ascontiguousarray(raw[order[start : start + step]])
        yield np.asarray(dequantize(block, kind), dtype=np.float32).reshape(-1)
