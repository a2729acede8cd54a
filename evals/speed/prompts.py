"""Prompts for load tests: a built-in mix of lengths, a class that drafts are measured on, or a file of lines."""

from __future__ import annotations

from pathlib import Path

from evals.speculation.prompts import CLASSES, held_out
from trtforge.ground.errors import ForgeError
from trtforge.recipe.sources import file_beside, names_file

_TOPICS = (
    "how a paged key-value cache keeps memory from fragmenting",
    "why the sea is salty and rivers are not",
    "the difference between a process and a thread",
    "what makes bread rise in the oven",
    "how a hash table finds a key in constant time",
    "why leaves change colour in autumn",
    "what a compiler does between parsing and code generation",
    "how vaccines train the immune system",
)
_FILLER = (
    "Keep the answer factual and name one concrete example. "
    "Assume the reader knows school mathematics but no jargon. "
    "Start with the main point, then give the reason, then a limitation. "
)


def load_prompts(spec: str, base_dir: Path) -> list[str]:
    """Prompts named by a recipe's ``bench.prompts``.

    Raises:
        ForgeError: TF-BEN-001 unknown name; TF-BEN-002 unreadable, outside its folder, or empty file.
    """
    if spec == "builtin:mixed":
        return [f"Explain {topic}. " + _FILLER * (i % 4) for i, topic in enumerate(_TOPICS * 4)]
    if spec == "builtin:short":
        return [f"Explain {topic}." for topic in _TOPICS]
    if spec.removeprefix("builtin:") in CLASSES and spec.startswith("builtin:"):
        return list(held_out()[spec.removeprefix("builtin:")])
    if names_file(spec):
        return _from_file(spec, base_dir)
    raise ForgeError(
        "TF-BEN-001",
        "unknown prompt set",
        asked=f"bench.prompts: {spec}",
        remedies=[
            *(f"builtin:{name}" for name in ("mixed", "short", *CLASSES)),
            "file:prompts.txt (one prompt a line)",
        ],
    )


def _from_file(spec: str, base_dir: Path) -> list[str]:
    try:
        lines = file_beside(spec, base_dir).read_text(encoding="utf-8").splitlines()
        prompts = [line for line in lines if line.strip()]
        if not prompts:
            raise ValueError("it has no line with text")
    except (OSError, ValueError) as error:
        raise ForgeError(
            "TF-BEN-002",
            "the prompt file cannot be used",
            asked=f"bench.prompts: {spec}",
            numbers={"folder": str(base_dir.resolve())},
            why=str(error),
            remedies=["a UTF-8 text file beside the recipe, one prompt a line", "builtin:mixed"],
        ) from None
    return prompts
