"""Whether sampled answers with speculation are distributed as the model says: a chi-square test of their beginnings.

Many seeded answers of a few tokens are drawn for a prompt. The expected counts are the model's own: the products of its
softmax probabilities along each beginning, by teacher-forced logits. Beginnings that are expected often enough have a
bin of their own, longer ones as far as they are; the others share one (of their common beginning, or of everything), so
that every bin expects at least :data:`MIN_EXPECTED` draws. P-values are those of the chi-square distribution; over
several prompts they are corrected after Holm (1979), so that a right engine misses the test with probability alpha at
most, however many prompts there are.

Drafts have to be there for a test of them: the draws go on from the place of a greedy answer that was drafted at and
whose next token the model leaves most to chance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from evals.speculation.asking import Asking, Reply
from runtime.sampling.params import SamplingParams
from trtforge.store.artifact import GateResult

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

#: draws that a bin expects at least (Cochran's rule)
MIN_EXPECTED = 5.0
#: expected draws from which on a beginning is followed to its next token: each costs a pass of the model
FOLLOWED = 20.0
#: tokens of a draw: the first is the prompt's, the others can come out of one verification
LENGTH = 4

_Beginning = tuple[int, ...]
#: tokens behind the prompt → probabilities float64 [V] of the next
Probabilities = Callable[[_Beginning], "npt.NDArray[np.float64]"]


@dataclass(frozen=True, slots=True)
class Fit:
    """How well the draws of one prompt fit.

    Attributes:
        prompt: its name.
        draws: answers drawn.
        bins: kinds of beginnings told apart.
        statistic: Pearson's chi-square, of ``bins - 1`` degrees of freedom.
        p_value: how often draws of the model itself fit as badly; 1 where it leaves nothing to chance.
        drafted: draft tokens verified in these draws.
        accepted: of them, accepted ones.
        same: draws that are token for token those of the engine without speculation under the same seed.
        base_p_value: the same figure for the draws without speculation.
    """

    prompt: str
    draws: int
    bins: int
    statistic: float
    p_value: float
    drafted: int
    accepted: int
    same: int
    base_p_value: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Bins:
    """Beginnings told apart, with the draws that each expects; the last bin takes what no other does."""

    beginnings: tuple[_Beginning, ...]
    expected: tuple[float, ...]

    def count(self, draws: Sequence[Sequence[int]]) -> list[int]:
        """Draws in each bin: a draw belongs to its longest beginning that has one."""
        index = {beginning: at for at, beginning in enumerate(self.beginnings)}
        counts = Counter(
            next((index[tuple(draw[:n])] for n in range(len(draw), 0, -1) if tuple(draw[:n]) in index), len(index))
            for draw in draws
        )
        return [counts[at] for at in range(len(self.expected))]


def make_bins(probabilities: Probabilities, draws: int, length: int, ends: frozenset[int] = frozenset()) -> Bins:
    """Bins for ``draws`` answers of ``length`` tokens.

    Args:
        ends: tokens behind which an answer does not go on.
    """
    found: dict[_Beginning, float] = {}

    def visit(beginning: _Beginning, count: float) -> float:
        """Bins below ``beginning``, which expects ``count`` draws; what is left to its parent's bin."""
        left = count
        for token, share in _likely(probabilities(beginning), MIN_EXPECTED / count):
            expected, after = count * share, (*beginning, token)
            left -= expected
            if len(after) < length and expected >= FOLLOWED and token not in ends:
                left += visit(after, expected)
            else:
                found[after] = expected
        left = max(0.0, left)
        if not beginning or left < MIN_EXPECTED:
            return left
        found[beginning] = left
        return 0.0

    rest = visit((), float(draws))
    if rest < MIN_EXPECTED and found:  # too little for a bin: the smallest that no other bin stands around goes along
        outer = [name for name in found if not any(name[:n] in found for n in range(1, len(name)))]
        rest += found.pop(min(outer, key=lambda name: (found[name], name)))
    names = sorted(found, key=lambda name: (-found[name], name))
    return Bins(tuple(names), (*(found[name] for name in names), rest))


def _likely(probabilities_V: npt.NDArray[np.float64], least: float) -> Iterator[tuple[int, float]]:
    for token in (probabilities_V >= least).nonzero()[0].tolist():
        yield token, float(probabilities_V[token])


def chi_square(observed: Sequence[int], expected: Sequence[float]) -> tuple[float, float]:
    """Pearson's statistic and its p-value; (0, 1) for a single bin, (inf, 0) where something impossible was seen."""
    import torch

    if len(observed) < 2:
        return 0.0, 1.0
    if any(seen and not wanted for seen, wanted in zip(observed, expected, strict=True)):
        return float("inf"), 0.0
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True) if e)
    half = torch.tensor([(len(observed) - 1) / 2, statistic / 2], dtype=torch.float64)
    return statistic, float(torch.special.gammaincc(half[0], half[1]))


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for their number (Holm 1979), in the order given."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, at in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[at]))
        adjusted[at] = largest
    return adjusted


