"""What a step costs: the target by tokens and requests, a draft by its length and requests, Python beside them.

Measured when the engine is loaded, then followed. A busier machine or longer contexts make everything dearer
alike: that is one scale, which follows fast. What one size costs beyond its measurement is a correction of its own,
which follows ever more slowly, so that a busy minute is not taken for a dear size.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.speculation.draft_times import DraftTimes

Seconds = npt.NDArray[np.float64]

#: share of a deviation that the scale takes over, and a size's own correction at least and at first
_SCALE_STEP, _OWN_STEP, _OWN_FIRST = 0.1, 0.005, 6.0
#: octaves within which sizes tell of each other
_NEAR = 0.25
#: a deviation beyond this factor is an accident (a page fault, a neighbour's burst), counted as this one
_ACCIDENT = math.log(2.0)
#: the same for the first step of a size: it compiles kernels, which no later one does
_FIRST = math.log(1.1)
#: sizes up to which every number of tokens has its own correction; beyond it sixteen an octave
_EACH = 32


class StepCosts:
    """Seconds of steps.

    Args:
        verify: seconds of a target step by tokens, in one request; 1 among them.
        requests: seconds of a target step of one token a request, by requests.
        draft: seconds of one draft pass by requests; None: no drafter with weights.
        most_tokens: largest step that is asked about.
    """

    def __init__(
        self,
        verify: Mapping[int, float],
        requests: Mapping[int, float] | None = None,
        draft: Mapping[int, float] | None = None,
        *,
        most_tokens: int,
    ) -> None:
        self.measured = {"verify": dict(verify), "requests": dict(requests or {}), "draft": dict(draft or {})}
        self._tokens = curve(verify, most_tokens)
        most_requests = max([1, *(requests or ()), *(draft or ())])
        plain = curve(requests, most_requests) if requests else self._tokens[: most_requests + 1]
        alone = self._tokens[np.minimum(np.arange(len(plain)), most_tokens)]
        self._beside = np.maximum.accumulate(np.maximum(plain - alone, 0.0))
        self._pass = curve(draft, most_requests) if draft else None
        self._bin = _bins(most_tokens)
        self._own = np.zeros(int(self._bin[-1]) + 1)
        first = np.searchsorted(self._bin, np.arange(len(self._own)))
        self._octave = np.log2(np.maximum(first, 1).astype(np.float64))
        self._seen = np.zeros(int(self._bin[-1]) + 1)
        self._near: dict[int, Seconds] = {}
        self._run = set(verify)
        self._drafts = DraftTimes()
        self._hosts: dict[tuple[bool, int], list[float]] = {}
        self.scale = 0.0
        self._steps = 0

    @property
    def drafts(self) -> bool:
        """Whether a drafter with weights was measured."""
        return self._pass is not None

    def verify(self, first: int, last: int, requests: int) -> Seconds:
        """Float64 [last - first + 1]: seconds of target steps of ``first`` to ``last`` tokens of ``requests``.

        Steps larger than the largest known are taken to grow as the last ones do.
        """
        top = len(self._tokens) - 1
        tokens = np.arange(first, last + 1)
        within = np.minimum(tokens, top)
        base = self._tokens[within] + (tokens - within) * (self._tokens[top] - self._tokens[top - 1])
        base += self._beside[min(requests, len(self._beside) - 1)]
        seconds: Seconds = base * np.exp(self.scale + self._own[self._bin[within]])
        return seconds

    def step(self, tokens: int, requests: int) -> float:
        """Seconds of one target step: :meth:`verify` of one size, without its arrays, since every step asks for it."""
        known, top = self._tokens, len(self._tokens) - 1
        within = min(tokens, top)
        base = known.item(within) + self._beside.item(min(requests, len(self._beside) - 1))
        if tokens > top:
            base += (tokens - top) * (known.item(top) - known.item(top - 1))
        return base * math.exp(self.scale + self._own.item(self._bin.item(within)))

    def draft(self, length: int, requests: int, tree: bool = False) -> float:
        """Seconds of drafting ``length`` tokens (levels) for ``requests``; 0 without a drafter with weights."""
        if self._pass is None or length <= 0 or requests <= 0:
            return 0.0
        return self._passes(length, tree) * float(self._pass[min(requests, len(self._pass) - 1)])

    def drafts_by_requests(self, lengths: npt.NDArray[Any], tree: bool = False) -> Seconds:
        """Float64 [n]: seconds of drafting a mean of ``lengths[r]`` tokens (levels) for r = 0 … n - 1 requests."""
        if self._pass is None:
            return np.zeros(len(lengths))
        requests = np.arange(len(lengths))
        times: Seconds = self._pass[np.minimum(requests, len(self._pass) - 1)]
        drafted = (requests > 0) & (lengths > 0)
        if tree:
            return np.where(drafted, times * self._passes(int(lengths.max()), True), 0.0)
        # one pass at least, where there is any
        whole = np.maximum(lengths, 1.0)
        return np.where(drafted, times * self._drafts.chain(whole) * math.exp(self.scale), 0.0)

    def _passes(self, length: int, tree: bool) -> float:
        """What turns a pass as it was measured into a draft of ``length`` tokens."""
        return (self._drafts.tree(length) if tree else self._drafts.chain(length)) * math.exp(self.scale)

    def host(self, drafting: bool, requests: int) -> float:
        """Seconds of Python beside the executors in a step that verifies drafts, or in a plain one."""
        known = self._hosts.get((drafting, requests.bit_length()))
        return known[0] if known else 0.0

    def observe(self, part: str, tokens: int, requests: int, seconds: float) -> None:
        """Take in how long a part took; see :meth:`runtime.speculation.draft.Policy.timed`."""
        if not seconds > 0 or tokens < 0 or requests < 1:
            return
        if part == "verify" and tokens >= 1:
            place = int(self._bin[min(tokens, len(self._bin) - 1)])
            off = self._deviation(seconds, self.step(tokens, requests))
            if tokens not in self._run:
                self._run.add(tokens)
                off = min(off, _FIRST)
            self._steps += 1
            self.scale += off * max(_SCALE_STEP, 1 / (self._steps + 1))
            # Sizes near by are told too, the less the better they are known themselves: a large step is rarely run
            # twice with the same number of tokens.
            near = self._near.get(place)
            if near is None:
                near = self._near[place] = np.exp(-(((self._octave - self._octave[place]) / _NEAR) ** 2))
            self._own += off * near * np.maximum(_OWN_STEP, 1 / (self._seen + _OWN_FIRST))
            self._seen += near
        elif part in ("draft", "tree") and tokens >= 1 and self._pass is not None:
            tree = part == "tree"
            expected = self.draft(tokens, requests, tree)
            off = self._deviation(seconds, expected)
            if tree:
                self._drafts.seen_tree(tokens, off)
            else:
                self._drafts.seen_chain(tokens, self._drafts.chain(tokens) * math.exp(off))
        elif part == "host":
            known = self._hosts.setdefault((tokens > 0, requests.bit_length()), [seconds, 0.0])
            known[1] += 1
            known[0] += (min(seconds, 4 * known[0]) - known[0]) * max(0.02, 1 / known[1])

    def explain(self) -> dict[str, Any]:
        """Milliseconds: as measured at load, and as they are taken now."""
        now = {tokens: 1e3 * self.step(tokens, 1) for tokens in self.measured["verify"]}
        passes = {
            str(requests): {str(length): round(1e3 * self.draft(length, requests), 3) for length in (1, 2, 3, 4, 8)}
            for requests in self.measured["draft"]
        }
        return {
            "measured_at_load_ms": {
                part: {str(size): round(1e3 * seconds, 3) for size, seconds in sorted(found.items())}
                for part, found in self.measured.items()
            },
            "scale": round(math.exp(self.scale), 3),
            "verify_ms": {str(tokens): round(value, 3) for tokens, value in sorted(now.items())},
            "draft_ms": passes,
            "host_ms": {
                f"{'drafting' if drafting else 'plain'}, {1 << (size - 1)} requests and more": round(1e3 * known[0], 3)
                for (drafting, size), known in sorted(self._hosts.items())
            },
        }

    @staticmethod
    def _deviation(seconds: float, expected: float) -> float:
        return min(max(math.log(seconds / expected), -_ACCIDENT), _ACCIDENT)


def curve(points: Mapping[int, float], most: int) -> Seconds:
    """Float64 [most + 1]: the points joined by lines, the last line going on.

    A size that is quicker than a smaller one stays so: kernels for one or two rows are often slower than those for
    more, and a draft that fills up to the next quick size is free.
    """
    sizes = sorted(points)
    values = [points[size] for size in sizes]
    axis = np.arange(most + 1, dtype=np.float64)
    result = np.interp(axis, sizes, values)
    if len(sizes) > 1 and most > sizes[-1]:
        # The slope over the upper half: the last two points alone would carry their noise far.
        middle = next(i for i, size in enumerate(sizes) if size >= sizes[-1] / 2 or i == len(sizes) - 2)
        slope = max(values[-1] - values[middle], 0.0) / (sizes[-1] - sizes[middle])
        result = np.where(axis > sizes[-1], values[-1] + (axis - sizes[-1]) * slope, result)
    return result


def _bins(most: int) -> npt.NDArray[np.int64]:
    """Int64 [most + 1]: the correction's number for each number of tokens."""
    tokens = np.arange(most + 1, dtype=np.float64)
    octaves = np.log2(np.maximum(tokens, _EACH) / _EACH)
    return np.where(tokens <= _EACH, tokens, _EACH + 1 + np.floor(16 * octaves)).astype(np.int64)
