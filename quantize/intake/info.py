"""What intake knows about a checkpoint: the record that later stages and the planner read."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

CHECKPOINT_FILE = "checkpoint.json"


class FileRecord(BaseModel):
    """One file of the checkpoint directory."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    size: int = Field(description="Bytes")
    sha256: str = Field(description="Lower-case hexadecimal; empty when the source was inspected, not fetched")


class CheckpointInfo(BaseModel):
    """Shape, origin and hashes of a checkpoint; ``checkpoint.json`` holds exactly this.

    After :func:`~quantize.intake.fetch_checkpoint` every figure describes the directory written; after
    :func:`~quantize.intake.inspect_source` it describes the source as it lies there, with ``dtype`` as stored
    (a GGUF's most common tensor type for instance) and no hashes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int = 1
    source: str = Field(description="As the recipe writes it")
    sha256: str | None = Field(description="Of the source file or archive, or the digest of a directory's file hashes")
    origin: dict[str, Any] = Field(
        default_factory=dict, description="How the source was reached: archive, member, commit"
    )
    architecture: str = Field(description="The Hugging Face class, for example LlamaForCausalLM")
    family: str = Field(description="The graph family that builds it, for example llama")
    dtype: str = Field(description="Of the unquantized tensors")
    source_dtype: str = Field(description="The most common type of the source's tensors by bytes")
    parameters: int
    bytes: int = Field(description="Of all tensors")
    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_size: int
    vocab: int = Field(description="Rows of the embedding")
    max_positions: int
    sliding_window: int | None = Field(None, description="Of the layers that have one")
    window_layers: int | None = Field(None, description="How many layers have it; null: all, when there is one")
    attention_bias: bool = Field(False, description="Biases on q, k and v")
    key_bias: float | None = Field(
        None, description="Largest magnitude of the biases on k; null: none there, or their values were not read"
    )
    mlp_bias: bool = False
    qk_norm: bool = Field(False, description="RMS norms over each head of q and k")
    tied: bool = Field(description="The output projection is the embedding; lm_head is not stored")
    rope: dict[str, Any] = Field(description="rope_type, rope_theta and what the type needs")
    bos_token_id: int | None = None
    eos_token_ids: list[int] = Field(default_factory=list)
    prequantized: str | None = Field(
        None, description="Format of an already quantized checkpoint: a row of the format table"
    )
    prequantized_kv_cache: str | None = None
    notes: list[str] = Field(default_factory=list, description="What intake changed or left out, in sentences")
    files: list[FileRecord] = Field(default_factory=list)
