"""YAML text to plain values, with the line of every key.

Policy: one document of plain mappings, lists and scalars, at most 1 MiB of UTF-8. Duplicate keys are an
error (YAML readers keep the last one in silence); merge keys (``<<``) are refused because ``extends`` does
that job visibly; tags are refused; anchors are allowed, but what they expand to is counted, so that a small file cannot
grow into a large one. Dates and times stay text.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trtforge.ground.errors import ForgeError
from trtforge.recipe.shipped import shipped_folder

MAX_BYTES = 1 << 20
MAX_VALUES = 50_000
MAX_DEPTH = 24

KeyPath = tuple[str | int, ...]


class _Loader(yaml.SafeLoader):
    """The safe loader without dates and without numbers in base 60: ``2026-01-01`` and ``1:30`` stay text."""


_PLAIN = "tag:yaml.org,2002:"
_TAGS = frozenset(_PLAIN + name for name in ("str", "int", "float", "bool", "null", "map", "seq", "merge"))
_NUMBERS = {
    _PLAIN + "int": re.compile(r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)$"),
    _PLAIN + "float": re.compile(
        r"(?:[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, _NUMBERS.get(tag, pattern)) for tag, pattern in resolvers if tag != _PLAIN + "timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


@dataclass(frozen=True)
class Document:
    """A parsed recipe file: its values, and ``file:line`` of every key by its path."""

    data: dict[str, Any]
    where: Mapping[KeyPath, str] = field(default_factory=dict)


def dotted(path: KeyPath) -> str:
    """``("bench", "concurrency", 0)`` as ``bench.concurrency[0]``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def read_document(path: Path) -> Document:
    """Read and parse one recipe file; raises TF-RCP-001 … 006."""
    try:
        # a shell's <(…) is no regular file and has no size; a device has no end
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
            size = max(os.fstat(file.fileno()).st_size, len(raw))
        if len(raw) > MAX_BYTES:
            raise ForgeError(
                "TF-RCP-002",
                f"{path} is too large for a recipe",
                asked=str(path),
                numbers={"bytes": size, "limit": MAX_BYTES},
                why="A recipe is a page of settings; a file of this size is something else.",
                remedies=["give the recipe's own YAML file"],
            )
    except OSError as error:
        raise ForgeError(
            "TF-RCP-001",
            f"cannot read the recipe {path}: {error.strerror or error}",
            asked=str(path),
            why="Every command that takes a recipe starts by reading it.",
            remedies=["check the path", "trtforge init SOURCE -o FILE writes a recipe for a model"],
        ) from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ForgeError(
            "TF-RCP-003",
            f"{path} is not UTF-8 text",
            asked=str(path),
            numbers={"byte": error.start},
            why="Recipes are YAML in UTF-8.",
            remedies=["save the file as UTF-8"],
        ) from error
    return parse_document(text, str(path))


def parse_document(text: str, label: str) -> Document:
    """Parse YAML ``text``; ``label`` names it in errors. Raises TF-RCP-004 … 006."""
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise _syntax_error(error, label) from error
    except RecursionError:
        raise _too_deep(label) from None
    if not isinstance(node, yaml.MappingNode):
        raise ForgeError(
            "TF-RCP-006",
            f"{label} holds no recipe: the top level must be a mapping of keys",
            asked=label,
            why="A recipe starts with keys such as name: and model:.",
            remedies=[f"start from one that ships ({shipped_folder()})", "trtforge init SOURCE writes one"],
        )
    walker = _Walker(label)
    data = walker.value(node, ())
    assert isinstance(data, dict)
    return Document(data, walker.where)


def parse_scalar(text: str, label: str) -> Any:
    """The value that ``text`` has as YAML (for ``--set``)."""
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise _syntax_error(error, label) from error
    except RecursionError:
        raise _too_deep(label) from None
    return None if node is None else _Walker(label).value(node, ())


def _too_deep(label: str) -> ForgeError:
    """The reader itself is recursive: it gives up on nesting long before the values can be counted."""
    return ForgeError(
        "TF-RCP-006",
        f"{label} is nested too deeply",
        asked=label,
        numbers={"depth_limit": MAX_DEPTH},
        why="A recipe is a page of settings, a few levels deep.",
        remedies=["close the brackets that are open", f"start from one that ships ({shipped_folder()})"],
    )


