"""Plots as SVG text, the same bytes for the same figures."""

from __future__ import annotations

import io
import re
from typing import Any

from evals.report.model import Plot


def render_svg(plot: Plot) -> str:
    """One plot as an ``<svg>`` element that can stand inside an HTML page."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    with matplotlib.rc_context({"svg.hashsalt": "trtforge", "svg.fonttype": "none", "font.size": 10}):
        figure, axes = pyplot.subplots(figsize=(6.4, 3.6), constrained_layout=True)
        if plot.kind == "bar":
            _draw_bars(axes, plot)
        elif plot.kind == "difference":
            _draw_differences(axes, plot)
        else:
            _draw_lines(axes, plot)
        for position, caption in plot.marks:
            axes.axvline(position, color="0.5", linestyle="--", linewidth=1)
            axes.annotate(caption, (position, 1), xycoords=("data", "axes fraction"), va="top", fontsize=8)
        axes.set_title(plot.title, wrap=True, fontsize=11)
        # differences lie: their values run along x
        axes.set_xlabel(plot.y_label if plot.kind == "difference" else plot.x_label)
        axes.set_ylabel(plot.x_label if plot.kind == "difference" else plot.y_label)
        axes.grid(alpha=0.3)
        if len(plot.series) > 1 and plot.kind != "difference":
            axes.legend(fontsize=8)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    text = buffer.getvalue()
    return re.sub(r"\A.*?(?=<svg)", "", text, flags=re.DOTALL)


def _draw_lines(axes: object, plot: Plot) -> None:
    for series in plot.series:
        axes.plot(series.x, series.y, marker="o", label=series.name)  # type: ignore[attr-defined]
        if series.low and series.high:
            axes.fill_between(series.x, series.low, series.high, alpha=0.2)  # type: ignore[attr-defined]
        for x, y, label in zip(series.x, series.y, series.labels, strict=False):
            axes.annotate(  # type: ignore[attr-defined]
                label, (x, y), textcoords="offset points", xytext=(4, 4), fontsize=8
            )


def _draw_bars(axes: object, plot: Plot) -> None:
    width = 0.8 / max(1, len(plot.series))
    for index, series in enumerate(plot.series):
        positions = [i + index * width for i in range(len(series.y))]
        errors = None
        if series.low and series.high:
            errors = (
                [y - low for y, low in zip(series.y, series.low, strict=True)],
                [high - y for y, high in zip(series.y, series.high, strict=True)],
            )
        axes.bar(positions, series.y, width=width, label=series.name, yerr=errors, capsize=4)  # type: ignore[attr-defined]
    labels = plot.series[0].labels if plot.series else ()
    axes.set_xticks(range(len(labels)), labels)  # type: ignore[attr-defined]


def _draw_differences(axes: Any, plot: Plot) -> None:
    """One row a point, so that long names are read on a narrow screen too."""
    rows = [(series, i) for series in plot.series for i in range(len(series.y))]
    for position, (series, i) in enumerate(rows):
        value = series.y[i]
        low, high = (series.low[i], series.high[i]) if series.low and series.high else (value, value)
        span = [[max(0.0, value - low)], [max(0.0, high - value)]]
        axes.errorbar([value], [position], xerr=span, fmt="o", capsize=4, color="C0")
    axes.axvline(0, color="0.3", linewidth=1)
    if plot.limit is not None:
        axes.axvline(plot.limit, color="C3", linestyle="--", linewidth=1)
        axes.annotate("limit", (plot.limit, 1), xycoords=("data", "axes fraction"), va="top", fontsize=8, color="C3")
    names = [series.labels[i] if i < len(series.labels) else series.name for series, i in rows]
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylim(len(rows) - 0.5, -0.5)
