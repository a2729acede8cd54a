"""config.json: what it must say, in one normal form.

Policy: a configuration is normalised so that any reader finds the same thing: ``head_dim``, ``num_key_value_heads``,
``tie_word_embeddings`` and sliding windows explicit, ``dtype`` instead of ``torch_dtype``, ``type`` renamed to
``rope_type``. Rope is written twice, as ``rope_parameters`` (transformers 5) and as ``rope_theta`` with
``rope_scaling`` (transformers 4 and most other readers), because a reader that finds only the other form falls back
to its defaults without a word. Features that the family's graph cannot express (partial rotary, other activations,
dynamic rope) are refused here, not after quantizing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import MAX_TOKENIZER_BYTES, read_json_file
from trtforge.models.config import ConfigFault, RopeFault, read_model
from trtforge.models.folder_kind import kind_by_config
from trtforge.models.record import Model
from trtforge.tables.decoders import FULL, SLIDING, Decoder, decoders

#: rope types that the graphs express, with the keys that each needs and may have
ROPE_TYPES: dict[str, tuple[frozenset[str], frozenset[str]]] = {
    "default": (frozenset(), frozenset()),
    "linear": (frozenset({"factor"}), frozenset()),
    "llama3": (
        frozenset({"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}),
        frozenset(),
    ),
    "yarn": (
        frozenset({"factor"}),
        frozenset(
            {
                "original_max_position_embeddings",
                "attention_factor",
                "beta_fast",
                "beta_slow",
                "mscale",
                "mscale_all_dim",
                "truncate",
            }
        ),
    ),
    "longrope": (
        frozenset({"long_factor", "short_factor", "original_max_position_embeddings"}),
        frozenset({"factor", "attention_factor"}),
    ),
}
#: keys of rope types that hold a number for each pair of values
LISTS = ("long_factor", "short_factor")
#: keys that give every layer a shape of its own
_LAYER_KEYS = ("block_configs", "num_key_value_heads_per_layer", "layer_intermediate_sizes", "pruned_heads_per_layer")
#: keys that describe the writer or its moment, not the model
_DROPPED = ("_name_or_path", "transformers_version", "torch_dtype", "_attn_implementation", "_commit_hash")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from ``path``; ``TF-SRC-021`` when it is none."""
    try:
        value = read_json_file(path, MAX_TOKENIZER_BYTES, parse_constant=_no_constant)
    except (OSError, ValueError) as error:
        value = error
    if not isinstance(value, dict):
        raise _invalid(path.name, f"it is no JSON object{f' ({value})' if isinstance(value, Exception) else ''}")
    return value


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _invalid(name: str, reason: str, *, remedies: Sequence[str] = (), **numbers: Any) -> ForgeError:
    return ForgeError(
        "TF-SRC-021",
        f"{name} cannot be used: {reason}",
        asked=name,
        numbers=numbers,
        remedies=list(remedies)
        or [f"download {name} again from the model's publisher", "correct the value in a copy of the checkpoint"],
    )


def require_architecture(config: dict[str, Any]) -> Decoder:
    """The row of the checkpoint's class.

    Raises:
        ForgeError: ``TF-SRC-009`` when it is not supported, ``TF-SRC-028`` when this is the config.json of another kind
            of folder, ``TF-SRC-021`` when the layers differ from each other.
    """
    kind = kind_by_config(config)
    if kind is not None:
        raise ForgeError(
            "TF-SRC-028",
            f"config.json is that of {kind.title}, no Hugging Face checkpoint",
            asked="config.json",
            numbers={"kind": kind.name},
            remedies=list(kind.remedies),
        )
    _refuse_differing_layers(config)
    named = config.get("architectures")
    if named is None and isinstance(config.get("model_type"), str):
        named = [name for name, row in decoders().items() if row.model_type == config["model_type"]][:1]
    name = named[0] if isinstance(named, list) and named else None
    if not isinstance(name, str) or name not in decoders():
        supported = ", ".join(f"{key} ({row.serves})" for key, row in decoders().items())
        shown = name or config.get("model_type") or "no architecture"
        raise ForgeError(
            "TF-SRC-009",
            f"the architecture {shown} is not supported",
            asked=str(shown),
            numbers={"supported": list(decoders())},
            why="Each architecture needs a graph that computes it exactly; a near one would load and answer wrongly.",
            remedies=[f"use a model of a supported architecture: {supported}"],
        )
    return decoders()[name]


def _refuse_differing_layers(config: dict[str, Any]) -> None:
    """``TF-SRC-021`` for a model whose layers have different shapes, as architecture search and pruning leave them."""
    listed = [
        key
        for key in ("intermediate_size", "num_attention_heads", "num_key_value_heads", "hidden_size", "head_dim")
        if isinstance(config.get(key), list) and len({str(item) for item in config[key]}) > 1
    ]
    named = [key for key in _LAYER_KEYS if config.get(key)]
    if named or listed:
        raise _invalid(
            "config.json",
            f"its layers differ from each other ({', '.join([*named, *listed])}): a model of architecture search (NAS) "
            "or pruning, and every layer here has one shape",
            remedies=[
                "use the model that it was derived from, or one whose layers are alike",
                "serve it with TensorRT-LLM's own converter for its class (NemotronNAS), outside this pipeline",
            ],
            keys=[*named, *listed],
        )


