"""Wall-clock with speculation against without: pairs of timings in one process, by class of prompts and concurrency.

A pair answers the same prompts twice, once in each way and in turn first, so that a machine that slows down or clocks
up meanwhile does so to both. Every answer has the same number of tokens. All prompts are answered in both ways before
the first timing, so prompts come out of the prefix cache both times and decoding is what is timed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evals.speculation.asking import Asking, Reply
from evals.speculation.equality import greedy
from evals.statistics import Interval, geometric_mean
from trtforge.ground.progress import Progress, SilentProgress
from trtforge.store.artifact import GateResult

#: tokens of each answer before the first timing
WARM_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Pair:
    """The same prompts in both ways, with the two times in seconds."""

    prompts: tuple[int, ...]
    off: float
    on: float
    base: tuple[Reply, ...]
    speculated: tuple[Reply, ...]

    @property
    def speedup(self) -> float:
        """Time without over time with speculation."""
        return self.off / self.on


@dataclass(frozen=True, slots=True)
class Cell:
    """One class at one concurrency.

    Attributes:
        kind: class of the prompts.
        concurrency: requests in flight.
        speedup: geometric mean over the pairs, with its interval.
        off_tokens_per_second, on_tokens_per_second: of all pairs together.
        drafted, accepted: draft tokens with speculation.
        tokens_per_step: tokens a step of one request, with speculation.
        pairs: the timings.
    """

    kind: str
    concurrency: int
    speedup: Interval
    off_tokens_per_second: float
    on_tokens_per_second: float
    drafted: int
    accepted: int
    tokens_per_step: float
    pairs: tuple[Pair, ...]

    def to_json(self) -> dict[str, Any]:
        figures = {name: getattr(self, name) for name in self.__slots__ if name not in ("pairs", "speedup")}
        return {**figures, "speedup": asdict(self.speedup), "ratios": [pair.speedup for pair in self.pairs]}


def measure_speed(
    asking: Asking,
    prompts: Mapping[str, Sequence[Sequence[int]]],
    *,
    levels: Sequence[int],
    repeats: int,
    max_tokens: int,
    progress: Progress | None = None,
) -> list[Cell]:
    """All cells, classes in their order, levels rising."""
    report = progress or SilentProgress()
    report.start("speed with speculation and without", total=len(prompts) * len(levels) * repeats)
    turn = 0
    cells = []
    for kind, of_kind in prompts.items():
        warm = greedy(min(max_tokens, WARM_TOKENS), exact=True)
        for speculate in (False, True):  # nobody times first-touch costs, nor a policy that knows nothing yet
            asking.answer(of_kind, [warm] * len(of_kind), speculate=speculate)
        for level in levels:
            pairs = []
            for repeat in range(repeats):
                chosen = tuple((repeat * level + place) % len(of_kind) for place in range(level))
                pairs.append(_pair(asking, of_kind, chosen, max_tokens, on_first=bool(turn % 2)))
                turn += 1
                report.advance()
            cells.append(_cell(kind, level, pairs))
    return cells


def _pair(
    asking: Asking, prompts: Sequence[Sequence[int]], chosen: tuple[int, ...], max_tokens: int, *, on_first: bool
) -> Pair:
    asked = [prompts[index] for index in chosen]
    each = [greedy(max_tokens, exact=True)] * len(asked)
    found = {way: asking.answer(asked, each, speculate=way) for way in (on_first, not on_first)}
    return Pair(chosen, found[False].seconds, found[True].seconds, found[False].answers, found[True].answers)


def _cell(kind: str, level: int, pairs: Sequence[Pair]) -> Cell:
    replies = [reply for pair in pairs for reply in pair.speculated]
    rounds = [one for reply in replies for one in reply.rounds]
    tokens = sum(len(reply.token_ids) for reply in replies)
    return Cell(
        kind=kind,
        concurrency=level,
        speedup=geometric_mean([pair.speedup for pair in pairs]),
        off_tokens_per_second=tokens / sum(pair.off for pair in pairs),
        on_tokens_per_second=tokens / sum(pair.on for pair in pairs),
        drafted=sum(one.drafted for one in rounds),
        accepted=sum(one.accepted for one in rounds),
        tokens_per_step=sum(one.tokens for one in rounds) / max(1, len(rounds)),
        pairs=tuple(pairs),
    )


def overall(cells: Sequence[Cell]) -> Interval:
    """Geometric mean over all pairs."""
    return geometric_mean([pair.speedup for cell in cells for pair in cell.pairs])


def speed_gate(cells: Sequence[Cell], least: float) -> GateResult:
    """The upper bound of the overall speed-up reaches ``least``: a loaded machine's noise alone must not fail it."""
    found = overall(cells)
    slowest = min(cells, key=lambda cell: cell.speedup.value)
    passed = found.high >= least
    detail = (
        f"{found.value:.4g} times the speed without speculation, {found.confidence:.0%} interval [{found.low:.4g}, "
        f"{found.high:.4g}] over {sum(len(cell.pairs) for cell in cells)} pairs; upper bound {found.high:.4g} "
        f"{'>=' if passed else '<'} limit {least:.4g}; slowest: {slowest.kind} at {slowest.concurrency} with "
        f"{slowest.speedup.value:.4g}"
    )
    return GateResult("speculation_speedup", passed, found.value, least, detail, bound=found.high)
