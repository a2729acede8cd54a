"""What lies in a folder that a repository shall serve, and the folder or layout that was meant when it does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import read_json_file
from trtforge.targets import DEFAULT, TARGETS, names
from trtforge.targets.layouts import INFLIGHT_BATCHER, LAYOUTS, LLM_API, NATIVE, Layout

Kind = Literal["artifact", "compiled", "converted", "checkpoint", "unknown"]
_WORDS = {
    "compiled": "a compiled engine of TensorRT-LLM",
    "converted": "a checkpoint in TensorRT-LLM's own format, which has still to be compiled",
    "checkpoint": "a Hugging Face checkpoint",
}


def require_served(source: Path, layout: str) -> None:
    """Refuse a folder that the layout cannot serve, when what lies there is known; the unknown is left to the layout.

    Raises:
        ForgeError: TF-TRI-070 with the folder or the layout that works.
    """
    kind, target = _kind_of(source)
    if kind == "artifact":
        fault = _artifact_fault(source, str(target), layout)
    elif kind == "unknown" or kind == LAYOUTS[layout].serves:
        return
    else:
        fault = (_WORDS[kind], _remedies(source, kind, layout))
    if fault is not None:
        found, remedies = fault
        raise ForgeError(
            "TF-TRI-070",
            f"the layout {layout} does not serve what lies there",
            asked=f"{source}, triton.layout: {layout}",
            why=f"it is {found}",
            remedies=remedies,
        )


def _kind_of(source: Path) -> tuple[Kind, str | None]:
    artifact = _object(source / "engine.json")
    if "target" in artifact:
        return "artifact", str(artifact["target"])
    config = _object(source / "config.json")
    if "pretrained_config" in config and "build_config" in config:
        return "compiled", None
    if "architecture" in config and "mapping" in config:
        return "converted", None
    if "architectures" in config or "model_type" in config:
        return "checkpoint", None
    return "unknown", None


def _object(path: Path) -> dict[str, Any]:
    try:
        value = read_json_file(path)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _artifact_fault(source: Path, target: str, layout: str) -> tuple[str, list[str]] | None:
    """An engine folder of ours: the native layout takes it whole, the others a folder inside it."""
    words = f"an engine folder of the target {target}"
    known = TARGETS.get(target)
    if known is not None and known.runs_here:
        return None if LAYOUTS[layout].own_runtime else (words, [_emit(source, NATIVE)])
    if known is not None and known.trtllm_build:
        remedies = [_emit(source / "trtllm", INFLIGHT_BATCHER, tokenizer=source)]
        if not (source / "trtllm" / "config.json").is_file():
            remedies = [f"compile it first: sh {source / 'container.sh'}, then {remedies[0]}"]
        return words, remedies
    if known is not None and known.llm_api:
        return words, [_emit(source / "checkpoint", LLM_API)]
    return words, ["no layout serves it: trtforge engine info says where it loads"]


def _remedies(source: Path, kind: Kind, layout: str) -> list[str]:
    if kind == "compiled":
        beside = source.parent if (source.parent / "tokenizer.json").is_file() else None
        return [_emit(source, INFLIGHT_BATCHER, tokenizer=beside)]
    if kind == "converted":
        return [f"compile it first: trtllm-build --checkpoint_dir {source}, then name what that writes"]
    if LAYOUTS[layout].own_runtime:
        return [_emit(source, LLM_API), f"trtforge run RECIPE with build.target: {DEFAULT.name} makes an engine of it"]
    built = " or ".join(names(lambda target: target.trtllm_build))
    return [_emit(source, LLM_API), f"trtllm-build compiles an engine of it: trtforge run with target {built}"]


def _emit(source: Path, layout: Layout, *, tokenizer: Path | None = None) -> str:
    more = f" --tokenizer {tokenizer}" if tokenizer is not None else ""
    return f"trtforge triton emit {source} OUT --layout {layout.name}{more}"
