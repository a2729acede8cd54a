"""``config.json`` of a Hugging Face checkpoint as the few numbers that a graph needs.

Policy: old and new spellings are read (``rope_scaling`` with ``type`` or ``rope_type``,
``rope_parameters``); every rule between two numbers is checked here, once, before a node is written.
A key that changes the model's arithmetic and that the graph does not implement is refused, never
ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import read_json_file
from trtforge.models.by_class import class_fields
from trtforge.models.record import Model
from trtforge.tables.decoders import Decoder, decoders

#: what PagedAttention v1 takes
HEAD_SIZES = (64, 256)


def _refuse(
    message: str, *, asked: Any = None, numbers: Mapping[str, Any] | None = None, why: str, fix: str
) -> ForgeError:
    return ForgeError(
        "TF-GRF-002",
        message,
        asked=None if asked is None else str(asked),
        numbers=numbers,
        why=why,
        remedies=[fix],
    )


def read_config(directory: Path) -> Model:
    """Parse ``config.json`` in ``directory``.

    Raises:
        ForgeError: ``TF-GRF-001`` the architecture has no graph module, ``TF-GRF-002`` a value is
            missing, impossible or not implemented, ``TF-GRF-009`` a head size outside PagedAttention's range.
    """
    path = Path(directory) / "config.json"
    try:
        raw = read_json_file(path)
        if not isinstance(raw, dict):
            raise ValueError("it is no JSON object")
    except (OSError, ValueError) as error:
        raise _refuse(
            f"{path} cannot be read: {error}",
            asked=directory,
            why="The graph is written from the checkpoint's config.json.",
            fix="Point at a Hugging Face checkpoint directory",
        ) from error
    return parse_config(raw)


def _count(raw: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = raw.get(key)
    if value is None:
        value = default
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        raise _refuse(
            f"config.json: {key} is {value!r}",
            why="It must be a positive whole number.",
            fix=f"Set {key} to the model's value",
        )
    return value


def parse_config(raw: Mapping[str, Any]) -> Model:
    """The parsed form of config.json's object; errors as :func:`read_config`."""
    names = raw.get("architectures") or ["(none)"]
    architecture = str(names[0])
    row = decoders().get(architecture)
    if row is None:
        raise ForgeError(
            "TF-GRF-001",
            f"No graph module writes {architecture}",
            asked=architecture,
            numbers={"supported": sorted(decoders())},
            why="A graph is written by the module of its architecture family.",
            remedies=[f"Use a checkpoint of {', '.join(sorted(decoders()))}"],
        )
    refused = row.refusal(raw)
    if refused is not None:
        raise _refuse(
            f"config.json: {refused}",
            asked=architecture,
            why="A graph without it would answer long prompts wrongly.",
            fix="Use a checkpoint without it",
        )
    hidden, heads = _count(raw, "hidden_size"), _count(raw, "num_attention_heads")
    kv_heads = _count(raw, "num_key_value_heads", heads)
    # files of before head_dim existed mean hidden / heads
    if raw.get("head_dim") is None and row.head_dim is None and hidden % heads:
        raise _refuse(
            f"hidden_size {hidden} does not divide into {heads} heads",
            numbers={"hidden_size": hidden, "num_attention_heads": heads},
            why="Without head_dim a head has hidden_size / num_attention_heads values.",
            fix="Set head_dim in config.json",
        )
    head_size = _count(raw, "head_dim", row.head_dim or hidden // heads)
    layers = _count(raw, "num_hidden_layers")
    config = Model(
        dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "bfloat16").removeprefix("torch."),
        layers=layers,
        hidden=hidden,
        ffn=_count(raw, "intermediate_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        vocab=_count(raw, "vocab_size"),
        max_positions=_count(raw, "max_position_embeddings", row.max_positions),
        norm_eps=float(raw.get("rms_norm_eps", row.norm_eps)),
        rope=rope_parameters(raw, row),
        **_class_fields(row, raw, layers, head_size),
    )
    _check(config, raw)
    return config


def _class_fields(row: Decoder, raw: Mapping[str, Any], layers: int, head_size: int) -> dict[str, Any]:
    try:
        return class_fields(row, raw, layers, head_size)
    except ValueError as error:
        raise _refuse(
            f"config.json: {error}",
            asked=row.architecture,
            why="The class computes by these keys; a graph that guessed would answer wrongly.",
            fix="Use config.json as the model's publisher has it",
        ) from None


def rope_parameters(raw: Mapping[str, Any], row: Decoder | None = None) -> dict[str, Any]:
    """Rope settings in the new spelling: rope_type, rope_theta and what the type needs.

    Reads ``rope_parameters`` (transformers 5) or ``rope_scaling`` + ``rope_theta`` (before), with
    ``type`` for ``rope_type`` and ``original_max_position_embeddings`` beside the section. ``row`` is the class's:
    its base, and its own names of types.
    """
    section = dict(raw.get("rope_parameters") or {})
    section = {**dict(raw.get("rope_scaling") or {}), **section}
    kind = section.pop("type", None)
    section.setdefault("rope_type", kind or "default")
    if row is not None:
        section["rope_type"] = row.rope_names.get(section["rope_type"], section["rope_type"])
    if section.get("rope_theta") is None:
        section["rope_theta"] = raw.get("rope_theta") or (row.rope_theta if row is not None else 10000.0)
    if (
        section["rope_type"] in ("yarn", "llama3", "longrope")
        and section.get("original_max_position_embeddings") is None
    ):
        fallback = raw.get("original_max_position_embeddings") or raw.get("max_position_embeddings")
        section["original_max_position_embeddings"] = fallback
    section.setdefault("max_position_embeddings", raw.get("max_position_embeddings"))
    return section


def check_heads(config: Model) -> None:
    """Heads that PagedAttention takes.

    Raises:
        ForgeError: ``TF-GRF-002`` they do not divide over the kv heads, ``TF-GRF-009`` their size.
    """
    if config.heads % config.kv_heads:
        raise _refuse(
            f"{config.heads} heads do not divide over {config.kv_heads} kv heads",
            numbers={"num_attention_heads": config.heads, "num_key_value_heads": config.kv_heads},
            why="Each kv head serves the same number of heads.",
            fix="Correct num_key_value_heads in config.json",
        )
    low, high = HEAD_SIZES
    if not low <= config.head_size <= high or config.head_size % 2:
        raise ForgeError(
            "TF-GRF-009",
            f"Heads of {config.head_size} values are outside what PagedAttention takes",
            numbers={"head_size": config.head_size, "smallest": low, "largest": high},
            why=f"PagedAttention v1 takes even head sizes from {low} to {high}.",
            remedies=["Use a checkpoint with such heads"],
        )


def _check(config: Model, raw: Mapping[str, Any]) -> None:
    check_heads(config)
    activation = raw.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise _refuse(
            f"The MLP's activation is {activation!r}",
            asked=activation,
            why="The graphs have SiLU-gated MLPs.",
            fix="Use a checkpoint with hidden_act silu",
        )
