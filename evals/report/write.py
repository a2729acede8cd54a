"""Renderers: the same report as JSON, Markdown and one HTML page that needs no network."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from pathlib import Path

from evals.report.model import Plot, Report, Section, Table
from evals.report.plots import render_svg
from trtforge.ground.redaction import redact, redact_value

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#1b1f24}
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2rem;border-bottom:1px solid #d0d7de}
.wide{overflow-x:auto}figure{margin:.8rem 0}h1,h2,p,td{overflow-wrap:anywhere}
table{border-collapse:collapse;margin:.8rem 0}th,td{border:1px solid #d0d7de;padding:.3rem .6rem;text-align:left}
th{background:#f6f8fa}caption{text-align:left;font-weight:600;padding:.2rem 0}
pre{background:#f6f8fa;padding:.8rem;overflow-x:auto}
.passed{color:#116329}.failed{color:#a40e26}.incomplete{color:#7a5200}svg{max-width:100%;height:auto}
"""

#: a report whose gates are not all decided is neither passed nor failed
_STATES = {True: "passed", False: "failed", None: "incomplete"}


def write_report(report: Report, out: Path, *, more: Mapping[str, str] | None = None) -> list[Path]:
    """Write ``report.json``, ``report.md`` and ``report.html`` below ``out``, without secrets; returns their paths.

    Args:
        more: name → text of further files.
    """
    out.mkdir(parents=True, exist_ok=True)
    files = {
        "report.json": json.dumps(redact_value(report.to_json()), indent=2, sort_keys=True) + "\n",
        "report.md": redact(render_markdown(report)),
        "report.html": redact(render_html(report)),
        **{name: redact(text) for name, text in (more or {}).items()},
    }
    paths = []
    for name, text in files.items():
        path = out / name
        path.write_text(text, encoding="utf-8")
        paths.append(path)
    return paths


def render_markdown(report: Report) -> str:
    """The report as Markdown; plots become tables of their points."""
    lines = [f"# {report.title}", "", f"**{_STATES[report.passed].upper()}** — {report.verdict}", ""]
    for section in report.sections:
        lines += [f"## {section.title}", ""]
        if section.text:
            lines += [section.text, ""]
        for table in [*section.tables, *_plot_tables(section)]:
            lines += [*_markdown_table(table), ""]
        for block in section.preformatted:
            lines += ["```", block, "```", ""]
    return "\n".join(lines)


def _plot_tables(section: Section) -> list[Table]:
    tables = []
    for plot in section.plots:
        rows = []
        for series in plot.series:
            for i, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
                label = series.labels[i] if i < len(series.labels) else f"{x:g}"
                span = f" [{series.low[i]:.4g}, {series.high[i]:.4g}]" if series.low and series.high else ""
                rows.append((series.name, label, f"{y:.4g}{span}"))
        tables.append(Table(("series", plot.x_label or "point", plot.y_label), tuple(rows), plot.title))
    return tables


def _markdown_table(table: Table) -> list[str]:
    def row(cells: tuple[str, ...]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    caption = [f"**{table.caption}**", ""] if table.caption else []
    return [*caption, row(table.columns), "|" + "---|" * len(table.columns), *(row(cells) for cells in table.rows)]


def render_html(report: Report) -> str:
    """The report as one HTML page with inline styles and inline SVG."""
    state = _STATES[report.passed]
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width, initial-scale=1'>",
        f"<title>{html.escape(report.title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{html.escape(report.title)}</h1>",
        f"<p class='{state}'><strong>{state.upper()}</strong> — {html.escape(report.verdict)}</p>",
    ]
    for section in report.sections:
        parts.append(f"<h2>{html.escape(section.title)}</h2>")
        if section.text:
            parts.append(f"<p>{html.escape(section.text)}</p>")
        parts += [_html_table(table) for table in section.tables]
        parts += [_html_figure(plot) for plot in section.plots]
        parts += [f"<pre>{html.escape(block)}</pre>" for block in section.preformatted]
    parts.append("</body></html>\n")
    return "\n".join(parts)


def _html_figure(plot: Plot) -> str:
    """A plot that a reader without sight hears as one picture with its points in words."""
    points = "; ".join(
        f"{series.name} "
        + ", ".join(
            f"{series.labels[i] if i < len(series.labels) else format(x, 'g')}: {y:.4g}"
            for i, (x, y) in enumerate(zip(series.x, series.y, strict=True))
        )
        for series in plot.series
    )
    words = html.escape(f"{plot.title}. {plot.y_label}: {points}", quote=True)
    svg = render_svg(plot).replace("<svg", f'<svg role="img" aria-label="{words}"', 1)
    return f"<figure>{svg}</figure>"


def _html_table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in table.columns)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows)
    caption = f"<caption>{html.escape(table.caption)}</caption>" if table.caption else ""
    inner = f"{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f"<div class='wide'><table>{inner}</table></div>"
