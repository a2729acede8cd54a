"""Operations and bytes of an op in a step; the sums that the roofline divides by what the hardware gives.

Formulas: a linear of T rows does 2·T·n·k operations and moves its weights once, T·k values in and T·n out.
Attention does 4·pairs·H·E operations (scores and values) and moves the cache of every request once, K heads of
it (Pope et al., "Efficiently Scaling Transformer Inference", 2022, https://arxiv.org/abs/2211.05102, section 2).
Of E experts, T tokens with k each touch E·(1 − (1 − k/E)^T) when routing is even: the weights that are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

import numpy as np

from builder.planner.hardware import ComputeFormat, Gpu
from builder.planner.precision import compute_format, kv_bits, weight_format
from builder.planner.speed.ops import Attention, Collective, Linear, Op, Pointwise, Rows
from builder.planner.speed.step import Count, Step
from builder.planner.types import Precision
from trtforge.formats.table import load_formats

#: classes of kernels that share an efficiency and a calibration factor
OpClass = Literal[
    "linear_fp32",
    "linear_fp16",
    "linear_fp8",
    "linear_fp4",
    "linear_int8",
    "linear_weight_only",
    "experts",
    "attention_prefill",
    "attention_decode",
    "pointwise",
    "communication",
]
CLASSES: tuple[str, ...] = get_args(OpClass)


@dataclass(frozen=True)
class Cost:
    """``flops`` and ``bytes`` of one op in a step (all of its ``count`` runs), the format its arithmetic runs in.

    ``launches`` is how often a kernel starts; zero where the step has nothing for the op.
    """

    name: str
    op_class: OpClass
    compute: ComputeFormat
    flops: Count
    bytes: Count
    launches: Count


def costs(op: Op, step: Step, precision: Precision, gpu: Gpu) -> list[Cost]:
    """The costs of one op in a step on ``gpu``: one entry, for attention one each for prefill and decode.

    A collective has no entry: its time follows from the message (:mod:`builder.planner.speed.roofline`).
    """
    if isinstance(op, Linear):
        return [_linear(op, step, precision, gpu)]
    if isinstance(op, Attention):
        return _attention(op, step, precision)
    if isinstance(op, Pointwise):
        rows = rows_of(op.rows, step)
        size = base_bytes(precision)
        moved = op.count * rows * (op.reads + op.writes) * size
        flops = op.count * rows * op.writes * 4.0
        return [Cost(op.name, "pointwise", "fp32", flops, moved, op.count * (rows > 0))]
    return []


def rows_of(rows: Rows, step: Step) -> Count:
    """T or L of a step."""
    return step.logits if rows == "logits" else step.tokens


def base_bytes(precision: Precision) -> float:
    """Bytes of one unquantized activation."""
    return weight_format(precision.base).bits / 8


def message_bytes(op: Collective, step: Step, precision: Precision) -> Count:
    """Bytes of one message of a collective."""
    return rows_of(op.rows, step) * op.values * base_bytes(precision)


def _linear(op: Linear, step: Step, precision: Precision, gpu: Gpu) -> Cost:
    rows = rows_of(op.rows, step)
    row = weight_format(op.weights)
    block = precision.group_size if precision.group_size and row.block > 0 else row.block
    bits = row.bits + (row.scale_bits / block if block > 0 else 0.0)
    math = compute_format(op.weights, gpu) if op.activations or row.bits >= 16 else "fp16"
    base = base_bytes(precision)
    rounded = load_formats().rounded_inputs.get(math) if op.activations else None
    inputs = base if rounded is None else rounded / 8
    passed = rows * op.active / op.groups if op.experts else rows
    weights = op.n * op.k * bits / 8 * _touched(op, rows)
    flops = 2.0 * passed * op.n * op.k
    moved = weights * (rows > 0) + passed * (op.k * inputs + op.n * base)
    name: OpClass = "experts" if op.experts else _linear_class(row.bits, math)
    return Cost(op.name, name, math, op.count * flops, op.count * moved, op.count * (rows > 0))


def _linear_class(bits: int, math: ComputeFormat) -> OpClass:
    # 4-bit integers are widened inside the kernel even where the arithmetic is FP8 (W4A8)
    if (bits < 16 and math == "fp16") or (bits < 8 and math != "fp4"):
        return "linear_weight_only"
    return cast(OpClass, f"linear_{math}")


def _touched(op: Linear, rows: Count) -> Count:
    """How many copies of the weight are read: the experts that any of the rows routes to."""
    if not op.experts:
        return np.ones_like(np.asarray(rows, dtype=np.float64))
    return op.experts * (1.0 - (1.0 - op.active / (op.experts * op.groups)) ** rows)


def _attention(op: Attention, step: Step, precision: Precision) -> list[Cost]:
    size, base = kv_bits(op.kv_format) / 8, base_bytes(precision)
    result = []
    names: tuple[OpClass, OpClass] = ("attention_prefill", "attention_decode")
    for op_class, part in zip(names, (step.prefill, step.decode), strict=True):
        pairs, cached = part.windowed(op.window)
        if op.latent:
            # prefill expands keys and values for every head; decode multiplies with the latent itself
            widths = op.head_size + op.value_size if op_class == "attention_prefill" else 2 * op.latent
            flops = 2.0 * pairs * op.heads * widths
            elements, values = op.latent, op.value_size
        else:
            flops = 4.0 * pairs * op.heads * op.head_size
            elements, values = 2 * op.kv_heads * op.head_size, op.head_size
        queries = part.tokens * (op.heads * (op.head_size + values) + elements) * base
        moved = (cached + part.tokens) * elements * size + queries
        result.append(Cost(op.name, op_class, "fp16", op.count * flops, op.count * moved, op.count * (part.tokens > 0)))
    return result
