"""How likely draft tokens are right: by source and position for the endpoint, corrected for each sequence.

A source's counts forget exponentially, with drafts and with time, so that they follow what the endpoint is asked
today, and so that what failed once is tried again. Positions that are seldom tried fall back on what is known of the
positions before them. A sequence multiplies the odds by what its own drafts did against what was expected of them,
shrunk towards 1 while it has few.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.scheduler.sequence import Sequence as TokenSequence

Rates = npt.NDArray[np.float64]

#: acceptance (first token, later ones) that is assumed before anything is known. N-grams: measured on 30,000 greedy
#: and sampled answer tokens of a small chat model. Heads and draft models: a good one's, because what is hoped for is
#: tried and corrected after a few drafts, and what is despaired of is not
_ASSUMED = {
    "ngram/1": (0.20, 0.60),
    "ngram/2": (0.50, 0.70),
    "ngram/3": (0.60, 0.75),
    "ngram/4-7": (0.75, 0.82),
    "ngram/8-15": (0.85, 0.88),
    "ngram/16+": (0.95, 0.97),
    "eagle3": (0.80, 0.80),
    "draft_target": (0.80, 0.80),
}
_UNKNOWN = (0.5, 0.5)
#: how much nearer to 1 a tree's level is than a chain's token where no tree was tried: of what the best candidate
#: misses, the share that the next ones catch
_TREE_CATCHES = 0.3
#: drafts, and steps, after which what a source did counts 1/e; the weight of what is assumed, in tries
_MEMORY, _STEPS, _TRUST = 200.0, 300.0, 6.0
#: tries of a sequence, and steps, after which they count 1/e; the weight of "like the endpoint", in tries
_OWN_MEMORY, _OWN_STEPS, _OWN_TRUST = 48.0, 80.0, 12.0
#: steps after which figures that only time changed are computed again
_REFRESH = 16
_LEAST, _MOST = 0.005, 0.995
#: standard errors by which a choice counts acceptance higher than it was seen: drafting at the brink of paying costs
#: little and teaches, leaving off there teaches nothing
_HOPE = 0.3


def tree_source(source: str) -> str:
    """The name under which a source's trees are counted: levels of a tree are accepted oftener than a chain's."""
    return f"{source}/tree"


class _Source:
    """Counts of one source by position."""

    __slots__ = ("_counts", "_hopeful", "_news", "_rates", "_stale", "_then", "assumed", "drafts")

    def __init__(self, name: str, positions: int, now: int) -> None:
        self.assumed = _assumed(name, positions)
        #: drafts that were accepted up to a position, tried there, asked for a token there, and had one: a drafter in
        #: doubt ends its chain sooner
        self._counts = np.zeros((4, positions))
        #: the same, as lengths, of drafts that are not counted yet
        self._news: list[tuple[int, int, int, int]] = []
        self.drafts = 0
        self._rates: Rates = np.array(self.assumed)
        self._hopeful: Rates = np.array(self.assumed)
        self._stale = False
        self._then = now

    @property
    def tried(self) -> Rates:
        """Float64 [positions], the weight of what is known of each."""
        tried: Rates = self._counts[1]
        return tried

    @property
    def made(self) -> Rates:
        """Float64 [positions], the share of drafts that had a token of those that were asked for one there."""
        _, _, asked, made = self._counts
        share: Rates = (made + _TRUST) / (asked + _TRUST)
        return share

    def record(self, asked: int, made: int, accepted: int) -> None:
        """Counted with the next :meth:`current`, all drafts of a step at once."""
        self._news.append((accepted, min(accepted + 1, asked), asked, made))
        self.drafts += 1

    def current(self, now: int) -> Rates:
        """Acceptance by position; each position's assumption moves with what the one before it turned out to be."""
        if self._news or now - self._then >= _REFRESH:
            self._absorb(now)
        if not self._stale:
            return self._rates
        shift = 0.0
        for position, (accepted, tried) in enumerate(zip(*self._counts[:2].tolist(), strict=True)):
            usual = self.assumed[position]
            expected = _probability(_logit(usual) + shift)
            rate = min(max((accepted + _TRUST * expected) / (tried + _TRUST), _LEAST), _MOST)
            self._rates[position] = rate
            self._hopeful[position] = min(rate + _HOPE * math.sqrt(rate * (1 - rate) / (tried + _TRUST)), _MOST)
            shift = _logit(rate) - _logit(usual)
        self._stale = False
        return self._rates

    def hopeful(self, now: int) -> Rates:
        """:meth:`current` and a part of its standard error: what is less known is tried rather."""
        self.current(now)
        return self._hopeful

    def last(self) -> list[float]:
        """What :meth:`current` gave last."""
        rates: list[float] = self._rates.tolist()
        return rates

    def _absorb(self, now: int) -> None:
        """Fade what was known with drafts and time, and count what is new."""
        self._counts *= math.exp(-len(self._news) / _MEMORY - (now - self._then) / _STEPS)
        if self._news:
            lengths = np.array(self._news).T[:, :, None]
            weights = np.exp(np.arange(1 - len(self._news), 1) / _MEMORY)
            self._counts += weights @ (lengths > np.arange(self._counts.shape[1]))
            self._news.clear()
        self._then = now
        self._stale = True


