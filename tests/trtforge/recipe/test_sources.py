"""``file:PATH`` means the same to everyone who reads it, and stays in the recipe's folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evals.custom import items_path
from evals.harness import local_task
from evals.speed.prompts import load_prompts
from quantize.corpora import load_corpus
from tests.support.sources import python_files
from trtforge.ground.errors import ForgeError
from trtforge.recipe.load import recipe_from_mapping
from trtforge.recipe.sources import file_beside, is_fetched, names_file, path_beside

READERS: dict[str, tuple[Callable[[str, Path], Any], str]] = {
    "corpus": (lambda spec, folder: load_corpus(spec, folder, "evaluation"), "TF-QNT-021"),
    "items": (items_path, "TF-EVL-015"),
    "task": (local_task, "TF-EVL-027"),
    "prompts": (load_prompts, "TF-BEN-002"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A recipe's folder, and what a path in it may lead to."""
    here = tmp_path / "recipe"
    (here / "a-folder").mkdir(parents=True)
    (here / "text.txt").write_text("task: one\n\ntwo\n")
    (tmp_path / "outside.txt").write_text("task: secret\n")
    (here / "leaves").symlink_to(tmp_path / "outside.txt")
    (here / "circle").symlink_to("circle")
    os.mkfifo(here / "pipe")
    return here


BAD = {
    "file:../outside.txt": "outside the recipe's folder",
    "file:leaves": "outside the recipe's folder",
    "file:circle": "circle",
    "file:none.txt": "no such file",
    "file:a-folder": "no such file",
    "file:pipe": "no such file",
    "file:a\0b": "NUL",
    f"file:{'x' * 300}": "too long",
}


@pytest.mark.parametrize("spec", BAD, ids=[repr(spec)[:24] for spec in BAD])
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.timeout(60)  # who opens a pipe waits for ever
def test_every_reader_refuses_the_same(folder: Path, reader: str, spec: str) -> None:
    read, code = READERS[reader]
    with pytest.raises(ForgeError) as caught:
        read(spec, folder)
    assert caught.value.code == code
    assert BAD[spec] in f"{caught.value.message} {caught.value.why}"


def test_a_file_beside_is_found(folder: Path) -> None:
    assert file_beside("file:text.txt", folder) == folder / "text.txt"
    assert path_beside("file:not/yet.txt", folder) == folder / "not/yet.txt"
    with pytest.raises(ValueError, match="file:PATH"):
        path_beside("file:", folder)


@pytest.mark.parametrize("spec", ["file:../outside.txt", "file:leaves", "file:circle", "file:a\0b", "file:/etc/passwd"])
def test_a_recipe_that_names_such_a_file_is_refused(folder: Path, spec: str) -> None:
    with pytest.raises(ForgeError, match="TF-RCP-013"):
        recipe_from_mapping(
            {"name": "x", "model": {"source": "m"}, "evals": {"perplexity": {"corpus": spec}}}, directory=folder
        )


def test_what_is_fetched() -> None:
    assert [text for text in ("hf:a/b", "pypi:a==1#b", "file:a", "model", "HF:a/b") if is_fetched(text)] == [
        "hf:a/b",
        "pypi:a==1#b",
    ]
    assert names_file("file:a") and not names_file("builtin:a")


def test_nobody_else_knows_how_they_begin() -> None:
    knows = {
        name
        for name, path in python_files()
        if any(word in path.read_text() for word in ('("hf:", "pypi:")', '("pypi:", "hf:")', '("file:")'))
    }
    assert knows == {"trtforge/recipe/sources.py"}