def check_config(config: dict[str, Any], generation: dict[str, Any] | None = None) -> Model:
    """Check ``config`` and return its figures. ``generation`` (generation_config.json) decides the end tokens if given.

    Raises:
        ForgeError: ``TF-SRC-009`` architecture, ``TF-SRC-021`` a value, ``TF-SRC-026`` rope.
    """
    row = require_architecture(config)
    try:
        model = read_model(config, row)
    except RopeFault as fault:
        raise _bad_rope(str(fault)) from None
    except ConfigFault as fault:
        raise _invalid("config.json", str(fault), **fault.numbers) from None
    for name, values in (("config.json", config), ("generation_config.json", generation or {})):
        for key in ("bos_token_id", "eos_token_id"):
            _require_token_ids(name, values, key, model.vocab)
    tokens = {**config, **{key: value for key, value in (generation or {}).items() if value is not None}}
    return replace(
        model,
        rope=_checked_rope(model.rope, config, row, model.rotary_size or model.head_size),
        bos_token_id=_token_ids(tokens, "bos_token_id")[0] if _token_ids(tokens, "bos_token_id") else None,
        eos_token_ids=tuple(_token_ids(tokens, "eos_token_id")),
    )


def _token_ids(config: dict[str, Any], key: str) -> list[int]:
    value = config.get(key)
    return [] if value is None else list(value) if isinstance(value, list) else [value]


def _require_token_ids(name: str, config: dict[str, Any], key: str, vocab: int) -> None:
    """Both files are read by somebody, so the ids of both must be right, whichever decides here."""
    ids = _token_ids(config, key)
    if not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in ids):
        raise _invalid(name, f"{key} must be a token id or a list of them, not {config[key]!r}")
    if any(token >= vocab for token in ids):
        raise _invalid(name, f"{key} lies beyond the vocabulary", **{key: config[key], "vocab_size": vocab})


def _checked_rope(rope: Mapping[str, Any], config: dict[str, Any], row: Decoder, rotary: int) -> dict[str, Any]:
    """The section with what its type has and nothing else; ``rotary`` values of a head turn."""
    rope_type, theta = rope["rope_type"], rope["rope_theta"]
    if isinstance(theta, bool) or not isinstance(theta, (int, float)) or not 0 < theta < float("inf"):
        raise _bad_rope(f"rope_theta must be a positive number, not {theta!r}")
    partial = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    if not isinstance(rope_type, str) or rope_type not in ROPE_TYPES or rope_type not in row.rope_types:
        raise _bad_rope(f"the rope type {rope_type!r} is not supported for {row.architecture}", row.rope_types)
    needed, optional = ROPE_TYPES[rope_type]
    missing = sorted(key for key in needed if rope.get(key) is None)
    if missing:
        raise _bad_rope(f"rope type {rope_type} lacks {', '.join(missing)}")
    kept = {key: value for key, value in rope.items() if key in needed | optional and value is not None}
    lists = {key: kept[key] for key in LISTS if key in kept}
    if any(not isinstance(value, list) or len(value) != rotary // 2 for value in lists.values()):
        raise _bad_rope(f"{' and '.join(lists)} must be lists of {rotary // 2} numbers, one for each pair of values")
    numbers = [value for key, value in kept.items() if key != "truncate" and key not in LISTS]
    numbers += [value for values in lists.values() for value in values]
    if any(isinstance(v, bool) or not isinstance(v, (int, float)) or not 0 < v < float("inf") for v in numbers):
        raise _bad_rope(f"the values of rope type {rope_type} must be positive numbers: {kept}")
    if partial != 1.0:
        kept["partial_rotary_factor"] = partial
    return {"rope_type": rope_type, "rope_theta": float(theta), **dict(sorted(kept.items()))}


def _bad_rope(reason: str, supported: Sequence[str] = tuple(ROPE_TYPES)) -> ForgeError:
    return ForgeError(
        "TF-SRC-026",
        f"the rotary embedding cannot be used: {reason}",
        asked="config.json: rope_parameters / rope_scaling",
        numbers={"supported": list(supported)},
        why="A rope that is read wrongly still loads and answers short prompts; long ones turn to garbage.",
        remedies=[f"use a checkpoint whose rope type is one of {', '.join(supported)}"],
    )


def normalized_config(config: dict[str, Any], shape: Model, *, dtype: str, keep_remote_code: bool) -> dict[str, Any]:
    """``config`` in the normal form; ``dtype`` becomes what the written tensors have."""
    result = {key: value for key, value in config.items() if key not in _DROPPED}
    if not keep_remote_code:
        result.pop("auto_map", None)
    scaling = {key: value for key, value in shape.rope.items() if key != "rope_theta"}
    row = decoders()[shape.architecture]
    result.update(
        architectures=[shape.architecture],
        model_type=row.model_type,
        dtype=dtype,
        head_dim=shape.head_size,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.max_positions,
        tie_word_embeddings=shape.tied,
        rope_parameters=dict(shape.rope),
        rope_theta=shape.rope["rope_theta"],
        rope_scaling=scaling if shape.rope["rope_type"] != "default" else None,
    )
    if "partial_rotary_factor" in shape.rope:
        result["partial_rotary_factor"] = shape.rope["partial_rotary_factor"]
    if row.window != "never":
        result["sliding_window"] = shape.sliding_window or None
    if row.window == "switched":
        result["use_sliding_window"] = shape.sliding_window > 0
        result["layer_types"] = [SLIDING if window else FULL for window in shape.windows]
    return result
