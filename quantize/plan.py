"""What will be quantized, decided from ``config.json`` and safetensors headers alone.

Policy: every refusal that the headers can justify comes before a weight is loaded or a sample is run:
a group that leaves partial blocks, a row count that its packing cannot hold, an output head that shares
its weight with the embedding, a checkpoint that is quantized already. Routers of mixture-of-experts
models and embeddings are never quantized. A linear is excluded when its name, a part of it or one of
its parents matches a pattern, by the same rule as in preflight.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from trtforge.formats.mixing import MIXED, assign, format_text, load_mixing, mixable, sized_format, torn_products
from trtforge.formats.table import (
    UNQUANTIZED,
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
    row, kv: the table's rows; with ``quantize.mixed`` the row of the linears that it does not name.
    group: resolved group size of ``row``, or None.
    linears: [N, K] of every linear, by module name, the tied head included.
    quantized: names of those that get the format, sorted.
    excluded: the others, sorted.
    tied: whether the output head shares the embedding's weight.
    idle_patterns: patterns of ``exclude`` and ``mixed`` that match no linear (preflight warns of them).
    others: the quantized linears with another format than ``row``: its row and group size.
    """

    row: FormatRow
    kv: KvMode
    group: int | None
    linears: Mapping[str, tuple[int, int]]
    quantized: tuple[str, ...]
    excluded: tuple[str, ...]
    tied: bool
    idle_patterns: tuple[str, ...]
    others: Mapping[str, tuple[FormatRow, int | None]] = field(default_factory=dict)

    @cached_property
    def quantized_set(self) -> frozenset[str]:
        """``quantized`` to look names up in."""
        return frozenset(self.quantized)

    def row_of(self, linear: str) -> FormatRow:
        """The format of a quantized linear."""
        return self.others[linear][0] if linear in self.others else self.row

    def group_of(self, linear: str) -> int | None:
        """Values of a quantized linear that share a scale; None without groups."""
        return self.others[linear][1] if linear in self.others else self.group

    @cached_property
    def formats(self) -> Mapping[tuple[str, int | None], tuple[str, ...]]:
        """The quantized linears of each format and group size, that of ``row`` first."""
        found: dict[tuple[str, int | None], list[str]] = {(self.row.name, self.group): []}
        for linear in self.quantized:
            found.setdefault((self.row_of(linear).name, self.group_of(linear)), []).append(linear)
        return {key: tuple(names) for key, names in found.items() if names}

    @cached_property
    def rows(self) -> tuple[FormatRow, ...]:
        """The formats of the quantized linears."""
        return tuple(format_row(name) for name in dict.fromkeys(name for name, _ in self.formats))

    @property
    def mixed(self) -> Mapping[str, tuple[str, ...]]:
        """The linears of each format as a recipe writes it; empty where all have one."""
        if len(self.formats) < 2:
            return {}
        return {format_text(format_row(name), group): names for (name, group), names in self.formats.items()}

    @property
    def title(self) -> str:
        """The formats of the weights in words."""
        return " and ".join(self.mixed) or (self.rows[0].name if self.rows else self.row.name)

    @property
    def algorithm(self) -> str | None:
        """``quant_algo`` of the export: MIXED_PRECISION for several formats or group sizes."""
        if len(self.formats) > 1:
            return MIXED
        return self.rows[0].algorithm if self.rows else None

    @property
    def needs_calibration(self) -> bool:
        """Whether some format's scales need text."""
        return any(row.needs_calibration for row in self.rows)

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
            that is not excluded, ``TF-QNT-015`` nothing is left to quantize; of ``mixed`` ``TF-QNT-017`` a format that
            is not mixed, ``TF-QNT-018`` one product in several formats, ``TF-QNT-019`` a linear in two; of
            experts ``TF-QNT-018`` a layer's in part, ``TF-QNT-028`` in a format that they cannot have.
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
    # the default names the head whether or not a model has one of its own
    idle = [p for p in section.exclude if p != LM_HEAD and not any(matches(name, p) for name in linears)]
    others, unused = _others(section, quantized, (row, group))
    plan = QuantPlan(
        row, kv, group, linears, quantized, tuple(sorted(excluded)), is_tied(config), (*idle, *unused), others
    )
    _check_experts(plan, section)
    for (name, size), members in plan.formats.items():
        check_group_size(format_row(name), size, {member: linears[member][1] for member in members})
        _check_rows(format_row(name), {member: linears[member][0] for member in members})
    if len(plan.formats) > 1:
        mixable((row.name for row in plan.rows), asked=_asked(section))
        _check_products(plan, section)
    return plan


