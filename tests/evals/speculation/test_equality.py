"""Greedy answers with and without speculation: what counts as the same, and what a gate says of the rest."""

from __future__ import annotations

import numpy as np
import pytest

from evals.speculation.asking import Reply, Round
from evals.speculation.equality import (
    Equality,
    Numerics,
    answer_both,
    compare_answers,
    equality_gate,
    greedy,
    named,
)
from tests.evals.speculation.toy import ToyAsking, parts_at, right, toy_logits

PROMPTS = {"chat": [[0, 1], [2, 2, 1]], "copy": [[1]]}


def compared(asking: ToyAsking, numerics: Numerics) -> Equality:
    names, prompts = named(PROMPTS)
    base, speculated = answer_both(asking, prompts, greedy(12))
    return compare_answers(names, prompts, base, speculated, asking.logits, numerics, str)


def test_the_same_answers_pass() -> None:
    found = compared(ToyAsking(right), Numerics("float32"))
    gate = equality_gate(found, 0)
    assert (found.answers, found.tokens, found.differences) == (3, 36, ())
    assert gate.passed and gate.measured == 0
    assert found.drafted and f"{found.accepted} of {found.drafted} draft tokens accepted" in gate.detail


def test_a_wrong_token_is_named_with_its_margin_and_fails() -> None:
    found = compared(ToyAsking(parts_at(3)), Numerics("float32", noise=0.0))
    names, prompts = named(PROMPTS)
    assert names == ["chat 1", "chat 2", "copy 1"]
    assert len(found.beyond) == 3
    for one, prompt in zip(found.differences, prompts, strict=True):
        # position, tokens and margin are those of the base's own logits after the common beginning
        base = list(prompt)
        for _ in range(3):
            base.append(int(toy_logits(base).argmax()))
        row = np.sort(toy_logits(base))[::-1]
        assert one.position == 3
        assert one.tokens[0] == int(toy_logits(base).argmax()) != one.tokens[1]
        assert one.margin == pytest.approx(float(row[0] - row[1]))
    gate = equality_gate(found, 0)
    assert not gate.passed and gate.measured == 3
    assert "chat 1 at token 3" in gate.detail and "margin" in gate.detail and "bound" in gate.detail
    assert equality_gate(found, 3).passed


def test_a_near_tie_is_listed_and_excused_only_where_rows_depend_on_the_batch() -> None:
    loose = compared(ToyAsking(parts_at(3)), Numerics("float32", noise=10.0))
    assert len(loose.differences) == 3 and loose.beyond == ()
    gate = equality_gate(loose, 0)
    assert gate.passed and "3 part at a near tie" in gate.detail
    strict = compared(ToyAsking(parts_at(3)), Numerics("float32", noise=10.0, repeats_exactly=True))
    assert len(strict.beyond) == 3 and all(one.bound == 0 for one in strict.differences)


def test_an_answer_that_ends_early_is_beyond_any_tolerance() -> None:
    base, short = Reply((1, 2, 0)), Reply((1, 2), (Round(1, 1, 0),))
    found = compare_answers(
        ["chat 1"], [[0]], [base], [short], ToyAsking(right).logits, Numerics("float32", noise=10.0), str
    )
    [one] = found.beyond
    assert one.tokens == (0, -1) and one.words == ("[0]", "(its end)") and one.margin == float("inf")


def test_without_a_draft_nothing_was_tested() -> None:
    gate = equality_gate(compared(ToyAsking(right, drafts=False), Numerics()), 0)
    assert not gate.passed and "nothing was drafted" in gate.detail
