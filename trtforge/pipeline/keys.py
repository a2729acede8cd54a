"""Content keys: which ingredients decide a stage's result, and what changed between two sets of them.

Policy: inputs enter a key by their ``content_hash``, not by their own key: when a changed upstream
stage produces the same bytes, everything downstream stays cached. Tool versions come from package
metadata; nothing is imported.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from trtforge.ground.hashing import hash_json
from trtforge.ground.redaction import redact_value
from trtforge.machine.software import tool_versions
from trtforge.pipeline.stage import Stage
from trtforge.recipe.schema import Recipe
from trtforge.store.artifact import Artifact


def ingredients_of(stage: Stage, recipe: Recipe, recipe_dir: Path, inputs: Mapping[str, Artifact]) -> dict[str, Any]:
    """Everything that decides the result of ``stage``, JSON-able; raises what ``stage.section`` raises.

    It is recorded and printed, so a secret in a recipe's texts is masked here, before it enters the key.
    """
    return {
        "stage": stage.name,
        "code_version": stage.code_version,
        "section": redact_value(stage.section(recipe, recipe_dir)),
        "inputs": {name: artifact.manifest["content_hash"] for name, artifact in inputs.items()},
        "tools": tool_versions(stage.tools),
        "host": stage.host_facts(),
    }


def key_of(ingredients: Mapping[str, Any]) -> str:
    """The content key (64 hexadecimal digits) of a stage's ingredients."""
    return hash_json(ingredients)


def _flatten(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for name in sorted(value, key=str):
            yield from _flatten(value[name], f"{prefix}.{name}" if prefix else str(name))
    else:
        yield prefix, value


def _show(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _differences(
    old: Mapping[str, Any], new: Mapping[str, Any], absent: str = "(absent)"
) -> Iterator[tuple[str, str, str]]:
    """(name, before, after) of what is not the same in both."""
    for name in sorted({*old, *new}):
        if name not in old or name not in new or old[name] != new[name]:
            before, after = (_show(side[name]) if name in side else absent for side in (old, new))
            yield name, before, after


def describe_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs between two sets of ingredients, one sentence each, most telling first."""

    def flat(part: str) -> Iterator[str]:
        left, right = (dict(_flatten(side.get(part, {}), part)) for side in (old, new))
        return (f"{name}: {before} → {after}" for name, before, after in _differences(left, right))

    changes: list[str] = []
    if old.get("code_version") != new.get("code_version"):
        changes.append(f"the stage's code {old.get('code_version')} → {new.get('code_version')}")
    changes += flat("section")
    changes += [f"input {name} changed" for name, _, _ in _differences(old.get("inputs", {}), new.get("inputs", {}))]
    tools = _differences(old.get("tools", {}), new.get("tools", {}), "unused")
    changes += [f"tool {name} {before} → {after}" for name, before, after in tools]
    changes += flat("host")
    return changes
