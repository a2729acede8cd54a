"""What would work, as data: the text that is printed and, where it is an edit, the edit itself.

An edit names a file and a place in it. Places of configurations are those of :meth:`triton_repo.lint.pbtext.Text.find`;
places of ``model.yaml`` and ``model.json`` are keys and indices from the top. A remedy without edits is for a person:
it needs something that the repository does not hold (an engine, a file, a decision).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol


class Configured(Protocol):
    """What remedies know of a model."""

    @property
    def path(self) -> Path:
        """The configuration file."""
        ...


Place = tuple[str | int, ...]
#: put: set a value, made where it is missing; drop: take it out; rename: another name for the field; splice: ``value``
#: in place of the characters from ``place[0]`` to ``place[1]``; unmark: no byte order mark; move: the file becomes
#: ``value``; remove: no such file
Action = Literal["put", "drop", "rename", "splice", "unmark", "move", "remove"]


@dataclass(frozen=True)
class Edit:
    """One edit. ``file`` None and ``place`` None stand for where the finding is."""

    action: Action
    file: Path | None
    place: Place | None = ()
    value: str = ""

    def to_json(self) -> dict[str, Any]:
        """The edit as one JSON-able object."""
        return {
            "action": self.action,
            "file": str(self.file),
            "place": list(self.place or ()),
            **({"value": self.value} if self.value else {}),
        }


@dataclass(frozen=True)
class Remedy:
    """One way out.

    Attributes:
        text: as it is printed.
        edits: what to change; empty where only a person can.
        leaves: codes of findings that are there afterwards and were not before; the text says so.
    """

    text: str
    edits: tuple[Edit, ...] = ()
    leaves: tuple[str, ...] = ()

    def at(self, file: Path, place: Place) -> Remedy:
        """The remedy with the finding's own place filled in; names that the text leaves open too."""
        edits = tuple(replace(e, file=e.file or file, place=place if e.place is None else e.place) for e in self.edits)
        return replace(self, text=self.text.replace(_NAME, _named(place)), edits=edits)

    def to_json(self) -> dict[str, Any]:
        """The remedy as one JSON-able object; ``by`` says who carries it out."""
        return {
            "text": self.text,
            "by": "edit" if self.edits else "person",
            **({"edits": [edit.to_json() for edit in self.edits]} if self.edits else {}),
            **({"leaves": list(self.leaves)} if self.leaves else {}),
        }


Remedies = Remedy | Sequence[Remedy]
#: stands in a text for the name of the finding's own field
_NAME = "\0"


def alternatives(remedies: Remedies) -> tuple[Remedy, ...]:
    """One or several remedies as a tuple."""
    return (remedies,) if isinstance(remedies, Remedy) else tuple(remedies)


def said(remedies: Iterable[Remedy]) -> str:
    """The texts as one: any of them is enough."""
    return ", or ".join(remedy.text for remedy in remedies)


def person(text: str) -> Remedy:
    """What only a person can do."""
    return Remedy(text)


def here(value: str, text: str | None = None) -> Remedy:
    """Another value where the finding is."""
    return Remedy(text or f"{_NAME}: {value}", (Edit("put", None, None, value),))


def out(text: str = "leave it out") -> Remedy:
    """Take out what the finding is about."""
    return Remedy(text, (Edit("drop", None, None),))


def put(model: Configured, value: str, *place: str | int, text: str | None = None) -> Remedy:
    """Set a field of the model's configuration; ``value`` as protobuf text."""
    shown = f"{_named(place)} {value}" if value.startswith("{") else f"{_named(place)}: {value}"
    return Remedy(text or shown, (Edit("put", model.path, place, value),))


def drop(model: Configured, *place: str | int, text: str | None = None) -> Remedy:
    """Take a statement out of the model's configuration."""
    return Remedy(text or f"leave {_named(place)} out", (Edit("drop", model.path, place),))


def parameter(model: Configured, name: str, value: str, text: str | None = None) -> Remedy:
    """Set a parameter of the model."""
    place = ("parameters", f"key={name}", "value", "string_value")
    return Remedy(text or f'{name}: "{value}"', (Edit("put", model.path, place, f'"{value}"'),))


def no_parameter(model: Configured, name: str, text: str | None = None) -> Remedy:
    """Take a parameter of the model out."""
    return Remedy(text or f"leave {name} out", (Edit("drop", model.path, ("parameters", f"key={name}")),))


def key(file: Path, value: Any, *place: str | int, text: str | None = None) -> Remedy:
    """Set a key of a ``model.yaml`` or ``model.json``."""
    shown = json.dumps(value, ensure_ascii=False)
    plain = value if isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w./ -]*", value) else shown
    quoted = f'"{place[-1]}": {shown}' if file.suffix == ".json" else f"{place[-1]}: {plain}"
    return Remedy(text or quoted, (Edit("put", file, place, shown),))


def no_key(file: Path, *place: str | int, text: str | None = None) -> Remedy:
    """Take a key of a ``model.yaml`` or ``model.json`` out."""
    return Remedy(text or f"leave {place[-1]} out", (Edit("drop", file, place),))


def key_named(file: Path, name: str, *place: str | int, text: str | None = None) -> Remedy:
    """Another name for a key of a ``model.yaml`` or ``model.json``."""
    quoted = f'"{name}": …' if file.suffix == ".json" else f"{name}: …"
    return Remedy(text or quoted, (Edit("rename", file, place, name),))


def renamed(model: Configured, name: str, *place: str | int, text: str | None = None) -> Remedy:
    """Another name for a field of the model's configuration."""
    return Remedy(text or f"{name} instead of {_named(place)}", (Edit("rename", model.path, place, name),))


def moved(old: Path, new: Path, text: str) -> Remedy:
    """Another name or place for a file or folder."""
    return Remedy(text, (Edit("move", old, (), str(new)),))


def removed(path: Path, text: str | None = None) -> Remedy:
    """A file or folder that should not be there."""
    return Remedy(text or f"rm {path.name}", (Edit("remove", path),))


def together(*remedies: Remedy, text: str | None = None) -> Remedy:
    """Several edits that are one remedy."""
    return Remedy(text or " and ".join(r.text for r in remedies), tuple(e for r in remedies for e in r.edits))


def leaving(remedy: Remedy, *codes: str) -> Remedy:
    """A remedy after which findings of other codes are there; its text must say so."""
    return replace(remedy, leaves=codes)


def _named(place: Place) -> str:
    """The field that a place is about; a parameter goes by its key."""
    for part in reversed(place):
        if isinstance(part, str) and part.startswith("key="):
            return part.removeprefix("key=")
        if isinstance(part, str) and part not in ("value", "string_value", "key"):
            return part
    return "it"
