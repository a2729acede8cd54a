"""Several deployments side by side: size, quality as paired differences, speed, and which of them nothing beats."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

from evals.perplexity import Scores
from evals.report import Plot, Report, Section, Series, Table
from evals.statistics import Interval, McNemar, paired_increase
from evals.tasks import Answered, compare_tasks
from trtforge.ground.units import format_size


@dataclass(frozen=True)
class Entry:
    """One deployment.

    Attributes:
        name: how it is called here; no two entries share one.
        facts: format, KV cache, speculation and the like, in words.
        verdict: PASSED, FAILED or INCOMPLETE.
        size: bytes of the engine; None: it has none.
        scores: losses of every token of its quantized model.
        increase: of its perplexity against its own unquantized baseline.
        answers: to the tasks.
        kl: mean divergence from the baseline, nats.
        tokens_per_second, first_token: best throughput, and the median time to the first token at the lowest
            concurrency in seconds; machine: where they were measured.
        gates: of its run and addenda.
    """

    name: str
    facts: dict[str, str]
    verdict: str
    size: int | None = None
    scores: Scores | None = None
    increase: Interval | None = None
    answers: Sequence[Answered] = ()
    kl: Interval | None = None
    tokens_per_second: float | None = None
    first_token: float | None = None
    machine: str = ""
    gates: Sequence[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Against:
    """One entry against the first; None: the two were not measured on the same tokens, or have no task in common."""

    name: str
    increase: Interval | None
    tasks: McNemar | None


@dataclass(frozen=True)
class Axis:
    """Something to be good at: a figure of an entry that is better when it is lower."""

    name: str
    of: Callable[[Entry], float | None]


#: the verdict where no entry could be told from another on an axis; their tasks may still be paired
UNDECIDED = "no size, perplexity or speed that all of them have"
AXES = (
    Axis("size", lambda entry: entry.size),
    Axis("perplexity", lambda entry: None if entry.scores is None else entry.scores.perplexity),
    Axis("speed", lambda entry: None if entry.tokens_per_second is None else -entry.tokens_per_second),
)


def against_first(entries: Sequence[Entry]) -> list[Against]:
    """Every entry but the first, paired with the first token by token and item by item."""
    first = entries[0]
    return [Against(other.name, _increase(first, other), _tasks(first, other)) for other in entries[1:]]


def _increase(first: Entry, other: Entry) -> Interval | None:
    a, b = first.scores, other.scores
    if a is None or b is None or (a.tokens_sha256, a.window, a.stride) != (b.tokens_sha256, b.window, b.stride):
        return None
    return paired_increase(a, b)


def _tasks(first: Entry, other: Entry) -> McNemar | None:
    shared = {answer.name for answer in first.answers} & {answer.name for answer in other.answers}
    if not shared:
        return None
    left, right = ([a for a in entry.answers if a.name in shared] for entry in (first, other))
    return compare_tasks(left, right).overall


def shared_axes(entries: Sequence[Entry]) -> list[Axis]:
    """The axes on which every entry has a figure; perplexities of other tokens are no figures of one axis."""
    same = len({(e.scores.tokens_sha256, e.scores.window, e.scores.stride) for e in entries if e.scores}) < 2
    return [
        axis
        for axis in AXES
        if all(axis.of(entry) is not None for entry in entries) and (axis.name != "perplexity" or same)
    ]


def front(entries: Sequence[Entry]) -> list[str]:
    """Entries that no other is at least as good as on every shared axis and better on one (Pareto)."""
    axes = shared_axes(entries)
    points = {entry.name: tuple(float(axis.of(entry) or 0.0) for axis in axes) for entry in entries}

    def beaten(name: str) -> bool:
        own = points[name]
        return any(other != own and all(a <= b for a, b in zip(other, own, strict=True)) for other in points.values())

    return [name for name in points if not beaten(name)] if axes else []


def report(entries: Sequence[Entry]) -> Report:
    """The comparison as a report; it passes unless a deployment's own verdict is FAILED."""
    pairs, best, axes = against_first(entries), front(entries), shared_axes(entries)
    names = ", ".join(axis.name for axis in axes)
    verdict = f"{len(entries)} deployments; nothing beats {', '.join(best)} on {names}" if axes else UNDECIDED
    states = [entry.verdict for entry in entries]
    passed = False if "FAILED" in states else None if "INCOMPLETE" in states else True
    sections = [_overview(entries, best), _quality(entries, pairs), _speed(entries, pairs)]
    data = {
        "entries": [_entry_json(entry) for entry in entries],
        "against": entries[0].name,
        "pairs": [_pair_json(pair) for pair in pairs],
        "axes": [axis.name for axis in axes],
        "front": best,
    }
    return Report("Comparison of deployments", verdict, passed, sections, data)


def _overview(entries: Sequence[Entry], best: Sequence[str]) -> Section:
    keys = list(dict.fromkeys(key for entry in entries for key in entry.facts))
    rows = tuple(
        (
            entry.name,
            *(entry.facts.get(key, "–") for key in keys),
            "–" if entry.size is None else format_size(entry.size),
            entry.verdict,
            "yes" if entry.name in best else "",
        )
        for entry in entries
    )
    return Section("Deployments", "", (Table(("name", *keys, "engine", "verdict", "nothing beats it"), rows),))


