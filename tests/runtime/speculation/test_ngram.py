"""The suffix automaton against brute force, and the drafts that the n-gram drafter makes of it."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.blocks.hashing import PrefixHasher
from runtime.scheduler.sequence import Sequence as TokenSequence
from runtime.speculation import ngram
from runtime.speculation.draft import Ask, Computed
from runtime.speculation.ngram import NgramDrafter, source_of
from runtime.speculation.suffix_automaton import NOTED_LINKS, Match, SuffixAutomaton

texts = st.integers(1, 4).flatmap(lambda size: st.lists(st.integers(0, size), min_size=1, max_size=60))


def brute_force(text: list[int]) -> Match:
    """The longest suffix that ends earlier too, and the last such end."""
    for length in range(len(text) - 1, 0, -1):
        found = last_end(text, length)
        if found:
            return Match(length, found)
    return Match(0, 0)


def last_end(text: list[int], length: int) -> int:
    suffix = text[len(text) - length :]
    return next((end for end in range(len(text) - 1, length - 1, -1) if text[end - length : end] == suffix), 0)


def sequence_of(tokens: list[int], capacity: int = 4096) -> TokenSequence:
    return TokenSequence("r", np.array(tokens, dtype=np.int64), capacity=capacity, hasher=PrefixHasher(16, b""))


def draft_by_hand(text: list[int], count: int, most: int) -> list[int]:
    """What followed the last earlier place of the end, running on into the draft itself."""
    end = last_end(text, min(brute_force(text).length, most))
    grown = list(text)
    for step in range(count):
        grown.append(grown[end + step])
    return grown[len(text) :]


@given(texts)
@settings(max_examples=300, deadline=None)
def test_the_automaton_finds_the_longest_match_at_every_token(text):
    automaton = SuffixAutomaton()
    for size in range(1, len(text) + 1):
        automaton.extend(text[size - 1 : size])
        known, match = text[:size], automaton.match()
        assert match.length == brute_force(known).length
        assert automaton.size == size
        if match.length:
            assert match.length <= match.end < size
            assert known[match.end - match.length : match.end] == known[size - match.length :]


@given(st.lists(st.integers(0, 3), min_size=1, max_size=NOTED_LINKS))
@settings(max_examples=300, deadline=None)
def test_the_place_is_the_last_one(text):
    automaton = SuffixAutomaton()
    automaton.extend(text)
    expected = brute_force(text)
    assert automaton.match() == expected
    for most in range(1, expected.length + 1):
        assert automaton.match(most) == Match(expected.length, last_end(text, most))


@given(texts, texts, texts)
@settings(max_examples=100, deadline=None)
def test_a_copy_goes_on_by_itself(text, one, other):
    automaton = SuffixAutomaton()
    automaton.extend(text)
    copy = automaton.copy()
    automaton.extend(one)
    copy.extend(other)
    assert automaton.match().length == brute_force(text + one).length
    assert copy.match().length == brute_force(text + other).length


@given(texts)
@settings(max_examples=50, deadline=None)
def test_an_automaton_has_fewer_than_two_states_a_token(text):
    automaton = SuffixAutomaton()
    automaton.extend(text)
    assert len(automaton._next) <= 2 * len(text)
    assert len(automaton._next) == len(automaton._links) == len(automaton._lengths) == len(automaton._ends)


@pytest.mark.parametrize("text", [[7] * 3000, list(range(50)) * 60], ids=["one token", "a phrase"])
def test_a_text_that_repeats_costs_a_token_no_more_as_it_grows(text):
    """The chain of suffix links is as long as such a text; a token walks a bounded part of it."""
    automaton = SuffixAutomaton()
    seconds = []
    for start in range(0, len(text), 1000):
        before = time.process_time()
        automaton.extend(text[start : start + 1000])
        seconds.append(time.process_time() - before)
    assert automaton.match().length >= len(text) - 50
    assert seconds[-1] < 20 * max(min(seconds), 1e-4)


def test_a_draft_is_what_followed_the_last_place():
    text = [1, 2, 3, 4, 5, 9, 1, 2, 3, 7, 8, 1, 2, 3]
    drafter = NgramDrafter()
    [draft] = drafter.propose([Ask(sequence_of(text), 2)])
    assert draft.tokens.tolist() == [7, 8]
    assert draft.tokens.dtype == np.int64
    assert (draft.source, draft.parents) == ("ngram/3", None)


def test_a_repeated_phrase_is_drafted_on_past_the_texts_end():
    [draft] = NgramDrafter().propose([Ask(sequence_of([5, 1, 2, 3, 1, 2, 3, 1, 2]), 7)])
    assert draft.tokens.tolist() == [3, 1, 2, 3, 1, 2, 3]


@given(texts, st.integers(1, 9), st.integers(1, 5))
@settings(max_examples=200, deadline=None)
def test_drafts_equal_those_of_brute_force(text, count, most):
    [draft] = NgramDrafter(most, 1).propose([Ask(sequence_of(text), count)])
    length = brute_force(text).length
    if not length:
        assert draft is None
    elif len(text) <= NOTED_LINKS:
        assert draft.tokens.tolist() == draft_by_hand(text, count, most)
        assert draft.source == source_of(length)
    else:
        assert len(draft) == count


def test_the_sizes_that_are_asked_for_bind():
    sequence = sequence_of([1, 2, 3, 4, 9, 2, 3, 4, 8, 1, 2, 3, 4])
    assert NgramDrafter(8, 5).propose([Ask(sequence, 1)]) == [None]
    assert NgramDrafter(8, 4).propose([Ask(sequence, 1)])[0].tokens.tolist() == [9]
    assert NgramDrafter(3, 2).propose([Ask(sequence, 1)])[0].tokens.tolist() == [8]  # the last place of three tokens


def test_a_match_has_its_class():
    assert [source_of(length) for length in (1, 2, 3, 4, 7, 8, 15, 16, 500)] == [
        *("ngram/1", "ngram/2", "ngram/3", "ngram/4-7", "ngram/4-7", "ngram/8-15", "ngram/8-15"),
        *("ngram/16+", "ngram/16+"),
    ]


def test_no_draft_without_a_match_or_a_count():
    drafter = NgramDrafter()
    assert drafter.propose([Ask(sequence_of([1, 2, 3]), 4), Ask(sequence_of([1, 1, 1, 1]), 0)]) == [None, None]


def test_a_long_prompt_is_taken_in_slice_by_slice(monkeypatch):
    monkeypatch.setattr(ngram, "TOKENS_A_CALL", 10)
    long, short = sequence_of([1, 2, 3] * 9), sequence_of([4, 5, 4, 5])
    drafter = NgramDrafter()
    assert [draft is not None for draft in drafter.propose([Ask(long, 2), Ask(short, 2)])] == [False, True]
    drafter.observe([Computed(long, 0, np.arange(5)), Computed(short, 0, np.arange(1), speculates=False)], None)
    assert drafter.describe()["tokens"] == 20
    drafter.observe([Computed(long, 5, np.arange(5))], None)
    [draft] = drafter.propose([Ask(long, 4)])
    assert draft.tokens.tolist() == [1, 2, 3, 1]


def test_output_counts_as_it_comes():
    sequence = sequence_of([1, 2, 3])
    drafter = NgramDrafter()
    assert drafter.propose([Ask(sequence, 2)]) == [None]
    for token in (9, 1, 2):
        sequence.append(token)
    [draft] = drafter.propose([Ask(sequence, 2)])
    assert draft.tokens.tolist() == [3, 9]


def test_preemption_changes_nothing_and_a_draft_is_no_view_of_the_text():
    sequence = sequence_of([1, 2, 3, 1, 2])
    drafter = NgramDrafter()
    [before] = drafter.propose([Ask(sequence, 1)])
    sequence.computed, sequence.blocks = 0, []
    drafter.observe([Computed(sequence, 0, np.arange(2))], None)
    [after] = drafter.propose([Ask(sequence, 1)])
    assert before.tokens.tolist() == after.tokens.tolist() == [3]
    sequence.tokens[:] = 0
    assert before.tokens.tolist() == [3]


def test_forks_go_their_own_way_and_leaving_frees():
    parent = sequence_of([1, 2, 3, 1])
    drafter = NgramDrafter()
    drafter.propose([Ask(parent, 1)])
    child = parent.fork(1)
    drafter.fork(parent, [child])
    assert drafter.describe()["tokens"] == 8
    parent.append(2)
    child.append(1)
    drafts = drafter.propose([Ask(parent, 1), Ask(child, 1)])
    assert drafts[0].tokens.tolist() == [3]
    assert drafts[1] is None
    drafter.leave(parent)
    drafter.leave(parent)
    assert (drafter.describe()["sequences"], drafter.describe()["tokens"]) == (1, 5)
    drafter.close()
    assert drafter.describe()["sequences"] == 0


def test_a_long_text_is_held_in_bounded_memory(monkeypatch):
    monkeypatch.setattr(ngram, "MOST_TOKENS", 16)
    sequence = sequence_of([1, 2])
    drafter = NgramDrafter()
    for step in range(200):
        [draft] = drafter.propose([Ask(sequence, 3)])
        if step > 60 and draft is not None:
            assert draft.tokens.tolist() == [(step + offset) % 5 + 10 for offset in range(3)]
        assert drafter.describe()["tokens"] <= 16
        sequence.append(step % 5 + 10)
    assert draft is not None


def test_two_thousand_tokens_take_a_few_milliseconds():
    """The bound is ten times what a busy machine needs: a stall would be a hundred times it."""
    rng = np.random.default_rng(3)
    prompt = rng.zipf(1.3, 2000) % 49152
    automaton = SuffixAutomaton()
    before = time.process_time()
    automaton.extend(prompt.tolist())
    assert time.process_time() - before < 0.05
