"""Recipes: a changed YAML document or text, through the loader, ``check`` and ``explain``."""

from __future__ import annotations

import random
from pathlib import Path

import yaml

from scripts.fuzz import mutate
from scripts.fuzz.harness import Attempt, Target, command
from tests.support.tiny_recipe import write_tiny_recipe
from trtforge.recipe.load import load_recipe

SHIPPED = Path(__file__).resolve().parents[2] / "configs"
PIECES = (
    "&a [*a, *a]", "*a", "<<: *a", "!!python/object/apply:os.system [true]", "!!binary x", "- ", ": ", "{", "}", "[",
    "]", "\t", "\0", "\ud7ff", "|\n", ">", "'", '"', "? ", "---\n", "...\n", "%YAML 9.9\n", "#", "0x", "1e999",
    ".nan", "~", "2026-11-30", "12:30:45", "y", "extends: ../x", "extends: tiny.yaml", "[" * 2000, "{a: " * 2000,
    "a: &b {c: *b}\n", "9" * 5000, "waive: [{rule: TF-K15-001, reason: x}]\n",
)  # fmt: skip


def make(pristine: Path) -> Attempt:
    """Over the tiny recipe and those that ship."""
    tiny = write_tiny_recipe(pristine)
    texts = [tiny.read_text(encoding="utf-8")] + [p.read_text(encoding="utf-8") for p in sorted(SHIPPED.glob("*.yaml"))]
    documents = [yaml.safe_load(text) for text in texts]

    def attempt(draw: random.Random, folder: Path) -> None:
        index = 0 if draw.random() < 0.5 else draw.randrange(len(texts))
        if draw.random() < 0.6:
            raw = mutate.dumped(draw, mutate.document(draw, documents[index]))  # JSON is YAML
        else:
            raw = mutate.text(draw, texts[index], PIECES).encode("utf-8", "surrogatepass")
        (folder / "model").symlink_to(pristine / "model")
        path = folder / "tiny.yaml"
        path.write_bytes(raw)
        asked = draw.random()
        if asked < 0.6:
            load_recipe(path)
        else:
            command("check" if asked < 0.85 else "explain", path, "--store", folder / "store")

    return attempt


RECIPES = Target("recipes", "recipes (YAML): the loader, check and explain", make, cases=40)