def _quality(entries: Sequence[Entry], pairs: Sequence[Against]) -> Section:
    by_name = {pair.name: pair for pair in pairs}
    rows = []
    for entry in entries:
        pair = by_name.get(entry.name)
        right = sum(answer.right for answer in entry.answers)
        rows.append(
            (
                entry.name,
                "–" if entry.scores is None else f"{entry.scores.perplexity:.3f}",
                _shown(entry.increase, "+.2%"),
                "the first" if pair is None else _shown(pair.increase, "+.2%"),
                _shown(entry.kl, ".4f"),
                f"{right} of {len(entry.answers)}" if entry.answers else "–",
                "the first" if pair is None else _tasks_shown(pair.tasks),
            )
        )
    first = entries[0].name
    columns = ("name", "perplexity", "against its baseline", f"against {first}, paired", "KL, nats", "tasks right",
               f"tasks against {first}")  # fmt: skip
    shown = {pair.name: pair.increase.to_json() for pair in pairs if pair.increase is not None}
    plots = []
    if shown:
        series = Series.of_intervals("increase", shown, 100.0)
        title = f"Perplexity against {first}, paired"
        plots.append(Plot(title, "", "relative increase, %, with its 95 % interval", (series,), kind="difference"))
    if changes := {pair.name: pair.tasks.change.to_json() for pair in pairs if pair.tasks is not None}:
        series = Series.of_intervals("change", changes, 100.0)
        title = f"Right answers against {first}, paired"
        plots.append(Plot(title, "", "change, % of the items, with its 95 % interval", (series,), kind="difference"))
    text = "Intervals hold 95 %; paired ones are of the same tokens and items."
    return Section("Quality", text, (Table(columns, tuple(rows)),), tuple(plots))


def _shown(interval: Interval | None, style: str) -> str:
    return "–" if interval is None else interval.shown(style)


def _tasks_shown(found: McNemar | None) -> str:
    if found is None:
        return "–"
    return f"{_shown(found.change, '+.1%')}; {found.lost} lost, {found.gained} gained, p = {found.p_value:.3g}"


def _speed(entries: Sequence[Entry], pairs: Sequence[Against]) -> Section:
    rows = tuple(
        (
            entry.name,
            "–" if entry.tokens_per_second is None else f"{entry.tokens_per_second:,.1f}",
            "–" if entry.first_token is None else f"{1000 * entry.first_token:,.1f} ms",
            entry.machine or "–",
        )
        for entry in entries
    )
    machines = {entry.machine for entry in entries if entry.machine}
    text = "" if len(machines) < 2 else "They were measured on different machines: these times cannot be compared."
    columns = ("name", "tokens/s, best level", "first token, median, lowest level", "measured on")
    plots = []
    first = entries[0].name
    increases = {first: Interval(0.0, 0.0, 0.0)} | {pair.name: pair.increase for pair in pairs if pair.increase}
    points = [e for e in entries if e.tokens_per_second is not None and e.name in increases]
    if len(points) > 1 and len(machines) < 2:
        series = tuple(_at_speed(entry, increases[entry.name]) for entry in points)
        title = f"Perplexity against {first} over speed: right and low is good"
        plots.append(Plot(title, "tokens/s", "relative increase, %, paired", series))
    return Section("Speed", text, (Table(columns, rows),), tuple(plots))


def _at_speed(entry: Entry, increase: Interval) -> Series:
    value, low, high = ((100.0 * bound,) for bound in (increase.value, increase.low, increase.high))
    return Series(entry.name, (float(entry.tokens_per_second or 0),), value, low=low, high=high)


def _entry_json(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        **entry.facts,
        "verdict": entry.verdict,
        "engine_bytes": entry.size,
        "perplexity": None if entry.scores is None else entry.scores.perplexity,
        "increase": None if entry.increase is None else entry.increase.to_json(),
        "kl": None if entry.kl is None else entry.kl.to_json(),
        "tasks_right": sum(answer.right for answer in entry.answers),
        "tasks": len(entry.answers),
        "tokens_per_second": entry.tokens_per_second,
        "first_token_seconds": entry.first_token,
        "machine": entry.machine,
    }


def _pair_json(pair: Against) -> dict[str, Any]:
    return {
        "name": pair.name,
        "increase": None if pair.increase is None else pair.increase.to_json(),
        "tasks": None if pair.tasks is None else pair.tasks.to_json(),
    }


def junit(entries: Sequence[Entry]) -> str:
    """Every deployment a suite and every gate a case; an INCOMPLETE one has a case that was skipped."""
    root = ElementTree.Element("testsuites", name="trtforge compare")
    for entry in entries:
        failed = sum(not gate["passed"] for gate in entry.gates)
        skipped = int(entry.verdict == "INCOMPLETE")
        suite = ElementTree.SubElement(
            root,
            "testsuite",
            name=entry.name,
            tests=str(len(entry.gates) + skipped),
            failures=str(failed),
            skipped=str(skipped),
        )
        for gate in entry.gates:
            case = ElementTree.SubElement(suite, "testcase", classname=entry.name, name=_xml(gate["name"]))
            if not gate["passed"]:
                ElementTree.SubElement(case, "failure", message=_xml(gate["detail"]))
        if skipped:
            case = ElementTree.SubElement(suite, "testcase", classname=entry.name, name="gates that nobody ran")
            ElementTree.SubElement(case, "skipped", message="trtforge eval --server decides them")
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _xml(text: str) -> str:
    """Without the characters that XML 1.0 cannot hold."""
    return "".join(c if c in "\t\n\r" or (c >= " " and c not in "\ufffe\uffff") else "\ufffd" for c in text)
