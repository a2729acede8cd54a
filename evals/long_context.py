"""Long contexts: a needle in a text by depth and length, and the same tokens scored under growing contexts.

Quantized models break first where the context is long: rope scaling, a KV cache of few bits, attention over many keys.
The needle is a sentence of its own in ordinary text and is asked for at the end. For perplexity the *same* last tokens
of a text are scored after contexts of every length, so that lengths differ by their context alone and are paired.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evals.gates import at_most
from evals.perplexity import Window
from evals.scorers import Scorer
from evals.statistics import Interval, McNemar, block_mean, growth
from evals.tasks import Item, drop_gate
from trtforge.ground.errors import ForgeError
from trtforge.recipe.schema_evals import LongContextGate
from trtforge.store.artifact import GateResult

TASK = "needle"
#: of how needles are made
VERSION = 2
#: the gates
NEEDLES_GATE, INCREASE_GATE = "long_context_needles", "long_context_increase"
#: tokens that are scored at the end of every context
TAIL = 128
_ANSWER_TOKENS = 8
#: tokens that a tokenizer may put before a prompt
_BEGIN = 1
_CITIES = ("Lima", "Oslo", "Cairo", "Hanoi", "Quito", "Riga", "Accra", "Tunis")


@dataclass(frozen=True)
class Needle:
    """An item with where its needle lies: tokens of the prompt, and its depth from 0 (beginning) to 1 (end)."""

    item: Item
    length: int
    depth: float


def needles(
    tokens: Sequence[int],
    decode: Callable[[Sequence[int]], str],
    encode: Callable[[str], Sequence[int]],
    *,
    lengths: Sequence[int],
    depths: Sequence[float],
    samples: int,
) -> list[Needle]:
    """``samples`` prompts with the needle at each depth; a prompt and its answer fill a length and are never above it.

    Raises:
        ForgeError: TF-EVL-017 when the corpus is shorter than the longest prompt.
    """
    found = []
    for length in lengths:
        for depth in depths:
            for number in range(samples):
                draw = random.Random(f"trtforge needle {VERSION} {length} {depth} {number}")
                city, secret = draw.choice(_CITIES), str(draw.randint(10000, 99999))
                fact = f"\nThe secret number of {city} is {secret}.\n"
                question = f"\nQuestion: What is the secret number of {city}?\nAnswer: The secret number of {city} is"
                room = length - _BEGIN - _ANSWER_TOKENS
                hay = _stretch(tokens, room - len(encode(fact)) - len(encode(question)), draw)
                prompt = _placed(hay, fact, question, depth, decode)
                # text that is cut and read again may be other tokens than before
                while hay and (over := len(encode(prompt)) - room) > 0:
                    hay = hay[: -min(over, len(hay))]
                    prompt = _placed(hay, fact, question, depth, decode)
                pattern = rf"^\s*{secret}\b"
                item = Item(TASK, prompt, pattern, Scorer("regex"), _ANSWER_TOKENS)
                found.append(Needle(item, length, float(depth)))
    return found


def _placed(hay: Sequence[int], fact: str, question: str, depth: float, decode: Callable[[Sequence[int]], str]) -> str:
    at = round(depth * len(hay))
    return decode(hay[:at]) + fact + decode(hay[at:]) + question


def _stretch(tokens: Sequence[int], length: int, draw: random.Random) -> list[int]:
    if not 0 < length <= len(tokens):
        raise _too_short(len(tokens), length)
    begin = draw.randint(0, len(tokens) - length)
    return [int(token) for token in tokens[begin : begin + length]]


def _too_short(tokens: int, length: int) -> ForgeError:
    return ForgeError(
        "TF-EVL-017",
        "the corpus is too short for the long-context probe",
        asked="evals.long_context.lengths",
        numbers={"tokens": tokens, "needed": length},
        why="The needle lies in text of the corpus; text that is repeated would be another task.",
        remedies=["shorter evals.long_context.lengths", "a longer text as evals.perplexity.corpus"],
    )


def tail_plan(tokens: Sequence[int], lengths: Sequence[int]) -> tuple[list[int], list[Window]]:
    """The text, and a window a length that scores its last :data:`TAIL` tokens; lengths ascend.

    Raises:
        ForgeError: TF-EVL-017 when the corpus is shorter than the longest context.
    """
    longest = max(lengths)
    if longest > len(tokens):
        raise _too_short(len(tokens), longest)
    text = [int(token) for token in tokens[:longest]]
    return text, [Window(longest - length, longest, longest - TAIL) for length in sorted(lengths)]


def tail_figures(baseline: np.ndarray | None, own: np.ndarray, lengths: Sequence[int]) -> list[dict[str, Any]]:
    """Perplexity of the tail under each context, and beside a baseline the paired increase.

    Losses are [lengths × TAIL], by ascending length.
    """
    rows = []
    for index, length in enumerate(sorted(lengths)):
        part = slice(index * TAIL, (index + 1) * TAIL)
        row: dict[str, Any] = {"length": length, "perplexity": float(np.exp(own[part].mean()))}
        if baseline is not None:
            grown = growth(block_mean(own[part] - baseline[part], block=16))
            row |= {"baseline": float(np.exp(baseline[part].mean())), "increase": grown.to_json()}
        rows.append(row)
    return rows


def needle_figures(placed: Sequence[Mapping[str, Any]], right: Mapping[str, bool]) -> list[dict[str, Any]]:
    """Right answers by length and depth; ``placed`` are needles as records of name, length and depth."""
    cells: dict[tuple[int, float], list[bool]] = {}
    for needle in placed:
        cells.setdefault((int(needle["length"]), float(needle["depth"])), []).append(right[needle["name"]])
    return [
        {"length": length, "depth": depth, "right": sum(found), "of": len(found)}
        for (length, depth), found in cells.items()
    ]


def long_context_gates(
    needles: McNemar, tail: Sequence[Mapping[str, Any]], gate: LongContextGate, prefix: str = ""
) -> list[GateResult]:
    """The verdicts: needles lost net of those found anew, and the perplexity at the length that loses most.

    Args:
        tail: rows of :func:`tail_figures` beside a baseline; none where the perplexity was not measured.
        prefix: stands before the gates' names.
    """
    found = [] if gate.max_drop is None else [drop_gate(f"{prefix}{NEEDLES_GATE}", needles, gate.max_drop)]
    if gate.max_increase is not None and tail:
        worst = max(tail, key=lambda row: float(row["increase"]["high"]))
        pair = float(worst["baseline"]), float(worst["perplexity"])
        one = at_most(f"{prefix}{INCREASE_GATE}", Interval(**worst["increase"]), gate.max_increase, pair=pair)
        at = f"; the worst of {len(tail)} contexts, {worst['length']} tokens"
        found.append(replace(one, detail=one.detail + at))
    return found
