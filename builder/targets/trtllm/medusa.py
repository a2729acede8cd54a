"""Medusa heads in TensorRT-LLM's checkpoint: residual layers and an output head each, beside the target model.

Read from a directory with ``config.json`` (``medusa_num_heads``, ``medusa_num_layers``) and safetensors whose
tensors are ``{head}.{layer}.linear.weight``, ``….bias`` and ``{head}.{layers}.weight`` (the output head), as the
Medusa project publishes them; pickles are refused. Every rank holds the rows of its share; the vocabulary is
filled up with rows of zeros. Heads stay in the model's type: the format of the target is not theirs.

Source: https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/tensorrt_llm/models/medusa/model.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from builder.targets.trtllm.ranks import Rank
from builder.targets.trtllm.source import BITS, Array, Checkpoint, widen
from builder.targets.trtllm.tensors import Tensor, bands
from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import read_json_file
from trtforge.ground.safetensors_header import TensorInfo, read_headers
from trtforge.tables.decoders import decoders

ARCHITECTURE = "MedusaForCausalLM"
#: the type of a model -> of its tensors
DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


def drafter_class(architecture: str) -> str | None:
    """TensorRT-LLM's class of what drafts beside a model inside an engine; None: nothing does."""
    row = decoders().get(architecture)
    return None if row is None else row.trtllm.drafter


@dataclass(frozen=True)
class MedusaHeads:
    """Attributes:
    heads, layers: how many heads, and residual layers a head.
    max_draft_len: nodes of the tree.
    """

    directory: Path
    heads: int
    layers: int
    max_draft_len: int
    headers: Mapping[str, TensorInfo]

    #: modules that are not quantized
    excluded = "medusa_heads*"

    @classmethod
    def open(
        cls, directory: Path | None, *, target: Checkpoint, heads: int | None, max_draft_len: int, tp: int = 1
    ) -> MedusaHeads:
        """Read the heads' configuration and headers.

        Args:
            tp: ranks that share each head's rows.
            heads: what the recipe says; None takes the directory's word.

        Raises:
            ForgeError: ``TF-BLD-038`` no such directory or configuration, another number of heads than the recipe
                says, tensors of another model or beside no Llama, or rows that do not divide over the ranks.
        """
        if drafter_class(target.config.architecture) is None:
            raise _refuse(
                f"Medusa heads are not written beside a model of {target.config.architecture}",
                directory,
                "The checkpoint says what the model beside the heads is, and is written for Llamas.",
                "speculation.method: lookahead",
            )
        if directory is None or not (directory / "config.json").is_file():
            raise _refuse(
                "Medusa heads are read from a directory with config.json and safetensors",
                directory,
                "TensorRT-LLM's checkpoint holds target and heads together.",
                "speculation.draft: PATH of the heads, relative to the recipe",
            )
        try:
            config = read_json_file(directory / "config.json")
            found, layers = int(config["medusa_num_heads"]), int(config["medusa_num_layers"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _refuse(
                f"config.json of the Medusa heads lacks medusa_num_heads or medusa_num_layers: {error}",
                directory,
                "They say how many heads there are and how deep each is.",
                "complete config.json as the heads' publisher says",
            ) from error
        if heads is not None and heads != found:
            raise _refuse(
                f"There are {found} Medusa heads, the recipe says {heads}",
                directory,
                "The tree's depth is the number of heads.",
                f"speculation.heads: {found}",
            )
        if target.config.hidden % tp:
            raise _refuse(
                f"The {target.config.hidden} rows of a Medusa layer do not divide over {tp} ranks",
                directory,
                "Each rank holds the same number of rows.",
                "build.parallel.tp: 1",
            )
        result = cls(directory, found, layers, max_draft_len, read_headers(directory))
        result._check(target)
        return result

    def _check(self, target: Checkpoint) -> None:
        width, vocabulary = target.config.hidden, target.config.vocab
        wanted = {f"{head}.{self.layers}.weight": (vocabulary, width) for head in range(self.heads)}
        for head in range(self.heads):
            for layer in range(self.layers):
                wanted[f"{head}.{layer}.linear.weight"] = (width, width)
        wrong = {
            name: list(self.headers[name].shape) if name in self.headers else None
            for name, shape in wanted.items()
            if name not in self.headers or self.headers[name].shape != shape or self.headers[name].dtype not in BITS
        }
        if wrong:
            name, shape = next(iter(wrong.items()))
            raise _refuse(
                f"{len(wrong)} tensors of the Medusa heads do not fit the model: {name} is {shape or 'missing'}, "
                f"not {list(wanted[name])}",
                self.directory,
                "Heads are trained for one model, on its hidden states and its vocabulary.",
                "speculation.draft: heads that were trained for this model",
            )

    def config(self, base: Mapping[str, Any]) -> dict[str, Any]:
        """What they add to the target's config.json."""
        return {
            "architecture": ARCHITECTURE,
            "model_type": decoders()[str(drafter_class(base["architecture"]))].model_type,
            "num_medusa_heads": self.heads,
            "num_medusa_layers": self.layers,
            "max_draft_len": self.max_draft_len,
        }

    def tensors(self, rank: Rank, target: Checkpoint) -> Iterator[Tensor]:
        share = -(-target.config.vocab // rank.tp)
        rows = target.config.hidden // rank.tp
        own = (rank.tp_rank * rows, (rank.tp_rank + 1) * rows)
        vocabulary = (rank.tp_rank * share, (rank.tp_rank + 1) * share)
        for head in range(self.heads):
            for layer in range(self.layers):
                out = f"medusa_heads.{head}.medusa_layers.{layer}.linear"
                yield self._rows(f"{out}.weight", f"{head}.{layer}.linear.weight", own, target)
                if f"{head}.{layer}.linear.bias" in self.headers:
                    yield self._rows(f"{out}.bias", f"{head}.{layer}.linear.bias", own, target)
            yield self._rows(f"medusa_heads.{head}.lm_head.weight", f"{head}.{self.layers}.weight", vocabulary, target)

    def _rows(self, out: str, name: str, span: tuple[int, int], target: Checkpoint) -> Tensor:
        info, dtype = self.headers[name], DTYPES[target.config.dtype]
        values = np.memmap(self.directory / info.file, BITS[info.dtype], "r", info.offset, info.shape)
        shape = (span[1] - span[0], *info.shape[1:])
        return Tensor(out, dtype, shape, converted(values, span, info.dtype, dtype))


def converted(
    values: Array, span: tuple[int, int], stored: str, dtype: str, columns: tuple[int, int] | None = None
) -> Callable[[], Iterator[Array]]:
    """Rows (and columns; default: all) of a tensor in another type, band by band."""

    def pieces() -> Iterator[Array]:
        for band in bands(values, [span], columns):
            yield band if stored == dtype else narrow(widen(band, stored), dtype)

    return pieces


def narrow(values: Array, dtype: str) -> Array:
    """float32 as the bits of BF16 (nearest even), F16 or F32."""
    if dtype == "BF16":
        bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return values.astype(np.float16).view(np.uint16) if dtype == "F16" else values


def _refuse(message: str, directory: Path | None, why: str, remedy: str) -> ForgeError:
    return ForgeError("TF-BLD-038", message, asked=f"speculation.draft: {directory}", why=why, remedies=[remedy])
