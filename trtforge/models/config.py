"""config.json of a Hugging Face checkpoint as a :class:`~trtforge.models.record.Model`: the one reading of its keys.

Policy: what a key means is decided by the class's row (``trtforge/tables/decoders.yaml``), and what the file leaves out
is the class's own value, as transformers has it. Faults are sentences without a code: intake, which is asked for a
source, and the graph's writer, which is handed a folder, refuse with codes and remedies of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtforge.models.by_class import class_fields
from trtforge.models.record import Model
from trtforge.tables.decoders import Decoder

#: deeper than any model by far; keeps a damaged number from being taken for work to do
MOST_LAYERS = 10_000


class ConfigFault(ValueError):
    """What config.json says wrongly, as the end of a sentence; ``numbers`` are the figures that show it."""

    def __init__(self, reason: str, **numbers: Any) -> None:
        super().__init__(reason)
        self.numbers = numbers


class RopeFault(ConfigFault):
    """The same of the rotary embedding's section."""


def read_model(config: Mapping[str, Any], row: Decoder) -> Model:
    """The model of a configuration of the row's class, its end tokens and the checks of its rope apart.

    Raises:
        ConfigFault: a value is missing, impossible, or asks for what nothing here computes.
    """
    refused = row.refusal(config)
    if refused is not None:
        raise ConfigFault(refused)
    layers = positive(config, "num_hidden_layers")
    if layers > MOST_LAYERS:
        raise ConfigFault("no model has so many layers", num_hidden_layers=layers)
    epsilon = config.get("rms_norm_eps", row.norm_eps)
    if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float)) or not 0 < epsilon < 1:
        raise ConfigFault(f"rms_norm_eps must be a small positive number, not {epsilon!r}")
    hidden, heads = positive(config, "hidden_size"), positive(config, "num_attention_heads")
    kv_heads = positive(config, "num_key_value_heads", default=heads)
    if heads % kv_heads:
        raise ConfigFault("the heads do not divide into the key-value heads", heads=heads, kv_heads=kv_heads)
    # files of before head_dim existed mean hidden / heads
    if config.get("head_dim") is None and row.head_dim is None and hidden % heads:
        raise ConfigFault("no head_dim, and the width does not divide by the heads", width=hidden, heads=heads)
    head_size = positive(config, "head_dim", default=row.head_dim or hidden // heads)
    if head_size % 2:
        raise ConfigFault("rotary embedding needs an even head size", head_dim=head_size)
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        raise ConfigFault(f"hidden_act {config['hidden_act']!r} is not silu, which {row.architecture} has")
    try:
        by_class = class_fields(row, config, layers, head_size)
    except ValueError as error:
        raise ConfigFault(str(error)) from None
    return Model(
        dtype=str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch."),
        layers=layers,
        hidden=hidden,
        ffn=positive(config, "intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        vocab=positive(config, "vocab_size"),
        max_positions=positive(config, "max_position_embeddings", default=row.max_positions),
        norm_eps=float(epsilon),
        rope=rope_section(config, row),
        **by_class,
    )


def positive(config: Mapping[str, Any], key: str, default: int | None = None) -> int:
    """A size of the configuration; ``default`` where it has no such key."""
    value = config.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise ConfigFault(f"{key} must be a positive integer, not {value!r}")
    return value


def rope_section(config: Mapping[str, Any], row: Decoder) -> dict[str, Any]:
    """Rope settings under the new names: rope_type, rope_theta and whatever else the section has, unchecked.

    Reads ``rope_parameters`` (transformers 5) and ``rope_scaling`` with ``rope_theta`` beside it (before), ``type`` for
    ``rope_type``, and the class's own names of types. Where both sections are there, ``rope_scaling`` decides, as in
    transformers 5 (``convert_rope_params_to_dict``). A type that stretches an original context takes it from the key
    beside the section, else from ``max_position_embeddings``.
    """
    section: dict[str, Any] = {}
    for key in ("rope_parameters", "rope_scaling"):
        value = config.get(key)
        if value is not None and not isinstance(value, Mapping):
            raise RopeFault(f"{key} must be a map, not {value!r}")
        section.update(value or {})
    nested = [key for key, value in section.items() if isinstance(value, Mapping)]
    if nested:
        raise RopeFault(f"it holds settings of its own for {', '.join(nested)}, and {row.architecture} has one for all")
    old_type = section.pop("type", None)
    kind = next((name for name in (section.get("rope_type"), old_type) if name not in (None, "")), "default")
    section["rope_type"] = row.rope_names.get(kind, kind) if isinstance(kind, str) else kind
    if section.get("rope_theta") is None:
        section["rope_theta"] = config.get("rope_theta", row.rope_theta)
    if section["rope_type"] in ("yarn", "longrope") and section.get("original_max_position_embeddings") is None:
        original = config.get("original_max_position_embeddings") or config.get("max_position_embeddings")
        section["original_max_position_embeddings"] = original
    return section
