"""K4: group sizes that must divide every rank's share of a linear."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from trtforge.formats.table import first_choice
from trtforge.models.shape import Linear, fits, quantized_linears, width
from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.remedies import Remedy, by_hand, line
from trtforge.preflight.retarget import group_sizes, k_multiple, mlp_multiple, padded_mlp, to_format
from trtforge.preflight.rules.heads import TPS, tp_works
from trtforge.rules.sources import thread


def padded(linear: Linear, tp: int, multiple: int) -> int:
    """The least K, not below the linear's own, that is a multiple on every rank."""
    whole = multiple * (tp if linear.split == "columns" else 1)
    return -(-linear.columns // whole) * whole


def mlp_padding(facts: Facts, name: str, kinds: Iterable[str]) -> list[Remedy]:
    """The MLP's width that whole groups and tiles fill on every rank, where the MLP alone is at fault.

    Zeros beside an MLP's rows and columns change no answer; a wider model or wider heads would be another model.
    """
    if not set(kinds) <= {"gate_proj", "up_proj", "down_proj"} or facts.require_model().hidden % mlp_multiple(
        facts, name
    ):
        return []
    size = padded_mlp(facts, name)
    return by_hand(f"pad the checkpoint's MLP with zeros to {size} (rows of gate and up, columns of down)")


@rule(
    "TF-K4-001",
    "group size does not divide a linear's input width",
    thread("TL#1636"),
    needs=("model", "format"),
    waivable=False,
)
def group_divides(facts: Facts) -> Iterator[Violation]:
    """Every row of a weight is cut into whole groups on every rank; a partial group has no scale, and export fails."""
    row, quantize, tp = facts.format, facts.recipe.quantize, facts.recipe.build.parallel.tp
    if row is None or not row.group_sizes or row.default_group_size is None:
        return
    group = quantize.group_size or row.default_group_size
    if group not in row.group_sizes:
        return  # TF-K4-002 names it
    model = facts.require_model()
    quantized = quantized_linears(model, quantize.not_in_format)
    bad = [linear for linear in quantized if width(linear, tp) % group]
    if not bad:
        return
    offenders: dict[str, Any] = {
        linear.kind: {"K": linear.columns, "K_per_rank": width(linear, tp), "remainder": width(linear, tp) % group}
        for linear in bad
    }
    works = tp_works(model)
    pairs = [
        (ranks, size)
        for ranks in TPS
        if ranks in works
        for size in group_sizes(facts, row.name)
        if fits(quantized, ranks, size)
    ]
    multiple = k_multiple(facts, row.name)  # TF-K4-004 asks for whole tiles too
    pads = {linear.kind: padded(linear, tp, multiple) for linear in bad}
    remedies: list[str | Remedy] = [
        f"quantize.group_size: {size}" for ranks, size in sorted(pairs, reverse=True) if ranks == tp
    ]
    remedies += [
        f"build.parallel.tp: {ranks} with quantize.group_size: {size}" for ranks, size in pairs if ranks != tp
    ][:4]
    remedies.append(f"{to_format(facts, first_choice())}  # one scale a tensor, no groups")
    remedies.append(line("quantize.exclude", [*quantize.exclude, *offenders]))
    remedies += mlp_padding(facts, row.name, offenders)
    widths = ", ".join(f"{kind} (K = {item['K_per_rank']:g})" for kind, item in offenders.items())
    yield Violation(
        f"group size {group} does not divide {widths}" + (f" with tp {tp}" if tp > 1 else ""),
        f"quantize.format: {row.name}, quantize.group_size: {group}"
        + ("" if quantize.group_size else " (the format's default)")
        + (f", build.parallel.tp: {tp}" if tp > 1 else ""),
        {
            "group_size": group,
            "tp": tp,
            "linears": offenders,
            "works_tp_group": [list(pair) for pair in pairs],
            "padded_K": pads,
        },
        remedies,
    )


@rule("TF-K4-002", "group size that the format does not have", needs=("format",), waivable=False)
def group_allowed(facts: Facts) -> Iterator[Violation]:
    """Kernels exist for the listed group sizes only; a format with one scale a tensor has no groups."""
    row, group = facts.format, facts.recipe.quantize.group_size
    if row is None or group is None or group in row.group_sizes:
        return
    yield Violation(
        f"format {row.name} has no group size {group}",
        f"quantize.format: {row.name}, quantize.group_size: {group}",
        {"group_size": group, "allowed": list(row.group_sizes)},
        [*(f"quantize.group_size: {size}" for size in group_sizes(facts, row.name)), "quantize.group_size: null"],
    )
