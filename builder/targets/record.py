"""engine.json: reading the record of an engine, of whatever target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import read_json_file
from trtforge.targets import TARGETS

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


def require_parts(engine: dict[str, Any], engine_dir: Path) -> None:
    """Refuse a record that lacks parts which every engine of its target has.

    Raises:
        ForgeError: ``TF-BLD-020``.
    """
    kinds = {**_PARTS, **_PARTS_OF[engine["target"]]}
    faults = [path for path, kind in kinds.items() if not _has(engine, path.split("."), kind)]
    if faults:
        raise changed(engine_dir, f"lacks {', '.join(faults)}, or has them of another kind")


def changed(engine_dir: Path, how: str) -> ForgeError:
    """``TF-BLD-020``: the record is not as this version writes it."""
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
