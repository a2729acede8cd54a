"""The tensors of a GGUF file, de-quantized a few rows at a time.

Policy: the ``gguf`` package's de-quantization, streamed, so that neither torch nor the whole model in memory is
needed. llama.cpp stores the query and key rows of a Llama in its own rotary order (pairs interleaved); they are put
back into the half-split order here, on the still quantized rows, since a row is quantized on its own. Other models
(Qwen) keep their order: the table of decoders says which.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from quantize.intake.gguf_header import GgufTensor
from quantize.intake.gguf_model import ROPE_FACTORS, gguf_config, hf_name, unsupported
from quantize.intake.gguf_parts import GgufFile
from quantize.intake.writer import TARGETS, TensorPlan, convert
from trtforge.ground.errors import EnvironmentLacks
from trtforge.models.record import Model
from trtforge.tables.decoders import decoders

_PIECE_BYTES = 16 << 20


def llama3_rope(factors: npt.NDArray[Any], theta: float, head_size: int) -> dict[str, Any]:
    """Llama 3's rope settings that give ``factors`` [E/2], the per-frequency divisors that llama.cpp stores.

    Every published Llama 3.x has low 1, high 4 and original context 8192; the factor is the largest divisor.
    Settings that do not reproduce the tensor are refused.
    """
    factor = float(str(np.float32(factors.max())))
    low, high, original = 1.0, 4.0, 8192
    wavelength = 2 * math.pi * theta ** (np.arange(0, head_size, 2, dtype=np.float64) / head_size)
    smooth = np.clip((original / wavelength - low) / (high - low), 0.0, 1.0)
    expected = 1.0 / ((1.0 - smooth) / factor + smooth)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-4):
        raise unsupported("its rope factors are not those of a published Llama 3")
    return {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def read_llama3_rope(file: GgufFile) -> dict[str, Any] | None:
    """The rope settings behind the tensor ``rope_freqs.weight``, ``None`` when there is none."""
    tensor = file.header.tensors.get(ROPE_FACTORS)
    if tensor is None:
        return None
    config = gguf_config(file.header)
    factors = np.concatenate(list(_dequantized(file, tensor, None)))
    return llama3_rope(factors, config["rope_parameters"]["rope_theta"], config["head_dim"])


def tensor_plans(file: GgufFile, shape: Model, dtype: str) -> list[TensorPlan]:
    """Every tensor to write, in name order, in ``dtype``; pieces are de-quantized when they are asked for."""
    target = TARGETS[dtype]
    form = decoders()[shape.architecture].gguf
    permuted = {"attn_q": shape.heads, "attn_k": shape.kv_heads} if form and form.interleaved else {}
    plans = []
    for name, tensor in file.header.tensors.items():
        renamed = hf_name(name)
        if renamed is None:
            continue
        heads = permuted.get(name.split(".")[-2])

        def pieces(tensor: GgufTensor = tensor, heads: int | None = heads) -> Iterator[npt.NDArray[Any]]:
            for piece in _dequantized(file, tensor, heads):
                yield convert(piece, "F32", target, tensor.name)

        plans.append(TensorPlan(renamed, target, tensor.shape, pieces))
    return sorted(plans, key=lambda plan: plan.name)


def _dequantized(file: GgufFile, tensor: GgufTensor, heads: int | None) -> Iterator[npt.NDArray[Any]]:
    """float32 values of ``tensor``, rows at a time, flattened; rows of ``heads`` put back into half-split order."""
    try:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError:
        raise EnvironmentLacks(
            "TF-SRC-027",
            "reading a GGUF file needs the package gguf",
            remedies=["pip install 'trtforge[quantize]'", "pip install gguf"],
        ) from None
    kind = GGMLQuantizationType[tensor.type]
    rows = tensor.shape[0]
    raw = file.bytes_of(tensor.offset, tensor.nbytes).reshape(rows, -1)
    order = np.arange(rows)
    if heads is not None:
        order = order.reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(-1)
    columns = tensor.shape[1] if len(tensor.shape) > 1 else 1
    if len(tensor.shape) == 1 and heads is None:  # a vector may be quantized across its length
        yield np.asarray(dequantize(raw.reshape(-1), kind), dtype=np.float32).reshape(-1)
        return
    step = max(1, _PIECE_BYTES // (4 * columns))
    for start in range(0, rows, step):
        block = np.ascontiguousarray(raw[order[start : start + step]])
        yield np.asarray(dequantize(block, kind), dtype=np.float32).reshape(-1)
