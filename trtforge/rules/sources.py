"""Where rules have their reasons from: short names for addresses that many of them name."""

from __future__ import annotations

ATTENTION = "https://nvidia.github.io/TensorRT-LLM/advanced/gpt-attention.html"
DRAFTER_CLASSES = "https://github.com/NVIDIA/TensorRT-LLM/blob/main/tensorrt_llm/_torch/models/modeling_speculative.py"
DRAFT_TARGET = "https://github.com/NVIDIA/TensorRT-LLM/blob/main/examples/draft_target_model/README.md"
EAGLE_3_PAPER = "https://arxiv.org/abs/2503.01840"
ENGINE_PARAMETERS = "https://github.com/triton-inference-server/tensorrtllm_backend/blob/main/docs/model_config.md"
KV_CACHE = "https://nvidia.github.io/TensorRT-LLM/features/kvcache.html"
MODELOPT_BENCHMARK = "https://github.com/NVIDIA/Model-Optimizer/blob/main/examples/benchmark.md"
MODELOPT_CHANGES = "https://github.com/NVIDIA/Model-Optimizer/blob/main/CHANGELOG.rst"
MODEL_CONFIG_PROTO = "https://github.com/triton-inference-server/common/blob/main/protobuf/model_config.proto"
RAGGED_BATCHING = (
    "https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/user_guide/ragged_batching.html"
)
RTX_SUPPORT = "https://docs.nvidia.com/deeplearning/tensorrt-rtx/latest/getting-started/support-matrix.html"
SPECULATION = "https://nvidia.github.io/TensorRT-LLM/features/speculative-decoding.html"
SAMPLING_PAPER = "https://arxiv.org/abs/2211.17192"
SPECULATORS = "https://docs.vllm.ai/projects/speculators/en/latest/"

_TRACKERS = {
    "AR": "intel/auto-round",
    "CT": "vllm-project/compressed-tensors",
    "GPTQ": "ModelCloud/GPTQModel",
    "LC": "vllm-project/llm-compressor",
    "LF": "hiyouga/LlamaFactory",
    "MAX": "modular/modular",
    "MLX": "Blaizzy/mlx-vlm",
    "MO": "NVIDIA/Model-Optimizer",
    "RX": "redai-studio/Relax",
    "SG": "sgl-project/sglang",
    "SGC": "sgl-project/sgl-cookbook",
    "TGI": "huggingface/text-generation-inference",
    "TB": "triton-inference-server/tensorrtllm_backend",
    "TL": "NVIDIA/TensorRT-LLM",
    "TS": "triton-inference-server/server",
    "VL": "vllm-project/vllm",
}


def thread(name: str) -> str:
    """The address of an issue thread: ``TB#61``, ``TL#2820``; or of a pull request: ``MO!2038``."""
    sign = "!" if "!" in name else "#"
    tracker, number = name.split(sign)
    return f"https://github.com/{_TRACKERS[tracker]}/{'pull' if sign == '!' else 'issues'}/{number}"
