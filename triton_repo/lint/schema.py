"""A ``config.pbtxt`` as a message *and* a tree: faults that the parser would report one at a time, all at once.

The tree is held against the message's descriptor. Statements that cannot be right (a placeholder, an unknown
field, a value of the wrong type) are recorded and blanked, and ``text_format`` parses the rest, so that one
fault does not hide the others. What was blanked is unknown, and rules must not judge it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

from triton_repo.lint.names import nearest
from triton_repo.lint.pbtext import Node, Text
from triton_repo.parameters import load_parameters

FaultKind = Literal["placeholder", "unknown", "type", "twice", "schedulers", "syntax"]

#: fields of newer Triton releases that the installed message does not have
#: (https://github.com/triton-inference-server/common/blob/main/protobuf/model_config.proto)
NEWER_FIELDS = frozenset({"model_metrics", "max_inflight_requests"})

#: Triton's parser takes it for a character of the first name
_MARK = "\ufeff"
#: hexadecimal, octal (a leading 0) or decimal; more digits than any field holds are cut off before they are counted
_INTEGER = re.compile(r"([-+]?)(?:0[xX]([0-9a-fA-F]+)|0([0-7]*)|([1-9]\d*))")
_MOST_DIGITS = 40
_FLOAT = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?[fF]?|[-+]?(?:inf|infinity|nan)", re.IGNORECASE)
_BOOL = frozenset({"true", "false", "True", "False", "t", "f", "1", "0"})


@dataclass(frozen=True)
class Fault:
    """A statement that is wrong whatever the model is."""

    kind: FaultKind
    message: str
    remedy: str
    line: int
    column: int


@dataclass
class Config:
    """One configuration file.

    ``unknown`` holds the dotted paths (``input.data_type``) of statements that were blanked.
    """

    path: Path
    text: Text
    message: Any
    faults: list[Fault] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)
    newer: list[Node] = field(default_factory=list)

    def line(self, *path: str | int) -> tuple[int, int]:
        """Line and column of the value at ``path``, or of the nearest statement above it; (1, 1) for the file."""
        node = self.text.deepest(*path)
        if node is self.text.root:
            return 1, 1
        # one element of a list is meant: the list's own line would not tell which
        element = isinstance(path[-1], int) and self.text.find(*path) is node
        return self.text.position(node.start if node.kind == "message" and not element else node.value_start)

    def is_unknown(self, *path: str) -> bool:
        """Whether the statement at ``path`` was there and could not be read."""
        return ".".join(path) in self.unknown

    def states(self, *path: str | int) -> bool:
        """Whether the text states the field, as against the message's default."""
        return self.text.find(*path) is not None


def parse_config(path: Path, text: str) -> Config:
    """The configuration in ``text``; never raises on a faulty one."""
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2 as pb

    marked = text.startswith(_MARK)
    tree = Text(text.removeprefix(_MARK))
    config = Config(path, tree, pb.ModelConfig())
    if marked:
        config.faults.append(
            Fault("syntax", "the file begins with a byte order mark", "save it as UTF-8 without one", 1, 1)
        )
    blanked: list[Node] = []
    _check(config, tree.root, pb.ModelConfig.DESCRIPTOR, (), blanked)
    if tree.broken is not None:
        line, column = tree.position(tree.broken.offset)
        config.faults.append(Fault("syntax", tree.broken.problem, "close what is open here", line, column))
        config.unknown.add("")
        return config
    try:
        text_format.Parse(tree.without(blanked), config.message)
    except text_format.ParseError as error:
        config.message = pb.ModelConfig()
        config.unknown.add("")
        config.faults.append(
            Fault("syntax", _plain(str(error)), "correct this line", error.GetLine() or 1, error.GetColumn() or 1)
        )
    except (ValueError, OverflowError, RecursionError) as error:
        # values that the tree lets pass and the message does not; text_format does not say where
        config.message = pb.ModelConfig()
        config.unknown.add("")
        config.faults.append(Fault("syntax", str(error), "a value that the field can hold", 1, 1))
    return config


def _plain(message: str) -> str:
    """text_format's message without its own position."""
    return re.sub(r"^\d+:\d+ : ", "", message)


def _check(config: Config, node: Node, descriptor: Any, path: tuple[str, ...], blanked: list[Node]) -> None:
    seen: dict[str, Node] = {}
    oneofs = _chosen(node, descriptor)
    for child in node.children:
        where = (*path, child.name)
        fields = descriptor.fields_by_name

        def fault(kind: FaultKind, message: str, remedy: str, at: Node = child, name: tuple[str, ...] = where) -> None:
            offset = at.start if kind in ("unknown", "twice", "schedulers") else at.value_start
            config.faults.append(Fault(kind, message, remedy, *config.text.position(offset)))
            config.unknown.add(".".join(name))
            blanked.append(at)

        if child.kind == "hole":
            what = f"{child.name}: " if child.name else ""
            fault("placeholder", f"{what}{child.text} was never filled in", _filled(child, descriptor))
            continue
        row = fields.get(child.name)
        if row is None:
            if child.name in NEWER_FIELDS:
                config.newer.append(child)
                blanked.append(child)
                continue
            near = nearest(child.name, list(fields))
            if near:  # what was meant is not known either
                config.unknown.add(".".join((*path, near)))
            fault(
                "unknown",
                f"{descriptor.name} has no field {child.name!r}",
                f"{near} instead of {child.name}" if near else "known: " + ", ".join(sorted(fields)),
            )
            continue
        repeated = row.label == row.LABEL_REPEATED
        if not repeated and child.name in seen:
            first = config.text.position(seen[child.name].start)[0]
            fault("twice", f"{child.name} is set a second time (first in line {first})", "keep one of the two")
            continue
        seen[child.name] = child
        oneof = row.containing_oneof
        if oneof is not None:
            other = oneofs[oneof.name]
            if other != child.name:
                fault("schedulers", f"{child.name} and {other} exclude each other", f"keep {other} or {child.name}")
                continue
        if child.kind == "empty":
            continue
        problem = _wrong(child, row)
        if problem:
            fault("type", f"{child.name}: {problem[0]}", problem[1])
        elif child.kind == "message":
            _check(config, child, row.message_type, where, blanked)


