import json
import re
from html.parser import HTMLParser

from evals.report import Plot, Report, Section, Series, Table, write_report


def _report() -> Report:
    plot = Plot(
        "Throughput against latency",
        "p99 latency (ms)",
        "tokens/s",
        (Series("server", (10.0, 20.0, 55.0), (100.0, 180.0, 200.0), labels=("1", "4", "16")),),
        marks=((20.0, "knee"),),
    )
    bars = Plot(
        "Perplexity",
        "model",
        "perplexity",
        (Series("ppl", (0, 1), (26.0, 27.0), ("base", "fp8"), (25.0, 26.0), (27.0, 28.0)),),
        kind="difference",
    )
    table = Table(("figure", "value"), (("a|b", "<1>"),), "Two & more")
    return Report("Demo <x>", "all gates passed", True, [Section("Speed", "text", (table,), (plot, bars), ("curl …",))])


class _References(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.outside: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name in {"src", "href", "xlink:href"} and value and not value.startswith("#"):
                self.outside.append(value)


def test_three_files_same_bytes_twice_and_no_outside_references(tmp_path):
    first = {p.name: p.read_bytes() for p in write_report(_report(), tmp_path / "a")}
    second = {p.name: p.read_bytes() for p in write_report(_report(), tmp_path / "b")}
    assert set(first) == {"report.json", "report.md", "report.html"}
    assert first == second
    page = first["report.html"].decode()
    parser = _References()
    parser.feed(page)
    assert parser.outside == []
    assert parser.tags.count("svg") == 2
    assert "&lt;1&gt;" in page
    assert "knee" in page
    assert "<caption>Two &amp; more</caption>" in page
    assert page.count('<svg role="img" aria-label="') == 2
    assert 'aria-label="Perplexity. perplexity: ppl base: 26, fp8: 27"' in page
    assert not re.search(r"<script", page)


def test_json_and_markdown_carry_the_figures(tmp_path):
    write_report(_report(), tmp_path)
    data = json.loads((tmp_path / "report.json").read_text())
    assert data["sections"][0]["plots"][0]["series"][0]["y"] == [100.0, 180.0, 200.0]
    text = (tmp_path / "report.md").read_text()
    assert "a\\|b" in text
    assert "**Two & more**\n\n| figure | value |" in text
    assert "**Throughput against latency**\n\n| series | p99 latency (ms) | tokens/s |" in text
    assert "| server | 4 | 180 |" in text
