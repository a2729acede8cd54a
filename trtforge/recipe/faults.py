"""Validation errors as one refusal that lists every offender with its numbers and what would work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from trtforge.ground.errors import ForgeError
from trtforge.ground.names import nearest
from trtforge.recipe.keys import find_key, siblings, suggest
from trtforge.recipe.text import KeyPath, dotted

#: what a value had to be, where pydantic's words name classes of Python
_WANTED = {
    "model_type": "a section of keys is wanted",
    "model_attributes_type": "a section of keys is wanted",
    "dict_type": "a section of keys is wanted",
    "tuple_type": "a list is wanted",
}
_EXAMPLES = {
    "int_type": "write a whole number, for example {default}",
    "bool_parsing": "write true or false",
    "bool_type": "write true or false",
    "string_type": 'write text; quote it when it looks like a number ("{given}")',
    "tuple_type": "write a list, for example [{given}]",
    "dict_type": "write a section of keys",
    "model_type": "write a section of keys: {keys}; or leave it out for the defaults",
    "model_attributes_type": "write a section of keys: {keys}; or leave it out for the defaults",
}


def recipe_refused(error: ValidationError, where: Mapping[KeyPath, str], label: str) -> ForgeError:
    """Translate a pydantic error; TF-RCP-011 when any key is unknown, else TF-RCP-012."""
    offenders = [_offender(item, where, label) for item in error.errors(include_url=False)]
    unknown = any(item["kind"] == "unknown key" for item in offenders)
    first = offenders[0]
    message = f"{first['where']}: {first['key']}: {first['problem']}"
    if len(offenders) > 1:
        message = f"{len(offenders)} values of the recipe are not usable; the first: {message}"
    return ForgeError(
        "TF-RCP-011" if unknown else "TF-RCP-012",
        message,
        asked=", ".join(f"{item['key']}={item['given']!r}" if "given" in item else item["key"] for item in offenders),
        numbers={"offenders": offenders},
        why=(
            "An unknown key would have no effect, so it is refused instead of ignored."
            if unknown
            else "These values have no meaning for the pipeline."
        ),
        remedies=[f"{item['key']}: {item['remedy']}" for item in offenders],
    )


def _offender(item: Any, where: Mapping[KeyPath, str], label: str) -> dict[str, Any]:
    path: KeyPath = tuple(item["loc"])
    names = tuple(str(part) for part in path if not isinstance(part, int))
    kind, given = item["type"], item.get("input")
    result: dict[str, Any] = {"key": dotted(path) or "(recipe)", "where": _place(path, where, label), "kind": kind}
    if isinstance(given, (str, int, float, bool)) or given is None:
        result["given"] = given
    if kind == "extra_forbidden":
        near = suggest(names)
        known = sorted(siblings(names))
        result |= {
            "kind": "unknown key",
            "nearest": near,
            "problem": "unknown key" + (f"; the nearest known key is {near}" if near else ""),
            "remedy": f"write {near}" if near else f"remove it; known here: {', '.join(known) or 'nothing'}",
        }
        return result
    if kind == "missing":
        result.pop("given", None)
        key = find_key(names)
        text = (key.field.description or "") if key else ""
        result |= {"problem": "required and missing", "remedy": f"add it{': ' + text if text else ''}"}
        return result
    result |= {"problem": _problem(item), "remedy": _remedy(item, names)}
    return result


def _place(path: KeyPath, where: Mapping[KeyPath, str], label: str) -> str:
    if path in where:
        return where[path]
    # a section that only an override below it made, then the nearest section around it
    for known, place in where.items():
        if path and known[: len(path)] == path:
            return place
    for length in range(len(path) - 1, 0, -1):
        if path[:length] in where:
            return where[path[:length]]
    return label


def _problem(item: Any) -> str:
    if _is_blank_waiver(item):
        return "no justification; whoever reads the bundle's report must see why the rule was set aside"
    message = str(item["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    message = _WANTED.get(item["type"], message)
    given = item.get("input")
    if item["type"] == "value_error" or isinstance(given, (dict, list, tuple)):
        return message
    return f"{message}, not {given!r}"


def _is_blank_waiver(item: Any) -> bool:
    """Whether the fault is a waiver without text: ``--set waive.CODE=`` gives null."""
    return item["loc"][:1] == ("waive",) and item["type"] == "string_type" and item.get("input") is None


def _remedy(item: Any, names: tuple[str, ...]) -> str:
    if _is_blank_waiver(item):
        return "why this is fine here"
    kind, given, context = item["type"], item.get("input"), item.get("ctx") or {}
    key = find_key(names)
    default = None if key is None or key.field.is_required() else key.field.default
    if kind == "literal_error":
        choices = [
            part.strip().strip("'") for part in str(context.get("expected", "")).replace(" or ", ", ").split(",")
        ]
        near = nearest(str(given), choices) if isinstance(given, str) else None
        return f"use {near}" if near else f"use one of {', '.join(choices)}"
    if kind in ("greater_than", "greater_than_equal", "less_than_equal", "less_than"):
        bound = next(iter(context.values()), None)
        words = {
            "greater_than": "above",
            "greater_than_equal": "at least",
            "less_than": "below",
            "less_than_equal": "at most",
        }
        return f"use a value {words[kind]} {bound}" + (
            f", for example {default}" if isinstance(default, (int, float)) else ""
        )
    if kind == "string_pattern_mismatch":
        return (key.field.description if key else None) or f"match {context.get('pattern')}"
    if kind in _EXAMPLES:
        example = default if isinstance(default, int) and not isinstance(default, bool) else 1
        keys = ", ".join(siblings((*names, "")))
        return _EXAMPLES[kind].format(default=example, given=given, keys=keys)
    if default is not None and isinstance(default, (str, int, float)):
        return f"leave it out for the default ({default})"
    return "change it as the message says, or leave it out for the default"