def _others(
    section: Quantize, quantized: tuple[str, ...], own: tuple[FormatRow, int | None]
) -> tuple[dict[str, tuple[FormatRow, int | None]], list[str]]:
    """Format and group size of the linears that ``mixed`` names, and its patterns that fit none."""
    named = {text: sized_format(text) for text in section.mixed}
    assigned, idle = assign(section.mixed, quantized, ())
    return {linear: named[text] for linear, text in assigned.items() if named[text] != own}, idle


def _asked(section: Quantize) -> str:
    return f"quantize: {{format: {section.format}, mixed: {{{', '.join(section.mixed)}}}}}"


def _check_products(plan: QuantPlan, section: Quantize) -> None:
    formats = {name: format_text(plan.row_of(name), plan.group_of(name)) for name in plan.quantized}
    torn = torn_products(formats | dict.fromkeys(plan.excluded, UNQUANTIZED))
    if torn:
        where, parts = next(iter(torn.items()))
        raise ForgeError(
            "TF-QNT-018",
            f"{where} are to have several formats",
            asked=_asked(section),
            numbers={"products": len(torn), "formats": parts},
            why="They are one product in the engine, and the export gives linears with one input common scales.",
            remedies=[
                f"quantize.mixed.{other}: all of {', '.join(sorted(parts))}"
                for other in dict.fromkeys(parts.values())
                if other in section.mixed
            ]
            + [f"quantize.mixed: none of {', '.join(sorted(parts))}"],
        )


def _check_experts(plan: QuantPlan, section: Quantize) -> None:
    """The experts of a layer are one module: all are quantized or none, and not in every format."""
    experts = [name for name in plan.linears if ".experts." in name]
    formats = {name: plan.row_of(name).name if name in plan.quantized_set else UNQUANTIZED for name in experts}
    layers: dict[str, set[str]] = {}
    for name, text in formats.items():
        layers.setdefault(f"{name.partition('.experts.')[0]}.experts", set()).add(text)
    if torn := {layer: sorted(texts) for layer, texts in layers.items() if len(texts) > 1}:
        layer = next(iter(torn))
        raise ForgeError(
            "TF-QNT-018",
            f"Some experts of {layer} are to be quantized, others are not",
            asked=f"quantize.exclude: {list(section.unquantized)}",
            numbers={"layers": len(torn), "formats": torn[layer]},
            why="The experts of a layer are one product in every engine, and one module where they are calibrated.",
            remedies=[f"quantize.exclude: all of {layer}", f"quantize.exclude: none of {layer}"],
        )
    known = load_mixing().experts
    others = sorted({text for text in formats.values() if text != UNQUANTIZED and text not in known})
    if others:
        raise ForgeError(
            "TF-QNT-028",
            f"The experts of a model are not quantized to {others[0]}",
            asked=f"quantize.format: {section.format}",
            numbers={"expert_linears": len(experts), "formats_of_experts": list(known)},
            why="transformers holds the experts of a layer as one module. ModelOpt's searches and corrections pass it "
            "by, so that they would be rounded as if there were none, and its export has no scales of INT4 blocks.",
            remedies=[*(f"quantize.format: {name}" for name in load_mixing().usual), "quantize.exclude: add experts"],
        )


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
