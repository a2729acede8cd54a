"""``config.json`` of a Hugging Face checkpoint as the few numbers that a graph needs.

Policy: old and new spellings are read (``rope_scaling`` with ``type`` or ``rope_type``,
``rope_parameters``); every rule between two numbers is checked here, once, before a node is written.
A key that changes the model's arithmetic and that the graph does not implement is refused, never
ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import read_json_file
from trtforge.models.config import ConfigFault, read_model
from trtforge.models.record import Model
from trtforge.tables.decoders import decoders

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
    try:
        config = read_model(raw, row)
    except ConfigFault as fault:
        raise _refuse(
            f"config.json: {fault}",
            asked=architecture,
            numbers=fault.numbers,
            why="The class computes by these keys; a graph that guessed would answer wrongly.",
            fix="Use config.json as the model's publisher has it",
        ) from None
    check_heads(config)
    # types that stretch by the whole context read it beside the section
    return replace(config, rope={**config.rope, "max_position_embeddings": config.max_positions})


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
