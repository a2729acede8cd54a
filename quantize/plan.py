"""What will be quantized, decided from ``config.json`` and safetensors headers alone.

Policy: every refusal that the headers can justify comes before a weight is loaded or a sample is run:
a group that leaves partial blocks, a row count that its packing cannot hold, an output head that shares
its weight with the embedding, a checkpoint that is quantized already. Routers of mixture-of-experts
models and embeddings are never quantized. A linear is excluded when its name, a part of it or one of
its parents matches a pattern, by the same rule as in preflight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtforge.formats.table import (
    FormatRow,
    KvMode,
    check_group_size,
    first_choice,
    format_row,
    kv_mode,
    resolve_group_size,
)
from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import read_json_file, read_json_object
from trtforge.ground.safetensors_header import TensorInfo
from trtforge.models.shape import matches
from trtforge.recipe.schema import Quantize

LM_HEAD = "lm_head"
#: modules that ModelOpt's configurations keep unquantized whatever a recipe says
ALWAYS_EXCLUDED = ("*router*", "*mlp.gate", "*block_sparse_moe.gate", "*shared_expert_gate")
_EMBEDDINGS = ("*embed*", "wte")


@dataclass(frozen=True)
class QuantPlan:
    """Attributes:
    row, kv: the table's rows.
    group: resolved group size, or None.
    linears: [N, K] of every linear, by module name, the tied head included.
    quantized: names of those that get the format, sorted.
    excluded: the others, sorted.
    tied: whether the output head shares the embedding's weight.
    idle_patterns: exclude patterns that match no linear (preflight warns of them).
    """

    row: FormatRow
    kv: KvMode
    group: int | None
    linears: Mapping[str, tuple[int, int]]
    quantized: tuple[str, ...]
    excluded: tuple[str, ...]
    tied: bool
    idle_patterns: tuple[str, ...]

    @property
    def does_nothing(self) -> bool:
        """Neither weights nor the KV cache change."""
        return self.row.weight is None and self.kv.dtype is None


def linear_shapes(headers: Mapping[str, TensorInfo], config: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """[N, K] of the linears of an unquantized checkpoint; a tied head appears with the embedding's shape."""
    shapes: dict[str, tuple[int, int]] = {}
    embedding: tuple[int, int] | None = None
    for name, info in headers.items():
        module, _, leaf = name.rpartition(".")
        if leaf != "weight" or len(info.shape) != 2:
            continue
        shape = (info.shape[0], info.shape[1])
        if any(matches(module, pattern) for pattern in _EMBEDDINGS):
            embedding = shape
        else:
            shapes[module] = shape
    if is_tied(config) and embedding is not None:
        shapes[LM_HEAD] = embedding
    return dict(sorted(shapes.items()))


def is_tied(config: Mapping[str, Any]) -> bool:
    """Whether the output head is the embedding (transformers' default is yes)."""
    return bool(config.get("tie_word_embeddings", True))


def plan_quantization(config: Mapping[str, Any], headers: Mapping[str, TensorInfo], section: Quantize) -> QuantPlan:
    """Decide which linears get which format.

    Args:
        config: the checkpoint's ``config.json``.
        headers: its tensors.
        section: the recipe's ``quantize`` section.

    Raises:
        ForgeError: ``TF-QNT-001`` … ``-004`` (format, KV mode, group size), ``TF-QNT-005`` already
            quantized, ``TF-QNT-007`` odd rows, ``TF-K4-001`` partial groups, ``TF-K6-001`` a tied head
            that is not excluded, ``TF-QNT-015`` nothing is left to quantize.
    """
    row, kv = format_row(section.format), kv_mode(section.kv_cache)
    group = resolve_group_size(row, section.group_size)
    if (row.weight is not None or kv.dtype is not None) and config.get("quantization_config"):
        raise _already_quantized(config["quantization_config"])
    linears = linear_shapes(headers, config)
    patterns = (*section.unquantized, *ALWAYS_EXCLUDED)
    excluded = {name for name in linears if any(matches(name, pattern) for pattern in patterns)}
    if row.weight is None:
        excluded = set(linears)
    quantized = tuple(sorted(set(linears) - excluded))
    if row.weight is not None and not quantized:
        raise _nothing_left(row, section)
    if is_tied(config) and LM_HEAD in quantized:
        raise _tied_head(row, section)
    check_group_size(row, group, {name: linears[name][1] for name in quantized})
    _check_rows(row, {name: linears[name][0] for name in quantized})
    # the default names the head whether or not a model has one of its own
    idle = [p for p in section.exclude if p != LM_HEAD and not any(matches(name, p) for name in linears)]
    return QuantPlan(row, kv, group, linears, quantized, tuple(sorted(excluded)), is_tied(config), tuple(idle))


