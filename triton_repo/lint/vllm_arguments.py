"""The arguments of vLLM's ``AsyncEngineArgs`` as data."""

from __future__ import annotations

from functools import cache, cached_property
from pathlib import Path
from typing import Any

from packaging.version import Version

from trtforge.ground.rows import Row, read_table

_TABLE = Path(__file__).parents[1] / "tables" / "vllm_arguments.yaml"


class Gone(Row):
    """A name that later releases do not have; ``to`` and ``inverse`` say where its value goes, ``says`` in words."""

    last: str
    gone: str
    to: str | None = None
    inverse: str | None = None
    says: str | None = None


class VllmArguments(Row):
    """Names by the kinds of JSON value that they take, and the names that are gone."""

    as_of: str
    sources: tuple[str, ...]
    releases: tuple[str, ...]
    errors_until: str
    known: dict[str, tuple[str, ...]]
    choices: dict[str, tuple[str, ...]]
    counts: tuple[str, ...]
    removed: dict[str, Gone]

    @cached_property
    def kinds(self) -> dict[str, tuple[str, ...]]:
        """Name → the kinds that it takes; none where any value may be right."""
        return {
            name: () if kinds == "any" else tuple(kinds.split(" or "))
            for kinds, names in self.known.items()
            for name in names
        }

    def is_error(self, row: Gone) -> bool:
        """Whether the name went so long ago that no container in use has it."""
        return Version(row.gone) <= Version(self.errors_until)


@cache
def load_vllm_arguments() -> VllmArguments:
    """The shipped table (cached)."""
    return read_table(_TABLE, VllmArguments)


def kind_of(value: object) -> str:
    """What kind of JSON value it is."""
    names: dict[type, str] = {bool: "boolean", int: "integer", float: "number", str: "text", dict: "mapping"}
    return names.get(type(value), "list" if isinstance(value, list) else "null")


def fits(value: object, kinds: tuple[str, ...]) -> bool:
    """Whether a value is of one of the kinds: whole numbers are numbers, and 0 and 1 are booleans to Python."""
    kind = kind_of(value)
    return (
        not kinds
        or kind == "null"
        or kind in kinds
        or (kind == "integer" and "number" in kinds)
        or (kind == "number" and "integer" in kinds and float(value).is_integer())  # type: ignore[arg-type]
        or (kind == "integer" and "boolean" in kinds and value in (0, 1))
    )


def meant(value: object, kinds: tuple[str, ...]) -> Any:
    """The value in the kind that is wanted, where the text says it; None where it does not."""
    import json

    if not isinstance(value, str):
        return None
    try:
        read = json.loads(value.strip().lower() if value.strip().lower() in ("true", "false") else value)
    except ValueError:
        return None
    return read if fits(read, kinds) and read is not None else None
