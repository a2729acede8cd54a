"""Prompts that speculation is measured on: four classes, of other templates than those that a drafter is trained on.

``chat`` and ``code`` are questions, ``copy`` asks for text that stands in the prompt, ``open`` is text to go on with,
without a chat template.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from trtforge.ground.errors import ForgeError
from trtforge.ground.rows import read_yaml

CLASSES = ("chat", "code", "copy", "open")
#: the class that stands outside of a chat
CONTINUED = "open"
FILE = Path(__file__).parent / "prompts.yaml"


@cache
def held_out() -> dict[str, tuple[str, ...]]:
    """Texts by class, in the order of :data:`CLASSES`."""
    loaded = read_yaml(FILE)
    return {kind: tuple(loaded[kind]) for kind in CLASSES}


def tokens_of(tokenizer: Any, kind: str, text: str) -> list[int]:
    """A prompt's tokens: as a user's turn where the model has a chat template and the class is one of a chat's."""
    if kind == CONTINUED or tokenizer.chat_template is None:
        return list(tokenizer.encode(text))
    rendered = tokenizer.render_chat([{"role": "user", "content": text}])
    return list(tokenizer.encode(rendered, add_special_tokens=False))


def chosen(tokenizer: Any, count: int, longest: int) -> dict[str, list[list[int]]]:
    """The first ``count`` prompts of each class that have at most ``longest`` tokens.

    Raises:
        ForgeError: ``TF-EVL-012`` a class has too few.
    """
    found: dict[str, list[list[int]]] = {}
    for kind, texts in held_out().items():
        fitting: list[list[int]] = []
        shortest = 0
        for text in texts:
            if len(fitting) == count:
                break
            ids = tokens_of(tokenizer, kind, text)
            shortest = min(shortest or len(ids), len(ids))
            if len(ids) <= longest:
                fitting.append(ids)
        if len(fitting) < count:
            raise ForgeError(
                "TF-EVL-012",
                f"{len(fitting)} prompts of class {kind} fit, {count} are asked for",
                asked=f"evals.speculation.prompts: {count}",
                numbers={"prompts": len(texts), "fit": len(fitting), "longest_tokens": longest, "shortest": shortest},
                why="A prompt and its answer must fit in build.limits.max_seq_len, the prompt in max_input_len.",
                remedies=_remedies(len(fitting), len(texts)),
            )
        found[kind] = fitting
    return found


def _remedies(fitting: int, there: int) -> Sequence[str]:
    longer = ["a smaller evals.speculation.max_tokens", "larger build.limits.max_seq_len and max_input_len"]
    fewer = [f"evals.speculation.prompts: {fitting}"] if fitting else []
    return [*fewer, *([] if fitting == there else longer)]
