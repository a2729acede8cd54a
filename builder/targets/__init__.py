"""Engine targets: one interface, one module each.

Policy: a target that is not implemented is refused by name, with those that are; there are no stubs. Some
targets are built from the ONNX graph, others from the quantized checkpoint (TensorRT-LLM makes its own network).
``engine_info`` reads an engine's record and says what this machine will execute.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any, Protocol

from builder.targets.kernels import Choice, choose, rows_of
from trtforge.drafting.record import SpeculationRecord, read_speculation
from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import read_json_file
from trtforge.ground.progress import Progress
from trtforge.machine.processor import processor
from trtforge.recipe.schema import Build

#: target built from the graph -> its module
GRAPH_TARGETS = {
    "torch": "builder.targets.torch_target",
    "tensorrt": "builder.targets.tensorrt.target",
    "tensorrt-rtx": "builder.targets.rtx.target",
}
#: target built from the quantized checkpoint -> its module
CHECKPOINT_TARGETS = {
    "trtllm-engine": "builder.targets.trtllm.engine_target",
    "trtllm-llmapi": "builder.targets.trtllm.llmapi_target",
}
TARGETS = {**GRAPH_TARGETS, **CHECKPOINT_TARGETS}


#: parts that every engine's record has, with their kinds; ``*`` stands for every entry of a list
_PARTS: dict[str, type] = {"name": str, "quant_format": str, "limits": dict, "kv_cache": dict, "kv_cache.format": str}
_POOL: dict[str, type] = {f"kv_cache.{name}": int for name in ("num_blocks", "block_size", "bytes_per_block")}
_TRTLLM: dict[str, type] = {
    **{f"parallel.{name}": int for name in ("tp", "pp", "ep")},
    "kv_cache.block_size": int,
    "compiled": bool,
    "tensorrt_llm": str,
    "stack": str,
    "container": object,
}
#: the parts that a target adds
_PARTS_OF: dict[str, dict[str, type]] = {
    "torch": {
        **_POOL,
        "kernel_choices": list,
        "linears": list,
        **{f"linears.*.{name}": str for name in ("name", "stored")},
        "linears.*.shape.*": int,
        "linears.*.group_size": object,
    },
    "tensorrt": {
        **_POOL,
        **{f"tensorrt.{name}": str for name in ("version", "gpu_architecture", "plugins.abi", "plugins.version")},
        "tensorrt.decode_buckets": list,
        "tensorrt.options": dict,
        "tensorrt.plan_bytes": int,
    },
    "tensorrt-rtx": {
        "dtype": str,
        "loads_in": str,
        "kv_cache.bytes_per_request": int,
        "engines": list,
        **{f"engines.*.{name}": str for name in ("architecture", "file", "sha256")},
        "engines.*.bytes": int,
        "profiles": list,
        **{f"profiles.*.{name}": object for name in ("name", "batch", "row")},
    },
    "trtllm-engine": {**_TRTLLM, "settings": dict},
    "trtllm-llmapi": {**_TRTLLM, "serve": list},
}


class Target(Protocol):
    """What the module of a target built from the graph offers."""

    NAME: str

    def build_engine(
        self,
        graph_dir: Path,
        out: Path,
        *,
        name: str,
        build: Build,
        speculation: SpeculationRecord | None = None,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Write the engine of ``graph_dir`` into ``out``; returns the contents of engine.json."""


class CheckpointTarget(Protocol):
    """What the module of a target built from the checkpoint offers beside its own ``build_engine``."""

    NAME: str

    def engine_info(self, artifact: Path, engine: dict[str, Any]) -> dict[str, Any]:
        """What the artifact holds, for people."""


def _module(name: str, modules: dict[str, str]) -> Any:
    if name not in modules:
        raise ForgeError(
            "TF-BLD-001",
            f"This version does not build the target {name}",
            asked=f"build.target: {name}",
            numbers={"targets": sorted(TARGETS)},
            why="No module of this version makes that kind of engine.",
            remedies=[f"Set build.target: {other}" for other in sorted(TARGETS)],
        )
    return importlib.import_module(modules[name])


def get_target(name: str) -> Target:
    """The module of a target built from the graph.

    Raises:
        ForgeError: ``TF-BLD-001`` this version does not build that target.
    """
    module: Target = _module(name, GRAPH_TARGETS)
    return module


