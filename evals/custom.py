"""Items of the user's own: JSON lines with a prompt and an answer each."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals.scorers import Scorer, check_answer
from evals.tasks import Item
from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import parse_json, read_bytes_file
from trtforge.recipe.sources import file_beside

if TYPE_CHECKING:
    from trtforge.recipe.schema_evals import Custom

MAX_BYTES = 64 * 2**20
_KEYS = {"prompt", "answer", "id"}


def custom_items(task: Custom, base_dir: Path) -> list[Item]:
    """The items of a task of the recipe; raises as :func:`load_items`."""
    return load_items(
        task.path,
        base_dir,
        name=task.name,
        scorer=Scorer(task.scorer, task.tolerance, task.ignore_case),
        max_tokens=task.max_tokens,
        chat=task.chat,
        one_line=task.one_line,
    )


def load_items(
    spec: str, base_dir: Path, *, name: str, scorer: Scorer, max_tokens: int, chat: bool, one_line: bool
) -> list[Item]:
    """The items of ``file:PATH`` below ``base_dir``, one a line: ``{"prompt": …, "answer": …}``, ``id`` if you like.

    Raises:
        ForgeError: TF-EVL-015 no such file, or outside the folder; TF-EVL-016 a line that is no item;
            TF-EVL-014 an answer that the scorer cannot use.
    """
    path = items_path(spec, base_dir)
    try:
        text = read_bytes_file(path, MAX_BYTES).decode("utf-8")
    except (OSError, ValueError) as error:
        raise _no_file(spec, str(error)) from error
    items = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            prompt, answer = _item(line, place := f"{path.name}, line {number}")
            check_answer(scorer, answer, place)
            items.append(Item(name, prompt, answer, scorer, max_tokens, chat, one_line))
    names = [item.name for item in items]
    if len(set(names)) < len(names) or not items:
        what = f"{len(names) - len(set(names))} items stand there twice" if items else "no line holds an item"
        raise ForgeError(
            "TF-EVL-016",
            f"{spec}: {what}",
            asked=spec,
            numbers={"lines": len(items)},
            why="Intervals and McNemar's test take items for independent; a copy would count twice.",
            remedies=["each item once, one a line"],
        )
    return items


def items_path(spec: str, base_dir: Path) -> Path:
    """The file that ``file:PATH`` names; raises TF-EVL-015 unless it lies below ``base_dir``."""
    try:
        return file_beside(spec, base_dir)
    except ValueError as error:
        raise _no_file(spec, str(error)) from None


def _no_file(spec: str, why: str) -> ForgeError:
    return ForgeError(
        "TF-EVL-015",
        f"the items of {spec} cannot be read: {why}",
        asked=spec,
        why="Items are JSON lines in a file beside the recipe or below its folder.",
        remedies=["path: file:items.jsonl"],
    )


def _item(line: str, place: str) -> tuple[str, str]:
    def bad(why: str) -> ForgeError:
        return ForgeError(
            "TF-EVL-016",
            f"{place}: {why}",
            asked=line[:80].encode(errors="replace").decode(),
            why="A line is a JSON object with prompt and answer, and nothing that would be ignored.",
            remedies=['{"prompt": "2 + 2 =", "answer": "4"}'],
        )

    try:
        value: Any = parse_json(line.encode(), "the line", pairs=_once, parse_constant=_no_number)
    except ValueError as error:
        raise bad(f"no JSON ({error})") from error
    if not isinstance(value, dict) or not isinstance(value.get("prompt"), str) or not value["prompt"]:
        raise bad("no object with a text prompt")
    answer = value.get("answer")
    if isinstance(answer, bool) or not isinstance(answer, (str, int, float)):
        raise bad("answer is no text and no number")
    if unknown := sorted(value.keys() - _KEYS):
        raise bad(f"unknown {', '.join(unknown)}")
    if not isinstance(value.get("id", ""), (str, int)) or isinstance(value.get("id"), bool):
        raise bad("id is no text and no number")
    texts = value["prompt"], str(answer)
    if any("\ud800" <= letter <= "\udfff" for letter in "".join(texts)):
        raise bad("half of a surrogate pair is no text")
    return texts


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(result := dict(pairs)) != len(pairs):
        raise ValueError("the same key twice")
    return result


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")
