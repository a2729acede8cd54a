"""Writes docs/recipe.md from the schema: ``python -m trtforge.recipe.docs [FILE]``."""

from __future__ import annotations

import json
import sys
import types
import typing
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from trtforge.recipe.keys import section_of
from trtforge.recipe.schema import STAGE_ORDER, Recipe

_HEADER = f"""# The recipe

<!-- written by `python -m trtforge.recipe.docs docs/recipe.md`; change trtforge/recipe/schema.py instead -->

A recipe is one YAML file. Unknown keys are errors. Only `name` and `model.source` are required; every other key has
the default shown here. `extends: base.yaml` names a base recipe in the same folder tree, `extends: NAME` one that
ships: mappings merge key by key, lists and values replace, `null` takes a gate away. `--set key.key=value` overrides
one key from the command line. Relative paths are relative to the recipe that is run; `extends: FILE` and `file:` texts
stay inside its folder. Sizes (`256MiB`, `1GB`) and times (`200ms`, `2s`, `1.5min`) carry their unit, shares are `5%`
or `0.05`.

Stages in order: {", ".join(STAGE_ORDER)}; `speculation` only where `speculation.method` is not `none`.
"""


def render() -> str:
    """The whole document as Markdown."""
    parts = [_HEADER]
    _section(Recipe, "", parts)
    return "\n".join(parts).rstrip() + "\n"


def _section(model: type[BaseModel], path: str, parts: list[str]) -> None:
    title = f"`{path}`" if path else "Top level"
    parts.append(f"## {title}\n")
    text = " ".join((model.__doc__ or "").split())
    if path and text and not text.startswith("!!!"):
        parts.append(f"{text}\n")
    parts.append("| Key | Value | Default | Meaning |\n|---|---|---|---|")
    nested: list[tuple[type[BaseModel], str]] = []
    for name, field in model.model_fields.items():
        section = section_of(field.annotation)
        if section is not None:
            inner = f"{path}.{name}" if path else name
            nested.append((section, inner))
            meaning = field.description or " ".join((section.__doc__ or "").split("\n")[0].split()).rstrip(".")
            parts.append(f"| `{name}` | section | see below | {meaning} |")
        elif (element := _section_of_list(field.annotation)) is not None:
            nested.append((element, f"{path}.{name}[]" if path else f"{name}[]"))
            parts.append(f"| `{name}` | list of sections | {_default(field)} | {_cell(field.description or '')} |")
        else:
            parts.append(f"| `{name}` | {_type(field)} | {_default(field)} | {_cell(field.description or '')} |")
    parts.append("")
    for section, inner in nested:
        _section(section, inner, parts)


def _section_of_list(annotation: Any) -> type[BaseModel] | None:
    """The section model of a list's elements."""
    return section_of(typing.get_args(annotation)[0]) if typing.get_origin(annotation) is tuple else None


def _type(field: FieldInfo) -> str:
    names = {str: "text", bool: "true or false", int: "whole number", float: "number"}
    pattern = next((meta for meta in field.metadata if type(meta).__name__ == "WithJsonSchema"), None)
    return _annotation(field.annotation, names, pattern)


def _annotation(annotation: Any, names: dict[Any, str], schema: Any = None) -> str:
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if schema is not None and annotation in (int, float):
        return _unit_kind(schema.json_schema)
    if origin is typing.Annotated:
        inner = next((meta for meta in args[1:] if type(meta).__name__ == "WithJsonSchema"), None)
        return _annotation(args[0], names, inner)
    if origin is typing.Literal:
        return ", ".join(f"`{value}`" for value in args)
    if origin in (typing.Union, types.UnionType):
        return " or ".join("null" if part is type(None) else _annotation(part, names) for part in args)
    if origin is tuple:
        inner = _annotation(args[0], names)
        return f"list of {inner}s" if inner == "whole number" else f"list of {inner}"
    if origin is dict:
        return f"mapping of {_annotation(args[0], names)} to {_annotation(args[1], names)}"
    return names.get(annotation, str(annotation))


def _unit_kind(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return "share"
    return "size" if "MiB" in str(schema.get("examples")) else "time"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    return f"`{json.dumps(list(value) if isinstance(value, tuple) else value)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def main(arguments: list[str]) -> int:
    text = render()
    if arguments:
        Path(arguments[0]).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