def build_engine(
    graph_dir: Path,
    out: Path,
    *,
    name: str,
    build: Build,
    speculation: SpeculationRecord | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Build the engine that ``build.target`` names from a graph; see the target's module."""
    target = get_target(build.target)
    return target.build_engine(graph_dir, out, name=name, build=build, speculation=speculation, progress=progress)


def get_checkpoint_target(name: str) -> CheckpointTarget:
    """The module of a target built from the checkpoint.

    Raises:
        ForgeError: ``TF-BLD-001`` this version does not build that target.
    """
    module: CheckpointTarget = _module(name, CHECKPOINT_TARGETS)
    return module


def read_engine(engine_dir: Path) -> dict[str, Any]:
    """engine.json of an engine directory.

    Raises:
        ForgeError: ``TF-BLD-020`` it is missing, malformed or of another version.
    """
    path = Path(engine_dir) / "engine.json"
    try:
        engine = read_json_file(path)
        if engine["version"] != 1 or engine["target"] not in TARGETS:
            raise ValueError(f"version {engine['version']}, target {engine['target']}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ForgeError(
            "TF-BLD-020",
            f"{path} describes no engine that this version reads: {error}",
            asked=str(engine_dir),
            why="The directory is no engine, or was written by another version.",
            remedies=["Point at the engine directory of a bundle (BUNDLE/engine)", "Build the engine again"],
        ) from error
    result: dict[str, Any] = engine
    return result


def _require_parts(engine: dict[str, Any], engine_dir: Path) -> None:
    kinds = {**_PARTS, **_PARTS_OF[engine["target"]]}
    faults = [path for path, kind in kinds.items() if not _has(engine, path.split("."), kind)]
    if faults:
        raise _changed(engine_dir, f"lacks {', '.join(faults)}, or has them of another kind")


def _changed(engine_dir: Path, how: str) -> ForgeError:
    return ForgeError(
        "TF-BLD-020",
        f"The record of the engine {how}",
        asked=str(Path(engine_dir) / "engine.json"),
        why="It was changed or cut short; no engine that this version writes is like that.",
        remedies=["trtforge verify BUNDLE names what was changed", "Build the engine again"],
    )


def _has(value: Any, path: list[str], kind: type) -> bool:
    """Whether everything at a path is there and of a kind; a truth value is no number."""
    if not path:
        return isinstance(value, kind) and not (kind is int and isinstance(value, bool))
    if path[0] == "*":
        return isinstance(value, list) and all(_has(entry, path[1:], kind) for entry in value)
    return isinstance(value, dict) and path[0] in value and _has(value[path[0]], path[1:], kind)


def engine_info(engine_dir: Path, capability: str | None = None) -> dict[str, Any]:
    """What the engine holds and what this machine executes, natively or emulated.

    Args:
        capability: processor level to answer for; default: this machine's.

    Returns:
        For TensorRT-LLM's targets engine.json and what was read back of a compiled engine. Else
        engine.json without hashes and rows, with ``linears`` decided anew for this machine, ``machine``
        (its capability) and ``execution``: for each (stored, executed, kernel, native, rounds) the number of
        linears and of weights; ``draft_engine``: the same of the engine that drafts, where there is one.

    Raises:
        ForgeError: ``TF-BLD-020`` no engine, or a record that lacks parts; and the target's own.
    """
    engine = read_engine(engine_dir)
    _require_parts(engine, engine_dir)
    record = _speculation(engine, engine_dir)
    draft = {}
    if record is not None and record.draft is not None:
        draft = {"draft_engine": engine_info(Path(engine_dir) / record.draft, capability)}
    if engine["target"] != "torch":
        described: dict[str, Any] = _module(engine["target"], TARGETS).engine_info(Path(engine_dir), engine)
        return {**described, **draft}
    capability = capability or processor().capability
    try:
        rows = rows_of(engine["kernel_choices"])
        return {**_torch_info(engine, capability, rows), **draft}
    except (TypeError, KeyError, LookupError) as error:
        raise _changed(engine_dir, f"has kernel_choices or linears that cannot be read: {error}") from error


def _speculation(engine: dict[str, Any], engine_dir: Path) -> SpeculationRecord | None:
    """What the engine drafts by; TensorRT-LLM's engines keep the recipe's section instead."""
    if engine["target"] in CHECKPOINT_TARGETS:
        return None
    try:
        return read_speculation(engine)
    except ValueError as error:
        raise _changed(engine_dir, f"has a speculation that cannot be read: {error}") from error


def _torch_info(engine: dict[str, Any], capability: str, rows: tuple[Choice, ...]) -> dict[str, Any]:
    """The torch engine's record with what this processor executes."""
    linears: list[dict[str, Any]] = []
    groups: dict[tuple[str, str, str, bool, str], tuple[int, int]] = {}
    for linear in engine["linears"]:
        shape = (int(linear["shape"][0]), int(linear["shape"][1]))
        row = choose(linear["stored"], capability, shape, linear["group_size"], rows)
        decided = {"executed": row.executed, "kernel": row.kernel, "native": row.native, "rounds": row.rounds}
        linears.append({key: linear[key] for key in ("name", "shape", "stored", "group_size")} | decided)
        key = (linear["stored"], row.executed, row.kernel, row.native, row.rounds or "")
        count, weights = groups.get(key, (0, 0))
        groups[key] = (count + 1, weights + shape[0] * shape[1])
    info = {key: value for key, value in engine.items() if key not in ("sha256", "kernel_choices", "linears")}
    info["machine"] = capability
    info["linears"] = linears
    info["execution"] = [
        {
            "stored": stored,
            "executed": executed,
            "kernel": kernel,
            "native": native,
            "rounds": rounds or None,
            "linears": count,
            "weights": weights,
        }
        for (stored, executed, kernel, native, rounds), (count, weights) in sorted(groups.items())
    ]
    return info
