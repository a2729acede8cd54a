"""What TensorRT-LLM's LLM API is told: the arguments of ``LLM()``, and ``trtllm-serve`` with the same settings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class LlmSettings:
    """Attributes:
    arguments: of ``LLM()``; paths are relative to the artifact.
    command: ``trtllm-serve`` with the same settings, run in the artifact's folder.
    file_name, file_text: the file that the command names.
    """

    arguments: dict[str, Any]
    command: tuple[str, ...]
    file_name: str
    file_text: str
