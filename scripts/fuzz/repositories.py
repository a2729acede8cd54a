"""Triton repositories: ``config.pbtxt``, ``model.yaml`` and ``model.json``, through ``triton lint``."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from scripts.fuzz import mutate
from scripts.fuzz.harness import Attempt, Target, command
from tests.triton_repo import corpus_llm, corpus_published, corpus_triton  # noqa: F401 - they fill the corpus
from tests.triton_repo.corpus import CORPUS

PIECES = (
    "{", "}", "[", "]", ":", ",", "<", ">", '"', "'", "#", "\\", "\0", "\ufeff", "\n", "-1", "0x7fffffff", "1e999",
    "9" * 5000, "max_batch_size: 8", "input [", "{ name: ", 'key: "x"', "value: {", "string_value: ", "TYPE_FP32",
    "dims: [ -1 ]", "true", "{ " * 500, "[" * 500, "ensemble_scheduling { step [", "dynamic_batching { }", "&a [*a]",
    "- ", "? ", "!!python/name:os.system", "\\377", "\\u12", "inf", "nan", "name: name", "reshape { shape: [] }",
)  # fmt: skip
_READ = {".pbtxt", ".yaml", ".json", ".py", ".onnx"}


def make(pristine: Path) -> Attempt:
    """The published repositories of the tests' corpus."""
    for repository in CORPUS:
        (pristine / repository.name).mkdir()
        repository.build(pristine / repository.name)
    names = [repository.name for repository in CORPUS]

    def attempt(draw: random.Random, folder: Path) -> None:
        repository = folder / "repository"
        shutil.copytree(pristine / draw.choice(names), repository)
        files = [path for path in sorted(repository.rglob("*")) if path.suffix in _READ and path.is_file()]
        texts = [path for path in files if path.suffix != ".onnx"]
        for _ in range(draw.choice((1, 1, 2))):
            path = draw.choice(texts if texts and draw.random() < 0.8 else files)
            raw = path.read_bytes()
            if path.suffix == ".onnx" or draw.random() < 0.2:
                path.write_bytes(mutate.data(draw, raw))
            else:
                text = mutate.text(draw, raw.decode("utf-8", "surrogateescape"), PIECES)
                path.write_bytes(text.encode("utf-8", "surrogateescape"))
        command("triton", "lint", repository)

    return attempt


REPOSITORIES = Target("repositories", "Triton repositories: lint", make)
