"""The keys that a recipe may have, read from the schema: for messages, documents and completion."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trtforge.ground.names import nearest
from trtforge.recipe.schema import Recipe


@dataclass(frozen=True)
class Key:
    """One key: its dotted path, its field, and the section model that it opens (None for a value)."""

    path: tuple[str, ...]
    field: FieldInfo
    section: type[BaseModel] | None

    @property
    def dotted(self) -> str:
        return ".".join(self.path)


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section model behind an annotation such as ``Gate`` or ``Gate | None``; None for plain values."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        for part in typing.get_args(annotation):
            found = section_of(part)
            if found is not None:
                return found
    return None


def _walk(model: type[BaseModel], path: tuple[str, ...]) -> Iterator[Key]:
    for name, field in model.model_fields.items():
        section = section_of(field.annotation)
        yield Key((*path, name), field, section)
        if section is not None:
            yield from _walk(section, (*path, name))


@cache
def all_keys() -> tuple[Key, ...]:
    """Every key of the recipe in the order of the schema."""
    return tuple(_walk(Recipe, ()))


def find_key(path: tuple[str, ...]) -> Key | None:
    return next((key for key in all_keys() if key.path == path), None)


def siblings(path: tuple[str, ...]) -> list[str]:
    """The names that may stand where ``path`` stands."""
    names = [key.path[-1] for key in all_keys() if key.path[:-1] == path[:-1]]
    return [*names, "extends"] if len(path) == 1 else names


def suggest(path: tuple[str, ...]) -> str | None:
    """The full dotted path of the known key nearest to the unknown ``path``: here first, then anywhere."""
    here = nearest(path[-1], siblings(path))
    if here is not None:
        return ".".join((*path[:-1], here))
    elsewhere: dict[str, str] = {}
    for key in all_keys():
        elsewhere.setdefault(key.path[-1], key.dotted)
    found = difflib.get_close_matches(path[-1], list(elsewhere), n=1, cutoff=0.8)
    return elsewhere[found[0]] if found else None
