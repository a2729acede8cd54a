"""Figures of speculation: what is counted, and what an endpoint's metrics show of it."""

import re
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from runtime.metrics import Metrics, help_of, is_counter
from runtime.speculation.draft import Draft
from runtime.speculation.figures import CHOICE_HELP, HELP, SpeculationFigures, choice_points

ROOT = Path(__file__).resolve().parents[3]


def _draft(source, tokens, parents=None):
    rows = None if parents is None else np.array(parents, dtype=np.int32)
    return Draft(np.arange(tokens, dtype=np.int64), source, rows)


@pytest.fixture
def figures():
    figures = SpeculationFigures()
    figures.verified(_draft("eagle3", 3), 2)
    figures.verified(_draft("eagle3", 1), 0)
    figures.verified(_draft("ngram", 4), 4)
    figures.skipped(5)
    figures.timed("draft", 0.25)
    figures.timed("verify", 1.0)
    figures.timed("verify", 0.5)
    return figures


def test_totals_are_sums_over_the_sources(figures):
    shown = figures.snapshot()
    assert (shown["num_drafts"], shown["num_draft_tokens"], shown["num_accepted_tokens"]) == (3, 8, 6)
    assert shown["acceptance_rate"] == 6 / 8
    assert shown["acceptance_length"] == (3 + 6) / 3, "every verification yields one token beyond its draft"
    assert (shown["num_skipped"], shown["draft_seconds"], shown["verify_seconds"]) == (5, 0.25, 1.5)
    assert sum(of["num_accepted_tokens"] for of in shown["sources"].values()) == 6


def test_positions_count_only_drafts_that_reached_them(figures):
    of = figures.snapshot()["sources"]["eagle3"]
    assert of["drafts_per_pos"] == [2, 1, 1]
    assert of["accepted_per_pos"] == [1, 1, 0]
    assert of["draft_len"] == 1


def test_a_trees_positions_are_its_depths():
    figures = SpeculationFigures()
    figures.verified(_draft("eagle3", 5, [0, 0, 1, 1, 2]), 1)
    of = figures.snapshot()["sources"]["eagle3"]
    assert of["num_draft_tokens"] == 5
    assert of["drafts_per_pos"] == [1, 1]
    assert of["accepted_per_pos"] == [1, 0]


def test_nothing_drafted_divides_by_nothing():
    shown = SpeculationFigures().snapshot()
    assert (shown["acceptance_rate"], shown["acceptance_length"]) == (0.0, 0.0)


def test_metrics_say_nothing_without_speculation():
    metrics = Metrics()
    assert "speculation" not in metrics.snapshot()
    assert "spec_decode" not in metrics.prometheus_text()
    assert not [name for name, _, _ in metrics.points() if name.startswith("spec_decode")]


def test_metrics_show_sources_and_positions_as_labels(figures):
    metrics = Metrics(speculation=figures)
    assert metrics.snapshot()["speculation"] == figures.snapshot()
    text = metrics.prometheus_text()
    assert 'trtforge_spec_decode_num_accepted_tokens_per_pos_total{position="1",source="eagle3"} 1.0' in text
    assert 'trtforge_spec_decode_num_draft_tokens_total{source="ngram"} 4.0' in text
    assert "# TYPE trtforge_spec_decode_num_drafts_total counter" in text
    assert "# TYPE trtforge_spec_decode_draft_len gauge" in text
    assert "trtforge_spec_decode_verify_seconds_total 1.5" in text
    assert text.count("# TYPE trtforge_spec_decode_num_drafts_per_pos_total ") == 1, "one family, many points"


def test_every_figure_is_explained_and_shown(figures):
    shown = {name for name, _, _ in figures.points()}
    assert shown == {name for name in HELP if "policy" not in name}  # those are the policy's own
    assert all(help_of(name) == HELP[name] for name in shown)
    assert {name for name in shown if not is_counter(name)} == {
        "spec_decode_draft_len", "spec_decode_acceptance_rate", "spec_decode_acceptance_length",
    }  # fmt: skip


def test_what_the_policy_would_choose_is_shown_by_source_and_batch():
    explanation = {
        "adaptive": True,
        "choices": {
            "1": {"eagle3": {"draft_tokens": 4, "speedup": 1.4}},
            "16": {"eagle3": {"draft_tokens": 0, "speedup": 1.0}},
        },
    }
    points = list(choice_points(explanation))
    assert ("spec_decode_choice_draft_len", {"source": "eagle3", "running": "1"}, 4) in points
    assert ("spec_decode_choice_speedup", {"source": "eagle3", "running": "16"}, 1.0) in points
    assert {name for name, _, _ in points} == set(CHOICE_HELP)
    assert all(help_of(name) and not is_counter(name) for name in CHOICE_HELP)
    assert list(choice_points({"adaptive": False, "max_draft_len": 4})) == []


def test_the_documentation_lists_every_figure():
    section = (ROOT / "docs" / "runtime.md").read_text(encoding="utf-8").split("\n## Metrics\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1:3] for line in section.splitlines() if line.startswith("| `")]
    listed = {name: "".join(labels) for names, labels in rows for name in re.findall(r"`(\w+)`", names)}
    assert {f"spec_decode_{name}" for name in listed} == {*HELP, *CHOICE_HELP}
    assert {name for name, labels in listed.items() if "`source`" in labels} == {
        name.removeprefix("spec_decode_") for name in HELP if "_num_" in name and "skipped" not in name
    } | {"draft_len", "choice_draft_len", "choice_speedup", "policy_draft_len", "policy_acceptance"}


def test_every_figure_is_in_the_text(figures):
    text = Metrics(speculation=figures).prometheus_text()
    shown = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
    assert {f"trtforge_{name}" for name, _, _ in figures.points()} <= shown
