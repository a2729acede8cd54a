"""Calls that are required: an array of calls held to a JSON schema of the tools, whatever the model's own format is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from launcher.openai_front.schema import Function
from launcher.openai_front.tools.events import Event, Numbering
from launcher.openai_front.tools.json_calls import JsonCalls

#: what a function takes that says nothing of its parameters
_NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


def schema_of(functions: Sequence[Function], *, one: bool) -> dict[str, Any]:
    """The schema of an array of calls, at least one of ``functions``.

    Args:
        one: exactly one call.
    """
    definitions = {}
    calls = []
    for number, function in enumerate(functions):
        key = f"parameters_{number}"
        definitions[key] = _moved(function.parameters or _NOTHING, f"#/$defs/{key}")
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"const": function.name}, "arguments": {"$ref": f"#/$defs/{key}"}},
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    array: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}, "$defs": definitions}
    return array | ({"maxItems": 1} if one else {})


def _moved(value: Any, place: str) -> Any:
    """A schema at another place: what it says of places within itself follows."""
    if isinstance(value, list):
        return [_moved(item, place) for item in value]
    if not isinstance(value, dict):
        return value
    found = {key: _moved(item, place) for key, item in value.items() if key != "$schema"}
    reference = value.get("$ref")
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        found["$ref"] = place + reference[1:]
    return found


class GuidedParser:
    """Reads the array."""

    def __init__(self, numbering: Numbering) -> None:
        self._calls = JsonCalls(numbering, ("arguments",), array=True)

    def push(self, text: str) -> list[Event]:
        return self._calls.push(text)

    def finish(self) -> list[Event]:
        return self._calls.finish()
