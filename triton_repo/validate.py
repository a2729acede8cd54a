"""Checks a repository as a unit before a server sees it: the rules of :mod:`triton_repo.lint` that are errors.

Triton reports static faults only in its log, waits for ever on a version folder without ``model.py``,
and accepts some configurations that cannot work; these rules find them first.
"""

from __future__ import annotations

from pathlib import Path

from triton_repo.lint.hits import Finding
from triton_repo.lint.run import lint_repository
from trtforge.ground.errors import ForgeError


def validate_repository(repository: Path, engine_dir: Path | None = None) -> list[Finding]:
    """Errors and warnings of a repository; empty when it can be served.

    Args:
        repository: the model repository.
        engine_dir: engine that a ``native`` model will serve, where its own relative reference does not
            reach it yet (before a bundle is put together).

    Raises:
        ForgeError: TF-TRI-100 when there is no such folder.
    """
    return [finding for finding in lint_repository(repository, engine_dir).findings if finding.severity != "note"]


def require_valid(repository: Path, engine_dir: Path | None = None, *, place: Path | None = None) -> None:
    """Raise TF-TRI-021 naming every error finding.

    Args:
        place: where the repository will lie, when it is checked before it is moved there: what is said names
            this folder, since the other will be gone.
    """
    errors = [f for f in validate_repository(repository, engine_dir) if f.severity == "error"]
    if not errors:
        return

    def said(text: str) -> str:
        return text if place is None else text.replace(str(repository), str(place))

    raise ForgeError(
        "TF-TRI-021",
        f"the model repository has {len(errors)} fault{'s' if len(errors) > 1 else ''}",
        asked=said(str(repository)),
        why=said("; ".join(f"{f.code} {f.path}{f':{f.line}' if f.line else ''}: {f.message}" for f in errors)),
        remedies=sorted({said(f.remedy) for f in errors}),
    )
