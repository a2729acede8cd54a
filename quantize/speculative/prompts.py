"""Prompts that a target answers to make the text that its drafter is trained on.

Prompt ``index`` of a seed is always the same one, whatever was asked for before, so a killed generation goes on where
it stopped. Two sources: templates of four classes (``prompts.yaml``), and turns that the target makes up itself, which
is the class ``self`` here: this module says where, and the caller lets the model write them.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from trtforge.ground.rows import read_yaml

PromptClass = Literal["chat", "code", "copy", "open", "self"]

# Shares of a hundred prompts. Self-made turns are the most diverse ones; copying and plain continuation are what
# templates of questions would never show a drafter.
SHARES: Mapping[PromptClass, int] = {"chat": 24, "code": 22, "copy": 12, "open": 10, "self": 32}
DOCUMENT_SENTENCES = (3, 6)
_GAP = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Prompt:
    """One prompt to answer.

    Attributes:
        text: the user's turn; of ``open`` a text to continue without a chat template; of ``self`` empty, until the
            target wrote it.
        greedy: answered greedily, else sampled.
        seed: of the sampling.
    """

    index: int
    kind: PromptClass
    text: str
    greedy: bool
    seed: int


@cache
def tables() -> dict[str, Any]:
    """``prompts.yaml``."""
    loaded: dict[str, Any] = read_yaml(Path(__file__).with_name("prompts.yaml"))
    return loaded


def prompt(seed: int, index: int) -> Prompt:
    """Prompt ``index`` (from 0) of ``seed``."""
    made = random.Random(f"{seed}/{index}")
    kind = made.choices(list(SHARES), weights=list(SHARES.values()))[0]
    text = "" if kind == "self" else _filled(made.choice(tables()[kind]), made)
    return Prompt(index, kind, text, greedy=made.random() < 0.5, seed=made.randrange(2**31))


def _filled(template: str, made: random.Random) -> str:
    """The template with its gaps filled; no value twice."""
    used: set[str] = set()

    def fill(gap: re.Match[str]) -> str:
        name = gap.group(1)
        if name == "document":
            count = made.randint(*DOCUMENT_SENTENCES)
            return " ".join(_filled(sentence, made) for sentence in made.sample(tables()["sentences"], count))
        if name == "record":
            return _filled(tables()["record"], made)
        value = made.choice([item for item in tables()["lists"][name] if item not in used])
        used.add(value)
        return str(value)

    # A function body in a template has braces of no gap: only {word} is one.
    return _GAP.sub(fill, template)
