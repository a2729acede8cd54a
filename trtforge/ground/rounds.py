"""What a round of speculative decoding yields and costs: the formulas that the planner and the runtime's policy share.

A round is a draft and one step of the target that verifies it. Sources: Leviathan, Kalman, Matias, "Fast Inference
from Transformers via Speculative Decoding", 2023, https://arxiv.org/abs/2211.17192 (equation 1, theorem 3.8), with an
acceptance for each position instead of one for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def survivals(acceptance: Sequence[float]) -> list[float]:
    """The chance that each draft token of a chain is kept: the product of the acceptances up to it.

    Args:
        acceptance: by position, the chance that a draft token is right once those before it were.
    """
    kept, chances = 1.0, []
    for value in acceptance:
        kept *= value
        chances.append(kept)
    return chances


def chain_tokens(acceptance: Sequence[float]) -> float:
    """Tokens that a round yields, the bonus token included: 1 + the sum of :func:`survivals`."""
    return 1.0 + sum(survivals(acceptance))


def speedup_at(tokens_a_round: float, step: float, verification: float, drafting: float) -> float:
    """Speed-up with measured or planned times (seconds): tokens × step / (verification + drafting).

    ``step`` is a plain decode step of the batch, ``verification`` the step of K + 1 tokens a request,
    ``drafting`` all draft steps of a round.
    """
    return tokens_a_round * step / (verification + drafting)


def best_length(
    acceptance: Sequence[float], verification: Callable[[int], float], drafting: Callable[[int], float]
) -> tuple[int, float]:
    """The draft length of the largest speed-up, and that; (0, 1.0) where no draft pays.

    Every length is looked at: a kernel that jumps between two sizes makes the speed-up fall and rise again.

    Args:
        acceptance: by position; as many as the longest draft has tokens.
        verification: seconds of the target's step by draft tokens a request; 0 is the plain step.
        drafting: seconds of drafting by draft tokens, asked for 1 and more.
    """
    step, tokens, best = verification(0), 1.0, (0, 1.0)
    for length, kept in enumerate(survivals(acceptance), 1):
        tokens += kept
        gain = speedup_at(tokens, step, verification(length), drafting(length))
        if gain > best[1]:
            best = length, gain
    return best
