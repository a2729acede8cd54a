"""The arguments of TensorRT-LLM's ``LLM()`` as data, and keys that a YAML text gives twice."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import model_validator

from trtforge.ground.rows import Row, read_table, safe_loader

#: values of a model.yaml; no real one has a hundredth of it
MAX_NODES = 10_000
_TABLE = Path(__file__).parents[1] / "tables" / "llm_arguments.yaml"


class DecodingType(Row):
    """A ``decoding_type``: whether it drafts with weights of its own, and which releases know the name."""

    draft: bool = False
    since: str | None = None
    until: str | None = None
    instead: str | None = None


class Removed(Row):
    """Where the setting of a removed name is now: ``to`` takes its value, ``inverse`` the opposite of its boolean."""

    to: str | None = None
    inverse: str | None = None
    says: str | None = None

    @model_validator(mode="after")
    def _one(self) -> Removed:
        if sum(part is not None for part in (self.to, self.inverse, self.says)) != 1:
            raise ValueError("one of `to`, `inverse` and `says`")
        return self


class Choice(Row):
    """The values of a key; ``fold``: case does not matter; ``loose``: another case is a warning."""

    values: tuple[str, ...]
    fold: bool = False
    loose: bool = False


class GuidedFault(Row):
    """A way to speculate that guided decoding does not go with, until a release (None: still)."""

    types: tuple[str, ...]
    key: str
    until: str | None = None
    refused: bool = False
    says: str
    source: str


class Arguments(Row):
    """Names, values and removed names by section of ``model.yaml`` (dotted); the empty section is its top."""

    as_of: str
    sources: tuple[str, ...]
    wrapper: tuple[str, ...]
    known: dict[str, tuple[str, ...]]
    choices: dict[str, Choice]
    lists: tuple[str, ...]
    guided_with_speculation: tuple[GuidedFault, ...]
    removed: dict[str, dict[str, Removed]]
    engine_only: tuple[str, ...]
    decoding_types: dict[str, DecodingType]
    engine_decoding_types: tuple[str, ...]

    @model_validator(mode="after")
    def _consistent(self) -> Arguments:
        keys = {f"{section}.{name}" if section else name for section, names in self.known.items() for name in names}
        named = [*self.choices, *self.lists, *(section for section in self.known if section)]
        named += [row.to or row.inverse or "" for rows in self.removed.values() for row in rows.values()]
        unknown = sorted(name for name in named if name and name not in keys)
        if unknown:
            raise ValueError(f"no such keys: {', '.join(unknown)}")
        return self


@cache
def load_arguments() -> Arguments:
    """The shipped table (cached)."""
    return read_table(_TABLE, Arguments)


def aliases_grow(root: Any) -> str | None:
    """Why the nodes of a YAML document are too many once its aliases are followed; None for one that is fine."""
    sizes: dict[int, int] = {}
    todo: list[tuple[Any, bool]] = [(root, False)]
    open_nodes: set[int] = set()
    while todo:
        node, done = todo.pop()
        if done:
            open_nodes.discard(id(node))
            sizes[id(node)] = 1 + sum(sizes[id(child)] for child in _children(node))
            if sizes[id(node)] > MAX_NODES:
                return f"its aliases make it more than {MAX_NODES} values"
        elif id(node) in open_nodes:
            return "an alias stands inside of what it names"
        elif id(node) not in sizes:
            open_nodes.add(id(node))
            todo.append((node, True))
            todo += [(child, False) for child in _children(node)]
    return None


def _children(node: Any) -> list[Any]:
    value = node.value if node is not None else None
    if not isinstance(value, list):
        return []
    return [part for item in value for part in (item if isinstance(item, tuple) else (item,))]


def keys_twice(text: str) -> Iterator[tuple[str, int, int]]:
    """(key, line, first line) of every key that a mapping of a YAML text gives again; lines from 1.

    The text must parse, and its aliases must not grow (:func:`aliases_grow`).
    """
    import yaml

    todo = [yaml.compose(text, Loader=safe_loader())]
    while todo:
        node = todo.pop()
        if isinstance(node, yaml.MappingNode):
            first: dict[str, int] = {}
            for key, value in node.value:
                todo.append(value)
                line = key.start_mark.line + 1
                if isinstance(key, yaml.ScalarNode) and key.value in first:
                    yield key.value, line, first[key.value]
                elif isinstance(key, yaml.ScalarNode):
                    first[key.value] = line
        elif isinstance(node, yaml.SequenceNode):
            todo += node.value
