"""A JSON document with another value at one of its places: what a record looks like after a hand changed it."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

#: the place itself is removed
GONE = object()
#: what may stand where something else belongs
ODD: tuple[Any, ...] = (
    GONE,
    None,
    [],
    {},
    "",
    "x",
    -1,
    0,
    10**30,
    math.inf,
    math.nan,
    True,
    [None],
    {"a": 1},
    3.5,
    "\ud800",
    "a\0b",
)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place below the document itself."""
    for key, below in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*at, key)
        yield from places(below, (*at, key))


def changed(document: Any, at: tuple[Any, ...], value: Any) -> Any:
    """A copy with ``value`` at a place; the empty place is the document itself."""
    if not at:
        return None if value is GONE else value
    document = copy.deepcopy(document)
    holder = document
    for key in at[:-1]:
        holder = holder[key]
    if value is GONE:
        del holder[at[-1]]
    else:
        holder[at[-1]] = value
    return document
