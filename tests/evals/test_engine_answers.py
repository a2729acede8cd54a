"""The engine's own answers: what the reference would have written passes, a loop does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from evals.engine_answers import SHORT_PROMPTS, Question, agreement_gate, answer_questions, short_questions
from evals.generation import Answer, compare, sanity_gate

VOCAB = 64
#: the reference goes through all tokens in turn, its second best is the token after the next
TABLE = torch.zeros(VOCAB, VOCAB)
for token in range(VOCAB):
    TABLE[token, (token + 1) % VOCAB] = 8.0
    TABLE[token, (token + 2) % VOCAB] = 7.5
QUESTIONS = [Question("first", (3, 4), True), Question("second", (9,), True), Question("short", (20,), False)]


def decode(tokens: Sequence[int]) -> str:
    return "".join(f" w{token}" for token in tokens)


def stepping(step: Callable[[int, int], int]) -> Callable[[Sequence[int], int], list[int]]:
    """An engine that goes on from its last token and the number of tokens so far."""

    def generate(ids: Sequence[int], max_tokens: int) -> list[int]:
        answer: list[int] = []
        last = ids[-1]
        for position in range(max_tokens):
            last = step(last, position) % VOCAB
            answer.append(last)
        return answer

    return generate


def answered(generate: Callable[[Sequence[int], int], Sequence[int]], noise: float = 0.0):
    return answer_questions(
        generate, lambda ids: TABLE[ids], QUESTIONS, decode=decode, max_tokens=24, activations="float32", noise=noise
    )


def baseline() -> list[Answer]:
    return answered(stepping(lambda last, _: last + 1)).to_baseline()


def test_the_references_own_words_pass() -> None:
    found = answered(stepping(lambda last, _: last + 1))
    assert (found.tokens, found.agreed, found.parted) == (72, 72, ())
    assert agreement_gate(found, 0.99).passed
    assert [answer.prompt for answer in found.to_baseline()] == ["first", "second"]
    assert sanity_gate(compare(baseline(), found.to_baseline()), 1.0, "engine_sanity").passed
    assert found.to_json()["sane"] == 3


@pytest.mark.parametrize(
    "step",
    [
        lambda last, position: 7,
        lambda last, position: last + 1 if position < 8 else 11 + position % 2,
        lambda last, position: (last + 1) if position < 4 else (5, 6, 7)[position % 3],
    ],
    ids=["from the first token", "after a right beginning", "a phrase"],
)
def test_a_loop_fails(step: Callable[[int, int], int]) -> None:
    found = answered(stepping(step))
    gate = agreement_gate(found, 0.99)
    assert not gate.passed and gate.name == "engine_answers" and gate.measured < 0.99
    assert "'first' at token" in gate.detail and "logits below" in gate.detail and "near-tie bound is" in gate.detail


def test_a_loop_is_not_sane() -> None:
    found = answered(stepping(lambda last, position: (5, 6, 7)[position % 3]))
    gate = sanity_gate(compare(baseline(), found.to_baseline()), 0.5, "engine_sanity")
    assert gate.name == "engine_sanity" and not gate.passed and "'first' (repeats itself" in gate.detail


def test_near_ties_are_the_noises_business() -> None:
    generate = stepping(lambda last, position: last + (2 if position % 4 == 0 else 1))
    assert not agreement_gate(answered(generate), 0.99).passed
    assert agreement_gate(answered(generate, noise=0.2), 0.99).passed, "0.5 logits are within three times 0.2"


def test_an_engine_that_says_nothing_fails() -> None:
    found = answered(lambda ids, max_tokens: [])
    assert found.tokens == 0 and not agreement_gate(found, 0.5).passed
    assert not sanity_gate(compare(baseline(), found.to_baseline()), 0.5, "engine_sanity").passed


def test_short_prompts_are_short_and_from_different_places() -> None:
    found = short_questions(list(range(100)), decode)
    assert [len(question.token_ids) for question in found] == list(SHORT_PROMPTS)
    assert len({question.token_ids[0] for question in found}) == len(found)
    assert not any(question.baseline for question in found) and found[0].name == "1 tokens:  w0"
