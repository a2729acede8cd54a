"""What both targets of TensorRT-LLM share: the stack's row, the model's facts, the tokenizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builder.files import copy_file
from builder.special_tokens import special_tokens
from builder.targets.trtllm.source import Checkpoint
from trtforge.ground.errors import ForgeError
from trtforge.models.kv import fullest_stage, kv_bytes_per_token
from trtforge.tables import StackRow, stack_table

COMPONENT = "TensorRT-LLM"
#: what tokenization needs, beside the engine
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)


def engine_stack(target: str, name: str | None) -> tuple[StackRow, str]:
    """The stack's row and its version of TensorRT-LLM.

    Raises:
        ForgeError: ``TF-BLD-043`` the row is unknown, or has no TensorRT-LLM for the target.
    """
    table = stack_table()
    row = table.row(name) if name else table.newest(target)
    version = None if row is None else row.version_of(COMPONENT)
    if row is None or version is None or target not in row.targets:
        works = [other.name for other in table.rows if target in other.targets]
        raise ForgeError(
            "TF-BLD-043",
            f"The stack {name} does not build {target}",
            asked=f"stack: {name}, build.target: {target}",
            numbers={"stacks_of_target": works},
            why="The stack says which TensorRT-LLM the artifact is for.",
            remedies=[f"stack: {other}" for other in works],
        )
    return row, version


def describe_model(source: Checkpoint, checkpoint: Path, tp: int, pp: int, *, layers_beside: int = 0) -> dict[str, Any]:
    """Model, quantization, KV cache and special tokens, as engine.json carries them.

    ``kv_bytes_per_token`` is of the rank that holds most: keys and values of its layers and heads.

    Args:
        layers_beside: layers of a drafter that share the model's KV pool on every rank.
    """
    config = source.config
    return {
        "architecture": config.architecture,
        "dtype": config.dtype,
        "quant_format": source.format,
        "group_size": source.group if source.format != "none" else None,
        "vocab_size": config.vocab,
        "max_position_embeddings": config.max_positions,
        "sliding_window": config.sliding_window,
        "full_attention_layers": list(config.full_attention_layers),
        "num_layers": config.layers,
        "kv_cache": {"format": source.pool},
        "kv_bytes_per_token": kv_bytes_per_token(
            config.kv, source.pool, tp=tp, layers=fullest_stage(config.layers + layers_beside, pp)
        ),
        **special_tokens(checkpoint),
    }


def copy_tokenizer(checkpoint: Path, out: Path) -> None:
    """Copy what tokenization needs."""
    for name in TOKENIZER_FILES:
        if (checkpoint / name).is_file():
            copy_file(checkpoint / name, out / name)
