"""What intake knows about a checkpoint: the record that later stages and the planner read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from trtforge.models.record import Model
from trtforge.tables.decoders import decoders

CHECKPOINT_FILE = "checkpoint.json"
#: keys of checkpoint.json that are the model's fields of the same names, in the file's order
_MODEL_KEYS = (
    "architecture",
    "family",
    "dtype",
    "parameters",
    "layers",
    "hidden",
    "ffn",
    "heads",
    "kv_heads",
    "head_size",
    "vocab",
    "max_positions",
    "sliding_window",
    "window_layers",
    "windows",
    "attention_bias",
    "key_bias",
    "o_bias",
    "mlp_bias",
    "qk_norm",
    "norm_eps",
    "tied",
    "rope",
    "bos_token_id",
    "eos_token_ids",
    "prequantized",
    "prequantized_kv_cache",
)


class FileRecord(BaseModel):
    """One file of the checkpoint directory."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    size: int = Field(description="Bytes")
    sha256: str = Field(description="Lower-case hexadecimal; empty when the source was inspected, not fetched")


class CheckpointInfo(BaseModel):
    """Model, origin and hashes of a checkpoint; ``checkpoint.json`` holds this, the model's keys beside the others.

    After :func:`~quantize.intake.fetch_checkpoint` every figure describes the directory written; after
    :func:`~quantize.intake.inspect_source` it describes the source as it lies there, with ``model.dtype`` as stored
    (a GGUF's most common tensor type for instance) and no hashes.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int = 1
    source: str = Field(description="As the recipe writes it")
    sha256: str | None = Field(description="Of the source file or archive, or the digest of a directory's file hashes")
    origin: dict[str, Any] = Field(
        default_factory=dict, description="How the source was reached: archive, member, commit"
    )
    source_dtype: str = Field(description="The most common type of the source's tensors by bytes")
    bytes: int = Field(description="Of all tensors")
    model: Model
    notes: list[str] = Field(default_factory=list, description="What intake changed or left out, in sentences")
    files: list[FileRecord] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _from_flat(cls, data: Any) -> Any:
        """checkpoint.json's form, which has no key ``model``."""
        if not isinstance(data, Mapping) or "model" in data:
            return data
        rest = {key: value for key, value in data.items() if key not in _MODEL_KEYS}
        return {**rest, "model": _model(data)}

    @model_serializer(mode="wrap")
    def _flat(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        model, rest = self.model, plain(self)
        rest.pop("model", None)
        return {
            **rest,
            **{key: getattr(model, key) for key in _MODEL_KEYS},
            "sliding_window": model.sliding_window or None,
            "windows": list(model.windows),
            "rope": dict(model.rope),
            "eos_token_ids": list(model.eos_token_ids),
        }


def _model(data: Mapping[str, Any]) -> dict[str, Any]:
    """The model's fields of a checkpoint.json.

    One of before they were kept only counts the layers with a window, and does not name biases of the output.
    """
    fields = {key: data[key] for key in _MODEL_KEYS if key in data}
    fields.pop("parameters", None)  # follows from the rest
    window, sliding = fields.pop("sliding_window", None) or 0, fields.pop("window_layers", None)
    if "windows" not in fields:
        layers = int(fields.get("layers", 0))
        sliding = layers if sliding is None else sliding
        fields["windows"] = (0,) * (layers - sliding) + (window,) * sliding
    row = decoders().get(str(fields.get("architecture")))
    if row is not None:
        fields |= {"norms": row.norms, "fused": row.fused}
    if "o_bias" not in fields:
        switched = row is not None and isinstance(row.o_bias, str)
        fields["o_bias"] = bool(fields.get("attention_bias")) if switched else bool(row and row.o_bias)
    return fields
