"""What a target says of its engines to people: ``trtforge engine info`` shows it, the bundle's report takes its rows.

A target's ``info`` module offers ``engine_info`` (the document; ``missing``: files of the engine that are gone),
``describe`` (the document in words),
``report_rows`` (rows of the report, of the build's summary) and ``use`` where it is not served in the common way.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Rows = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Table:
    """A table with a title."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Description:
    """An engine in words.

    Attributes:
        heading: one line.
        about: what it is; what it drafts by is said behind it.
        parts: what it is made of.
        each: tables of every part, for whoever asks for each.
        verdicts: what remains when everything else is left out.
        broken: whether something is not as it was built or asked.
    """

    heading: str
    about: Table
    parts: tuple[Table, ...] = ()
    each: tuple[Table, ...] = ()
    verdicts: tuple[str, ...] = ()
    broken: bool = False


@dataclass(frozen=True)
class Use:
    """How to use what a build made: a title, a text, and blocks of commands in which BUNDLE is the bundle's folder."""

    title: str
    text: str
    blocks: tuple[str, ...] = field(default=())


def missing_files(artifact: Path, names: Iterable[str]) -> list[str]:
    """Those of an engine's files that are gone."""
    return [name for name in names if not os.path.isfile(artifact / name)]  # noqa: PTH113  no name makes it raise


def limit_rows(document: Mapping[str, Any]) -> list[list[str]]:
    """The engine's limits, a row each."""
    return [[key, str(value)] for key, value in document["limits"].items()]
