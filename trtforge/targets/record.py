"""What every engine.json holds; each target's own record stands beside its object and adds its parts.

Policy: what readers rely on is required and of its exact kind (a truth value is no number, a text no count); further
keys are kept, so that an engine of another release of the same version is read.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

ENGINE_VERSION = 1
#: a size, or a number of things
Count = Annotated[int, Field(gt=0, lt=2**31)]


class Part(BaseModel):
    """A part of engine.json."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)


class Cache(Part):
    """``kv_cache``: its element type."""

    format: str


class EngineRecord(Part):
    """engine.json of any target."""

    version: Literal[1]
    target: str
    name: str
    quant_format: str
    kv_cache: Cache


class Pool(Cache):
    """``kv_cache`` of an engine whose blocks trtforge's own runtime hands out."""

    num_blocks: Count
    block_size: Count
    bytes_per_block: Count


class Limits(Part):
    """``limits``: of a step in requests and tokens, and of a request in tokens."""

    max_batch_size: Count
    max_num_tokens: Count
    max_seq_len: Count
    max_input_len: Count | None = None


class ServedRecord(EngineRecord):
    """engine.json of an engine that trtforge's own runtime runs."""

    limits: Limits
    kv_cache: Pool
    dtype: str
    vocab_size: Count
    eos_token_ids: list[int] | None = None
    bos_token_id: int | None = None
    memory_plan: dict[str, Any] = {}
