"""Speculation: the literature's numbers, trees, and the batch where it stops paying."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.planner.speculation import (
    ASSUMED_ACCEPTANCE,
    DRAFT_COST,
    NONE,
    Speculating,
    acceptance_by_rank,
    assumed,
    expected_tokens,
    expected_tokens_of_tree,
    paying_batches,
)
from tests.support.refusals import refusal
from trtforge.ground.rounds import speedup_at


@pytest.mark.parametrize(("acceptance", "tokens", "gain"), [(0.9, 4.69, 3.7), (0.7, 2.94, 2.4), (0.5, 1.97, 1.6)])
def test_five_drafts_of_a_draft_twenty_times_as_fast(acceptance: float, tokens: float, gain: float) -> None:
    assert expected_tokens(acceptance, 5) == pytest.approx(tokens, abs=0.005)
    # the literature cuts 3.75 and 2.35 to a digit
    assert speedup_at(expected_tokens(acceptance, 5), 1.0, 1.0, 5 / 20) == pytest.approx(gain, abs=0.055)


@given(st.floats(0, 1), st.integers(0, 12))
def test_a_round_is_the_sum_of_the_chances(acceptance: float, length: int) -> None:
    tokens = expected_tokens(acceptance, length)
    assert tokens == pytest.approx(sum(acceptance**depth for depth in range(length + 1)))
    assert 1 <= tokens <= length + 1
    assert tokens <= expected_tokens(acceptance, length + 1)


@given(st.floats(0, 1), st.integers(1, 6))
def test_a_tree_of_one_branch_is_a_chain(acceptance: float, length: int) -> None:
    chain = [(0,) * depth for depth in range(1, length + 1)]
    assert expected_tokens_of_tree(chain, [acceptance]) == pytest.approx(expected_tokens(acceptance, length))


def test_branches_add_their_chances() -> None:
    tree = [(0,), (1,), (0, 0), (0, 1)]
    assert expected_tokens_of_tree(tree, [0.6, 0.2]) == pytest.approx(1 + 0.6 + 0.2 + 0.6 * 0.6 + 0.6 * 0.2)


@pytest.mark.parametrize(
    ("choices", "acceptance"),
    [([(0, 0)], [0.5]), ([(0,), (0,)], [0.5]), ([(1,)], [0.5]), ([()], [0.5])],
)
def test_trees_that_are_none(choices: list[tuple[int, ...]], acceptance: list[float]) -> None:
    assert refusal(expected_tokens_of_tree, choices, acceptance).code == "TF-PLN-051"


def test_numbers_outside_their_range() -> None:
    assert refusal(expected_tokens, 1.2, 4).code == "TF-PLN-050"
    assert refusal(expected_tokens, float("nan"), 4).code == "TF-PLN-050"
    assert refusal(expected_tokens, 0.5, -1).code == "TF-PLN-050"
    assert refusal(expected_tokens_of_tree, [(0,), (1,)], [0.7, 0.7]).code == "TF-PLN-050"
    assert refusal(assumed, "ngram", 4, 1.5).code == "TF-PLN-050"
    assert refusal(paying_batches, lambda batch: 1.0, 0).code == "TF-PLN-050"


@given(st.integers(2, 1024))
def test_the_crossings_are_found(crossing: int) -> None:
    assert paying_batches(lambda batch: 2.0 if batch < crossing else 0.9, 1024) == [(1, crossing - 1)]
    assert paying_batches(lambda batch: 2.0 if batch >= crossing else 0.9, 1024) == [(crossing, 1024)]


def test_it_may_pay_always_never_or_between() -> None:
    assert paying_batches(lambda batch: 1.5, 1024) == [(1, 1024)]
    assert paying_batches(lambda batch: 1.5, 1) == [(1, 1)]
    assert paying_batches(lambda batch: 0.5, 1024) == []
    assert paying_batches(lambda batch: 1.5 if 12 <= batch <= 300 else 0.7, 1024) == [(12, 300)]


def test_gain_with_measured_times() -> None:
    assert speedup_at(2.94, 0.020, 0.022, 5 * 0.001) == pytest.approx(2.94 * 20 / 27)
    # a verification as cheap as a step: theorem 3.8 of Leviathan et al.
    assert speedup_at(expected_tokens(0.7, 5), 1.0, 1.0, 5 / 20) == pytest.approx((1 - 0.7**6) / 0.3 / (1 + 5 / 20))


def test_what_a_recipes_method_means() -> None:
    assert assumed("none") is NONE
    assert (NONE.verified_tokens, NONE.draft_steps, NONE.tokens_a_round) == (1, 0, (1.0, 1.0))
    guess = assumed("eagle3", 5)
    assert (guess.verified_tokens, guess.draft_steps, guess.measured) == (6, 5, False)
    assert guess.tokens_a_round[0] < guess.tokens_a_round[1]
    known = assumed("eagle3", 5, 0.7)
    assert known.measured and known.tokens_a_round == (expected_tokens(0.7, 5),) * 2
    assert set(ASSUMED_ACCEPTANCE) == set(DRAFT_COST)


def test_a_static_tree_verifies_its_nodes() -> None:
    choices = ((0,), (1,), (0, 0))
    tree = Speculating("medusa", 2, (0.6, 0.6), choices=choices)
    assert (tree.verified_tokens, tree.draft_steps) == (4, 2)
    assert tree.tokens_a_round == (pytest.approx(1 + 0.6 + 0.24 + 0.36),) * 2


@given(st.floats(0, 1), st.integers(1, 10))
def test_candidates_of_a_node_are_tried_in_turn(acceptance: float, ranks: int) -> None:
    chances = acceptance_by_rank(acceptance, ranks)
    assert sum(chances) == pytest.approx(1 - (1 - acceptance) ** ranks)
    # more candidates never yield less
    wide = [(rank,) for rank in range(ranks)]
    assert expected_tokens_of_tree(wide, chances) >= expected_tokens(acceptance, 1) - 1e-12
