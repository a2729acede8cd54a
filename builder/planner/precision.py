"""Number formats of weights and KV cache: bits a value, scales, and the tensor-core format that executes them.

Policy: the rows are those of ``trtforge/formats/formats.yaml``, so a recipe's value is a key here;
it also counts formats that only TensorRT-LLM serves, because a plan may ask about them. A weight-only
format saves memory and bandwidth, not arithmetic: it computes in fp16.
"""

from __future__ import annotations

import difflib

from builder.planner.hardware import ComputeFormat, Gpu
from builder.planner.types import Precision, WeightFormat, bad_input
from trtforge.formats.table import counted_formats, kv_element_bits, pool_format

#: weight formats by name
WEIGHT_FORMATS = {
    name: WeightFormat(name, **row.model_dump(exclude={"known_as", "fp8_attention"}))
    for name, row in counted_formats().items()
}
#: bits of one element of the KV cache
KV_BITS = kv_element_bits()
_ALIASES = {"none": "bfloat16", "bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def weight_format(name: str) -> WeightFormat:
    """The row of a weight format.

    Raises:
        ForgeError: ``TF-PLN-003`` no such format.
    """
    name = _ALIASES.get(name, name)
    if name in WEIGHT_FORMATS:
        return WEIGHT_FORMATS[name]
    raise _unknown("weight format", name, tuple(WEIGHT_FORMATS))


def kv_bits(name: str) -> float:
    """Bits of one stored key or value element, block scales included.

    Raises:
        ForgeError: ``TF-PLN-003`` no such format.
    """
    name = _ALIASES.get(name, name)
    name = pool_format(name) or name
    if name in KV_BITS:
        return KV_BITS[name]
    raise _unknown("KV-cache format", name, tuple(KV_BITS))


def weight_bytes(parameters: float, format: str, group_size: int | None = None) -> float:
    """Bytes of ``parameters`` values in a format, block scales included, scales a tensor and a row left out.

    7e9 values: 28 GB in FP32, 14 in FP16, 7 in INT8, 3.5 in INT4; 4.5 bits a value in NVFP4.
    """
    row = weight_format(format)
    block = group_size if group_size and row.block > 0 else row.block
    return parameters * (row.bits + (row.scale_bits / block if block > 0 else 0.0)) / 8


def compute_format(format: str, gpu: Gpu) -> ComputeFormat:
    """What the tensor cores run for a weight format on ``gpu``: fp16 where they lack the format's own (weight-only)."""
    wanted = weight_format(format).compute
    return wanted if gpu.executes(wanted) else "fp16"


def recipe_precision(
    format: str, kv_cache: str, dtype: str, *, group_size: int | None = None, exclude: tuple[str, ...] = ("lm_head",)
) -> Precision:
    """The precision that a recipe's ``quantize`` section and ``model.dtype`` describe.

    Raises:
        ForgeError: ``TF-PLN-003`` a format that is not in the table.
    """
    base = weight_format(dtype).name
    weights = base if format == "none" else weight_format(format).name
    kv = pool_format(kv_cache) or base
    kv_bits(kv)
    return Precision(weights, base, kv, group_size, exclude)


def _unknown(kind: str, name: str, known: tuple[str, ...]) -> Exception:
    near = difflib.get_close_matches(name, known, 3, 0.3)
    return bad_input(
        "TF-PLN-003",
        f"{name} is no {kind} of the planner's table",
        asked=name,
        why="Bytes a value and the executing units differ from format to format.",
        remedies=[f"use {row}" for row in near or known],
        known=list(known),
    )
