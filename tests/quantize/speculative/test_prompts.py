"""Training prompts: always the same, of every class, and none of the held-out ones."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from evals.speculation.prompts import CLASSES, held_out
from quantize.speculative.prompts import SHARES, prompt, tables

GAP = re.compile(r"\{\w+\}")
#: words in a row that two prompts may share before they count as one template's
RUN = 5


def runs(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"[a-z0-9']+", text.lower())
    return {tuple(words[place : place + RUN]) for place in range(len(words) - RUN + 1)}


def literal_runs() -> set[tuple[str, ...]]:
    """Runs of words that a training template has in itself, without what fills its gaps."""
    kinds = [kind for kind in SHARES if kind != "self"]
    texts = [text for kind in kinds for text in tables()[kind]] + tables()["sentences"] + tables()["lists"]["task"]
    return {run for text in texts for piece in GAP.split(text) for run in runs(piece)}


def test_a_prompt_depends_on_seed_and_index_alone() -> None:
    first = [prompt(7, index) for index in range(50)]
    assert [prompt(7, index) for index in reversed(range(50))] == first[::-1]
    assert [prompt(8, index) for index in range(50)] != first


def test_classes_come_in_their_shares_and_half_is_greedy() -> None:
    made = [prompt(1, index) for index in range(2000)]
    seen = Counter(item.kind for item in made)
    for kind, share in SHARES.items():
        assert abs(seen[kind] / 20 - share) < 4, kind
    assert 0.46 < sum(item.greedy for item in made) / len(made) < 0.54


def test_every_gap_of_every_template_is_filled() -> None:
    made = [prompt(2, index) for index in range(3000)]
    names = {*tables()["lists"], "document", "record"}
    left = [item.text for item in made for gap in GAP.findall(item.text) if gap[1:-1] in names]
    assert left == []
    unknown = {
        gap[1:-1] for kind in SHARES if kind != "self" for text in tables()[kind] for gap in GAP.findall(text)
    } - names
    assert unknown == set()


def test_held_out_prompts_are_many_and_of_no_training_template() -> None:
    trained = literal_runs()
    assert len(trained) > 200  # the comparison has something to compare with
    for kind in CLASSES:
        prompts = held_out()[kind]
        assert len(set(prompts)) == len(prompts) >= 24, kind
        for text in prompts:
            assert not runs(text) & trained, text


@pytest.mark.parametrize(
    "text", [tables()["chat"][1].replace("{topic}", "a kite"), "x. Write unit tests for a Python function that y."]
)
def test_the_comparison_would_find_a_prompt_of_a_training_template(text: str) -> None:
    assert runs(text) & literal_runs()
