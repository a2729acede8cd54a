"""K4: the tile of the kernel limits shapes too, whatever the group size allows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trtforge.formats.table import first_choice
from trtforge.models.shape import Linear, quantized_linears, width
from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.features import stored_weights, weight_format, weights_asked
from trtforge.preflight.remedies import by_hand, line
from trtforge.preflight.retarget import k_multiple, to_format
from trtforge.preflight.rules.groups import mlp_padding, padded
from trtforge.preflight.rules.heads import TPS, tp_works
from trtforge.tables.features import Kernel


def _height(linear: Linear, tp: int) -> float:
    """N on one rank."""
    return linear.rows / tp if linear.split == "rows" else float(linear.rows)


def _misfits(linears: list[Linear], kernel: Kernel, tp: int) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for linear in linears:
        columns, rows = width(linear, tp), _height(linear, tp)
        if columns % kernel.k or rows % kernel.n:
            found[linear.kind] = {"K_per_rank": columns, "N_per_rank": rows}
    return found


@rule("TF-K4-003", "group size without a kernel on the target", needs=("format",), waivable=False)
def group_has_kernel(facts: Facts) -> Iterator[Violation]:
    """The format has the group size, but the target's kernel is compiled for others: the build or the first request
    fails."""
    row, target = facts.format, facts.recipe.build.target
    kernel = facts.kernels.row(row.name, target) if row is not None else None
    if row is None or kernel is None or kernel.groups is None:
        return
    group = facts.recipe.quantize.group_size or row.default_group_size
    if group in row.group_sizes and group not in kernel.groups:
        yield Violation(
            f"{kernel.kernel} of {target} has no group size {group}",
            f"quantize.group_size: {group}, build.target: {target}",
            {"group_size": group, "kernel": kernel.kernel, "allowed": list(kernel.groups)},
            [*(f"quantize.group_size: {size}" for size in kernel.groups), to_format(facts, first_choice())],
            source=kernel.source,
        )


@rule("TF-K4-004", "a rank's share of a linear does not fill the kernel's tiles", needs=("model",))
def tiles_filled(facts: Facts) -> Iterator[Violation]:
    """Kernels take whole tiles only; a narrower share fails at build or, worse, at the first request."""
    target, tp, name = facts.recipe.build.target, facts.recipe.build.parallel.tp, weight_format(facts)
    kernel, model = facts.kernels.row(name, target), facts.require_model()
    works = tp_works(model)
    if kernel is None or tp not in works:
        return  # another rule names the ranks that do not split at all
    linears = quantized_linears(model, facts.recipe.quantize.not_in_format)
    bad = _misfits(linears, kernel, tp)
    if not bad:
        return
    good = [ranks for ranks in TPS if ranks in works and not _misfits(linears, kernel, ranks)]
    pads: dict[str, dict[str, int]] = {}
    for linear in linears:
        if linear.kind in bad:
            n = kernel.n * (tp if linear.split == "rows" else 1)
            pads[linear.kind] = {"K": padded(linear, tp, k_multiple(facts, name)), "N": -(-linear.rows // n) * n}
    shares = ", ".join(f"{kind} [{item['N_per_rank']:g}, {item['K_per_rank']:g}]" for kind, item in bad.items())
    yield Violation(
        f"{kernel.kernel} takes multiples of {kernel.n} x {kernel.k}; with tp {tp} a rank has {shares}",
        f"build.parallel.tp: {tp}, {weights_asked(facts)}",
        {"k_multiple": kernel.k, "n_multiple": kernel.n, "linears": bad, "works_tp": good, "padded": pads},
        [
            *(f"build.parallel.tp: {ranks}" for ranks in good),
            *(
                by_hand(f"a checkpoint that was exported with {', '.join(bad)} excluded")
                if stored_weights(facts)
                else [line("quantize.exclude", [*facts.recipe.quantize.exclude, *bad])]
            ),
            *mlp_padding(facts, name, bad),
        ],
        source=kernel.source,
    )
