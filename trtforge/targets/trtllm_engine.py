"""``trtllm-engine``: engines of TensorRT-LLM, compiled by ``trtllm-build`` and served by its backend for Triton."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from trtforge.targets.base import Target
from trtforge.targets.record import Part
from trtforge.targets.trtllm import TrtllmRecord, left_to_tensorrt_llm


class Requantized(Part):
    """Weights that the conversion rounded a second time."""

    weights: int


class Conversion(Part):
    """What became of the checkpoint's weights."""

    requantized: Requantized


class TrtllmEngineRecord(TrtllmRecord):
    """engine.json: the settings that the compiled engine is held against; ``draft``: that of the model that drafts."""

    target: Literal["trtllm-engine"]
    settings: dict[str, Any]
    scripts: list[str] = Field(default_factory=list)
    conversion: Conversion | None = None
    draft: TrtllmEngineRecord | None = None


TRTLLM_ENGINE = Target(
    name="trtllm-engine",
    folder="trtllm_engine",
    made_from="checkpoint",
    runtime="trtllm-cpp",
    needs_gpu=True,
    built_for="this-gpu",
    compiled=True,
    record=TrtllmEngineRecord,
    one_rank=False,
    layouts=("inflight_batcher_llm",),
    head_multiple=2,
    one_scale=True,
    one_kv_scale=True,
    left_out=left_to_tensorrt_llm(
        "an engine of TensorRT-LLM runs on a GPU under its own runtime, which this pipeline has no runner for"
    ),
)
