"""The memory plan as a stacked chart: a line of text, or an SVG through matplotlib (imported late)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from builder.planner.types import MemoryPlan, bad_input
from trtforge.ground.errors import EnvironmentLacks
from trtforge.ground.files import write_text_atomic

#: kinds in the order of the stack, with a letter for the terminal and a colour
KINDS: tuple[tuple[str, str, str], ...] = (
    ("weights", "W", "#4c78a8"),
    ("draft", "D", "#72b7b2"),
    ("activations", "A", "#f58518"),
    ("runtime", "R", "#b279a2"),
    ("kv", "K", "#54a24b"),
    ("others", "O", "#9d755d"),
)


def bar(plan: MemoryPlan, width: int = 60) -> str:
    """One line: a letter for each share of the capacity (W weights, D draft, A activations, R runtime, K KV pool,
    O other models)."""
    total = max(plan.capacity, plan.total)
    text = "".join(letter * round(plan.of(kind) / total * width) for kind, letter, _ in KINDS)
    edge = round(plan.capacity / total * width)
    text = text[:width].ljust(edge, ".")
    over = "" if plan.fits else f" ({plan.total / plan.capacity:.0%} of the GPU)"
    names = ", ".join(f"{letter} {kind}" for kind, letter, _ in KINDS if plan.of(kind))
    return f"[{text}] {names}, . free{over}"


def check_target(path: Path, *, overwrite: bool) -> None:
    """Refuse a chart's path before anything is computed.

    Raises:
        ForgeError: ``TF-PLN-021`` it is no ``.svg``, its folder is missing, or the file exists.
    """
    here = path.parent
    if path.suffix.lower() != ".svg":
        raise _unwritable(
            path, f"it would hold SVG, and {path.suffix or path.name} is not its suffix", "--chart memory.svg"
        )
    if not here.is_dir():
        raise _unwritable(path, f"{here} is no folder", f"mkdir -p {here}")
    if path.is_dir():
        raise _unwritable(path, "it is a folder", f"--chart {path / 'memory.svg'}")
    if path.exists() and not overwrite:
        raise _unwritable(path, "it exists, and may be worth keeping", "--overwrite replaces it")


def write_svg(plans: Sequence[MemoryPlan], path: Path, title: str) -> None:
    """A stacked bar a pipeline stage with the GPU's memory as a line, as SVG: whole or not at all.

    Raises:
        EnvironmentLacks: ``TF-PLN-020`` matplotlib is not installed.
        ForgeError: ``TF-PLN-021`` the file cannot be written.
    """
    axes, figure = _axes(len(plans))
    names = [f"stage {plan.stage}" if len(plans) > 1 else "one GPU" for plan in plans]
    left = [0.0] * len(plans)
    for kind, _, colour in KINDS:
        values = [plan.of(kind) / 2**30 for plan in plans]
        if any(values):
            axes.barh(names, values, left=left, color=colour, label="KV pool" if kind == "kv" else kind)
            left = [start + value for start, value in zip(left, values, strict=True)]
    axes.axvline(plans[0].capacity / 2**30, color="black", linestyle="--", label="memory of the GPU")
    axes.set_xlabel("GiB")
    axes.set_title(title)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.35), ncols=3, frameon=False)
    text = io.StringIO()
    # a fixed salt and no date: the same plan gives the same file
    figure.savefig(text, format="svg", bbox_inches="tight", metadata={"Date": None})
    try:
        write_text_atomic(path, text.getvalue())
    except OSError as error:
        raise _unwritable(path, str(error), "--chart with a path in a folder that can be written") from error


def _unwritable(path: Path, reason: str, remedy: str) -> Exception:
    return bad_input(
        "TF-PLN-021",
        f"the chart cannot be written: {reason}",
        asked=f"--chart {path}",
        why="A chart is one new SVG file in a folder that is there.",
        remedies=[remedy],
    )


def _axes(rows: int) -> tuple[Any, Any]:
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise EnvironmentLacks(
            "TF-PLN-020",
            "matplotlib is not installed",
            asked="--chart",
            why="The chart is drawn with it.",
            remedies=["pip install 'trtforge[report]'", "leave --chart away: the report draws the bar as text"],
        ) from error
    matplotlib.rcParams["svg.hashsalt"] = "trtforge"
    figure = Figure(figsize=(9, 1.2 + 0.6 * rows))
    return figure.add_subplot(), figure
