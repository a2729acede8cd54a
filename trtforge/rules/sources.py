"""Where rules have their reasons from: short names for addresses that many of them name."""

from __future__ import annotations

_TRACKERS = {
    "MO": "NVIDIA/Model-Optimizer",
    "TB": "triton-inference-server/tensorrtllm_backend",
    "TL": "NVIDIA/TensorRT-LLM",
    "TS": "triton-inference-server/server",
    "VL": "vllm-project/vllm",
}


def thread(name: str) -> str:
    """The address of an issue thread: ``TB#61``, ``TS#8592``, ``TL#2820``."""
    tracker, number = name.split("#")
    return f"https://github.com/{_TRACKERS[tracker]}/issues/{number}"
