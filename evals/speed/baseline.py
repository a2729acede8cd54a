"""A load test held against an earlier one: slower beyond the spread of both, and beyond a tolerance?

Mean times of the same load are compared as a ratio, later over earlier, with its interval from the spread over requests
of both runs. A regression is a ratio whose lower bound is over 1 + tolerance: what noise explains is none. Requests of
one run share its moment, so the interval is the least that the ratio can vary; the tolerance stands for the rest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

from evals.report import Section, Table
from evals.speed.latency import KINDS
from evals.speed.outcome import Outcome
from evals.statistics import CONFIDENCE, Interval
from trtforge.ground.errors import ForgeError

#: what two runs must share, and what that is to a reader
_SHARED = {
    "prompts_sha256": "prompts",
    "max_tokens": "tokens an answer",
    "machine": "machine",
    "arrivals": "process or seed of the arrivals",
    "trace_sha256": "trace",
}


@dataclass(frozen=True)
class Held:
    """One time at one load: seconds before and now, and their ratio."""

    target: str
    load: str
    kind: str
    before: float
    now: float
    ratio: Interval
    worse: bool

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "ratio": asdict(self.ratio)}


@dataclass(frozen=True)
class Comparison:
    """All that both runs measured; ``only_one`` are the loads that one of them lacks, which nobody compared."""

    held: tuple[Held, ...]
    tolerance: float
    only_one: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not any(one.worse for one in self.held)

    @property
    def worse(self) -> list[str]:
        return [f"{one.kind} of {one.target}, {one.load}" for one in self.held if one.worse]

    def to_json(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "tolerance": self.tolerance,
            "held": [one.to_json() for one in self.held],
            "not_compared": list(self.only_one),
        }

    def table(self) -> Table:
        """A row a time and load."""
        rows = tuple(
            (
                one.target,
                one.load,
                one.kind.upper(),
                f"{one.before * 1e3:.2f}",
                f"{one.now * 1e3:.2f}",
                f"{one.ratio.value:.3f} [{one.ratio.low:.3f}, {one.ratio.high:.3f}]",
                "worse" if one.worse else "held",
            )
            for one in self.held
        )
        return Table(("target", "load", "time", "before (ms)", "now (ms)", "ratio", "verdict"), rows)

    def section(self) -> Section:
        """The report's section."""
        text = (
            f"Mean times now over those of the earlier run, with {CONFIDENCE:.0%} intervals over requests; worse where "
            f"the lower bound is over {1 + self.tolerance:.2f}."
        )
        if self.only_one:
            text += f" Not compared, because one run lacks them: {', '.join(self.only_one)}."
        return Section("Against an earlier run", text, (self.table(),))


def compare_runs(before: Outcome, now: Outcome, tolerance: float, asked: str) -> Comparison:
    """``now`` against ``before``.

    Args:
        asked: how the earlier run was named.

    Raises:
        ForgeError: TF-BEN-026 they are not alike, or share no load.
    """
    _require_alike(before, now, asked)
    old, new = _loads(before), _loads(now)
    held = [
        _held(target, load, kind, old[target, load][kind], new[target, load][kind], tolerance)
        for target, load in new
        if (target, load) in old
        for kind in KINDS
        if old[target, load].get(kind, {}).get("mean") and new[target, load].get(kind, {}).get("mean")
    ]
    if not held:
        loads = {"before": [load for _, load in old], "now": [load for _, load in new]}
        raise _unlike(asked, "they share no load", loads, ["bench.concurrency and bench.arrivals of the earlier run"])
    only = sorted({f"{load} ({target})" for target, load in old.keys() ^ new.keys()})
    return Comparison(tuple(held), tolerance, tuple(only))


def _require_alike(before: Outcome, now: Outcome, asked: str) -> None:
    if before.identity is None or now.identity is None:
        why = "the earlier one does not say what it sent and on what machine"
        raise _unlike(asked, why, {}, ["measure the earlier one anew: trtforge bench BUNDLE -o FOLDER"])
    for key, what in _SHARED.items():
        old, new = before.identity.get(key), now.identity.get(key)
        optional = key in ("arrivals", "trace_sha256")
        if old != new and not (optional and None in (old, new)):
            remedies = [f"measure both with the same {what}"]
            raise _unlike(
                asked, f"the {what} differ" + ("s" if key == "machine" else ""), {"before": old, "now": new}, remedies
            )


def _unlike(asked: str, why: str, numbers: Mapping[str, Any], remedies: Sequence[str]) -> ForgeError:
    return ForgeError(
        "TF-BEN-026",
        f"the two load tests cannot be compared: {why}",
        asked=f"--baseline {asked}",
        numbers=numbers,
        why="A ratio of times means something only for the same requests on the same kind of machine.",
        remedies=list(remedies),
    )


def _loads(outcome: Outcome) -> dict[tuple[str, str], Mapping[str, Any]]:
    """Means by target and load; levels that a search stopped early are none."""
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for sweep in outcome.sweeps:
        for level in sweep.levels:
            found[sweep.target, f"concurrency {level.concurrency}"] = level.means or {}
    for opened in outcome.opened:
        for one in opened.levels:
            if one.requests == one.planned:
                # rates are compared with what they sent: another number of requests is another load
                found[opened.target, f"{one.label} × {one.requests}"] = one.means
    return found


def _held(
    target: str, load: str, kind: str, before: Mapping[str, float], now: Mapping[str, float], tolerance: float
) -> Held:
    """The ratio of two means with its interval on the logarithm, by the spread over requests."""
    ratio = now["mean"] / before["mean"]
    spread = math.sqrt(sum((one["sd"] / one["mean"]) ** 2 / max(1.0, one["n"]) for one in (before, now)))
    factor = math.exp(NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * spread)
    interval = Interval(ratio, ratio / factor, ratio * factor, CONFIDENCE)
    return Held(target, load, kind, before["mean"], now["mean"], interval, interval.low > 1 + tolerance)
