"""Where things stand in protobuf text: a tolerant tree of fields with their positions.

``text_format`` says what a text means and forgets where it stood; this module says where it stood and
leaves meaning to ``text_format``. Template placeholders are read as values of their own kind, so that a text
that no parser takes still has a tree.

Source of the syntax: https://protobuf.dev/reference/protobuf/textformat-spec/
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

Kind = Literal["scalar", "string", "message", "hole", "empty"]

#: deeper nesting than any configuration has; text_format's own limit is near
MAX_DEPTH = 60

_TOKEN = re.compile(
    r"""[ \t\r\f\v\n]+
      | \#[^\n]*
      | (?P<hole> \$\{[^}\n]*\}? | \{\{[^}\n]*\}\} | \$[A-Za-z_]\w* | <[A-Za-z_][\w ./-]*>(?=[ \t\r]*[\n,\]}]) )
      | (?P<string> "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*' )
      | (?P<word> [A-Za-z_]\w* )
      | (?P<number> (?:-[ \t]*|\+)?[.\d][\w.]*(?:(?<=[eE])[-+]\d+)? | -[A-Za-z]\w* )
      | (?P<mark> [{}\[\]<>:;,] )
      | (?P<other> . )
    """,
    re.VERBOSE,
)


@dataclass
class Node:
    """One field: its value, where it begins and ends in the text, and its children when it is a message.

    ``start`` and ``end`` take in the whole statement; elements of one list share them. The value alone is from
    ``value_start`` to ``value_end``.
    """

    name: str
    kind: Kind
    text: str
    start: int
    end: int
    value_start: int
    value_end: int = 0
    children: list[Node] = field(default_factory=list)

    def all(self, name: str) -> list[Node]:
        """The children called ``name``, in the order of the text."""
        return self._by_name.get(name, [])

    def first(self, name: str) -> Node | None:
        """The first child called ``name``."""
        found = self._by_name.get(name)
        return found[0] if found else None

    @cached_property
    def _by_name(self) -> dict[str, list[Node]]:
        """The children by name; asked for when all of them are read."""
        names: dict[str, list[Node]] = {}
        for child in self.children:
            names.setdefault(child.name, []).append(child)
        return names

    def string(self) -> str:
        """The text without its quotes; escapes stay as written."""
        return self.text[1:-1] if self.kind == "string" else self.text

    def walk(self, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Node, Node]]:
        """(path of the parent, parent, node) for every field below."""
        for child in self.children:
            yield path, self, child
            if child.kind == "message":
                yield from child.walk((*path, child.name))


@dataclass(frozen=True)
class Broken:
    """Where the tree ends early, and what stood there."""

    offset: int
    problem: str


class Text:
    """A text with its tree and its line table."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]
        self.root = Node("", "message", "", 0, len(text), 0)
        self.broken: Broken | None = None
        #: numbers with space behind their sign, which protobuf's C++ parser takes and its Python one does not
        self._spaced: list[tuple[int, int]] = []
        # read as they are needed: reading ends at the first fault, however long the rest is
        self._tokens = _tokens(text)
        self._token = next(self._tokens)
        try:
            self._message(self.root, None, 0)
        except _Stop as stop:
            self.broken = Broken(stop.offset, stop.problem)

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column, both from 1."""
        line = bisect_right(self._lines, offset)
        return line, offset - self._lines[line - 1] + 1

    def find(self, *path: str | int) -> Node | None:
        """The node at ``path``: names go to the first child, a number picks among those of the name before it,
        and ``key=value`` picks the child of the name before it whose field ``key`` has that value."""
        nodes: list[Node] = [self.root]
        for part in path:
            if isinstance(part, int):
                nodes = nodes[part : part + 1]
            elif "=" in part:
                key, value = part.split("=", 1)
                nodes = [n for n in nodes if (found := n.first(key)) is not None and found.string() == value]
            else:
                nodes = nodes[0].all(part) if nodes else []
            if not nodes:
                return None
        return nodes[0]

    def deepest(self, *path: str | int) -> Node:
        """The node at ``path``, or the nearest one above it that exists."""
        for length in range(len(path), 0, -1):
            found = self.find(*path[:length])
            if found is not None:
                return found
        return self.root

    def without(self, nodes: list[Node]) -> str:
        """The text with ``nodes`` blanked and signs moved to their numbers; every other character keeps its place."""
        whole = self.text
        for start, end in self._spaced:
            whole = whole[:start] + "".join(whole[start:end].split()).rjust(end - start) + whole[end:]
        pieces, last = [], 0
        for start, end in sorted({(node.start, node.end) for node in nodes}):
            if start < last:
                continue
            pieces += [whole[last:start], re.sub(r"[^\n]", " ", whole[start:end])]
            last = end
        return "".join([*pieces, whole[last:]])

    # reading -----------------------------------------------------------------------------------
    def _peek(self) -> tuple[str, str, int, int]:
        return self._token

    def _next(self) -> tuple[str, str, int, int]:
        token = self._token
        if token[0] != "end":
            self._token = next(self._tokens)
        return token

    def _message(self, node: Node, closing: str | None, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise _Stop(self._peek()[2], f"messages are nested deeper than {MAX_DEPTH}")
        while True:
            kind, text, start, end = self._next()
            if kind == "end":
                if closing is not None:
                    raise _Stop(max(start - 1, 0), f"the file ends before {closing!r}")
                return
            if text == closing:
                node.end = end
                return
            if kind == "mark" and text in ",;":
                continue
            if kind == "hole":
                # a placeholder where a field is expected: nothing can be said of what it stands for
                node.children.append(Node("", "hole", text, start, end, start, end))
                continue
            if kind != "word":
                raise _Stop(start, f"expected a field's name, found {text!r}")
            self._field(node, text, start, depth)

    def _field(self, parent: Node, name: str, start: int, depth: int) -> None:
        if self._peek()[1] == ":":
            self._next()
        if self._peek()[1] == "[":
            self._next()
            made: list[Node] = []
            while True:
                text = self._peek()[1]
                if text == "]":
                    end = self._next()[3]
                    break
                if text == ",":
                    self._next()
                    continue
                made.append(self._value(name, start, depth))
            for node in made:
                node.start, node.end = start, end
            if not made:
                made = [Node(name, "empty", "[]", start, end, start, end)]
            parent.children += made
            return
        parent.children.append(self._value(name, start, depth))

    def _value(self, name: str, start: int, depth: int) -> Node:
        kind, text, value_start, end = self._next()
        if text in ("{", "<") and kind == "mark":
            node = Node(name, "message", "", start, end, value_start)
            self._message(node, "}" if text == "{" else ">", depth + 1)
            node.value_end = node.end
            return node
        if kind == "string":
            while self._peek()[0] == "string":
                more = self._next()
                text, end = text[:-1] + more[1][1:], more[3]
            return Node(name, "string", text, start, end, value_start, end)
        if kind == "number" and len(text.split()) > 1:
            self._spaced.append((value_start, end))
            text = "".join(text.split())
        if kind in ("word", "number"):
            return Node(name, "scalar", text, start, end, value_start, end)
        if kind == "hole":
            return Node(name, "hole", text, start, end, value_start, end)
        if kind == "end":
            raise _Stop(max(value_start - 1, 0), f"the file ends where the value of {name!r} is expected")
        raise _Stop(value_start, f"expected the value of {name!r}, found {text!r}")


class _Stop(Exception):
    def __init__(self, offset: int, problem: str) -> None:
        super().__init__(problem)
        self.offset = offset
        self.problem = problem


def _tokens(text: str) -> Iterator[tuple[str, str, int, int]]:
    """(kind, text, start, end) of every token but spaces and comments; the last one is ``end``."""
    for match in _TOKEN.finditer(text):
        if match.lastgroup is not None:
            yield match.lastgroup, match.group(), match.start(), match.end()
    yield "end", "", len(text), len(text)
