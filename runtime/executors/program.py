"""The lowered program: a flat list of steps over pre-allocated buffers.

Policy: everything that can be decided at load is decided there; a step holds the tensors and numbers
it needs and calls one kernel. Values live in :class:`Slot` objects: buffers of ``max_num_tokens``
rows that keep their tensor for ever, or places for the fresh tensors that linears return. Steps run on
the rows of the step's tokens (T) or of its logits (L).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from runtime.executors.base import StepProfile
from runtime.executors.kernels import Columns, Kernels, StepIndex
from runtime.executors.linears import PackedLinear
from runtime.executors.onnx_graph import Node
from runtime.executors.onnx_ops import OPS, OpContext
from runtime.executors.torch_attention import AttentionParams


class Slot:
    """A place for a value; ``t`` has at least as many rows as the step when ``rowed``.

    ``reused``: a row buffer, which other values of the same step take over.
    """

    __slots__ = ("reused", "rowed", "t")

    def __init__(self, tensor: torch.Tensor | None = None, rowed: bool = False, reused: bool = False) -> None:
        self.t: Any = tensor
        self.rowed = rowed
        self.reused = reused


class Ref(NamedTuple):
    """Columns of the matrix in a slot; width -1: the whole value, whatever its shape."""

    slot: Slot
    first: int = 0
    width: int = -1

    def columns(self) -> Columns:
        """The columns as kernels take them."""
        return Columns(self.slot.t, self.first, self.width)

    def value(self, rows: int) -> Any:
        """The value as the interpreter takes it: exactly its rows."""
        tensor = self.slot.t
        if not self.slot.rowed:
            return tensor
        if self.width in (-1, tensor.shape[1]):
            return tensor[:rows]
        return tensor[:rows, self.first : self.first + self.width]


class StepState:
    """What changes from step to step beside the slots."""

    __slots__ = ("index",)

    def __init__(self) -> None:
        self.index: StepIndex | None = None


#: a step: called with the number of its rows
Run = Callable[[int], None]


class Step(NamedTuple):
    """One call of the program. ``part`` is what a profile books it under; ``logits``: runs on L rows."""

    run: Run
    part: str
    logits: bool


class Program:
    """Steps on T rows, then steps on L rows."""

    def __init__(self, steps: list[Step]) -> None:
        self.token_steps = [s.run for s in steps if not s.logits]
        self.logit_steps = [s.run for s in steps if s.logits]
        self._steps = [s for s in steps if not s.logits] + [s for s in steps if s.logits]

    def run(self, tokens: int, logits: int) -> None:
        """Execute on ``tokens`` rows; the logit part is left out when no row is wanted."""
        for step in self.token_steps:
            step(tokens)
        if logits:
            for step in self.logit_steps:
                step(logits)

    def run_profiled(self, tokens: int, logits: int, profile: StepProfile) -> None:
        """:meth:`run`, with each step's wall time added to its part."""
        profile.steps += 1
        profile.tokens += tokens
        clock = time.perf_counter
        for step in self._steps:
            rows = logits if step.logits else tokens
            if rows:
                begin = clock()
                step.run(rows)
                profile.add(step.part, clock() - begin)


def embedding(kernels: Kernels, table: torch.Tensor, ids: Slot, out: Slot) -> Run:
    """Rows of the embedding table."""

    def run(rows: int) -> None:
        kernels.embedding(table, ids.t, out.t, rows)

    return run


def rms_norm(kernels: Kernels, x: Slot, weight: torch.Tensor, epsilon: float, out: Slot) -> Run:
    """Norm into another buffer."""

    def run(rows: int) -> None:
        kernels.rms_norm(x.t, weight, epsilon, out.t, rows)

    return run


def add_rms_norm(kernels: Kernels, residual: Slot, x: Ref, weight: torch.Tensor, epsilon: float, out: Slot) -> Run:
    """Residual sum in place, then norm."""

    def run(rows: int) -> None:
        kernels.add_rms_norm(residual.t, x.columns(), weight, epsilon, out.t, rows)

    return run


def add(kernels: Kernels, residual: Slot, x: Ref) -> Run:
    """Residual sum in place."""

    def run(rows: int) -> None:
        kernels.add(residual.t, x.columns(), rows)

    return run


def copy(source: Ref, out: Slot) -> Run:
    """Copy a value into a buffer (in front of something that changes it, or that needs a buffer)."""

    def run(rows: int) -> None:
        out.t[:rows] = source.value(rows)

    return run


def cast(source: Ref, dtype: torch.dtype, out: Slot) -> Run:
    """A value in another type, a fresh tensor."""

    def run(rows: int) -> None:
        out.t = source.value(rows).to(dtype)

    return run


