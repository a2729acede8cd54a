"""Rounds of drafts and verification: the answer is the target's own, whatever is drafted, and ends where it ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.triton_repo.stand_in_language import answer, next_token
from triton_repo.layouts.ifb_code.drafting import Rounds, drafts_wanted, words_of

END = 2


def verify(text, drafts, *, shows_end=False):
    """The target's step: its own tokens while the drafts are these, and one more; its end token is left out."""
    made = []
    for draft in [*drafts, None]:
        token = next_token([*text, *made], END)
        if token == END:
            return [*made, END] if shows_end else made
        made.append(token)
        if token != draft:
            break
    return made


@given(
    prompt=st.lists(st.integers(3, 511), min_size=1, max_size=4),
    most=st.integers(0, 6),
    count=st.integers(1, 60),
    guesses=st.lists(st.integers(0, 7), min_size=1, max_size=20),
    shows_end=st.booleans(),
)
def test_the_answer_is_the_target_s_own(prompt, most, count, guesses, shows_end):
    """``guesses`` says of each round how many drafts are right before a wrong one."""
    rounds, turn = Rounds(most, count, END, []), 0
    while not rounds.ended:
        text = [*prompt, *rounds.made]
        right = answer(text, min(rounds.room, guesses[turn % len(guesses)]), END)
        drafts = [*right, 1][: rounds.room]  # 1 is no token of the language
        before = list(rounds.made)
        new = rounds.add(drafts, verify(text, drafts, shows_end=shows_end))
        assert rounds.made == [*before, *new]
        turn += 1
        assert turn <= count + 1
    assert rounds.made == answer(prompt, count, END)
    assert 0 <= rounds.accepted <= rounds.drafted


@given(prompt=st.lists(st.integers(3, 511), min_size=1, max_size=4), at=st.integers(1, 10), most=st.integers(0, 6))
def test_a_stop_word_of_tokens_ends_it_wherever_rounds_fall(prompt, at, most):
    whole = answer(prompt, 20, END)
    stop = whole[at : at + 2]
    rounds = Rounds(most, 20, END, [[], stop] if stop else [])
    while not rounds.ended:
        text = [*prompt, *rounds.made]
        drafts = answer(text, rounds.room, END)
        rounds.add(drafts, verify(text, drafts))
    ends = [i + len(stop) for i in range(len(whole)) if stop and whole[i : i + len(stop)] == stop]
    assert rounds.made == (whole[: ends[0]] if ends else whole)


def test_a_target_that_adds_no_token_of_its_own_has_ended():
    for drafts, verified, ended in (
        ([5, 6, 7], [5, 6], True),
        ([5, 6, 7], [5, 6, 7], True),
        ([5, 6, 7], [], True),
        ([], [], True),
        ([5, 6, 7], [5, 8], False),
        ([5, 6, 7], [5, 6, 7, 8], False),
        ([], [5], False),
    ):
        rounds = Rounds(3, 10, END, [])
        assert rounds.add(drafts, verified) == verified
        assert rounds.ended == ended, (drafts, verified)


def test_words_of_a_flattened_list():
    assert words_of([[5, 6, 7, 0], [1, 3, -1, -1]]) == [[5], [6, 7]]
    assert words_of([[0], [-1]]) == [] == words_of([])


def test_how_many_drafts_a_request_gets():
    assert drafts_wanted(None, usual=4, model="d", obstacles=[]) == 4
    assert drafts_wanted(None, usual=4, model="d", obstacles=["beams"]) == 0
    assert drafts_wanted(0, usual=4, model="d", obstacles=["beams"]) == 0
    assert drafts_wanted(2, usual=4, model="d", obstacles=[]) == 2
    for asked, usual, model, obstacles, says in (
        (2, 0, "", [], "no draft model"),
        (5, 4, "d", [], "over the 4"),
        (2, 4, "d", ["beams"], "with beams"),
    ):
        with pytest.raises(ValueError, match=says):
            drafts_wanted(asked, usual=usual, model=model, obstacles=obstacles)
