"""The offline suite: generated tasks with one right answer each, the same items on every machine.

Four kinds, made by a seeded generator, so that nothing is fetched and no model has learnt them by heart: *recall* (a
value from the lines of the prompt), *arithmetic*, *pattern* (how a sequence goes on) and *format* (an instruction about
the form of the answer, shown by examples). Small base models do them by their examples; what they measure is whether a
quantized model still does what the unquantized one did, item by item.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from evals.scorers import Scorer
from evals.tasks import Item

if TYPE_CHECKING:
    from trtforge.recipe.schema_evals import SuiteTask


# fmt: off
_WORDS = [
    "apple", "river", "stone", "candle", "window", "garden", "silver", "bridge", "forest", "pencil", "bottle",
    "basket", "mirror", "hammer", "button", "island", "ladder", "pepper", "rabbit", "saddle", "tunnel", "velvet",
    "walnut", "yellow", "anchor", "butter", "copper", "dragon", "engine", "feather",
]
_NAMES = [
    "Anna", "Boris", "Clara", "David", "Elena", "Felix", "Grace", "Henry", "Irene", "Jakob", "Karen", "Louis",
    "Maria", "Nikos", "Olga", "Peter",
]
# fmt: on
_EXACT, _BEGINS = Scorer("exact"), Scorer("regex")


def _recall(draw: random.Random) -> tuple[str, str]:
    """Who has what, in lines; then the same lines in another order, the last one to be ended."""
    pairs = list(zip(draw.sample(_NAMES, 5), draw.sample(_WORDS, 5), strict=True))
    again = draw.sample(pairs, 3)
    lines = [f"{name}: {word}" for name, word in [*pairs, *again[:-1]]]
    name, word = again[-1]
    return "\n".join([*lines[:5], "The same in another order:", *lines[5:], f"{name}:"]), word


def _arithmetic(draw: random.Random) -> tuple[str, str]:
    def line(a: int, b: int, plus: bool) -> tuple[str, int]:
        return (f"{a} + {b} =", a + b) if plus else (f"{a + b} - {b} =", a)

    made = [line(draw.randint(1, 12), draw.randint(1, 9), draw.random() < 0.6) for _ in range(5)]
    examples = "".join(f"{text} {value}\n" for text, value in made[:-1])
    return examples + made[-1][0], str(made[-1][1])


def _pattern(draw: random.Random) -> tuple[str, str]:
    """Words that come again and again, or numbers with one step; what comes next."""
    if draw.random() < 0.5:
        period = draw.sample(_WORDS, draw.randint(2, 4))
        length = 3 * len(period) + draw.randrange(len(period))
        return ", ".join(period[i % len(period)] for i in range(length)) + ",", period[length % len(period)]
    begin, step = draw.randint(1, 20), draw.randint(1, 5)
    numbers = [str(begin + step * i) for i in range(7)]
    return ", ".join(numbers[:-1]) + ",", numbers[-1]


def _format(draw: random.Random) -> tuple[str, str]:
    words = draw.sample(_WORDS, 4)
    instruction, shape = draw.choice(_SHAPES)
    examples = "".join(f"Input: {word}\nOutput: {shape(word)}\n" for word in words[:-1])
    return f"{instruction}\n{examples}Input: {words[-1]}\nOutput:", shape(words[-1])


_SHAPES: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("Write the word in brackets.", lambda word: f"[{word}]"),
    ("Write the word twice with a dash between.", lambda word: f"{word}-{word}"),
    ("Write the word as a JSON object with the key word.", lambda word: f'{{"word": "{word}"}}'),
    ("Write the word with a colon and its first letter.", lambda word: f"{word}: {word[0]}"),
)
#: task → generator and tokens of an answer
_TASKS: dict[SuiteTask, tuple[Callable[[random.Random], tuple[str, str]], int]] = {
    "recall": (_recall, 6),
    "arithmetic": (_arithmetic, 5),
    "pattern": (_pattern, 5),
    "format": (_format, 14),
}
TASKS: tuple[SuiteTask, ...] = tuple(_TASKS)


def suite_items(samples: int, tasks: Sequence[SuiteTask] = TASKS) -> list[Item]:
    """``samples`` different items of each task; more samples begin with the same ones."""
    items = []
    for task in tasks:
        make, tokens = _TASKS[task]
        seen: set[str] = set()
        number = 0
        while len(seen) < samples:
            prompt, answer = make(random.Random(f"trtforge suite 1 {task} {number}"))
            number += 1
            if prompt not in seen:
                seen.add(prompt)
                # a sequence goes on after the answer: its beginning is what counts
                right = (rf"^\s*{answer}\b", _BEGINS) if task == "pattern" else (answer, _EXACT)
                items.append(Item(task, prompt, *right, tokens, one_line=True))
    return items