def concat(parts: list[Ref], widths: list[int], out: Slot) -> Run:
    """Values side by side in one buffer."""
    ends = [sum(widths[: i + 1]) for i in range(len(widths))]
    placed = [(ref, end - width, end) for ref, width, end in zip(parts, widths, ends, strict=True)]

    def run(rows: int) -> None:
        for ref, first, end in placed:
            out.t[:rows, first:end] = ref.value(rows)

    return run


def fake_quant(kernels: Kernels, kernel: str, scale: float, out_scale: float, x: Slot, out: Slot) -> Run:
    """A format's rounding of a linear's input, by one of ``kernels``."""
    function = getattr(kernels, kernel)

    def run(rows: int) -> None:
        function(x.t, scale, out_scale, out.t, rows)

    return run


def scale_columns(factors: torch.Tensor, x: Slot, out: Slot) -> Run:
    """A factor a column (AWQ's pre_quant_scale)."""

    def run(rows: int) -> None:
        torch.mul(x.t[:rows], factors, out=out.t[:rows])

    return run


def scale(factor: float, x: Ref, out: Slot) -> Run:
    """A value times a number."""

    def run(rows: int) -> None:
        torch.mul(x.value(rows), factor, out=out.t[:rows])

    return run


def scale_result(factor: float, x: Ref, out: Slot) -> Run:
    """The same into a fresh tensor of the value's type."""

    def run(rows: int) -> None:
        out.t = x.value(rows) * factor

    return run


def linear(packed: PackedLinear, x: Slot, out: Slot, dtype: torch.dtype | None) -> Run:
    """One packed linear; the result is a fresh tensor of ``dtype`` (None: as it comes) with at least ``rows`` rows."""
    kernel, scale, bias = packed.kernel, packed.out_scale, packed.bias

    def run(rows: int) -> None:
        y = kernel(x.t, rows)
        if scale is not None:
            # with a bias both in float32, so that the result is rounded once
            y = y.mul_(scale) if bias is None else torch.add(bias, y.float().mul_(scale))
        out.t = y if dtype is None or y.dtype == dtype else y.to(dtype)

    return run


def head_norm(kernels: Kernels, x: Ref, weight: torch.Tensor, epsilon: float) -> Run:
    """Norm of each head in place."""

    def run(rows: int) -> None:
        kernels.head_norm(x.columns(), weight, epsilon, rows)

    return run


def rope(kernels: Kernels, q: Ref, k: Ref, head_size: int, cos: Slot, sin: Slot) -> Run:
    """Rotary embedding in place."""

    def run(rows: int) -> None:
        kernels.rope(q.columns(), k.columns(), head_size, cos.t, sin.t, rows)

    return run


def attention(
    kernels: Kernels, q: Ref, k: Ref, v: Ref, pool: Slot, state: StepState, params: AttentionParams, out: Slot
) -> Run:
    """PagedAttention on packed rows."""

    def run(rows: int) -> None:
        assert state.index is not None
        kernels.paged_attention(q.columns(), k.columns(), v.columns(), pool.t, state.index, params, out.t, rows)

    return run


def silu_mul(kernels: Kernels, gate: Ref, up: Ref, out: Slot) -> Run:
    """silu(gate) · up."""

    def run(rows: int) -> None:
        kernels.silu_mul(gate.columns(), up.columns(), out.t, rows)

    return run


def gather_rows(x: Slot, indices: Slot, out: Slot) -> Run:
    """The rows whose logits are wanted."""

    def run(rows: int) -> None:
        torch.index_select(x.t, 0, indices.t, out=out.t[:rows])

    return run


def table_rows(table: torch.Tensor, positions: Slot, out: Slot) -> Run:
    """Rows of a table by position (rotary cos and sin)."""

    def run(rows: int) -> None:
        out.t = table.index_select(0, positions.t)

    return run


def interpret(node: Node, context: OpContext, inputs: list[Ref | None], outputs: list[Slot | None]) -> Run:
    """One operator by its definition."""
    function = OPS[node.kind]
    # an operator may return a view; a view of a buffer would change when the buffer is taken over
    buffers = [i for i, ref in enumerate(inputs) if ref is not None and ref.slot.reused]

    def run(rows: int) -> None:
        values: list[Any] = [None if ref is None else ref.value(rows) for ref in inputs]
        for i in buffers:
            values[i] = values[i].clone()
        for slot, value in zip(outputs, function(context, node, values), strict=False):
            if slot is not None:
                slot.t = value

    return run