class _Own:
    """What one sequence's drafts of one family did: tries, accepted, expected to be accepted."""

    __slots__ = ("_accepted", "_expected", "_then", "_tried")

    def __init__(self, now: int) -> None:
        self._tried = self._accepted = self._expected = 0.0
        self._then = now

    def record(self, tried: int, accepted: int, expected: float, now: int) -> None:
        keep = math.exp(-tried / _OWN_MEMORY - (now - self._then) / _OWN_STEPS)
        self._then = now
        self._tried = self._tried * keep + tried
        self._accepted = self._accepted * keep + accepted
        self._expected = self._expected * keep + expected

    def odds(self, now: int) -> float:
        if not self._tried:
            return 1.0
        usual = min(max(self._expected / self._tried, _LEAST), _MOST)
        trust = _OWN_TRUST * math.exp((now - self._then) / _OWN_STEPS)  # the same as if the counts had faded
        # James and Stein's factor: what luck alone explains counts nothing, and what it cannot counts in full
        beyond = self._accepted - self._expected
        luck = self._tried * usual * (1 - usual)
        beyond *= max(0.0, 1 - luck / max(beyond * beyond, 1e-9))
        rate = min(max(usual + beyond / (self._tried + trust), _LEAST), _MOST)
        return rate / (1 - rate) * (1 - usual) / usual


class Acceptance:
    """Acceptance of draft tokens.

    Args:
        positions: most tokens of a chain, or levels of a tree.
    """

    def __init__(self, positions: int) -> None:
        self.positions = positions
        self._sources: dict[str, _Source] = {}
        self._own: dict[TokenSequence, dict[str, _Own]] = {}
        self._now = 0

    def step(self) -> None:
        """A step begins: time passes."""
        self._now += 1

    def record(
        self, sequence: TokenSequence, source: str, drafted: int, accepted: int, asked: int | None = None
    ) -> None:
        """Count a draft of ``drafted`` tokens (levels) of which the first ``accepted`` were right.

        Args:
            asked: tokens that were asked for, where the drafter ended the chain sooner. What it left out counts as
                not kept: who asks for so many gets as many kept as that.
        """
        drafted = min(drafted, self.positions)
        accepted = min(accepted, drafted)
        asked = max(drafted, min(asked or 0, self.positions))
        tried = min(accepted + 1, asked)
        if tried <= 0:
            return
        known = self._source(source)
        expected = sum(known.last()[:tried])  # by what was known when the draft was chosen
        own = self._own.setdefault(sequence, {}).setdefault(_family(source), _Own(self._now))
        own.record(tried, accepted, expected, self._now)
        known.record(asked, drafted, accepted)

    def rates(self, source: str) -> Rates:
        """Float64 [positions], the endpoint's acceptance of each position once those before it were right."""
        return self._source(source).current(self._now)

    def tries(self, source: str) -> float:
        """Drafts of the source that still count."""
        known = self._source(source)
        known.current(self._now)
        return float(known.tried[0])

    def made(self, source: str) -> Rates:
        """Float64 [positions], the share of drafts that had a token of those that were asked for one there."""
        known = self._source(source)
        known.current(self._now)
        return known.made

    def snapshot(self) -> dict[str, list[float]]:
        """Acceptance by source and position as it was last computed; for other threads."""
        return {name: known.last() for name, known in list(self._sources.items())}

    def kept(self, pairs: Sequence[tuple[TokenSequence, str]]) -> Rates:
        """Float64 [n, positions]: the chance, hopefully, that each token of a draft for (sequence, source) is kept."""
        if not pairs:
            return np.zeros((0, self.positions))
        known = {source: self._source(source).hopeful(self._now) for source in {source for _, source in pairs}}
        rates = np.array([known[source] for _, source in pairs]) if len(known) > 1 else known[pairs[0][1]][None]
        odds = np.array([self.odds(sequence, source) for sequence, source in pairs])[:, None]
        kept: Rates = np.cumprod(odds * rates / (1 + (odds - 1) * rates), axis=1, dtype=np.float64)
        return kept

    def odds(self, sequence: TokenSequence, source: str) -> float:
        """What multiplies the odds of the endpoint's acceptance for this sequence; 1: nothing is known of it."""
        own = self._own.get(sequence)
        known = None if own is None else own.get(_family(source))
        return 1.0 if known is None else known.odds(self._now)

    def leave(self, sequence: TokenSequence) -> None:
        """Forget the sequence."""
        self._own.pop(sequence, None)

    def explain(self, sources: Sequence[str] = ()) -> dict[str, Any]:
        """By source, ``sources`` among them: acceptance and tries by position, drafts counted (0: it is assumed)."""
        for source in sources:
            self._source(source)
        return {
            name: {
                "acceptance": [round(rate, 4) for rate in known.current(self._now).tolist()],
                "tried": [round(tried, 1) for tried in known.tried.tolist()],
                "drafts": known.drafts,
            }
            for name, known in sorted(self._sources.items())
        }

    def _source(self, name: str) -> _Source:
        known = self._sources.get(name)
        if known is None:
            known = self._sources[name] = _Source(name, self.positions, self._now)
        return known


def _family(source: str) -> str:
    """Sources whose drafts a sequence is liked or disliked by together: all n-grams; a head's chains and trees."""
    return source.partition("/")[0]


def _assumed(name: str, positions: int) -> list[float]:
    chain = name.removesuffix(tree_source(""))
    first, later = _ASSUMED.get(chain, _UNKNOWN)
    values = [first, *[later] * (positions - 1)]
    return values if chain == name else [value + _TREE_CATCHES * (1 - value) for value in values]


def _logit(value: float) -> float:
    return math.log(value / (1 - value))


def _probability(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))
