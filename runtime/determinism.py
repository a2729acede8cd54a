"""When two greedy outputs of the same request count as the same.

Definition. Library kernels sum in an order that depends on the number of rows, so the logits of a request
alone and in a batch differ by rounding. Two tokens are a *near tie* at a step when both logits lie
within ``epsilon`` of the largest, where::

    epsilon = TIE_STEPS * machine_epsilon(dtype) * max(1, max |logit|)

with the dtype of the activations. Greedy outputs are equal up to near ties when they are identical, or
when at the first position where they differ the two tokens are a near tie. What follows a near tie is not
compared: from there on the two are answers to different contexts.

Without rounding differences (the simulated executor, float64 reductions) outputs must be identical, and
sampled outputs are treated alike: their uniform numbers are the same, so they too differ only where rounding
moves a token's boundary across the number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

#: Machine epsilon (distance from 1 to the next value) of activation formats.
EPSILON = {"float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7, "float8_e4m3fn": 2.0**-3}

#: Rounding steps that may sum up over layers: a chosen allowance, not a measured one (no divergence was seen).
TIE_STEPS = 4.0


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


def near_tie_epsilon(logits_V: npt.NDArray[np.float32], dtype: str = "bfloat16") -> float:
    """The near-tie bound of one row of logits [V] whose model computes in ``dtype``."""
    finite = logits_V[np.isfinite(logits_V)]
    return TIE_STEPS * EPSILON[dtype] * max(1.0, float(np.abs(finite).max(initial=0.0)))


def first_divergence(
    one: Sequence[int],
    other: Sequence[int],
    logits_after: Callable[[Sequence[int]], npt.NDArray[np.float32]],
    *,
    dtype: str = "bfloat16",
) -> Divergence | None:
    """Compare two greedy outputs of one prompt; None when they are identical.

    Args:
        one: tokens of the first output (the reference), without the prompt.
        other: tokens of the second.
        logits_after: logits [V] that follow the prompt and the given output tokens.
        dtype: the model's activation dtype.
    """
    longest = max(len(one), len(other))
    for position in range(longest):
        a = one[position] if position < len(one) else -1
        b = other[position] if position < len(other) else -1
        if a == b:
            continue
        row = np.asarray(logits_after(one[:position]), dtype=np.float32)
        if a < 0 or b < 0:
            return Divergence(position, (a, b), float("inf"), near_tie_epsilon(row, dtype))
        gap = float(row.max() - min(row[a], row[b]))
        return Divergence(position, (a, b), gap, near_tie_epsilon(row, dtype))
    return None


def leaves_at_near_tie(
    expected: Sequence[int],
    text: str,
    decode: Callable[[Sequence[int]], str],
    logits_after: Callable[[Sequence[int]], npt.NDArray[np.float32]],
    *,
    dtype: str = "bfloat16",
) -> bool:
    """Whether ``text`` may be the answer of a request that leaves the tokens ``expected`` at a near tie.

    For answers of which only the text is known: there must be a position up to which the texts are the same and
    where a token within the bound, other than the expected one, goes on as ``text`` does.

    Args:
        expected: tokens of the reference output, without the prompt.
        decode: output tokens to text.
        logits_after: as for :func:`first_divergence`.
    """
    for position, token in enumerate(expected):
        before = _settled(decode(expected[:position]))
        if not text.startswith(before):
            return False
        row = np.asarray(logits_after(expected[:position]), dtype=np.float32)
        bound = float(row.max()) - near_tie_epsilon(row, dtype)
        for other in np.flatnonzero(row >= bound):
            after = _settled(decode([*expected[:position], int(other)]))
            # a token without text is taken for the end of the answer
            if other != token and (text.startswith(after) if after != before else text == before):
                return True
    return False


def _settled(text: str) -> str:
    """Without the end of a character whose other bytes are still to come."""
    return text.rstrip("\ufffd")