def _already_quantized(found: Any) -> ForgeError:
    method = found.get("quant_method", "unknown") if isinstance(found, Mapping) else str(found)
    return ForgeError(
        "TF-QNT-005",
        "The checkpoint is quantized already",
        numbers={"quant_method": method},
        why="Quantizing again would round values that were rounded before; the original weights are gone.",
        remedies=["Start from the unquantized checkpoint", "quantize: {format: none, kv_cache: none} keeps it"],
    )


def _nothing_left(row: FormatRow, section: Quantize) -> ForgeError:
    return ForgeError(
        "TF-QNT-015",
        "No linear of the model is left to quantize",
        asked=f"quantize: {{format: {row.name}, scope: {section.scope}, exclude: {list(section.exclude)}}}",
        why="Scope and exclude list together take in every linear; the scope experts has none in a dense model.",
        remedies=["quantize.scope: all", "quantize.exclude: [lm_head]", "quantize.format: none"],
    )


def _tied_head(row: FormatRow, section: Quantize) -> ForgeError:
    return ForgeError(
        "TF-K6-001",
        "The output head cannot be quantized: it is the embedding",
        asked=f"quantize.format: {row.name}, quantize.exclude: {list(section.exclude)}",
        why=(
            "tie_word_embeddings is true, so lm_head and the embedding are one tensor. Quantizing the head would store "
            "it a second time and break the tie, or quantize the embedding table, which no kernel looks up."
        ),
        remedies=[f"quantize.exclude: {[*section.exclude, LM_HEAD]}"],
    )


def _check_rows(row: FormatRow, rows: Mapping[str, int]) -> None:
    odd = {name: n for name, n in rows.items() if n % row.rows_a_byte}
    if odd:
        raise ForgeError(
            "TF-QNT-007",
            f"{len(odd)} linears have an odd number of rows",
            asked=f"quantize.format: {row.name}",
            numbers={"rows": dict(sorted(odd.items())[:8])},
            why=f"The format packs {row.rows_a_byte} rows into a byte.",
            remedies=[f"quantize.exclude: add {sorted(odd)[0]}", f"quantize.format: {first_choice()}"],
        )


def read_config(checkpoint: Path) -> dict[str, Any]:
    """``config.json`` of a checkpoint directory.

    Raises:
        ForgeError: ``TF-QNT-008`` when it is missing or no JSON object.
    """
    path = Path(checkpoint) / "config.json"
    try:
        config = read_json_file(path)
    except (OSError, ValueError) as error:
        raise _no_config(path, str(error)) from error
    if not isinstance(config, dict):
        raise _no_config(path, "it is no JSON object")
    return config


def read_quantization_record(checkpoint: Path) -> dict[str, Any] | None:
    """The section ``quantization`` of ``hf_quant_config.json``; None without that file.

    Raises:
        ForgeError: ``TF-QNT-043`` the file holds no such section.
    """
    path = Path(checkpoint) / "hf_quant_config.json"
    if not path.exists():
        return None
    try:
        section = read_json_object(path).get("quantization", {})
        if not isinstance(section, dict):
            raise ValueError("quantization is no object")
    except (OSError, ValueError) as error:
        raise ForgeError(
            "TF-QNT-043",
            f"{path.name} does not say how the weights are stored: {error}",
            asked=str(path),
            why="It must be JSON with a section named quantization, as ModelOpt writes it.",
            remedies=["export the quantized checkpoint again", "trtforge run RECIPE --force quantize"],
        ) from error
    return section


def _no_config(path: Path, error: str) -> ForgeError:
    return ForgeError(
        "TF-QNT-008",
        "The checkpoint has no readable config.json",
        asked=str(path),
        numbers={"error": error[:200]},
        why="The architecture and its sizes come from it.",
        remedies=["Point at a checkpoint directory", "Run intake on the model again"],
    )
