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

_MISSING = object()


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
        "host": host_facts_of(stage),
    }


def host_facts_of(stage: Stage) -> dict[str, Any]:
    """The machine's part of the key; empty for a stage that does not say so."""
    facts = getattr(stage, "host_facts", None)
    return dict(facts()) if facts is not None else {}


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
    if value is _MISSING:
        return "(absent)"
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def describe_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs between two sets of ingredients, one sentence each, most telling first."""
    changes: list[str] = []
    if old.get("code_version") != new.get("code_version"):
        changes.append(f"the stage's code {old.get('code_version')} → {new.get('code_version')}")
    left, right = dict(_flatten(old.get("section", {}), "section")), dict(_flatten(new.get("section", {}), "section"))
    for name in sorted({*left, *right}):
        before, after = left.get(name, _MISSING), right.get(name, _MISSING)
        if before != after:
            changes.append(f"{name}: {_show(before)} → {_show(after)}")
    for name in sorted({*old.get("inputs", {}), *new.get("inputs", {})}):
        if old.get("inputs", {}).get(name) != new.get("inputs", {}).get(name):
            changes.append(f"input {name} changed")
    for name in sorted({*old.get("tools", {}), *new.get("tools", {})}):
        before, after = old.get("tools", {}).get(name, "unused"), new.get("tools", {}).get(name, "unused")
        if before != after:
            changes.append(f"tool {name} {before} → {after}")
    left, right = dict(_flatten(old.get("host", {}), "host")), dict(_flatten(new.get("host", {}), "host"))
    for name in sorted({*left, *right}):
        before, after = left.get(name, _MISSING), right.get(name, _MISSING)
        if before != after:
            changes.append(f"{name}: {_show(before)} → {_show(after)}")
    return changes
