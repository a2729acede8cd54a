"""The text that a drafter is trained on: prompts and the target's answers as token ids, in JSON lines.

A part is a file of its own, complete or not there, so that a killed generation goes on behind its last part.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from trtforge.ground.errors import ForgeError


@dataclass(frozen=True)
class Conversation:
    """One prompt with its answer.

    Attributes:
        kind: the class of the prompt.
        greedy: answered greedily, else sampled.
        prompt: token ids, the chat template's among them.
        answer: token ids, with the end token where it came.
    """

    kind: str
    greedy: bool
    text: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.prompt + self.answer


def part_file(folder: Path, number: int) -> Path:
    """Where part ``number`` lies."""
    return folder / f"part-{number:05d}.jsonl"


def write_part(path: Path, conversations: Iterable[Conversation]) -> None:
    """Write a part; it appears complete."""
    draft = path.with_suffix(".tmp")
    with draft.open("w", encoding="utf-8") as file:
        for conversation in conversations:
            file.write(json.dumps(asdict(conversation), ensure_ascii=False) + "\n")
    draft.replace(path)


def read_part(path: Path) -> list[Conversation]:
    """Read a part.

    Raises:
        ForgeError: ``TF-DRF-031`` it is no part that :func:`write_part` wrote.
    """
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [
            Conversation(
                str(row["kind"]), bool(row["greedy"]), str(row["text"]), tuple(row["prompt"]), tuple(row["answer"])
            )
            for row in rows
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ForgeError(
            "TF-DRF-031",
            f"{path.name} is no text of a drafter's training: {error}",
            asked=str(path),
            why="It was written by another version, by hand, or it was damaged.",
            remedies=["remove the file and run the command again: it is made anew"],
        ) from error


def parts(folder: Path) -> Iterator[Path]:
    """The parts in a folder, in order."""
    yield from sorted(folder.glob("part-*.jsonl"))
