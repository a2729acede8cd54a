"""Findings with the file and line that a person would change, for editors, CI and code scanning."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from trtforge.ground.annotations import Annotation
from trtforge.ground.errors import ForgeError
from trtforge.preflight.engine import Finding, Report
from trtforge.recipe.load import LoadedRecipe

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


def place_of(loaded: LoadedRecipe, asked: str) -> tuple[str | None, int | None]:
    """File and line of the first key of ``asked`` that a file gives, or of the nearest section above it.

    A key that ``--set`` gave has no line; a default is placed at its section, else at the top of the recipe.
    """
    keys = list(keys_of(asked))
    for depth in range(4):
        for key in keys:
            parts = key.split(".")
            place = loaded.place(".".join(parts[: len(parts) - depth])) if depth < len(parts) else None
            if place is not None and place.rpartition(":")[2].isdigit():
                file, _, line = place.rpartition(":")
                return file, int(line)
    return (str(loaded.path), 1) if loaded.path is not None else (None, None)


def annotate(loaded: LoadedRecipe, report: Report) -> list[Annotation]:
    """The findings of a report as annotations of the recipe's files."""
    return [_annotation(loaded, finding) for finding in report.findings]


def _annotation(loaded: LoadedRecipe, finding: Finding) -> Annotation:
    file, line = place_of(loaded, finding.asked)
    return Annotation(
        finding.code,
        finding.severity,
        finding.message,
        file,
        line,
        help="; ".join(finding.remedies),
        source=finding.source or "",
        title=finding.title,
        why=finding.why,
        waived=finding.waived,
    )


def unapplied(loaded: LoadedRecipe, report: Report, recipe: Path, absent: str | None) -> list[Annotation]:
    """A note for each reason for which rules could not be applied, at ``model.source``.

    Without one a check that knew nothing of the model would read as a clean one. ``absent`` says why the model is
    not here, when that is the cause.
    """
    file, line = place_of(loaded, "model.source")
    return [
        Annotation(
            "TF-CLI-017",
            "note",
            f"{len(codes)} of {report.rules} rules were not applied, {reason}: {', '.join(codes)}",
            file,
            line,
            help=_remedy(reason, recipe, absent),
            title="rules of preflight that could not be applied",
            why=absent or "What these rules ask about was not known.",
        )
        for reason, codes in report.unapplied.items()
    ]


def _remedy(reason: str, recipe: Path, absent: str | None) -> str:
    if "build.architectures" in reason:
        return "build.architectures names the GPUs that the engine is for"
    return f"trtforge run {recipe} --until intake, then the check again" if absent else ""


def refusal_annotation(loaded: LoadedRecipe, error: ForgeError) -> Annotation:
    """What intake refuses of the model, as an annotation of ``model.source``."""
    file, line = place_of(loaded, "model.source")
    return Annotation(
        error.code,
        "error",
        error.message,
        file,
        line,
        help="; ".join(error.remedies),
        title=error.message,
        why=error.why or "",
    )
