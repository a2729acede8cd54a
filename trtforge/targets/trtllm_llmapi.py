"""``trtllm-llmapi``: no engine; TensorRT-LLM's LLM API loads the quantized checkpoint on PyTorch."""

from __future__ import annotations

from trtforge.targets.base import Target
from trtforge.targets.gates import left_to_tensorrt_llm

TRTLLM_LLMAPI = Target(
    name="trtllm-llmapi",
    folder="trtllm_llmapi",
    made_from="checkpoint",
    runtime="trtllm-pytorch",
    needs_gpu=True,
    built_for="any",
    compiled=False,
    one_rank=False,
    layouts=("llmapi",),
    one_scale=True,
    left_out=left_to_tensorrt_llm(
        "TensorRT-LLM loads the checkpoint on a GPU when it starts, and this pipeline has no runner for it"
    ),
)
