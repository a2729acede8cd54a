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

from triton_repo.lint.pbtext import Node, Text
from triton_repo.lint.remedies import Edit, Remedy, person
from triton_repo.parameters import Parameter, load_parameters
from trtforge.ground.names import nearest

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
    remedies: tuple[Remedy, ...]
    line: int
    column: int
    #: the field, dotted; empty where there is none
    field: str = ""
    #: what an edit of the value replaces
    place_edits: tuple[Edit, ...] = ()


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
            Fault(
                "syntax",
                "the file begins with a byte order mark",
                (Remedy("save it as UTF-8 without one", (Edit("unmark", path),)),),
                1,
                1,
            )
        )
    blanked: list[Node] = []
    _check(config, tree.root, pb.ModelConfig.DESCRIPTOR, (), blanked)
    if tree.broken is not None:
        line, column = tree.position(tree.broken.offset)
        config.faults.append(Fault("syntax", tree.broken.problem, (person("close what is open here"),), line, column))
        config.unknown.add("")
        return config
    try:
        text_format.Parse(tree.without(blanked), config.message)
    except text_format.ParseError as error:
        config.message = pb.ModelConfig()
        config.unknown.add("")
        config.faults.append(
            Fault(
                "syntax",
                _plain(str(error)),
                (person("correct this line"),),
                error.GetLine() or 1,
                error.GetColumn() or 1,
            )
        )
    except (ValueError, OverflowError, RecursionError) as error:
        # values that the tree lets pass and the message does not; text_format does not say where
        config.message = pb.ModelConfig()
        config.unknown.add("")
        config.faults.append(Fault("syntax", str(error), (person("a value that the field can hold"),), 1, 1))
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

        def fault(
            kind: FaultKind, message: str, remedies: tuple[Remedy, ...], at: Node = child, name: tuple[str, ...] = where
        ) -> None:
            offset = at.start if kind in ("unknown", "twice", "schedulers") else at.value_start
            place = (_spliced(config, at, ""),)
            config.faults.append(Fault(kind, message, remedies, *config.text.position(offset), ".".join(name), place))
            config.unknown.add(".".join(name))
            blanked.append(at)

        if child.kind == "hole":
            what = f"{child.name}: " if child.name else ""
            fault("placeholder", f"{what}{child.text} was never filled in", _filled(config, child, descriptor))
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
                _known(config, node, child, near, sorted(fields)),
            )
            continue
        repeated = row.label == row.LABEL_REPEATED
        if not repeated and child.name in seen:
            first = config.text.position(seen[child.name].start)[0]
            same = config.text.text[child.value_start : child.value_end] == seen[child.name].text
            out = Remedy("keep the first", (_gone(config, child),)) if same else person("keep one of the two")
            fault("twice", f"{child.name} is set a second time (first in line {first})", (out,))
            continue
        seen[child.name] = child
        oneof = row.containing_oneof
        if oneof is not None:
            other = oneofs[oneof.name]
            if other != child.name:
                kept = (Remedy(f"leave {child.name} out", (_gone(config, child),)),)
                fault("schedulers", f"{child.name} and {other} exclude each other", kept)
                continue
        if child.kind == "empty":
            continue
        problem = _wrong(config, child, row)
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


def _spliced(config: Config, node: Node, value: str) -> Edit:
    """Another value."""
    return Edit("splice", config.path, (node.value_start, node.value_end), value)


def _gone(config: Config, node: Node) -> Edit:
    """No such statement."""
    return Edit("splice", config.path, (node.start, node.end))


def _known(config: Config, parent: Node, node: Node, near: str | None, fields: list[str]) -> tuple[Remedy, ...]:
    """The field that was meant, unless it is there; what has no likeness is left out."""
    out = Remedy(f"leave {node.name} out", (_gone(config, node),))
    if near is None:
        return (out, person("known: " + ", ".join(fields)))
    if parent.first(near) is not None:
        return (Remedy(f"leave {node.name} out: {near} is set", out.edits),)
    name = Edit("splice", config.path, (node.start, node.start + len(node.name)), near)
    return (Remedy(f"{near} instead of {node.name}", (name,)), out)


