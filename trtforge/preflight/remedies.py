"""Remedies as changes: what a finding says would work, in a form that can be applied and judged again.

Policy: a remedy is either lines of a recipe, written as a person would write them, or something that only a person can
do (another checkpoint, another machine), which is marked so. The text of the first kind is the change itself: it is
read as YAML, so what is printed and what is applied cannot differ.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from trtforge.ground.rows import safe_loader

#: the sections of a recipe that a remedy may change
SECTIONS = ("stack", "model", "quantize", "evals", "speculation", "build", "triton", "serving", "bench")
#: stands for "the key goes"
REMOVED = object()

_KEY = re.compile(r"[a-z_]+(?:\.[A-Za-z0-9_]+)*")
_LINE = re.compile(rf"(?P<key>{_KEY.pattern}): ?(?P<value>\S.*)")
_REMOVE = re.compile(rf"remove (?P<key>{_KEY.pattern})(?:\s+#.*)?")
_JOINT = " with "


@dataclass(frozen=True)
class Remedy:
    """One way out of a finding.

    ``changes`` are dotted keys with their new values (:data:`REMOVED` takes a key away), none for what is done by
    hand. ``leaves`` are the codes of the findings that only this change brings.
    """

    text: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    leaves: tuple[str, ...] = ()

    @property
    def lines(self) -> list[str]:
        """The changes as lines of a recipe, one a key."""
        return [line(key, value) for key, value in self.changes.items()]

    @property
    def by_hand(self) -> bool:
        """Whether only a person can do it."""
        return not self.changes

    def __str__(self) -> str:
        return f"{self.text} (then {', '.join(self.leaves)})" if self.leaves else self.text

    def to_json(self) -> dict[str, Any]:
        """The remedy as one JSON-able object."""
        if self.by_hand:
            return {"text": self.text, "by_hand": True}
        return {
            "text": self.text,
            "set": {key: value for key, value in self.changes.items() if value is not REMOVED},
            "remove": [key for key, value in self.changes.items() if value is REMOVED],
            "leaves": list(self.leaves),
        }


def by_hand(*texts: str) -> list[Remedy]:
    """Remedies that only a person can do, as sentences."""
    return [Remedy(text) for text in texts]


def as_remedy(given: str | Remedy) -> Remedy:
    """A remedy of lines of a recipe: ``KEY: VALUE`` or ``remove KEY``, several joined by `` with ``.

    Raises:
        ValueError: the text is no such line; what a person has to do is given by :func:`by_hand`.
    """
    if isinstance(given, Remedy):
        return given
    changes: dict[str, Any] = {}
    for part in given.split(_JOINT):
        changes.update([_change(part)])
    return Remedy(given, changes)


@lru_cache(maxsize=4096)
def _change(text: str) -> tuple[str, Any]:
    import yaml

    found = _REMOVE.fullmatch(text) or _LINE.fullmatch(text)
    if found is None or found["key"].partition(".")[0] not in SECTIONS:
        raise ValueError(f"{text!r} is no line of a recipe")
    if found.re is _REMOVE:
        return found["key"], REMOVED
    try:
        return found["key"], yaml.load(found["value"], Loader=safe_loader())
    except yaml.YAMLError:
        raise ValueError(f"{text!r} is no line of a recipe: no YAML") from None


def applied(written: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """What a recipe's files say after ``changes``; a mapping is laid over the one that stands there."""
    result = copy.deepcopy(dict(written))
    for key, value in changes.items():
        place: dict[Any, Any] = result
        *above, last = key.split(".")
        for part in above:
            inner = place.get(part)
            if not isinstance(inner, dict):
                if value is REMOVED:
                    break
                inner = place[part] = {}
            place = inner
        else:
            # where a section maps by number, its key is a number or its digits
            if value is REMOVED:
                place.pop(last, None)
                place.pop(int(last) if last.isdecimal() else last, None)
            elif isinstance(value, dict) and isinstance(place.get(last), dict):
                names = set(map(str, value))
                kept = {name: item for name, item in place[last].items() if str(name) not in names}
                place[last] = {**kept, **copy.deepcopy(value)}
            else:
                place[last] = copy.deepcopy(value)
    return result


def changes_of(remedies: Iterable[Remedy]) -> dict[str, Any]:
    """The changes of several remedies; a later one wins over an earlier one's key."""
    changes: dict[str, Any] = {}
    for remedy in remedies:
        for key in remedy.changes:
            changes.pop(key, None)
        changes.update(remedy.changes)
    return changes


def joined(remedies: Iterable[Remedy]) -> Remedy:
    """Several remedies as one."""
    changes = changes_of(remedies)
    return Remedy(_JOINT.join(Remedy("", changes).lines), changes)


def joint(remedy: str | Remedy, *lines: str) -> str | Remedy:
    """A remedy with further lines; one that is done by hand names them at its end."""
    if isinstance(remedy, str):
        return _JOINT.join([remedy, *lines])
    return replace(remedy, text=f"{remedy.text}; {_JOINT.join(lines)}") if lines else remedy


def line(key: str, value: Any) -> str:
    """The line of a recipe that gives ``key`` its value, or takes it away."""
    import yaml

    if value is REMOVED:
        return f"remove {key}"
    shown = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**6).strip()
    return f"{key}: {shown.removesuffix('...').strip()}"


def texts(remedies: Sequence[Remedy]) -> tuple[str, ...]:
    """The remedies as they are printed."""
    return tuple(map(str, remedies))
