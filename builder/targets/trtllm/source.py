"""A quantized Hugging Face checkpoint as the converter sees it: sizes, formats, and its tensors by name.

Tensors are memory maps over the safetensors files: a rank is written without loading a model. BF16 and FP8
travel as their bits (uint16, uint8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from builder.graphs.config import read_config
from trtforge.formats.table import (
    UNQUANTIZED,
    FormatRow,
    carried_kv,
    first_choice,
    format_row,
    formats_by_algorithm,
    kv_modes_by,
)
from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import read_json_file
from trtforge.ground.safetensors_header import TensorInfo, read_headers
from trtforge.models.record import Model
from trtforge.targets import DEFAULT
from trtforge.targets.trtllm_engine import TRTLLM_ENGINE

Array = npt.NDArray[Any]

#: safetensors type -> numpy type of its bits
BITS: Mapping[str, np.dtype[Any]] = {
    "BF16": np.dtype(np.uint16),
    "F16": np.dtype(np.uint16),
    "F32": np.dtype(np.float32),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.uint8),
    "F8_E4M3": np.dtype(np.uint8),
}
#: rope types that TensorRT-LLM 1.2 knows, by Hugging Face's name
ROPE_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


def _rows() -> Mapping[str, FormatRow]:
    """``quant_algo`` -> its row, of the formats that the converter knows."""
    return {name: row for name, row in formats_by_algorithm().items() if TRTLLM_ENGINE.name not in row.not_on}


@dataclass(frozen=True)
class Checkpoint:
    """Attributes:
    config: sizes and switches.
    algorithm: ``quant_algo``, or None.
    kv_algorithm: ``kv_cache_quant_algo``, or None.
    group: elements that share a scale, or None.
    """

    directory: Path
    config: Model
    algorithm: str | None
    kv_algorithm: str | None
    group: int | None
    headers: Mapping[str, TensorInfo]

    @property
    def row(self) -> FormatRow:
        return _rows()[self.algorithm] if self.algorithm else format_row(UNQUANTIZED)

    @property
    def format(self) -> str:
        return self.row.name

    @property
    def pool(self) -> str:
        """The element type of the KV pool."""
        return self.config.dtype if self.kv_algorithm is None else str(kv_modes_by("algorithm")[self.kv_algorithm].pool)

    @classmethod
    def open(cls, directory: Path) -> Checkpoint:
        """Read configuration and headers.

        Raises:
            ForgeError: ``TF-BLD-030`` a quantization that TensorRT-LLM's checkpoint has no form for here,
                and what :func:`builder.graphs.config.read_config` refuses.
        """
        directory = Path(directory)
        config, headers = read_config(directory), read_headers(directory)
        algorithm, kv_algorithm, group = _quantization(directory)
        undeclared = algorithm is None and any(name.endswith(".weight_scale") for name in headers)
        formats = sorted((UNQUANTIZED, *(row.name for row in _rows().values())))
        if algorithm not in (None, *_rows()) or kv_algorithm not in (None, *carried_kv()) or undeclared:
            raise ForgeError(
                "TF-BLD-030",
                f"A checkpoint in {algorithm or 'a format that it does not name'} with KV cache "
                f"{kv_algorithm or 'unquantized'} is not converted for TensorRT-LLM",
                asked=str(directory),
                numbers={"formats": formats, "kv_caches": [UNQUANTIZED, *carried_kv()]},
                why="The converter knows how these formats lie in TensorRT-LLM's checkpoint, and no others.",
                remedies=[
                    f"quantize.format: {first_choice()}",
                    "build.target: trtllm-llmapi (it loads the checkpoint as it is)",
                ],
            )
        kind = str(config.rope.get("rope_type"))
        if kind not in ROPE_TYPES:
            raise ForgeError(
                "TF-BLD-031",
                f"TensorRT-LLM has no rotary scaling {kind}",
                asked=f"rope_type: {kind}",
                numbers={"known": list(ROPE_TYPES)},
                why="The positions would be rotated by another rule than the model was trained with.",
                remedies=[f"build.target: {DEFAULT.name}"],
            )
        return cls(directory, config, algorithm, kv_algorithm, group, headers)

    def require_class(self, known: bool, where: str, others: Sequence[str]) -> None:
        """Refuse a class that a part of TensorRT-LLM does not have.

        Args:
            known: what the class's row says of that part.
            where: the part.
            others: targets that take the class.

        Raises:
            ForgeError: ``TF-BLD-124``.
        """
        if known:
            return
        raise ForgeError(
            "TF-BLD-124",
            f"{where} has no {self.config.architecture}",
            asked=f"config.json: architectures: [{self.config.architecture}]",
            why="Its layers are not those of a class that TensorRT-LLM knows; a near one would answer wrongly.",
            remedies=[f"build.target: {name}" for name in others],
        )

    def has(self, name: str) -> bool:
        return name in self.headers

    def read(self, name: str) -> Array:
        """The tensor's bits as a read-only memory map of its shape.

        Raises:
            ForgeError: ``TF-BLD-032`` it is missing or has a type that has no place in such a checkpoint.
        """
        info = self.headers.get(name)
        if info is None or info.dtype not in BITS:
            found = "is missing" if info is None else f"has the type {info.dtype}"
            raise ForgeError(
                "TF-BLD-032",
                f"{name} {found}",
                asked=str(self.directory),
                why="Every linear of the model must be there in the form that its quantization says.",
                remedies=["Quantize the model again: trtforge run RECIPE --force quantize"],
            )
        if info.nbytes == 0:
            return np.zeros(info.shape, dtype=BITS[info.dtype])
        mapped = np.memmap(self.directory / info.file, BITS[info.dtype], "r", info.offset, info.shape or (1,))
        return mapped.reshape(info.shape)

    def scalar(self, name: str) -> float:
        """A tensor of one number, widened."""
        return float(widen(self.read(name), self.headers[name].dtype).reshape(-1)[0])

    def quantized(self, module: str) -> bool:
        """Whether the linear ``module`` is stored in the checkpoint's format."""
        return self.has(f"{module}.weight_scale")


def widen(bits: Array, dtype: str) -> npt.NDArray[np.float32]:
    """BF16, F16 and F32 bits as float32."""
    if dtype == "BF16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    if dtype == "F16":
        return bits.view(np.float16).astype(np.float32)
    return bits.astype(np.float32)


def _quantization(directory: Path) -> tuple[str | None, str | None, int | None]:
    path = directory / "hf_quant_config.json"
    if not path.is_file():
        return None, None, None
    try:
        section = read_json_file(path)["quantization"]
        return section.get("quant_algo"), section.get("kv_cache_quant_algo"), section.get("group_size")
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ForgeError(
            "TF-BLD-030",
            f"hf_quant_config.json cannot be read: {error}",
            asked=str(path),
            why="It says how the weights are stored.",
            remedies=["Quantize the model again: trtforge run RECIPE --force quantize"],
        ) from error