def _filled(config: Config, node: Node, descriptor: Any) -> tuple[Remedy, ...]:
    """What a filled statement looks like: as NVIDIA's tool and guide fill it, by the placeholder's own name."""
    row = descriptor.fields_by_name.get(node.name)
    if row is None:
        return (person("fill the template in before it is served"),)
    if row.message_type is not None:
        return (person(f"{node.name} {{ … }}"),)
    known = _templates().get(node.text.strip("${} "))
    value = (known.default or (known.values[0] if known.values else "")) if known is not None else ""
    if value and row.cpp_type == row.CPPTYPE_STRING:
        value = f'"{value}"'
    filled = (Remedy(f"{node.name}: {value}", (_spliced(config, node, value),)),) if value else ()
    if row.enum_type is not None:
        names = list(known.values) if known is not None else [v.name for v in row.enum_type.values if v.number]
        rest = [name for name in names if not value or name != value]
        return (*filled, person(f"{node.name}: one of " + ", ".join(rest)))
    if filled:
        return filled
    if row.cpp_type == row.CPPTYPE_STRING:
        return (person(f'{node.name}: "…"'),)
    return (person(f"{node.name}: {'true or false' if row.cpp_type == row.CPPTYPE_BOOL else 'a number'}"),)


@cache
def _templates() -> dict[str, Parameter]:
    """The fields that NVIDIA's templates leave open, by the name of the placeholder."""
    rows = load_parameters("inflight_batcher_llm").rows
    return {row.template or row.name: row for row in rows if row.place == "field"}


def _wrong(config: Config, node: Node, row: Any) -> tuple[str, tuple[Remedy, ...]] | None:
    """(problem, remedies) when the value cannot be of the field's type."""

    def instead(value: str) -> tuple[Remedy, ...]:
        return (Remedy(f"{node.name}: {value}", (_spliced(config, node, value),)),)

    if row.message_type is not None:
        if node.kind == "message":
            return None
        inner = list(row.message_type.fields_by_name)
        problem = f"a message is expected, {node.text} is given"
        if "string_value" in inner:
            text = node.text if node.kind == "string" else f'"{node.text}"'
            return problem, instead(f"{{ string_value: {text} }}")
        return problem, (person(f"{node.name} {{ {inner[0] if inner else ''} … }}"),)
    if node.kind == "message":
        return "a plain value is expected, a message is given", (person(f"{node.name}: …"),)
    if row.cpp_type == row.CPPTYPE_STRING:
        return None if node.kind == "string" else (f"text is expected, {node.text} is given", instead(f'"{node.text}"'))
    if row.enum_type is not None:
        names = [value.name for value in row.enum_type.values]
        numbers = {str(value.number) for value in row.enum_type.values}
        if node.text in names or (node.kind == "scalar" and node.text in numbers):
            return None
        near = next((n for n in names if n.endswith(f"_{node.string().upper()}")), None) or nearest(
            node.string(), names
        )
        ways = instead(near) if near else (person("one of " + ", ".join(names)),)
        return f"{row.enum_type.name} has no value {node.string()!r}", ways
    if row.cpp_type == row.CPPTYPE_BOOL:
        if node.text in _BOOL:
            return None
        plain = {"yes": "true", "on": "true", "no": "false", "off": "false"}.get(node.string().lower())
        plain = plain or (node.string().lower() if node.string().lower() in ("true", "false") else None)
        ways = instead(plain) if plain else (person(f"{node.name}: true or false"),)
        return f"true or false is expected, {node.text} is given", ways
    if row.cpp_type in (row.CPPTYPE_FLOAT, row.CPPTYPE_DOUBLE):
        if _FLOAT.fullmatch(node.text):
            return None
        number = node.string().strip()
        ways = instead(number) if _FLOAT.fullmatch(number) else (person(f"{node.name}: a number"),)
        return f"a number is expected, {node.text} is given", ways
    problem_, value = _wrong_integer(node, row) or (None, None)
    if problem_ is None:
        return None
    return problem_, instead(value) if value is not None else (person(f"{node.name}: a whole number"),)


def _wrong_integer(node: Node, row: Any) -> tuple[str, str | None] | None:
    """(problem, the value that was meant) of what is no whole number, or one that the field cannot hold."""
    number = _INTEGER.fullmatch(node.text) if node.kind == "scalar" else None
    if number is None:
        plain = _INTEGER.fullmatch(node.string().strip())
        return f"a whole number is expected, {node.text[:60]} is given", plain.group() if plain else None
    sign, hexadecimal, octal, decimal = number.groups()
    digits, base = (hexadecimal, 16) if hexadecimal else (octal, 8) if octal else (decimal or "0", 10)
    value = int(digits.lstrip("0")[:_MOST_DIGITS] or "0", base) * (-1 if sign == "-" else 1)
    bits = 32 if row.cpp_type in (row.CPPTYPE_INT32, row.CPPTYPE_UINT32) else 64
    unsigned = row.cpp_type in (row.CPPTYPE_UINT32, row.CPPTYPE_UINT64)
    low, high = (0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if not low <= value <= high:
        return f"{value} is outside [{low}, {high}]", str(max(low, min(high, value)))
    return None
