"""What the cases are written with: settings laid over each other, a recipe for each target, public models."""

from __future__ import annotations

from functools import reduce
from typing import Any

from tests.support.public_models import public
from trtforge.recipe.merge import deep_merge

Case = tuple[dict[str, Any], dict[str, Any]]


def merged(*parts: dict[str, Any]) -> dict[str, Any]:
    """Settings laid over each other."""
    return reduce(deep_merge, parts, {})


def build(**keys: Any) -> dict[str, Any]:
    return {"build": keys}


def quant(**keys: Any) -> dict[str, Any]:
    return {"quantize": keys}


def trtllm(**keys: Any) -> dict[str, Any]:
    return {"build": {"trtllm": keys}}


def triton(**keys: Any) -> dict[str, Any]:
    return {"triton": keys}


def parameters(**values: str) -> dict[str, Any]:
    return {"triton": {"parameters": values}}


def speculation(**keys: Any) -> dict[str, Any]:
    return {"speculation": keys}


#: a recipe for each target
GPU = build(target="tensorrt", architectures=["sm_89"])
RTX = build(target="tensorrt-rtx", architectures=["sm_89"])
ENGINE = merged(
    build(target="trtllm-engine", architectures=["sm_90"]),
    triton(layout="inflight_batcher_llm"),
    {"model": {"dtype": "float16"}},
)
API = merged(build(target="trtllm-llmapi", architectures=["sm_90"]), triton(layout="llmapi"))

QWEN_72B = public("Qwen/Qwen2-72B-Instruct")
LLAMA_70B = public("meta-llama/Llama-3.1-70B-Instruct")
LLAMA_8B = public("meta-llama/Llama-3.1-8B-Instruct")
QWEN_7B = public("Qwen/Qwen2.5-7B-Instruct")
VICUNA = public("lmsys/vicuna-7b-v1.3")
GLM = public("THUDM/chatglm3-6b")
QWEN_18 = public("Qwen/Qwen1.5-1.8B-Chat")
YARN = public("Qwen/Qwen2.5-7B-Instruct with YaRN")
WINDOW = public("mistralai/Mistral-7B-v0.1")
TREE = [[0], [0, 0], [1], [0, 1], [0, 0, 0]]
