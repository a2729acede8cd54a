"""What TensorRT-LLM's two targets share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from trtforge.ground.section import PositiveInt, Section
from trtforge.ground.units import Size
from trtforge.targets.base import NotRun
from trtforge.targets.gates import AGREEMENT, SPECULATION
from trtforge.targets.record import Cache, EngineRecord, Part


class Lora(Section):
    """Adapters that the engine serves beside its own weights."""

    adapters: dict[str, str] = Field(default_factory=dict, description="Name: source, written as model.source")
    max_rank: PositiveInt = Field(8, description="Largest rank of an adapter")
    target_modules: tuple[str, ...] = Field(
        ("attn_q", "attn_k", "attn_v"), description="Modules that adapters may change, as TensorRT-LLM names them"
    )


class TrtLlm(Section):
    """What only TensorRT-LLM has: settings of trtllm-build and of its runtime."""

    paged_context_attention: bool = Field(True, description="Context attention reads the paged KV cache")
    fp8_context_attention: bool = Field(
        False, description="Context attention in FP8; over a paged FP8 KV cache trtllm-build has no other"
    )
    kv_reuse: bool = Field(False, description="Share KV blocks of equal prefixes; needs paged context attention")
    chunked_context: bool = Field(True, description="Cut long prompts in chunks; needs paged context attention")
    host_kv_memory: Size | None = Field(None, description="Host memory for KV blocks that left the GPU")
    scheduler_policy: Literal["guaranteed_no_evict", "max_utilization"] = Field(
        "guaranteed_no_evict", description="Whether a request may be paused for want of KV blocks"
    )
    max_beam_width: PositiveInt = Field(1, description="Beams that a request may ask for")
    gather_context_logits: bool = Field(False, description="Logits of the prompt's tokens are returned")
    gather_generation_logits: bool = Field(False, description="Logits of the answer's tokens are returned")
    guided_decoding: Literal["none", "xgrammar"] = Field("none", description="Backend of guided decoding")
    lora: Lora | None = Field(None, description="Adapters; null builds none in")
    workers: PositiveInt = Field(1, description="Ranks that trtllm-build builds at once")
    timing_cache: str | None = Field(None, description="File of kernel timings that builds share, beside the recipe")


class BlockedCache(Cache):
    """Blocks of tokens that TensorRT-LLM hands out."""

    block_size: int


#: ranks of one kind; more than any machine has
RankCount = Annotated[int, Field(gt=0, le=512)]


class Ranks(Part):
    """Ranks of the engine."""

    tp: RankCount
    pp: RankCount
    ep: RankCount


class TrtllmRecord(EngineRecord):
    """engine.json of both: the stack that it is for, and whether there is a compiled engine."""

    limits: dict[str, Any]
    kv_cache: BlockedCache
    parallel: Ranks
    compiled: bool
    not_compiled: str | None
    tensorrt_llm: str
    stack: str
    container: str | None


def left_to_tensorrt_llm(why: str) -> Mapping[str, NotRun]:
    """What both leave out, whose network is TensorRT-LLM's own and whose runtime the pipeline does not run."""
    return {
        "graph": NotRun("TensorRT-LLM makes its own network from the checkpoint"),
        "parity": NotRun(why, (*AGREEMENT, "engine_sanity")),
        "speculation": NotRun(why, tuple(SPECULATION)),
        "smoke": NotRun(why, ("smoke",)),
        "bench": NotRun(why, ("failed_requests", "slo")),
    }
