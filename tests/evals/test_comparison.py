"""Deployments side by side: pairs, the front, and reports that machines and phones read."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest

from evals.comparison import Entry, against_first, front, junit, report
from evals.perplexity import Scores
from evals.report.write import render_html, render_markdown
from evals.tasks import Answered

RNG = np.random.default_rng(0)
BASE = RNG.gamma(2.0, 1.0, 2048)


def entry(name: str, worse: float, size: int, speed: float, **more: object) -> Entry:
    scores = Scores(BASE + worse + RNG.normal(0, 0.02, len(BASE)), str(more.pop("tokens", "a" * 64)), 8, 4)
    right = int(more.pop("right", 10))
    answers = [Answered(f"item-{i}", "t", "", i < right) for i in range(20)]
    facts = {"format": name}
    return Entry(name, facts, "PASSED", size, scores, answers=answers, tokens_per_second=speed, **more)


def test_differences_are_paired_with_the_first() -> None:
    [pair] = against_first([entry("a", 0.0, 4, 1.0), entry("b", 0.01, 2, 1.0, right=6)])
    assert pair.increase is not None and 0.005 < pair.increase.low < np.expm1(0.01) < pair.increase.high < 0.015
    assert pair.tasks is not None and (pair.tasks.lost, pair.tasks.gained) == (4, 0)


def test_other_tokens_are_no_pair_and_no_axis() -> None:
    entries = [entry("a", 0.0, 4, 1.0), entry("b", 0.5, 4, 1.0, tokens="b" * 64)]
    assert against_first(entries)[0].increase is None
    assert front(entries) == ["a", "b"], "equal on what can be compared"


def test_the_front_holds_what_nothing_beats() -> None:
    entries = [
        entry("exact", 0.0, 8, 1.0),
        entry("fp8", 0.02, 4, 1.5),
        entry("bad8", 0.3, 4, 1.5),
        entry("int4", 0.2, 2, 1.2),
        entry("worst", 0.4, 8, 0.5),
    ]
    assert front(entries) == ["exact", "fp8", "int4"]
    assert front([entries[0], Entry("sizeless", {}, "PASSED")]) == []


def test_reports_say_it_in_every_form() -> None:
    entries = [
        entry("a", 0.0, 4, 1.0, gates=[{"name": "g", "passed": True, "detail": "d"}]),
        entry("b", 0.1, 2, 2.0, machine="x", gates=[{"name": "g\x00", "passed": False, "detail": "<no> \x01"}]),
        Entry("c", {"format": "c"}, "INCOMPLETE"),
    ]
    made = report(entries)
    assert made.passed is None and made.data["against"] == "a" and len(made.data["pairs"]) == 2
    page = render_html(made)
    assert "width=device-width" in page and page.count("<svg") == 3
    plots = [plot for section in made.sections for plot in section.plots]
    assert all("against a" in plot.title for plot in plots), "differences from the first, paired"
    assert all(series.low and series.high for plot in plots for series in plot.series), "each with its interval"
    assert "src=" not in page and 'href="http' not in page, "nothing is fetched"
    assert "against a, paired" in render_markdown(made)
    suites = ElementTree.fromstring(junit(entries))
    counts = [(s.get("name"), s.get("tests"), s.get("failures"), s.get("skipped")) for s in suites]
    assert counts == [("a", "1", "0", "0"), ("b", "1", "1", "0"), ("c", "1", "0", "1")]


@pytest.mark.parametrize(("verdict", "passed"), [("FAILED", False), ("PASSED", True), ("INCOMPLETE", None)])
def test_a_comparison_is_as_good_as_its_worst(verdict: str, passed: bool | None) -> None:
    assert report([entry("a", 0.0, 4, 1.0), Entry("b", {}, verdict)]).passed is passed


def test_entries_that_share_no_axis_are_not_said_to_have_nothing_in_common() -> None:
    answers = [Answered("a-1", "a", "x", True)]
    made = report([Entry("one", {}, "PASSED", answers=answers), Entry("other", {}, "PASSED", answers=answers)])
    assert made.data["front"] == [] and made.data["pairs"][0]["tasks"]["items"] == 1
    assert made.verdict == "no size, perplexity or speed that all of them have"
