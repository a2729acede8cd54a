"""The choice of formats is the best there is within the bits, or refused with the least bits that there are."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantize.assignment import Choice, assign_formats, effective_bits
from trtforge.ground.errors import ForgeError

GROUPS = st.lists(
    st.lists(st.tuples(st.integers(4, 16), st.floats(0, 3, allow_nan=False)), min_size=1, max_size=3),
    min_size=1,
    max_size=5,
)


def _choices(groups: list[list[tuple[int, float]]]) -> dict[str, list[Choice]]:
    return {
        f"g{place}": [Choice(f"f{index}", bits * 100, kl) for index, (bits, kl) in enumerate(own)]
        for place, own in enumerate(groups)
    }


@settings(max_examples=60, deadline=None)
@given(groups=GROUPS, bits=st.floats(4, 16))
def test_no_other_choice_diverges_less(groups: list[list[tuple[int, float]]], bits: float) -> None:
    choices, weights = _choices(groups), 100 * len(groups)
    every = [one for one in itertools.product(*choices.values()) if sum(c.bits for c in one) <= bits * weights]
    if not every:
        with pytest.raises(ForgeError) as error:
            assign_formats(choices, weights, bits)
        least = sum(min(c.bits for c in own) for own in choices.values())
        assert error.value.code == "TF-QNT-044"
        assert error.value.numbers["least_bits"] == pytest.approx(effective_bits(least, weights), abs=1e-4)
        return
    found = assign_formats(choices, weights, bits)
    assert list(found) == list(choices) and all(found[name] in choices[name] for name in found)
    assert effective_bits(sum(c.bits for c in found.values()), weights) <= bits * (1 + 1e-9)
    best = min(sum(c.divergence for c in one) for one in every)
    assert sum(c.divergence for c in found.values()) == pytest.approx(best, rel=1e-6, abs=1e-9)


def test_the_most_sensitive_group_a_bit_gets_the_bits() -> None:
    choices = {
        "sensitive": [Choice("narrow", 400, 1.0), Choice("wide", 800, 0.1)],
        "not": [Choice("narrow", 400, 0.2), Choice("wide", 800, 0.1)],
    }
    found = assign_formats(choices, 200, 6.0)
    assert {name: choice.format for name, choice in found.items()} == {"sensitive": "wide", "not": "narrow"}