def _syntax_error(error: yaml.YAMLError, label: str) -> ForgeError:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    where = label if mark is None else f"{label}:{mark.line + 1}:{mark.column + 1}"
    problem = " ".join(
        str(part) for part in (getattr(error, "context", None), getattr(error, "problem", None)) if part
    ) or str(error)
    return ForgeError(
        "TF-RCP-004",
        f"{where}: this is not valid YAML: {problem}",
        asked=where,
        numbers={} if mark is None else {"line": mark.line + 1, "column": mark.column + 1},
        why="The file cannot be read any further.",
        remedies=["check indentation (spaces, not tabs), colons and quotes at that place"],
    )


class _Walker:
    """Builds values from YAML nodes, counting them and noting where each key stands."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.where: dict[KeyPath, str] = {}
        self._count = 0
        self._scalars = _Loader("")

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self._count += 1
        if self._count > MAX_VALUES or len(path) > MAX_DEPTH:
            raise ForgeError(
                "TF-RCP-006",
                f"{self._at(node)}: the recipe expands to too many or too deeply nested values",
                asked=dotted(path[:4]) or self.label,
                numbers={"values_limit": MAX_VALUES, "depth_limit": MAX_DEPTH},
                why="Anchors that contain each other multiply what a reader must build.",
                remedies=["write the values out, or move the common part to a base recipe and use extends"],
            )
        if node.tag not in _TAGS:
            raise ForgeError(
                "TF-RCP-006",
                f"{self._at(node)}: {dotted(path)} has the tag {node.tag.replace(_PLAIN, '!!')}",
                asked=dotted(path),
                why="A recipe holds text, numbers, true, false, null, lists and mappings, nothing that a tag makes.",
                remedies=["remove the tag", "quote the value if it is text"],
            )
        self.where.setdefault(path, self._at(node))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, index)) for index, item in enumerate(node.value)]
        try:
            return self._scalars.construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError) as error:
            raise ForgeError(
                "TF-RCP-006",
                f"{self._at(node)}: {dotted(path)} is no plain value",
                asked=str(node.value),
                why=str(getattr(error, "problem", error)),
                remedies=["write text, a number, true, false or null; quote text that looks like something else"],
            ) from error

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise ForgeError(
                    "TF-RCP-006",
                    f"{self._at(key_node)}: merge keys (<<) are not used in recipes",
                    asked="<<",
                    why="What they pull in cannot be seen where it lands.",
                    remedies=["put the common part into a base recipe and name it with extends:"],
                )
            # a whole number is a key where a section maps by number (draft lengths by batch), as its digits
            number = path and key_node.tag == "tag:yaml.org,2002:int" and str(key_node.value).isdecimal()
            text = number or key_node.tag == "tag:yaml.org,2002:str"
            if not isinstance(key_node, yaml.ScalarNode) or not text:
                raise ForgeError(
                    "TF-RCP-006",
                    f"{self._at(key_node)}: a key must be text",
                    asked=str(key_node.value)[:80],
                    why="YAML reads words such as on, yes and bare numbers as something other than text.",
                    remedies=[f'quote the key: "{key_node.value}"']
                    if isinstance(key_node, yaml.ScalarNode)
                    else ["use a plain name"],
                )
            key = str(key_node.value)
            here = (*path, key)
            if key in result:
                raise ForgeError(
                    "TF-RCP-005",
                    f"{self._at(key_node)}: {dotted(here)} is given twice (first at {self.where[here]})",
                    asked=dotted(here),
                    numbers={"first": self.where[here], "second": self._at(key_node)},
                    why="YAML readers keep the last one in silence, so one of the two would have no effect.",
                    remedies=["remove one of them"],
                )
            self.where[here] = self._at(key_node)
            result[key] = self.value(value_node, here)
        return result

    def _at(self, node: yaml.Node) -> str:
        return f"{self.label}:{node.start_mark.line + 1}"
