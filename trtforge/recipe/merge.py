"""How a recipe is put together: deep-merge over a base, then overrides from the command line.

Policy: mappings merge key by key; lists, scalars and null replace what the base said (a list is a
decision, and null takes a gate away). Inputs are never changed.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from trtforge.ground.errors import ForgeError
from trtforge.recipe.text import parse_scalar


def deep_merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``over`` laid upon ``base``; a new dict that shares nothing with either."""
    result = {key: copy.deepcopy(value) for key, value in base.items()}
    for key, value in over.items():
        present = result.get(key)
        if isinstance(present, dict) and isinstance(value, Mapping):
            result[key] = deep_merge(present, value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def parse_override(text: str) -> tuple[tuple[str, ...], Any]:
    """``"quantize.format=fp8"`` as its key path and YAML value; raises TF-RCP-010."""
    name, equals, value = text.partition("=")
    keys = tuple(part.strip() for part in name.split("."))
    if not equals or not all(keys):
        raise ForgeError(
            "TF-RCP-010",
            f"--set {text} is not of the form key.key=value",
            asked=f"--set {text}",
            why="An override names one key of the recipe by its dotted path and gives its new value as YAML.",
            remedies=["--set quantize.group_size=64", "--set 'bench.concurrency=[1, 8]'"],
        )
    if keys[0] == "extends":
        raise ForgeError(
            "TF-RCP-010",
            "extends cannot be overridden",
            asked=f"--set {text}",
            why="Overrides are applied after inheritance is resolved.",
            remedies=["write a small recipe with that extends: line"],
        )
    return keys, parse_scalar(value, f"--set {name}")


def apply_overrides(data: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """``data`` with every ``key.key=value`` laid upon it, in order; raises TF-RCP-010."""
    result: dict[str, Any] = copy.deepcopy(dict(data))
    for text in overrides:
        keys, value = parse_override(text)
        for depth in range(1, len(keys)):
            present: Any = result
            for key in keys[:depth]:
                present = present.get(key) if isinstance(present, dict) else None
            if present is not None and not isinstance(present, dict):
                raise ForgeError(
                    "TF-RCP-010",
                    f"--set {text}: {'.'.join(keys[:depth])} is a value, it has no keys below it",
                    asked=f"--set {text}",
                    numbers={".".join(keys[:depth]): present},
                    why="The path goes through something that is not a section.",
                    remedies=[f"--set {'.'.join(keys[:depth])}=VALUE"],
                )
        layer: Any = value
        for key in reversed(keys):
            layer = {key: layer}
        # a section that was null (a gate taken away) comes back when one of its keys is set
        result = deep_merge(result, layer)
    return result
