"""Findings with the file and line that a person would change, for editors, CI and code scanning."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from trtforge.ground.errors import ForgeError
from trtforge.preflight.engine import Finding, Report
from trtforge.recipe.load import LoadedRecipe
from trtforge.rules import rule
from trtforge.rules.rule import Identity, Place, Told

#: a dotted key, or one of the keys that stand alone
_KEY = re.compile(
    r"\b(?:model|quantize|evals|speculation|build|triton|bench|waive)(?:\.[A-Za-z_][A-Za-z0-9_]*)+|\bstack\b"
)

_BRACES = re.compile(r":\s*\{([^{}]*)\}")
_INNER = re.compile(r"([A-Za-z_][A-Za-z0-9_]*):")


def keys_of(asked: str) -> Iterator[str]:
    """The recipe's keys that a finding's ``asked`` names, in its order; ``a.b: {c: 1}`` names ``a.b.c`` first."""
    for match in _KEY.finditer(asked):
        inside = _BRACES.match(asked, match.end())
        if inside is not None:
            for key in _INNER.finditer(inside.group(1)):
                yield f"{match.group(0)}.{key.group(1)}"
        yield match.group(0)


def place_of(loaded: LoadedRecipe, asked: str) -> Place | None:
    """The first key of ``asked`` that a file gives, or the nearest section above it.

    A key that ``--set`` gave has no line; a default is placed at its section, else at the top of the recipe.
    """
    keys = list(keys_of(asked))
    for depth in range(4):
        for key in keys:
            parts = key.split(".")
            place = loaded.place(".".join(parts[: len(parts) - depth])) if depth < len(parts) else None
            if place is not None and place.rpartition(":")[2].isdigit():
                file, _, line = place.rpartition(":")
                return Place(file, int(line))
    return Place(str(loaded.path), 1) if loaded.path is not None else None


def placed(loaded: LoadedRecipe, report: Report) -> list[Finding]:
    """The findings of a report, each at its place in the recipe's files."""
    return [finding.at(place_of(loaded, finding.asked)) for finding in report.findings]


def unapplied(loaded: LoadedRecipe, report: Report, recipe: Path, absent: str | None) -> list[rule.Finding[Told]]:
    """A note for each reason for which rules could not be applied, at ``model.source``.

    Without one a check that knew nothing of the model would read as a clean one. ``absent`` says why the model is
    not here, when that is the cause.
    """
    why = absent or "What these rules ask about was not known."
    identity = Identity("TF-CLI-017", "note", "rules of preflight that could not be applied", why)
    place = place_of(loaded, "model.source")
    return [
        rule.Finding(
            identity,
            Told(
                f"{len(codes)} of {report.rules} rules were not applied, {reason}: {', '.join(codes)}",
                _remedies(reason, recipe, absent),
            ),
            place=place,
        )
        for reason, codes in report.unapplied.items()
    ]


def _remedies(reason: str, recipe: Path, absent: str | None) -> tuple[str, ...]:
    if "build.architectures" in reason:
        return ("build.architectures names the GPUs that the engine is for",)
    return (f"trtforge run {recipe} --until intake, then the check again",) if absent else ()


def refused_model(loaded: LoadedRecipe, error: ForgeError) -> rule.Finding[Told]:
    """What intake refuses of the model, at ``model.source``."""
    return rule.refused(error, place_of(loaded, "model.source"))
