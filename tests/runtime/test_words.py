"""Stop and bad words depend on characters only, never on how the text arrives."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given, settings

from runtime.sampling.words import BadWordFilter, StopMatcher

texts = st.text(alphabet="abc", max_size=24)
words = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), min_size=1, max_size=3)


def naive(text: str, stops: list[str], include: bool = False) -> tuple[str, str | None]:
    """Character by character: the first stop text to end wins, of those the longest."""
    for end in range(1, len(text) + 1):
        found = [s for s in stops if text[:end].endswith(s)]
        if found:
            stop = max(found, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@given(text=texts, stops=words, include=st.booleans(), data=st.data())
@settings(max_examples=400)
def test_result_does_not_depend_on_the_pieces(text: str, stops: list[str], include: bool, data: st.DataObject) -> None:
    expected, matched = naive(text, stops, include)
    matcher = StopMatcher(stops, include=include)
    shown, at = "", 0
    while at < len(text) and matcher.matched is None:
        size = data.draw(st.integers(1, 5))
        shown += matcher.push(text[at : at + size])
        at += size
        if not include:
            assert expected.startswith(shown), "part of a stop text was shown"
    if matcher.matched is None:
        shown += matcher.finish()
    assert (shown, matcher.matched) == (expected, matched)


@given(text=texts, stops=words, boundary=st.integers(0, 24))
def test_texts_that_end_before_the_matcher_is_armed_pass(text: str, stops: list[str], boundary: int) -> None:
    matcher = StopMatcher(stops)
    shown = ""
    for at, character in enumerate(text):
        shown += matcher.push(character, armed=at >= boundary)
        if matcher.matched is not None:
            break
    shown += matcher.finish()
    ends = [e for e in range(boundary + 1, len(text) + 1) if any(text[:e].endswith(s) for s in stops)]
    if ends:
        stop = max((s for s in stops if text[: ends[0]].endswith(s)), key=len)
        # a stop text that reaches back before text already let through cannot be taken back
        assert matcher.matched == stop and text[: ends[0] - len(stop)] == shown
    else:
        assert matcher.matched is None and shown == text


@given(pieces=st.lists(st.text(alphabet="ab", min_size=1, max_size=3), max_size=12), bad=words)
def test_bad_word_filter_sees_every_completion(pieces: list[str], bad: list[str]) -> None:
    current = ""
    filter_ = BadWordFilter(bad, lambda token: pieces[token])
    for token, piece in enumerate(pieces):
        would = any(word in current + piece for word in bad)
        assert filter_.completes(token) == would
        if not would:
            filter_.push(piece)
            current += piece
