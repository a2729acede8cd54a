"""What every engine.json holds; each target's own record stands beside its object and adds its parts.

Policy: what readers rely on is required and of its exact kind (a truth value is no number, a text no count); further
keys are kept, so that an engine of another release of the same version is read.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from trtforge.ground.versions import WHOLE

ENGINE_VERSION = 1
#: a size, or a number of things
Count = Annotated[int, Field(gt=0, lt=2**31)]
#: a SHA-256 in hexadecimal digits
Digest = Annotated[str, Field(pattern=r"\A[0-9a-f]{64}\z")]
#: a file of the engine, or of the folder of what drafts
EngineFile = Annotated[str, Field(pattern=r"\A(draft/)?[^/\x00]{1,255}\z")]


class Part(BaseModel):
    """A part of engine.json."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True, defer_build=True)


class Cache(Part):
    """``kv_cache``: its element type."""

    format: str


class EngineRecord(Part):
    """engine.json of any target."""

    version: Annotated[Literal[1], WHOLE]
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


class Linear(Part):
    """A linear as it is stored; ``shape`` is [outputs, inputs]."""

    name: str
    shape: Annotated[list[Count], Field(min_length=2, max_length=2)]
    stored: str
    group_size: Count | None


class ServedRecord(EngineRecord):
    """engine.json of an engine that trtforge's own runtime runs; ``sha256``: its files, and those of what drafts."""

    limits: Limits
    kv_cache: Pool
    dtype: str
    group_size: Count | None = None
    vocab_size: Count
    ops_version: int | None = None
    linears: list[Linear]
    eos_token_ids: list[int] | None = None
    bos_token_id: int | None = None
    memory_plan: dict[str, Any] = {}
    sha256: dict[EngineFile, Digest] = {}
