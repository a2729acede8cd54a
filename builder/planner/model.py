"""A model's sizes from intake's record or from a bare ``config.json`` of any decoder that Transformers names.

Policy: the planner answers for models that nothing here can build yet (mixtures of experts, latent attention),
so it reads every spelling of a size and refuses what it cannot count (:mod:`builder.planner.families`). What a config
leaves out is taken from the class's own default, or said to be assumed, never from a guess about a similar model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.planner.families import check_family
from builder.planner.types import bad_input
from trtforge.formats.table import counted_as, kv_modes_by
from trtforge.ground.json_file import read_json_file
from trtforge.models.by_class import class_fields
from trtforge.models.config import MOST_LAYERS
from trtforge.models.record import Experts, Latent, Model
from trtforge.tables.decoders import CountedType, Decoder, decoder_table, truth

#: spellings of a dtype
_DTYPES = {
    **{name: name for name in ("float32", "float16", "bfloat16")},
    "float": "float32",
    "half": "float16",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
}
#: keys that the configuration around a text model may have instead
_OUTER = ("tie_word_embeddings",)
#: spellings of the context
_POSITIONS = ("max_position_embeddings", "max_sequence_length", "seq_length", "n_positions")
#: no size of a model is as large
_MOST = 2**40


def read_config(path: Path) -> dict[str, Any]:
    """``config.json`` at ``path`` or inside that directory.

    Raises:
        ForgeError: ``TF-PLN-004`` it is missing or no JSON object.
    """
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise _bad_config(f"{file} is no file", str(path))
    try:
        value = read_json_file(file)
    except (OSError, ValueError) as error:
        raise _bad_config(f"{file} cannot be read: {error}", str(path)) from error
    if not isinstance(value, dict):
        raise _bad_config(f"{file} is no JSON object", str(path))
    return value


def from_config(config: Mapping[str, Any], name: str = "", quant_config: Mapping[str, Any] | None = None) -> Model:
    """The facts of a bare ``config.json``; of a multimodal one, its text model's.

    Args:
        config: the parsed file.
        name: what the plan calls the model.
        quant_config: ``hf_quant_config.json`` beside it, when there is one.

    Raises:
        ForgeError: ``TF-PLN-004`` a size is missing or impossible; ``TF-PLN-015`` layers of another kind.
    """
    outer = config
    if isinstance(config.get("text_config"), Mapping):
        config = config["text_config"]
    kind = str(config.get("model_type", ""))
    named = outer.get("architectures")
    architecture = str(named[0]) if isinstance(named, list) and named else kind or "decoder"
    assumed = check_family(config, kind, architecture)
    layers, hidden = _size(config, "num_hidden_layers"), _size(config, "hidden_size")
    if layers > MOST_LAYERS:
        raise _bad_config(f"no model has {layers:,} layers", "num_hidden_layers")
    heads = _size(config, "num_attention_heads")
    kv_heads = _size(config, "num_key_value_heads", default=heads)
    mla = _mla(config)
    row, counted = _rows(kind)
    head_size = _size(config, "head_dim", default=(row or counted).head_dim or hidden // heads)
    if mla is None and heads % kv_heads:
        raise _bad_config(f"{heads} heads do not divide into {kv_heads} key-value heads", kind)
    told = {**{key: outer[key] for key in _OUTER if key in outer}, **config}
    try:
        by_class = _by_type(told, counted, layers) if row is None else class_fields(row, told, layers, head_size)
    except ValueError as error:
        raise _bad_config(str(error), architecture) from None
    quantization = _quantization(outer, quant_config)
    dtype, said = _dtype(config, outer)
    ffn = _size(config, "intermediate_size", "ffn_hidden_size")
    return Model(
        name=name or architecture,
        layers=layers,
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        kv_heads=kv_heads,
        head_size=mla.nope_size + mla.rope_size if mla else head_size,
        vocab=_size(config, "vocab_size"),
        max_positions=_size(config, *_POSITIONS),
        dtype=dtype,
        norms_a_layer=counted.norms,
        rope=_rope(config),
        moe=_moe(config, counted, layers, ffn),
        mla=mla,
        prequantized=_prequantized(quantization),
        prequantized_kv_cache=_prequantized_kv(quantization),
        unquantized=_unquantized(quantization),
        assumed=(*assumed, *([] if said else ["the config names no dtype; bfloat16 is assumed"])),
        **{**by_class, "architecture": architecture},
    )


def _rows(kind: str) -> tuple[Decoder | None, CountedType]:
    """The class's row if it has one, and what the table says of a type without; defaults where it says nothing."""
    table = decoder_table()
    row = next((row for row in table.rows if row.model_type == kind), None)
    return row, table.counted.get(kind, CountedType())


