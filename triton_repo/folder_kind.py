"""What a folder that somebody names as a model holds, told by its files.

A checkpoint of Hugging Face is what PyTorch backends load; others look alike and are not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from triton_repo.lint.files import Unreadable, entries, read_text
from trtforge.ground.paths import real_path

Kind = Literal[
    "a Hugging Face checkpoint",
    "a TensorRT-LLM checkpoint",
    "a TensorRT-LLM engine",
    "an engine of trtforge",
    "a LoRA adapter",
    "a diffusion pipeline",
    "a GGUF file in a folder",
    "a checkpoint in its maker's own format",
    "a folder without a model",
]


def folder_kind(folder: Path) -> Kind | None:
    """What the folder holds; None when it cannot be listed."""
    try:
        names = {entry.name for entry in entries(folder)}
    except (Unreadable, OSError):
        return None
    config = _config(folder) if "config.json" in names else {}
    if "build_config" in config or "rank0.engine" in names:
        return "a TensorRT-LLM engine"
    # its configuration says `architecture`; Hugging Face's says `architectures`
    if "rank0.safetensors" in names or (isinstance(config.get("architecture"), str) and "architectures" not in config):
        return "a TensorRT-LLM checkpoint"
    if "config.json" in names:
        return "a Hugging Face checkpoint"
    if "adapter_config.json" in names:
        return "a LoRA adapter"
    if "model_index.json" in names:
        return "a diffusion pipeline"
    if "engine.json" in names:
        return "an engine of trtforge"
    if any(name.endswith(".gguf") for name in names):
        return "a GGUF file in a folder"
    if "params.json" in names or any(name.startswith("consolidated") for name in names):
        return "a checkpoint in its maker's own format"
    return "a folder without a model"


def _config(folder: Path) -> dict[str, Any]:
    try:
        document = json.loads(read_text(folder / "config.json", real_path(folder)))
    except (Unreadable, ValueError, OSError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}
