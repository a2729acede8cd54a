"""From points to a plan: the front, the best under service levels, and why none is good enough when none is."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from builder.planner.search.points import Found, Point
from builder.planner.types import Goal, not_enough

#: plans whose objective differs by less than this are equal, and the quicker one is taken
_EQUAL = 1.02


@dataclass(frozen=True)
class Slo:
    """What a plan must meet: seconds of the 99th percentiles, and requests a second of the whole deployment.

    ``headroom`` is the share over the mean rate that the deployment must be able to serve: arrivals are uneven.
    """

    ttft: float | None = None
    itl: float | None = None
    rate: float | None = None
    headroom: float = 0.0

    def terms(self, point: Point, variant: int = 1) -> dict[str, tuple[float, float]]:
        """``(value, limit)`` by name of what is asked, for the slow (0), typical (1) or fast (2) figures.

        A rate's are turned round, so a value over its limit misses.
        """
        found = {}
        if self.ttft is not None:
            found["time to the first token"] = (point.first[variant], self.ttft)
        if self.itl is not None:
            found["time between tokens"] = (point.gap[variant], self.itl)
        if self.rate is not None:
            found["request rate"] = (1 / point.requests[variant], 1 / (self.rate * (1 + self.headroom)))
        return found

    def missed(self, point: Point) -> dict[str, tuple[float, float]]:
        """The terms that the typical figures miss."""
        return {name: pair for name, pair in self.terms(point).items() if pair[0] > pair[1]}

    def met(self, point: Point, variant: int = 1) -> bool:
        """Whether the figures meet every term."""
        return all(value <= limit for value, limit in self.terms(point, variant).values())

    def worst(self, point: Point) -> tuple[float, str]:
        """The largest value over its limit, and its name."""
        rows = [(value / limit, name) for name, (value, limit) in self.terms(point).items()]
        return max(rows) if rows else (0.0, "")


@dataclass(frozen=True)
class Choice:
    """The recommended point, the front of those that meet the service levels, their number, and what was passed over.

    ``certain`` is whether the slow figures meet the service levels too. ``refused`` holds the checks that kept
    better points out, by code or message.
    """

    best: Point
    front: tuple[Point, ...]
    meeting: int
    certain: bool
    refused: tuple[str, ...] = ()


def pareto(points: Sequence[Point]) -> tuple[Point, ...]:
    """Points that no other beats in both the time of a whole answer and output tokens a second a GPU, quickest first.

    The whole answer counts, not the time between tokens alone: that is short where prompts wait for their turn.
    Steps of less than 1 % are left out.
    """
    front: list[Point] = []
    best = 0.0
    for point in sorted(points, key=lambda item: (item.answer[1], -item.output_per_gpu, item.batch)):
        if point.output_per_gpu > best * 1.01:
            front.append(point)
            best = point.output_per_gpu
    return tuple(front)


def choose(
    found: Found,
    slo: Slo,
    goal: Goal,
    *,
    accept: Callable[[Point], Sequence[str]] | None = None,
    terms: Callable[[Point], dict[str, float]] | None = None,
) -> Choice:
    """The best point for a goal under the service levels.

    ``throughput``: most output tokens a second; ``latency``: shortest whole answer; ``fit``: fewest GPUs a
    replica. Among equals (2 %) the quicker one.

    Args:
        accept: what stands against writing a point's recipe (empty: nothing); refused points are passed over.
        terms: the shares of a point's step by class of op, for the refusal when nothing meets the levels.

    Raises:
        ForgeError: ``TF-PLN-056`` nothing meets the service levels, with the closest point and what binds;
            ``TF-PLN-057`` nothing fits the memory; ``TF-PLN-058`` every point that would do is refused.
    """
    if not found.points:
        raise _nothing_fits(found)
    meeting = [point for point in found.points if slo.met(point)]
    if not meeting:
        raise _nothing_meets(found, slo, terms)
    # tensor parallelism over the network only where nothing else meets the levels, as the plan's own choice has it
    meeting = [point for point in meeting if point.local] or meeting
    # an assumed acceptance is a guess that a drafter may miss by far: such plans are shown, and not recommended
    known = [point for point in meeting if point.speculating.method == "none" or point.speculating.measured]
    refused: dict[tuple[Any, ...], str] = {}
    for point in sorted(known or meeting, key=lambda item: _order(item, goal)):
        key = (point.precision, point.parallel, point.speculating)
        if key in refused:
            continue
        reasons = accept(point) if accept is not None else ()
        if not reasons:
            notes = tuple(dict.fromkeys(refused.values()))
            return Choice(point, pareto(meeting), len(meeting), slo.met(point, 0), notes)
        refused[key] = "; ".join(reasons)
    raise _all_refused(meeting, list(dict.fromkeys(refused.values())))


def _order(point: Point, goal: Goal) -> tuple[float, ...]:
    step = math.log(_EQUAL)
    if goal == "latency":
        return (round(math.log(point.answer[1]) / step), -point.output[1])
    tokens = -math.floor(math.log(point.output[1]) / step)
    if goal == "fit":
        return (point.parallel.gpus, tokens, point.answer[1])
    return (tokens, point.answer[1])


def describe(point: Point) -> str:
    """A point in one line."""
    parts = [f"weights {point.precision.weights}", f"KV {point.precision.kv}", str(point.parallel)]
    parts += [f"{point.replicas} replica{'s' if point.replicas > 1 else ''}", f"batch {point.batch}"]
    if point.speculating.method != "none":
        parts.append(f"{point.speculating.method} of {point.speculating.draft_length}")
    return ", ".join(parts)


#: the options that loosen a term
_OPTIONS = {
    "time to the first token": "--set bench.slo.ttft_p99={}ms",
    "time between tokens": "--set bench.slo.itl_p99={}ms",
    "request rate": "--rate {}",
}


def _nothing_meets(found: Found, slo: Slo, terms: Callable[[Point], dict[str, float]] | None) -> Exception:
    point = min(found.points, key=lambda item: slo.worst(item)[0])
    ratio, name = slo.worst(point)
    missed = slo.missed(point)
    shares = terms(point) if terms is not None else {}
    binding = max(shares, key=shares.__getitem__) if shares else None
    because = f"; {shares[binding]:.0%} of the step is {binding.replace('_', ' ')}" if binding else ""
    text = " and the ".join(_miss(term, *pair) for term, pair in sorted(missed.items(), key=lambda row: row[0] != name))
    remedies = _loosened(found, slo, point)
    remedies.append("more GPUs (--count) or faster ones (--gpu)")
    if "time to the first token" in missed:
        remedies.append("shorter prompts, or a prefix cache for their common part")
    spare = f" A rate counts with {slo.headroom:.0%} headroom." if slo.rate is not None and slo.headroom else ""
    return not_enough(
        "TF-PLN-056",
        f"no plan meets the service levels; the closest misses the {text}{because}",
        asked=", ".join(
            f"{key} {value:g}" for key in ("ttft", "itl", "rate") if (value := getattr(slo, key)) is not None
        ),
        why=f"Of {len(found.points)} plans that fit, none meets every term; the closest is {describe(point)}.{spare}",
        remedies=remedies,
        closest=point.to_json(),
        misses=name,
        missed=sorted(missed),
        ratio=round(ratio, 4),
        binding=binding,
        shares={key: round(share, 4) for key, share in shares.items()},
    )


def _miss(name: str, value: float, limit: float) -> str:
    if name == "request rate":
        return f"{name}: {1 / value:.4g} /s of {1 / limit:.4g} /s"
    return f"{name}: {value * 1e3:.4g} ms, asked {limit * 1e3:.4g} ms"


def _loosened(found: Found, slo: Slo, closest: Point) -> list[str]:
    """One term that is enough to loosen, each with the tightest value that a plan meets; else all that are missed."""
    alone = []
    for name in slo.terms(closest):
        others = [
            item for item in found.points if all(v <= limit for n, (v, limit) in slo.terms(item).items() if n != name)
        ]
        if others:
            value = min(slo.terms(item)[name][0] for item in others)
            alone.append(_option(name, value, slo.headroom))
    if alone:
        return alone
    return [" ".join(_option(name, value, slo.headroom) for name, (value, _) in slo.missed(closest).items())]


def _option(name: str, value: float, headroom: float) -> str:
    """The option that asks for ``value``, rounded to the side on which it is met."""
    if name == "request rate":
        return _OPTIONS[name].format(_rounded(1 / value / (1 + headroom), up=False))
    return _OPTIONS[name].format(_rounded(value * 1e3, up=True))


def _rounded(value: float, *, up: bool) -> str:
    """Four digits of ``value``, never on the wrong side of it."""
    digits = 3 - math.floor(math.log10(value))
    scale = 10.0**digits
    whole = math.ceil(value * scale) if up else math.floor(value * scale)
    return f"{whole / scale:.{max(digits, 0)}f}"


def _nothing_fits(found: Found) -> Exception:
    where = ""
    if found.nearest is not None:
        precision, parallel = found.nearest
        where = f"; the closest, {precision.weights} with {parallel}, lacks {found.deficit / 2**30:.2f} GiB a GPU"
    return not_enough(
        "TF-PLN-057",
        f"no plan fits into the GPUs' memory{where}",
        asked=f"a search over {found.considered} points",
        why=f"{found.invalid} points break a rule of arithmetic, {found.too_large} hold no request of the load.",
        remedies=["more GPUs (--count) or larger ones (--gpu)", "a smaller model, or shorter requests (--isl, --osl)"],
        deficit_bytes=found.deficit,
        considered=found.considered,
    )


def _all_refused(meeting: Sequence[Point], reasons: Sequence[str]) -> Exception:
    return not_enough(
        "TF-PLN-058",
        f"{len(meeting)} plans meet the service levels, but no recipe of them passes the checks: {reasons[0]}",
        asked="a recipe for the recommended plan",
        why="A recipe that `trtforge check` refuses could not run.",
        remedies=["change what the checks name, for example build.target", "search without -o: no recipe is checked"],
        reasons=list(reasons[:8]),
    )