def _by_type(config: Mapping[str, Any], counted: CountedType, layers: int) -> dict[str, Any]:
    """What the type of a class without a row decides; one key says whether both parts of its attention have biases.

    Raises:
        ValueError: a yes or no is neither; says which.
    """
    biased = truth(config, "attention_bias", counted.qkv_bias)
    return {
        "tied": truth(config, "tie_word_embeddings", counted.tied),
        "attention_bias": biased,
        "o_bias": biased and counted.o_bias,
        "mlp_bias": truth(config, "mlp_bias", False),
        "qk_norm": counted.qk_norm,
        "windows": _windows(config, counted, layers),
    }


def _dtype(config: Mapping[str, Any], outer: Mapping[str, Any]) -> tuple[str, bool]:
    """The checkpoint's dtype, and whether the config says it."""
    for source in (config, outer):
        for key in ("dtype", "torch_dtype"):
            value = source.get(key)
            if value is None or value == "auto":
                continue
            name = _DTYPES.get(value.removeprefix("torch.")) if isinstance(value, str) else None
            if name is None:
                raise _bad_config(f"{key} {str(value)[:40]!r} is no dtype of weights", f"{key} {str(value)[:40]}")
            return name, True
    return "bfloat16", False


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """How the config scales its rotary positions, with the type under its new name; empty: not at all."""
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(scaling, Mapping):
        return {}
    return {**scaling, "rope_type": scaling.get("rope_type") or scaling.get("type") or "default"}


def _moe(config: Mapping[str, Any], counted: CountedType, layers: int, ffn: int) -> Experts | None:
    keys = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
    if not counted.experts and not any(config.get(key) for key in keys):
        return None
    experts = _size(config, *keys)
    active = _size(config, "num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_topk")
    if active > experts:
        raise _bad_config(f"{active} active experts of {experts}", "num_experts_per_tok")
    width = _size(config, "moe_intermediate_size", "expert_ffn_hidden_size", default=ffn)
    shared = width * _count(config, "n_shared_experts")
    if config.get("shared_expert_intermediate_size"):
        shared = _size(config, "shared_expert_intermediate_size")
    only = config.get("mlp_only_layers")
    dense = _count(config, "first_k_dense_replace") + (len(only) if isinstance(only, list) else 0)
    step = _count(config, "decoder_sparse_step") or _count(config, "moe_layer_freq")
    if step > 1:
        dense += layers - layers // step
    return Experts(experts, active, width, shared, min(dense, layers))


def _mla(config: Mapping[str, Any]) -> Latent | None:
    if not config.get("kv_lora_rank"):
        return None
    return Latent(
        kv_rank=_size(config, "kv_lora_rank"),
        rope_size=_size(config, "qk_rope_head_dim"),
        q_rank=_size(config, "q_lora_rank") if config.get("q_lora_rank") else None,
        nope_size=_size(config, "qk_nope_head_dim"),
        value_size=_size(config, "v_head_dim"),
    )


