"""Engine targets: one interface, one folder each, found by the registry (:mod:`trtforge.targets`).

Policy: a target that is not implemented is refused by name, with those that are; there are no stubs. Some
targets are built from the ONNX graph, others from the quantized checkpoint (TensorRT-LLM makes its own network).
``engine_info`` reads an engine's record and says what this machine will execute.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from builder.targets.description import Description
from builder.targets.record import changed, read_engine, require_whole
from trtforge.drafting.record import SpeculationRecord, read_speculation
from trtforge.ground.errors import ForgeError
from trtforge.targets import TARGETS

__all__ = ["describe", "engine_info", "read_engine", "target_module"]

#: files that a verdict names
_MOST = 8


def target_module(name: str, part: str = "target") -> ModuleType:
    """A module of the folder of a target: ``target`` builds engines, ``info`` describes them.

    Raises:
        ForgeError: ``TF-BLD-001`` this version does not build that target.
    """
    if name not in TARGETS:
        raise ForgeError(
            "TF-BLD-001",
            f"This version does not build the target {name}",
            asked=f"build.target: {name}",
            numbers={"targets": sorted(TARGETS)},
            why="No module of this version makes that kind of engine.",
            remedies=[f"Set build.target: {other}" for other in sorted(TARGETS)],
        )
    return importlib.import_module(f"{__name__}.{TARGETS[name].folder}.{part}")


def engine_info(engine_dir: Path, capability: str | None = None) -> dict[str, Any]:
    """What the engine holds and what this machine executes, as the target's ``info`` module says it.

    Args:
        capability: processor level to answer for; default: this machine's.

    Returns:
        engine.json and what the target adds; ``draft_engine``: the same of the engine that drafts, where there is one.

    Raises:
        ForgeError: ``TF-BLD-020`` no engine, or a record that lacks parts; and the target's own.
    """
    engine_dir = Path(engine_dir)
    engine = read_engine(engine_dir)
    require_whole(engine, engine_dir)
    record = _speculation(engine, engine_dir)
    info: dict[str, Any] = target_module(engine["target"], "info").engine_info(engine_dir, engine, capability)
    if record is not None and record.draft is not None:
        info["draft_engine"] = engine_info(engine_dir / record.draft, capability)
    return info


def describe(document: dict[str, Any]) -> Description:
    """What :func:`engine_info` found in words; broken also where files of the engine are gone."""
    described: Description = target_module(document["target"], "info").describe(document)
    gone = document.get("missing", ())
    if not gone:
        return described
    more = f" and {len(gone) - _MOST} more" if len(gone) > _MOST else ""
    verdict = f"files of the engine are gone: {', '.join(gone[:_MOST])}{more}"
    return replace(described, verdicts=(verdict, *described.verdicts), broken=True)


def _speculation(engine: dict[str, Any], engine_dir: Path) -> SpeculationRecord | None:
    """What the engine drafts by; TensorRT-LLM's engines keep the recipe's section instead."""
    if not TARGETS[engine["target"]].from_graph:
        return None
    try:
        return read_speculation(engine)
    except ValueError as error:
        raise changed(engine_dir, f"has a speculation that cannot be read: {error}") from error
