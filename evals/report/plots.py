"""Plots as SVG text, the same bytes for the same figures."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Sequence
from typing import Any

from evals.report.model import Plot, Series

#: inches; at a phone's width the letters are still read, and a desktop has two plots in a row
_SIZE = (4.0, 3.0)
#: letters of a title's or label's line that fit beside the names of a plot's rows
_LINE = 30
#: letters of a line of a row's name
_NAME = 22


def render_svg(plot: Plot) -> str:
    """One plot as an ``<svg>`` element that can stand inside an HTML page."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    rows = _rows(plot)
    legend = [_wrapped(series.name) for series in plot.series] if len(plot.series) > 1 and not rows else []
    lines = sum(name.count("\n") + 1 for name in [*(name for _, _, name in rows), *legend])
    size = (_SIZE[0], max(_SIZE[1], 1.4 + 0.2 * lines) if rows else _SIZE[1] + 0.2 * lines)
    with matplotlib.rc_context({"svg.hashsalt": "trtforge", "svg.fonttype": "none", "font.size": 10}):
        figure, axes = pyplot.subplots(figsize=size, constrained_layout=True)
        if plot.kind == "difference":
            _draw_differences(axes, plot, rows)
        else:
            _draw_lines(axes, plot)
        for position, caption in plot.marks:
            axes.axvline(position, color="0.5", linestyle="--", linewidth=1)
            axes.annotate(caption, (position, 1), xycoords=("data", "axes fraction"), va="top", fontsize=8)
        axes.set_title(textwrap.fill(plot.title, _LINE), fontsize=11)
        # differences lie: their values run along x
        labels = (plot.y_label, plot.x_label) if plot.kind == "difference" else (plot.x_label, plot.y_label)
        axes.set_xlabel(textwrap.fill(labels[0], _LINE))
        axes.set_ylabel(textwrap.fill(labels[1], _LINE))
        axes.grid(alpha=0.3)
        if legend:
            figure.legend(axes.get_legend_handles_labels()[0], legend, loc="outside lower center", fontsize=9)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    text = buffer.getvalue()
    return re.sub(r"\A.*?(?=<svg)", "", text, flags=re.DOTALL)


def _draw_lines(axes: Any, plot: Plot) -> None:
    for series in plot.series:
        line = axes.plot(series.x, series.y, marker="o", label=series.name)[0]
        if series.low and series.high and len(series.y) == 1:
            axes.vlines(series.x, series.low, series.high, color=line.get_color())
        elif series.low and series.high:
            axes.fill_between(series.x, series.low, series.high, alpha=0.2)
        for x, y, label in zip(series.x, series.y, series.labels, strict=False):
            axes.annotate(label, (x, y), textcoords="offset points", xytext=(4, 4), fontsize=8)


def _wrapped(name: str) -> str:
    """A name in lines that leave room for the plot beside them."""
    return textwrap.fill(name, _NAME)


def _rows(plot: Plot) -> list[tuple[Series, int, str]]:
    """The rows of differences: a series, a point of it and its name in lines."""
    if plot.kind != "difference":
        return []
    points = [(series, i) for series in plot.series for i in range(len(series.y))]
    return [(s, i, _wrapped(s.labels[i] if i < len(s.labels) else s.name)) for s, i in points]


def _draw_differences(axes: Any, plot: Plot, rows: Sequence[tuple[Series, int, str]]) -> None:
    """One row a point, so that long names are read on a narrow screen too."""
    for position, (series, i, _) in enumerate(rows):
        value = series.y[i]
        low, high = (series.low[i], series.high[i]) if series.low and series.high else (value, value)
        span = [[max(0.0, value - low)], [max(0.0, high - value)]]
        axes.errorbar([value], [position], xerr=span, fmt="o", capsize=4, color="C0")
    axes.axvline(0, color="0.3", linewidth=1)
    if plot.limit is not None:
        axes.axvline(plot.limit, color="C3", linestyle="--", linewidth=1)
        axes.annotate("limit", (plot.limit, 1), xycoords=("data", "axes fraction"), va="top", fontsize=8, color="C3")
    axes.set_yticks(range(len(rows)), [name for _, _, name in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