def _windows(config: Mapping[str, Any], counted: CountedType, layers: int) -> tuple[int, ...]:
    """Each layer's sliding window in a type without a row, whose configs say it in several ways."""
    window = config.get("sliding_window", counted.window)
    slides = truth(config, "use_sliding_window", not counted.switched)
    if isinstance(window, bool) or not isinstance(window, int) or window <= 0 or not slides:
        return (0,) * layers
    return tuple(window if has else 0 for has in _sliding(config, counted, layers))


def _sliding(config: Mapping[str, Any], counted: CountedType, layers: int) -> list[bool]:
    """Which layers have the window."""
    types = config.get("layer_types")
    if isinstance(types, list):
        named = [name == "sliding_attention" for name in types[:layers]]
        return named + [False] * (layers - len(named))
    step = _count(config, "sliding_window_pattern") or counted.full_every
    if step:
        return [bool((layer + 1) % step) for layer in range(layers)]
    first = _count(config, "max_window_layers") if counted.switched else 0
    return [layer >= first for layer in range(layers)]


def _quantization(config: Mapping[str, Any], quant_config: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The description of a quantized checkpoint: ``hf_quant_config.json`` first; empty for plain weights."""
    section: Any = config.get("quantization_config")
    if quant_config is not None:
        section = quant_config.get("quantization", quant_config)
    if section is not None and not isinstance(section, Mapping):
        raise _bad_config(f"the quantization's description is {str(section)[:40]!r}, no object", "quantization_config")
    return section or {}


def _prequantized(section: Mapping[str, Any]) -> str | None:
    """The planner's format of an already quantized checkpoint; None for plain weights."""
    algorithm, method = str(section.get("quant_algo") or ""), str(section.get("quant_method") or "")
    own = counted_as(algorithm)
    if own is not None:
        return own
    if not algorithm and method in ("", "modelopt"):
        return None
    if method == "compressed-tensors":
        found = _compressed(section)
    else:
        found = (counted_as(f"{method}/block") if section.get("weight_block_size") else None) or counted_as(method)
    if found:
        return found
    raise _bad_config(f"the checkpoint is quantized as {algorithm or method}, which the planner does not know", method)


def _compressed(section: Mapping[str, Any]) -> str | None:
    """The format of compressed-tensors' first group of weights."""
    groups = section.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, Mapping) else None
    weights = first.get("weights") if isinstance(first, Mapping) else None
    if not isinstance(weights, Mapping):
        return None
    kind = f"{weights.get('type')}{weights.get('num_bits')}"
    return counted_as(f"{kind}/{weights.get('strategy')}") or counted_as(kind)


def _prequantized_kv(section: Mapping[str, Any]) -> str | None:
    algorithm = section.get("kv_cache_quant_algo") or section.get("kv_cache_scheme")
    mode = kv_modes_by("algorithm").get(algorithm) if isinstance(algorithm, str) else None
    return None if mode is None else mode.pool


def _unquantized(section: Mapping[str, Any]) -> tuple[str, ...]:
    """Patterns of the modules that a quantized checkpoint kept as they were."""
    for key in ("exclude_modules", "modules_to_not_convert", "ignored_layers", "ignore"):
        if isinstance(section.get(key), list):
            return tuple(str(name) for name in section[key])
    return ()


def _count(config: Mapping[str, Any], key: str) -> int:
    """A count that may be absent (0); a layer frequency given as a list is no count."""
    value = config.get(key)
    if value is None or isinstance(value, list):
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise _bad_config(f"{key} must be a number of 0 or more, not {value!r}", key)
    return value


def _size(config: Mapping[str, Any], *keys: str, default: int | None = None) -> int:
    value = next((config[key] for key in keys if config.get(key) is not None), default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < _MOST:
        raise _bad_config(f"{keys[0]} must be a positive integer, not {str(value)[:40]}", keys[0])
    return value


def _bad_config(message: str, asked: str) -> Exception:
    return bad_input(
        "TF-PLN-004",
        message.rstrip("."),
        asked=asked or "config.json",
        why="Every byte of the plan follows from the model's sizes.",
        remedies=["give the config.json of the checkpoint that will be served", "correct the value in a copy of it"],
    )
