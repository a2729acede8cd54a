"""When two greedy outputs of the same request count as the same: the one criterion of a near tie.

Definition. Two correct computations of the same logits differ by rounding: another order of summation, another
batch, another implementation. Two tokens are a *near tie* when both logits lie within a bound of the largest:

* ``NOISE_SIGMAS x noise`` where the noise was measured (parity measures it: the RMS change of the gap between the two
  best logits when rounding is added to the reference), and never less than one rounding of the largest logit;
* ``TIE_STEPS`` machine epsilons of the largest logit where nothing was measured

both with the machine epsilon of the activations' type. Parity's gate, the smoke test and :func:`first_divergence`
all ask :func:`near_tie_bound`.

Greedy outputs are equal up to near ties when they are identical, or when at the first position where they differ the
two tokens are a near tie. What follows a near tie is not compared: from there on the two are answers to different
contexts.

Without rounding differences (executors that report ``row_invariant``, the simulated executor, float64 reductions)
outputs must be identical, and sampled outputs are treated alike: their uniform numbers are the same, so they too
differ only where rounding moves a token's boundary across the number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

#: Machine epsilon (distance from 1 to the next value) of activation formats.
EPSILON = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7, "float8_e4m3fn": 2.0**-3}

#: Machine epsilons that rounding may sum up to over the layers, where no noise was measured: a chosen allowance.
TIE_STEPS = 4.0
#: RMS changes of the gap that count as noise, where it was measured
NOISE_SIGMAS = 3.0
#: tokens that are tried as the one with which an answer of text left the expected one
_TRIED = 64


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference between two greedy outputs.

    Attributes:
        position: index into the outputs.
        tokens: the token of either output there (-1: that output had ended).
        gap: how far the lower of the two logits lies under the largest.
        epsilon: the near-tie bound at that step.
    """

    position: int
    tokens: tuple[int, int]
    gap: float
    epsilon: float

    @property
    def near_tie(self) -> bool:
        """Whether rounding excuses the difference."""
        return self.gap <= self.epsilon

    def describe(self, decode: Callable[[Sequence[int]], str]) -> str:
        """Where the outputs part, into what, and by what margin, in words."""
        words = [repr(decode([token])) if token >= 0 else "its end" for token in self.tokens]
        within = "within" if self.near_tie else "beyond"
        apart = "further than any likely token" if np.isinf(self.gap) else f"{self.gap:.3g} below the best logit"
        return (
            f"they part at token {self.position}: {words[0]} against {words[1]}, {apart}, {within} the near-tie bound "
            f"of {self.epsilon:.3g}"
        )


def near_tie_bound(largest: float, dtype: str = "bfloat16", noise: float | None = None) -> float:
    """How far below the largest logit a token may lie and still be a near tie, in logits.

    Args:
        largest: the largest magnitude among the logits of the position.
        dtype: the type of the model's activations.
        noise: measured RMS change of the gap between the two best logits under rounding, or None.
    """
    step = EPSILON[dtype] * max(1.0, largest)
    return TIE_STEPS * step if noise is None else max(step / 2, NOISE_SIGMAS * noise)


def near_tie_epsilon(logits_V: npt.NDArray[np.float32], dtype: str = "bfloat16", noise: float | None = None) -> float:
    """:func:`near_tie_bound` of one row of logits [V]."""
    finite = logits_V[np.isfinite(logits_V)]
    return near_tie_bound(float(np.abs(finite).max(initial=0.0)), dtype, noise)


def first_divergence(
    one: Sequence[int],
    other: Sequence[int],
    logits_after: Callable[[Sequence[int]], npt.NDArray[np.float32]],
    *,
    dtype: str = "bfloat16",
    noise: float | None = None,
) -> Divergence | None:
    """Compare two greedy outputs of one prompt; None when they are identical.

    Args:
        one: tokens of the first output (the reference), without the prompt.
        other: tokens of the second.
        logits_after: logits [V] that follow the prompt and the given output tokens.
        dtype, noise: see :func:`near_tie_bound`.
    """
    longest = max(len(one), len(other))
    for position in range(longest):
        a = one[position] if position < len(one) else -1
        b = other[position] if position < len(other) else -1
        if a == b:
            continue
        row = np.asarray(logits_after(one[:position]), dtype=np.float32)
        if a < 0 or b < 0:
            return Divergence(position, (a, b), float("inf"), near_tie_epsilon(row, dtype, noise))
        gap = float(row.max() - min(row[a], row[b]))
        return Divergence(position, (a, b), gap, near_tie_epsilon(row, dtype, noise))
    return None


def parting(
    expected: Sequence[int],
    text: str,
    decode: Callable[[Sequence[int]], str],
    logits_after: Callable[[Sequence[int]], npt.NDArray[np.float32]],
    *,
    dtype: str = "bfloat16",
    noise: float | None = None,
) -> Divergence | None:
    """Where ``text`` leaves the greedy output ``expected``, for answers of which only the text is known.

    A near tie is found where there is a position up to which the texts are the same and at which a token within the
    bound, other than the expected one, goes on as ``text`` does. Otherwise the result is the last position up to
    which they are the same, with the likeliest token that goes on as ``text`` does (-1: the end, or none of the
    likeliest; the gap is then infinite). None: ``text`` is the expected output's.

    Args:
        expected: tokens of the reference output, without the prompt.
        decode: output tokens to text.
        logits_after, dtype, noise: as for :func:`first_divergence`.
    """
    if text == decode(expected):
        return None
    last = Divergence(0, (-1, -1), float("inf"), 0.0)
    for position, token in enumerate(expected):
        before = _settled(decode(expected[:position]))
        if not text.startswith(before):
            break
        row = np.asarray(logits_after(expected[:position]), dtype=np.float32)
        epsilon = near_tie_epsilon(row, dtype, noise)
        last = Divergence(position, (token, -1), float("inf"), epsilon)
        for other in np.argsort(-row, kind="stable")[:_TRIED]:
            after = _settled(decode([*expected[:position], int(other)]))
            # a token without text is taken for the end of the answer
            if other != token and (text.startswith(after) if after != before else text == before):
                gap = float(row.max() - min(row[token], row[other]))
                last = Divergence(position, (token, int(other)), gap, epsilon)
                break
        if last.near_tie:
            return last
    return last


def _settled(text: str) -> str:
    """Without the end of a character whose other bytes are still to come."""
    return text.rstrip("\ufffd")
