"""Planted faults: a valid repository, one small change, and the code, file and line that lint must name."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.triton_repo.corpus_llm import chain, engine_folder

Build = Callable[[Path], None]


@dataclass(frozen=True)
class Plant:
    """One planted fault.

    Args:
        name: what is wrong.
        code: the rule that must find it.
        base: the builder of the valid repository.
        file: the file that is changed, below the repository.
        old, new: the change; ``old`` empty appends ``new``.
        at: a text of the changed file whose (last) line the finding must name; None: the file as a whole.
        where: the file that the finding must name, when it is another one.
    """

    name: str
    code: str
    base: Build
    file: str
    old: str
    new: str
    at: str | None = ""
    where: str | None = None
    change: Callable[[Path], None] | None = field(default=None, compare=False)

    def plant(self, root: Path) -> tuple[Path, int | None]:
        """Build the repository with the fault; returns the file and the line that lint must name."""
        self.base(root)
        if self.change is not None:
            self.change(root)
        if self.file and (self.old or self.new):
            path = root / self.file
            text = path.read_text(encoding="utf-8")
            if self.old:
                assert self.old in text, f"{self.name}: {self.old!r} is not in {self.file}"
                text = text.replace(self.old, self.new, 1)
            else:
                text += self.new
            path.write_text(text, encoding="utf-8")
        named = root / (self.where or self.file)
        if self.at is None:
            return named, None
        lines = named.read_text(encoding="utf-8").split("\n")
        marker = self.at or self.new.strip().split("\n")[0].strip()
        found = [number for number, line in enumerate(lines, start=1) if marker in line]
        assert found, f"{self.name}: {marker!r} is not in {named}"
        return named, found[-1]


def ifb(**options: Any) -> Build:
    """The chain of inflight_batcher_llm."""
    return lambda root: chain(root, **options)


def with_engine(values: dict[str, str] | None = None, **build: Any) -> Build:
    """The chain in front of an engine that can be read."""

    def make(root: Path) -> None:
        engine = engine_folder(root.parent / "engine", **build)
        chain(root, values={"gpt_model_path": str(engine), **(values or {})})

    return make


def remove(*paths: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        for path in paths:
            target = root / path
            shutil.rmtree(target) if target.is_dir() else target.unlink()

    return change


def move(old: str, new: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        (root / old).rename(root / new)

    return change


def write(path: str, text: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")

    return change


SIMPLE, SEQ, IMAGES = "simple/config.pbtxt", "simple_sequence/config.pbtxt", "ensemble_model/config.pbtxt"
ENGINE, PRE, POST = "tensorrt_llm/config.pbtxt", "preprocessing/config.pbtxt", "postprocessing/config.pbtxt"
ENSEMBLE, BLS = "ensemble/config.pbtxt", "tensorrt_llm_bls/config.pbtxt"
