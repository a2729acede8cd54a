"""The report's part on speculation, from what the stage keeps as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evals.report import Plot, Section, Series, Table

#: differences that the report lists
LISTED = 50


def section(quality: Mapping[str, Any], speed: Mapping[str, Any]) -> Section:
    """Tables of answers, acceptance and speed, and the speed-ups as a plot.

    Args:
        quality: the stage's summary (:meth:`evals.speculation.measure.Quality.to_json`, with ``method``).
        speed: its measurements (:meth:`evals.speculation.measure.Speed.to_json`).
    """
    found = speed["speedup"]
    text = (
        f"Method {quality['method']}, against the same engine without drafts. Answers, distribution and accepted "
        "tokens are measured with drafts as long as the engine makes them; speed with the recipe's own policy, in "
        f"pairs of timings in one process: {_interval(found, '.3f')} times the speed without, over all classes and "
        "levels. Times hold for that machine at that moment."
    )
    tables = [
        _sameness(quality, speed),
        *_differences([*quality["greedy"]["differences"], *speed["greedy"]["differences"]]),
        _acceptance(quality["acceptance"]),
        _positions(quality["acceptance"]),
        _speed(speed["cells"]),
    ]
    return Section("Speculation", text, tuple(tables), (_plot(speed["cells"]),))


def _interval(figures: Mapping[str, float] | None, style: str = ".2f") -> str:
    if figures is None:
        return "–"
    value, low, high = (format(figures[key], style) for key in ("value", "low", "high"))
    # resampling a single prompt or pair says nothing of chance
    return value if figures["low"] == figures["high"] else f"{value} [{low}, {high}]"


def _sameness(quality: Mapping[str, Any], speed: Mapping[str, Any]) -> Table:
    rows = []
    for name, greedy in (
        ("greedy answers, longest drafts", quality["greedy"]),
        ("greedy answers, own policy", speed["greedy"]),
    ):
        parted = len(greedy["differences"])
        rows.append(
            (
                name,
                f"{greedy['answers'] - parted} of {greedy['answers']} the same, {parted - greedy['beyond_tolerance']} "
                f"part at a near tie, {greedy['beyond_tolerance']} beyond it",
            )
        )
    for fit in quality["distribution"]:
        rows.append(
            (
                f"sampled beginnings after {fit['prompt']}",
                f"chi-square {fit['statistic']:.4g} over {fit['bins']} bins, p = {fit['p_value']:.3g} (without drafts "
                f"{fit['base_p_value']:.3g}); {fit['same']} of {fit['draws']} draws the same under the same seed",
            )
        )
    return Table(("check", "figure"), tuple(rows), "The same answers")


def _differences(found: Sequence[Mapping[str, Any]]) -> list[Table]:
    if not found:
        return []
    rows = tuple(
        (
            item["prompt"],
            str(item["position"]),
            repr(item["words"][0]),
            repr(item["words"][1]),
            f"{item['margin']:.3g}",
            f"{item['bound']:.3g}",
            "near tie" if item["excused"] else "NO",
        )
        for item in found[:LISTED]
    )
    columns = ("prompt", "token", "without", "with drafts", "margin", "bound", "explained")
    more = f", {LISTED} of {len(found)}" if len(found) > LISTED else ""
    return [Table(columns, rows, f"Where answers part{more}")]


def _acceptance(found: Sequence[Mapping[str, Any]]) -> Table:
    rows = tuple(
        (
            row["kind"],
            f"{row['temperature']:g}",
            _interval(row["accepted_length"]),
            _interval(row["tokens_per_step"]),
            f"{row['verifications']} of {row['steps']}",
            f"{row['accepted']} of {row['drafted']}",
        )
        for row in found
    )
    columns = (
        "class",
        "temperature",
        "tokens a verification [95 % interval]",
        "tokens a step",
        "steps with a draft",
        "draft tokens accepted",
    )
    return Table(columns, rows, "Accepted length, the bonus token included")


def _positions(found: Sequence[Mapping[str, Any]]) -> Table:
    places = max((len(row["positions"]) for row in found), default=0)
    rows = tuple(
        (row["kind"], f"{row['temperature']:g}", *(_share(row["positions"], place) for place in range(places)))
        for row in found
    )
    columns = ("class", "temperature", *(f"position {place + 1}" for place in range(places)))
    return Table(columns, rows, "Drafts accepted up to a position, of those that reached it")


def _share(positions: Sequence[Mapping[str, int]], place: int) -> str:
    if place >= len(positions) or not positions[place]["reached"]:
        return "–"
    return f"{positions[place]['accepted'] / positions[place]['reached']:.0%}"


def _speed(cells: Sequence[Mapping[str, Any]]) -> Table:
    rows = tuple(
        (
            cell["kind"],
            str(cell["concurrency"]),
            _interval(cell["speedup"]),
            f"{cell['off_tokens_per_second']:.1f}",
            f"{cell['on_tokens_per_second']:.1f}",
            f"{cell['tokens_per_step']:.2f}",
            f"{cell['accepted']} of {cell['drafted']}",
        )
        for cell in cells
    )
    columns = (
        "class",
        "concurrency",
        "times the speed without [95 % interval]",
        "tokens/s without",
        "tokens/s with",
        "tokens a step",
        "draft tokens accepted",
    )
    return Table(columns, rows, "Speed, own policy")


def _plot(cells: Sequence[Mapping[str, Any]]) -> Plot:
    kinds = list(dict.fromkeys(cell["kind"] for cell in cells))
    series = []
    for kind in kinds:
        own = [cell for cell in cells if cell["kind"] == kind]
        series.append(
            Series(
                kind,
                tuple(float(cell["concurrency"]) for cell in own),
                tuple(cell["speedup"]["value"] for cell in own),
                low=tuple(cell["speedup"]["low"] for cell in own),
                high=tuple(cell["speedup"]["high"] for cell in own),
            )
        )
    return Plot("Speed with drafts over speed without", "requests in flight", "times", tuple(series))
