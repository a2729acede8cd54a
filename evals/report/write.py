"""Renderers: the same report as JSON, Markdown and one HTML page that needs no network."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from pathlib import Path

from evals.report.model import Plot, Report, Section, Table
from evals.report.plots import render_svg
from trtforge.ground.redaction import redact, redact_value

#: columns beyond which a narrow screen shows a row as a card, a cell a line with its column's name
WIDE = 2
_STYLE = """
:root{color-scheme:light dark;--text:#1b1f24;--back:#fff;--soft:#f6f8fa;--line:#d0d7de;--faint:#57606a;
--passed:#116329;--failed:#a40e26;--incomplete:#7a5200}
@media(prefers-color-scheme:dark){:root{--text:#e6edf3;--back:#0d1117;--soft:#161b22;--line:#3d444d;--faint:#9198a1;
--passed:#56d364;--failed:#ff7b72;--incomplete:#e3b341}figure svg{filter:invert(1) hue-rotate(180deg)}}
body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:var(--text);
background:var(--back)}
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2rem;border-bottom:1px solid var(--line)}
.wide{overflow-x:auto}.plots{display:flex;flex-wrap:wrap;gap:1rem}figure{margin:.8rem 0}
h1,h2,p,td{overflow-wrap:anywhere}td{white-space:pre-wrap}svg{max-width:100%;height:auto}
table{border-collapse:collapse;margin:.8rem 0}th,td{border:1px solid var(--line);padding:.3rem .6rem;text-align:left}
th{background:var(--soft)}caption{text-align:left;font-weight:600;padding:.2rem 0}
pre{background:var(--soft);padding:.8rem;overflow-x:auto}
.passed{color:var(--passed)}.failed{color:var(--failed)}.incomplete{color:var(--incomplete)}
@media(max-width:40rem){body{margin:1rem auto}th,td{min-width:6.5rem}
table.cards,.cards caption,.cards tbody,.cards tr,.cards td{display:block}
.cards thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.cards tr{border:1px solid var(--line);margin:.5rem 0;padding:.3rem .6rem}.cards td{border:0;padding:.1rem 0}
.cards td:first-child{font-weight:600}
.cards td:not(:first-child)::before{content:attr(data-column) ": ";color:var(--faint)}}
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
        "<meta name='color-scheme' content='light dark'>",
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
        if section.plots:
            parts.append("<div class='plots'>" + "".join(map(_html_figure, section.plots)) + "</div>")
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
    """A table; with many columns each cell carries its column's name and the role that ``display`` takes away."""
    cards = len(table.columns) > WIDE
    roles = {name: f" role='{name}'" if cards else "" for name in ("table", "rowgroup", "row", "columnheader", "cell")}
    names = [html.escape(cell, quote=True) for cell in table.columns]

    def cell(text: str, name: str) -> str:
        column = f" data-column='{name}'" if cards else ""
        return f"<td{roles['cell']}{column}>{html.escape(text)}</td>"

    def row(cells: str) -> str:
        return f"<tr{roles['row']}>{cells}</tr>"

    head = row("".join(f"<th{roles['columnheader']}>{html.escape(name)}</th>" for name in table.columns))
    head = f"<thead{roles['rowgroup']}>{head}</thead>" if any(table.columns) else ""
    body = "".join(row("".join(cell(*one) for one in zip(cells, names, strict=True))) for cells in table.rows)
    caption = f"<caption>{html.escape(table.caption)}</caption>" if table.caption else ""
    inner = f"{caption}{head}<tbody{roles['rowgroup']}>{body}</tbody>"
    kind = " class='cards'" if cards else ""
    return f"<div class='wide'><table{kind}{roles['table']}>{inner}</table></div>"
