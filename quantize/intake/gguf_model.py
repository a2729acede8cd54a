"""A GGUF file as a Hugging Face checkpoint: its configuration and tensor names, from the header alone.

Policy: the conversion is our own table because the general ones lose what a build needs to keep: rope scaling (a
field or the ``rope_freqs`` tensor), the tokenizer's splitting rules and its special tokens. What cannot be carried
over exactly is refused (``TF-SRC-015``), never approximated.
"""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from typing import Any

from quantize.intake.gguf_header import GgufHeader
from quantize.intake.info import CheckpointInfo
from quantize.intake.model_config import check_config
from trtforge.ground.errors import ForgeError
from trtforge.models.record import Model, expected_tensors
from trtforge.tables.decoders import decoders, gguf_decoders

_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE_FACTORS = "rope_freqs.weight"
_NAME = re.compile(r"^(?:blk\.(?P<layer>\d+)\.)?(?P<part>[a-z_]+)\.(?P<kind>weight|bias)$")


def unsupported(what: str, *remedies: str, **numbers: Any) -> ForgeError:
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
    name = header.get("general.architecture", str)
    row = gguf_decoders().get(name)
    if row is None:
        raise ForgeError(
            "TF-SRC-009",
            f"the architecture {name} is not supported as a GGUF file",
            asked=str(name),
            numbers={"supported": list(gguf_decoders()), "supported_as_safetensors": list(decoders())},
            why="Each architecture needs its own table of names and a graph that computes it exactly.",
            remedies=[
                f"use a GGUF of architecture {', '.join(gguf_decoders())}",
                "use a model of a supported architecture",
            ],
        )
    if experts := header.get(f"{name}.expert_count", int, 0):
        raise unsupported("it is a mixture of experts", experts=experts)

    def field(key: str, default: Any = None, kind: type = int) -> Any:
        if isinstance(header.metadata.get(f"{name}.{key}"), list):
            raise unsupported(f"{name}.{key} differs from layer to layer")
        value = header.get(f"{name}.{key}", kind, default)
        if value is None:
            raise unsupported(f"its metadata lacks {name}.{key}")
        return value

    heads, width = field("attention.head_count"), field("embedding_length")
    head_size = field("attention.key_length", field("rope.dimension_count", width // max(heads, 1)))
    if field("rope.dimension_count", head_size) != head_size:
        raise unsupported("its rotary embedding covers a part of the head", head=head_size)
    if field("attention.value_length", head_size) != head_size:
        raise unsupported("keys and values have different head sizes")
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise unsupported("it has no token_embd.weight: a vocabulary-only file, or an adapter")
    if row.window == "switched" and field("attention.sliding_window", 0):
        raise unsupported("it has a sliding window, and does not say in which layers")
    # keys of config.json that switch biases on: the file has none, only the tensors
    switches: dict[str, tuple[str, ...]] = {}
    for rule, parts in ((row.qkv_bias, ("attn_q",)), (row.o_bias, ("attn_output",)), (row.mlp_bias, ("ffn_down",))):
        if isinstance(rule, str):
            switches[rule] = (*switches.get(rule, ()), *parts)
    tokens = {key: header.get(f"tokenizer.ggml.{key}_token_id", int) for key in ("bos", "eos", "eot", "padding")}
    ends = sorted({token for token in (tokens["eos"], tokens["eot"]) if token is not None})
    return {
        "architectures": [row.architecture],
        "model_type": row.model_type,
        **{key: any(f"blk.0.{part}.bias" in header.tensors for part in parts) for key, parts in switches.items()},
        "attention_dropout": 0.0,
        "bos_token_id": tokens["bos"],
        "eos_token_id": ends if len(ends) > 1 else tokens["eos"],
        "pad_token_id": tokens["padding"],
        "head_dim": head_size,
        "hidden_act": "silu",
        "hidden_size": width,
        "initializer_range": 0.02,
        "intermediate_size": field("feed_forward_length"),
        "max_position_embeddings": field("context_length"),
        "num_attention_heads": heads,
        "num_hidden_layers": field("block_count"),
        "num_key_value_heads": field("attention.head_count_kv", heads),
        "rms_norm_eps": shortest(field("attention.layer_norm_rms_epsilon", kind=float)),
        "rope_parameters": _rope(header, name),
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "use_cache": True,
        "vocab_size": embedding.shape[0],
    }


def shortest(value: float) -> float:
    """The shortest decimal that is the same float32: 1e-05 instead of 9.999999747378752e-06."""
    for digits in range(1, 10):
        candidate = float(f"{value:.{digits}g}")
        try:
            if struct.pack("<f", candidate) == struct.pack("<f", value):
                return candidate
        except OverflowError:  # beyond float32, where rounding up may lead
            continue
    return float(value)


def _rope(header: GgufHeader, name: str) -> dict[str, Any]:
    theta = shortest(header.get(f"{name}.rope.freq_base", float, 10000.0))
    kind = header.get(f"{name}.rope.scaling.type", str)
    factor = header.get(f"{name}.rope.scaling.factor", float, header.get(f"{name}.rope.scale_linear", float, 1.0))
    if ROPE_FACTORS in header.tensors:
        if kind not in (None, "none"):
            raise unsupported("it has rope factors and a rope scaling at once")
        return {"rope_type": "llama3", "rope_theta": theta}  # its numbers lie in the tensor
    if kind is None:
        kind = "linear" if factor != 1.0 else "none"
    if kind == "none":
        return {"rope_type": "default", "rope_theta": theta}
    if kind == "linear":
        return {"rope_type": "linear", "rope_theta": theta, "factor": shortest(factor)}
    if kind == "yarn":
        extra = [key for key in header.metadata if key.startswith(f"{name}.rope.scaling.yarn_")]
        if header.get(f"{name}.rope.scaling.attn_factor", float, 1.0) != 1.0:
            extra.append("attn_factor")
        if extra:
            raise unsupported(f"its yarn rope has settings of its own ({', '.join(extra)})")
        rope = {"rope_type": "yarn", "rope_theta": theta, "factor": shortest(factor)}
        original = header.get(f"{name}.rope.scaling.original_context_length", int)
        return rope if original is None else {**rope, "original_max_position_embeddings": original}
    raise unsupported(f"its rope scaling {kind!r} is not supported")


def gguf_shape(header: GgufHeader, rope: dict[str, Any] | None) -> tuple[dict[str, Any], Model]:
    """Configuration and its figures; ``rope`` holds the settings behind the tensor ``rope_freqs.weight``, once read."""
    config = gguf_config(header)
    if rope is not None:
        config["rope_parameters"] = rope
    elif config["rope_parameters"]["rope_type"] == "llama3":
        # Headers alone: the settings of Llama 3.1, replaced by the true ones when the weights are read.
        config["rope_parameters"].update(
            factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=8192
        )
    shape = check_config(config)
    _require_tensors(header, shape)
    return config, shape


def _require_tensors(header: GgufHeader, shape: Model) -> None:
    expected = expected_tensors(shape)
    found = {hf_name(name) or name: tensor for name, tensor in header.tensors.items() if name != ROPE_FACTORS}
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


def gguf_info(
    header: GgufHeader, source: str, origin: dict[str, Any], rope: dict[str, Any] | None = None
) -> CheckpointInfo:
    """The record of a GGUF file as it lies there; ``rope`` from its tensors, where they can be read."""
    _, shape = gguf_shape(header, rope)
    stored = common_type(header)
    return CheckpointInfo(
        source=source,
        sha256=None,
        origin=origin,
        source_dtype=stored,
        bytes=sum(tensor.nbytes for tensor in header.tensors.values()),
        model=replace(shape, dtype=stored),
    )


def common_type(header: GgufHeader) -> str:
    """The tensor type that holds most bytes, as ``gguf:Q4_1``."""
    sizes: dict[str, int] = {}
    for tensor in header.tensors.values():
        sizes[tensor.type] = sizes.get(tensor.type, 0) + tensor.nbytes
    return f"gguf:{max(sorted(sizes), key=lambda name: sizes[name])}"
