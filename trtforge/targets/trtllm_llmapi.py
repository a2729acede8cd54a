"""``trtllm-llmapi``: no engine; TensorRT-LLM's LLM API loads the quantized checkpoint on PyTorch."""

from __future__ import annotations

from typing import Literal

from trtforge.targets.base import Target
from trtforge.targets.trtllm import TrtllmRecord, left_to_tensorrt_llm


class TrtllmLlmapiRecord(TrtllmRecord):
    """engine.json: the command that serves the checkpoint."""

    target: Literal["trtllm-llmapi"]
    serve: list[str]


TRTLLM_LLMAPI = Target(
    name="trtllm-llmapi",
    folder="trtllm_llmapi",
    made_from="checkpoint",
    runtime="trtllm-pytorch",
    needs_gpu=True,
    built_for="any",
    compiled=False,
    record=TrtllmLlmapiRecord,
    one_rank=False,
    layouts=("llmapi",),
    one_scale=True,
    left_out=left_to_tensorrt_llm(
        "TensorRT-LLM loads the checkpoint on a GPU when it starts, and this pipeline has no runner for it"
    ),
)
