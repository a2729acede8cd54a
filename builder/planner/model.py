"""A model's sizes from intake's record or from a bare ``config.json`` of any decoder that Transformers names.

Policy: the planner answers for models that nothing here can build yet (mixtures of experts, latent attention),
so it reads every spelling of a size and refuses what it cannot count (:mod:`builder.planner.families`). What a config
leaves out is taken from the class's own default, or said to be assumed, never from a guess about a similar model.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from builder.planner.families import MIXTURES, check_family
from builder.planner.types import MlaFacts, ModelFacts, MoeFacts, bad_input
from trtforge.formats.table import counted_as, kv_modes_by
from trtforge.ground.json_file import read_json_file
from trtforge.models.record import ModelSizes
from trtforge.tables.decoders import Decoder, decoders

#: model types with RMS norms on q and k. Source: modeling files of transformers
_QK_NORM = frozenset({"qwen3", "qwen3_moe", "gemma3", "gemma3_text", "olmo2"})
#: model types that bias q, k and v and have no key that says so
_QKV_BIAS = frozenset({"qwen2", "qwen2_moe"})
#: model types with a norm before and after both halves of a layer
_FOUR_NORMS = frozenset({"gemma2", "gemma3", "gemma3_text"})
#: model types whose class ties the head unless the config says otherwise
_TIED_BY_DEFAULT = frozenset({"gemma", "gemma2", "gemma3", "gemma3_text"})
#: one attention layer in so many is a full one when no layer_types say which; other types slide in every layer
_PATTERN = {"gemma2": 2, "gpt_oss": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4}
#: the window of the class where the config has no such key
_WINDOW = {"gemma2": 4096, "gemma3": 4096, "gemma3_text": 4096, "cohere2": 4096, "mistral": 4096, "gpt_oss": 128}
#: spellings of a dtype
_DTYPES = {
    **{name: name for name in ("float32", "float16", "bfloat16")},
    "float": "float32",
    "half": "float16",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
}
#: a context that scaling stretches: factor times the original one
_STRETCHED = frozenset({"yarn", "linear"})
#: deeper than any model by far; keeps a damaged number from being taken for work to do
_MOST_LAYERS = 10_000
#: no size of a model is as large
_MOST = 2**40


class CheckpointRecord(ModelSizes, Protocol):
    """The fields of intake's checkpoint record that the planner reads."""

    @property
    def architecture(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def attention_bias(self) -> bool: ...
    @property
    def mlp_bias(self) -> bool: ...
    @property
    def qk_norm(self) -> bool: ...


def from_checkpoint(record: CheckpointRecord, name: str = "") -> ModelFacts:
    """The facts of intake's record (:class:`quantize.intake.CheckpointInfo`)."""
    return ModelFacts(
        name=name or record.architecture,
        architecture=record.architecture,
        layers=record.layers,
        hidden=record.hidden,
        ffn=record.ffn,
        heads=record.heads,
        kv_heads=record.kv_heads,
        head_size=record.head_size,
        vocab=record.vocab,
        max_positions=record.max_positions,
        tied=record.tied,
        attention_bias=record.attention_bias,
        mlp_bias=record.mlp_bias,
        qk_norm=record.qk_norm,
        window=record.sliding_window or 0,
        window_layers=_windowed(record),
        prequantized=record.prequantized,
        prequantized_kv=record.prequantized_kv_cache,
        key_bias=record.key_bias,
    )


def _windowed(record: CheckpointRecord) -> int:
    if not record.sliding_window:
        return 0
    return record.layers if record.window_layers is None else record.window_layers


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


def from_config(config: Mapping[str, Any], name: str = "", quant_config: Mapping[str, Any] | None = None) -> ModelFacts:
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
    if layers > _MOST_LAYERS:
        raise _bad_config(f"no model has {layers:,} layers", "num_hidden_layers")
    heads = _size(config, "num_attention_heads")
    kv_heads = _size(config, "num_key_value_heads", default=heads)
    mla = _mla(config)
    row = next((row for row in decoders().values() if row.model_type == kind), None)
    head_size = _size(config, "head_dim", default=(row and row.head_dim) or hidden // heads)
    if mla is None and heads % kv_heads:
        raise _bad_config(f"{heads} heads do not divide into {kv_heads} key-value heads", kind)
    if row is not None and row.window == "switched":
        window, window_layers = _switched_window(config, row, layers)
    else:
        window, window_layers = _window(config, kind, layers)
    quantization = _quantization(outer, quant_config)
    dtype, said = _dtype(config, outer)
    ffn = _size(config, "intermediate_size", "ffn_hidden_size")
    return ModelFacts(
        name=name or architecture,
        architecture=architecture,
        layers=layers,
        hidden=hidden,
        ffn=ffn,
        heads=heads,
        kv_heads=kv_heads,
        head_size=mla.nope_size + mla.rope_size if mla else head_size,
        vocab=_size(config, "vocab_size"),
        max_positions=_positions(config),
        tied=bool(config.get("tie_word_embeddings", outer.get("tie_word_embeddings", kind in _TIED_BY_DEFAULT))),
        dtype=dtype,
        attention_bias=bool(config.get("attention_bias", kind in _QKV_BIAS)),
        mlp_bias=bool(config.get("mlp_bias", False)),
        qk_norm=kind in _QK_NORM,
        norms_a_layer=4 if kind in _FOUR_NORMS else 2,
        window=window,
        window_layers=window_layers,
        moe=_moe(config, kind, layers, ffn),
        mla=mla,
        prequantized=_prequantized(quantization),
        prequantized_kv=_prequantized_kv(quantization),
        unquantized=_unquantized(quantization),
        assumed=(*assumed, *([] if said else ["the config names no dtype; bfloat16 is assumed"])),
    )


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


def _positions(config: Mapping[str, Any]) -> int:
    """The context: the config's figure, or what its rope scaling stretches the original one to."""
    given = _size(config, "max_position_embeddings", "max_sequence_length", "seq_length", "n_positions")
    scaling = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(scaling, Mapping):
        return given
    kind, factor = scaling.get("rope_type") or scaling.get("type"), scaling.get("factor")
    original = scaling.get("original_max_position_embeddings")
    if kind not in tuple(_STRETCHED) or not isinstance(original, int) or isinstance(original, bool):
        return given
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor < _MOST:
        return given
    return max(given, int(factor * original))


def _moe(config: Mapping[str, Any], kind: str, layers: int, ffn: int) -> MoeFacts | None:
    keys = ("n_routed_experts", "num_local_experts", "num_experts", "moe_num_experts")
    if kind not in MIXTURES and not any(config.get(key) for key in keys):
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
    return MoeFacts(experts, active, width, shared, min(dense, layers))


def _mla(config: Mapping[str, Any]) -> MlaFacts | None:
    if not config.get("kv_lora_rank"):
        return None
    return MlaFacts(
        kv_rank=_size(config, "kv_lora_rank"),
        rope_size=_size(config, "qk_rope_head_dim"),
        q_rank=_size(config, "q_lora_rank") if config.get("q_lora_rank") else None,
        nope_size=_size(config, "qk_nope_head_dim"),
        value_size=_size(config, "v_head_dim"),
    )


def _switched_window(config: Mapping[str, Any], row: Decoder, layers: int) -> tuple[int, int]:
    """The sliding window and how many layers have it, by the rule that the class's row states."""
    try:
        windows = row.layer_windows(config, layers)
    except ValueError as error:
        raise _bad_config(str(error), row.architecture) from None
    return max(windows), sum(window > 0 for window in windows)


def _window(config: Mapping[str, Any], kind: str, layers: int) -> tuple[int, int]:
    """The same for all other classes, whose configs say it in several ways."""
    window = config.get("sliding_window", _WINDOW.get(kind))
    # Qwen's classes slide only when they are told to, and then from layer max_window_layers on
    told = config.get("use_sliding_window", not kind.startswith("qwen"))
    if isinstance(window, bool) or not isinstance(window, int) or window <= 0 or told is False:
        return 0, 0
    types = config.get("layer_types")
    if isinstance(types, list):
        sliding = sum(name == "sliding_attention" for name in types[:layers])
    elif _count(config, "sliding_window_pattern"):
        sliding = layers - layers // _count(config, "sliding_window_pattern")
    elif kind in _PATTERN:
        sliding = layers - layers // _PATTERN[kind]
    elif _count(config, "max_window_layers") and kind.startswith("qwen"):
        sliding = max(layers - _count(config, "max_window_layers"), 0)
    else:
        sliding = layers
    return (window, sliding) if sliding else (0, 0)


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