def _chosen(node: Node, descriptor: Any) -> dict[str, str]:
    """Which field of each oneof is read: the first one stated, but the steps of an ensemble before any scheduler.

    What an ensemble's other rules say rests on its steps; without them everything would look unused.
    """
    chosen: dict[str, str] = {}
    for child in node.children:
        row = descriptor.fields_by_name.get(child.name)
        oneof = row.containing_oneof if row is not None and child.kind != "hole" else None
        if oneof is not None and (oneof.name not in chosen or child.name == "ensemble_scheduling"):
            chosen[oneof.name] = child.name
    return chosen


def _filled(node: Node, descriptor: Any) -> str:
    """What a filled statement looks like."""
    row = descriptor.fields_by_name.get(node.name)
    if row is None:
        return "fill the template in before it is served"
    if row.message_type is not None:
        return f"{node.name} {{ … }}"
    if row.enum_type is not None:
        names = [value.name for value in row.enum_type.values if value.number]
        example = _choices().get(node.text.strip("${} ")) or "one of " + ", ".join(names)
    elif row.cpp_type == row.CPPTYPE_STRING:
        example = '"…"'
    elif row.cpp_type == row.CPPTYPE_BOOL:
        example = "true"
    else:
        example = "1"
    return f"{node.name}: {example}"


@cache
def _choices() -> dict[str, str]:
    """What NVIDIA's templates take for a type, by the name of the placeholder."""
    rows = load_parameters("inflight_batcher_llm").rows
    return {row.template or row.name: row.allowed for row in rows if row.place == "field" and row.kind == "choice"}


def _wrong(node: Node, row: Any) -> tuple[str, str] | None:
    """(problem, remedy) when the value cannot be of the field's type."""
    if row.message_type is not None:
        if node.kind == "message":
            return None
        inner = list(row.message_type.fields_by_name)
        if "string_value" in inner:
            return (f"a message is expected, {node.text} is given", f"{node.name}: {{ string_value: {node.text} }}")
        return (f"a message is expected, {node.text} is given", f"{node.name} {{ {inner[0] if inner else ''} … }}")
    if node.kind == "message":
        return ("a plain value is expected, a message is given", f"{node.name}: …")
    if row.cpp_type == row.CPPTYPE_STRING:
        return None if node.kind == "string" else (f"text is expected, {node.text} is given", f'"{node.text}"')
    if row.enum_type is not None:
        names = [value.name for value in row.enum_type.values]
        numbers = {str(value.number) for value in row.enum_type.values}
        if node.text in names or (node.kind == "scalar" and node.text in numbers):
            return None
        near = nearest(node.string(), names) or next(
            (n for n in names if n.endswith(f"_{node.string().upper()}")), None
        )
        return (
            f"{row.enum_type.name} has no value {node.string()!r}",
            f"{node.name}: {near}" if near else "one of " + ", ".join(names),
        )
    if row.cpp_type == row.CPPTYPE_BOOL:
        return (
            None if node.text in _BOOL else (f"true or false is expected, {node.text} is given", f"{node.name}: true")
        )
    if row.cpp_type in (row.CPPTYPE_FLOAT, row.CPPTYPE_DOUBLE):
        return (
            None
            if _FLOAT.fullmatch(node.text)
            else (f"a number is expected, {node.text} is given", f"{node.name}: 0.5")
        )
    return _wrong_integer(node, row)


def _wrong_integer(node: Node, row: Any) -> tuple[str, str] | None:
    number = _INTEGER.fullmatch(node.text) if node.kind == "scalar" else None
    if number is None:
        return (f"a whole number is expected, {node.text[:60]} is given", f"{node.name}: 1")
    sign, hexadecimal, octal, decimal = number.groups()
    digits, base = (hexadecimal, 16) if hexadecimal else (octal, 8) if octal else (decimal or "0", 10)
    value = int(digits.lstrip("0")[:_MOST_DIGITS] or "0", base) * (-1 if sign == "-" else 1)
    bits = 32 if row.cpp_type in (row.CPPTYPE_INT32, row.CPPTYPE_UINT32) else 64
    unsigned = row.cpp_type in (row.CPPTYPE_UINT32, row.CPPTYPE_UINT64)
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if not low <= value <= high:
        return (f"{value} is outside [{low}, {high}]", f"{node.name}: {max(low, min(high, value))}")
    return None
