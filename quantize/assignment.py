"""Which format each group of linears gets, for the least divergence within so many bits a weight.

A multiple-choice knapsack: every group takes one of its choices, the bits of all stay within a budget, the sum of the
divergences is least. It is solved exactly (HiGHS, by :func:`scipy.optimize.milp`).

Effective bits are counted as ModelOpt's AutoQuantize counts them by its cost model ``weight``: stored bits over the
number of weights, here with every scale, over the linears that a recipe quantizes. What it excludes (an output head
that is the embedding, say) and the embedding itself are no part of either number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trtforge.ground.errors import ForgeError


@dataclass(frozen=True)
class Choice:
    """A format for a group: how a recipe writes it, bits of all its tensors, and what it diverges alone, nats."""

    format: str
    bits: int
    divergence: float


def effective_bits(bits: int, weights: int) -> float:
    """Stored bits a weight."""
    return bits / weights


def assign_formats(choices: Mapping[str, Sequence[Choice]], weights: int, bits: float) -> dict[str, Choice]:
    """One choice for each group, with the least sum of divergences whose bits a weight are at most ``bits``.

    Args:
        choices: of every group, at least one.
        weights: of all groups together.
        bits: largest number of stored bits a weight.

    Raises:
        ForgeError: ``TF-QNT-044`` no choices are that small; the numbers say what the smallest are.
    """
    least = sum(min(choice.bits for choice in own) for own in choices.values())
    if least > bits * weights:
        lowest = effective_bits(least, weights)
        raise ForgeError(
            "TF-QNT-044",
            f"No choice of these formats has {bits:g} bits a weight or fewer",
            asked=f"{bits:g} bits",
            numbers={"least_bits": round(lowest, 4), "weights": weights},
            why="Every linear that the recipe quantizes has to get one of the formats, its scales included.",
            remedies=[
                f"--bits {round(lowest + 0.05, 1):g} or more",
                "--formats with one of fewer bits",
                "quantize.exclude: what needs 16 bits is not counted",
            ],
        )
    return _solve(choices, bits * weights)


def _solve(choices: Mapping[str, Sequence[Choice]], budget: float) -> dict[str, Choice]:
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    names = [name for name, own in choices.items() for _ in own]
    every = [choice for own in choices.values() for choice in own]
    places = {name: row for row, name in enumerate(choices)}
    one_each = csr_array(
        (np.ones(len(every)), ([places[name] for name in names], range(len(every)))), shape=(len(places), len(every))
    )
    # in units of the budget and of the worst divergence, so that the solver's tolerances mean the same for every model
    sizes = np.array([choice.bits for choice in every]) / budget
    costs = np.array([choice.divergence for choice in every])
    result = milp(
        costs / (costs.max() or 1.0),
        constraints=[LinearConstraint(one_each, 1, 1), LinearConstraint(sizes[None, :], -np.inf, 1)],
        integrality=np.ones(len(every)),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 0.0},
    )
    if result.x is None:
        raise RuntimeError(f"the solver found no choice: {result.message}")
    found = {name: choice for name, choice, taken in zip(names, every, result.x, strict=True) if taken > 0.5}
    if sum(choice.bits for choice in found.values()) > budget * (1 + 1e-9) or set(found) != set(choices):
        raise RuntimeError(f"the solver's choice breaks its bounds: {result.message}")
    return found
