"""All measures over a toy engine, their gates by the recipe's keys, and what report and summary make of the figures."""

from __future__ import annotations

import json
from typing import Any

import pytest

from evals.report import Report, write_report
from evals.speculation.equality import Numerics
from evals.speculation.measure import ALL, Measured, Speed, _timed, gates, measure_quality
from evals.speculation.prompts import CLASSES, held_out
from evals.speculation.report import section
from evals.speculation.speed import measure_speed
from tests.evals.speculation.toy import ToyAsking, parts_at, right, too_likely
from trtforge.cli.summary import bundle_rows
from trtforge.ground.hashing import json_safe
from trtforge.ground.progress import SilentProgress
from trtforge.pipeline.stages.bundle import headline
from trtforge.pipeline.stages.common import rounded
from trtforge.recipe.schema_evals import SpeculationEvals, SpeculationGate

PROMPTS = {"chat": [[0, 1], [1]], "copy": [[0], [1, 1]]}
ASKED = SpeculationEvals(prompts=2, max_tokens=10, draws=1200, temperatures=(1.0,), repeats=2)
EXACT = Numerics("float32", repeats_exactly=True)


def measured(choose: Any = right) -> Measured:
    asking = ToyAsking(choose)
    quality = measure_quality(
        asking, PROMPTS, ASKED, EXACT, together=16, decode=lambda ids: f"w{ids[0]}", progress=SilentProgress()
    )
    cells = measure_speed(asking, PROMPTS, levels=[1, 2], repeats=2, max_tokens=8)
    timed = _timed(PROMPTS, cells, asking, EXACT, lambda ids: f"w{ids[0]}")
    return Measured(quality, Speed(tuple(cells), timed, {"costs": {"verify": [1.0]}}))


def test_greedy_is_always_measured_and_classes_are_summed() -> None:
    found = measured().quality
    assert [(one.kind, one.temperature) for one in found.acceptance] == [
        (kind, temperature) for temperature in (0.0, 1.0) for kind in ("chat", "copy", ALL)
    ]
    whole = found.greedy_acceptance
    assert whole.drafted == sum(one.drafted for one in found.acceptance[:2]) and whole.prompts == 4
    # three drafted tokens are always right here, and the bonus follows
    assert whole.accepted_length is not None and whole.accepted_length.value == pytest.approx(4.0)


@pytest.mark.parametrize(
    ("choose", "missed"),
    [
        (right, []),
        (parts_at(3), ["speculation_greedy"]),
        (too_likely, ["speculation_distribution"]),
    ],
)
def test_each_fault_misses_its_gate(choose: Any, missed: list[str]) -> None:
    verdicts = gates(measured(choose), SpeculationGate(min_accepted_length=2.0))
    assert [gate.name for gate in verdicts] == [
        "speculation_greedy",
        "speculation_distribution",
        "speculation_accepted_length",
        "speculation_speedup",
    ]
    assert [gate.name for gate in verdicts if not gate.passed] == missed


def test_null_takes_a_gate_away() -> None:
    found = measured()
    keys = {"max_differing": None, "alpha": None, "min_accepted_length": None, "min_speedup": None}
    assert gates(found, None) == [] == gates(found, SpeculationGate(**keys))
    assert [gate.name for gate in gates(found, SpeculationGate())] == [
        "speculation_greedy",
        "speculation_distribution",
        "speculation_speedup",
    ]


def test_answers_that_were_timed_count_for_the_gate() -> None:
    whole = measured()
    wrong = measured(parts_at(3))
    mixed = Measured(whole.quality, wrong.speed)
    gate = gates(mixed, SpeculationGate())[0]
    assert not gate.passed and "at concurrency 1" in gate.detail


def test_the_report_shows_every_difference_and_figure(tmp_path: Any) -> None:
    found = measured(parts_at(3))
    quality = json.loads(json.dumps(json_safe(rounded({"method": "ngram", **found.quality.to_json()}))))
    speed = json.loads(json.dumps(json_safe(rounded(found.speed.to_json(), 6))))
    assert speed["policy"] == {"costs": {"verify": [1.0]}}
    part = section(quality, speed)
    write_report(Report("r", "v", False, [part]), tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "chat 1" in text and "'w" in text and "| 2 |" in text and "100%" in text
    assert text.count("| NO |") == len(found.quality.equality.differences) + len(found.speed.equality.differences)
    assert "2.000 times the speed without" in text
    assert "<svg" in (tmp_path / "report.html").read_text()
    head = headline(quality)
    assert head["beyond_tolerance"] == 4 and head["accepted_length"]["copy"] == pytest.approx(4.0)
    interval = {"value": 1.0, "low": 1.0, "high": 1.0}
    summary = {
        **dict.fromkeys(("model", "architecture", "format", "kv_cache"), "m"),
        "bytes": {"checkpoint": 8, "quantized": 4, "engine": 4},
        "perplexity": dict.fromkeys(("baseline", "quantized", "increase"), interval),
        "parity": {},
        "limits": {},
        "speculation": head,
    }
    rows = dict(bundle_rows(summary))
    assert rows["tokens that a verification yields (ngram, greedy)"] == "chat 4.00, copy 4.00, all 4.00"
    assert rows["  answers as without speculation, near ties aside"] == "0 of 4"


def test_prompts_of_four_classes_are_there_and_all_different() -> None:
    found = held_out()
    assert tuple(found) == CLASSES
    texts = [text for of_kind in found.values() for text in of_kind]
    assert len(set(texts)) == len(texts) and min(len(of_kind) for of_kind in found.values()) >= 32
