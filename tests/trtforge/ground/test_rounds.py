"""The formulas of a round, by worked numbers."""

import pytest

from trtforge.ground.rounds import best_length, chain_tokens, speedup_at, survivals


def test_survivals_are_products_and_tokens_their_sum_and_one():
    assert survivals([0.5, 0.4, 0.25]) == pytest.approx([0.5, 0.2, 0.05])
    assert chain_tokens([0.5, 0.4, 0.25]) == pytest.approx(1.75)
    assert chain_tokens([]) == 1.0


def test_one_acceptance_for_all_gives_leviathans_sum():
    assert chain_tokens([0.6] * 4) == pytest.approx((1 - 0.6**5) / (1 - 0.6))


def test_speedup_by_hand():
    # 2.27 tokens a round; a step of 8.2 ms, five tokens verified in 10.1, four passes of 0.8
    assert speedup_at(2.27, 8.2, 10.1, 3.2) == pytest.approx(1.3996, abs=1e-3)


def test_the_best_length_is_found_beyond_a_jump():
    """Milliseconds of a kernel that jumps between four and five tokens: three drafts, or many."""
    step = {0: 4.8, 1: 5.2, 2: 6.0, 3: 6.7, 4: 9.8, 5: 10.1, 6: 10.5, 7: 10.9}
    free = lambda length: 0.0  # noqa: E731
    length, gain = best_length([0.7] * 7, step.__getitem__, free)
    assert (length, gain) == (3, pytest.approx(2.533 * 4.8 / 6.7))
    length, gain = best_length([0.95] * 7, step.__getitem__, free)
    assert (length, gain) == (7, pytest.approx((1 - 0.95**8) / 0.05 * 4.8 / 10.9))


def test_no_draft_where_none_pays():
    assert best_length([0.3, 0.3], lambda length: 1.0 + length, lambda length: 0.1 * length) == (0, 1.0)