def drafted_place(
    asking: Asking, names: Sequence[str], prompts: Sequence[Sequence[int]], replies: Sequence[Reply]
) -> tuple[str, list[int]]:
    """Where draws are likely to be drafted for and to part: the tokens in front of a greedy answer's root, with a name.

    Of all roots that a draft stood behind it is the one that is most likely drawn again with the model undecided behind
    it; the first prompt as it is where nothing was drafted.
    """
    best, found = -1.0, (names[0], list(prompts[0]))
    for name, prompt, reply in zip(names, prompts, replies, strict=True):
        known, roots = 1, []
        for one in reply.rounds:
            if one.drafted:
                roots.append(known - 1)
            known += one.tokens
        if not roots:
            continue
        rows = asking.logits([*prompt, *reply.token_ids])
        for root in roots:
            drawn = _softmax(rows[len(prompt) - 1 + root])[reply.token_ids[root]]
            score = float(drawn * (1 - _softmax(rows[len(prompt) + root]).max()))
            if score > best:
                best, found = score, (f"{name}, token {root}", [*prompt, *reply.token_ids[:root]])
    return found


def _softmax(row: Any, temperature: float = 1.0) -> npt.NDArray[np.float64]:
    import numpy as np

    scaled = np.asarray(row, dtype=np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    result: npt.NDArray[np.float64] = weights / weights.sum()
    return result


def fit(
    asking: Asking,
    name: str,
    prompt: Sequence[int],
    *,
    draws: int,
    together: int,
    ends: frozenset[int] = frozenset(),
    length: int = LENGTH,
    temperature: float = 1.0,
) -> Fit:
    """Draw ``draws`` answers with speculation and as many without, under the same seeds, and test both.

    Args:
        together: samples of one request (they share the prompt's blocks), at most the engine's batch.
        ends: tokens that end an answer.
    """
    each = [
        SamplingParams(max_tokens=length, temperature=temperature, seed=first, n=min(together, draws - first))
        for first in range(0, draws, together)
    ]
    prompts = [prompt] * len(each)
    speculated = asking.answer(prompts, each, speculate=True).answers
    base = asking.answer(prompts, each, speculate=False).answers

    def probabilities(beginning: _Beginning) -> npt.NDArray[np.float64]:
        return _softmax(asking.logits([*prompt, *beginning])[-1], temperature)

    bins = make_bins(probabilities, draws, length, ends)
    statistic, p_value = chi_square(bins.count(_tokens(speculated)), bins.expected)
    rounds = [item for reply in speculated for item in reply.rounds]
    return Fit(
        prompt=name,
        draws=draws,
        bins=len(bins.expected),
        statistic=statistic,
        p_value=p_value,
        drafted=sum(item.drafted for item in rounds),
        accepted=sum(item.accepted for item in rounds),
        same=sum(one.token_ids == other.token_ids for one, other in zip(speculated, base, strict=True)),
        base_p_value=chi_square(bins.count(_tokens(base)), bins.expected)[1],
    )


def _tokens(replies: Sequence[Reply]) -> list[tuple[int, ...]]:
    return [reply.token_ids for reply in replies]


def distribution_gate(fits: Sequence[Fit], alpha: float) -> GateResult:
    """The smallest corrected p-value reaches ``alpha``, and drafts were verified in the draws."""
    adjusted = holm([one.p_value for one in fits])
    worst = min(range(len(fits)), key=adjusted.__getitem__)
    drafted, draws = sum(one.drafted for one in fits), sum(one.draws for one in fits)
    telling = sum(one.bins > 1 for one in fits)
    found = fits[worst]
    passed = adjusted[worst] >= alpha and drafted > 0 and telling > 0
    detail = (
        f"{draws} draws after {len(fits)} prompts: smallest p-value {adjusted[worst]:.3g} (corrected after Holm; "
        f"{found.prompt}, chi-square {found.statistic:.4g} over {found.bins} bins) "
        f"{'>=' if adjusted[worst] >= alpha else '<'} {alpha:.3g}; "
        f"{sum(one.same for one in fits)} draws are those without speculation, "
        f"{sum(one.accepted for one in fits)} of {drafted} draft tokens accepted"
    )
    if not drafted:
        detail += "; nothing was drafted, so nothing was tested"
    if not telling:
        detail += "; no prompt leaves anything to chance, so nothing was tested"
    return GateResult("speculation_distribution", passed, adjusted[worst], alpha, detail)
