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
from runtime.executors.kernels import Columns, StepIndex
from runtime.executors.linears import PackedLinear
from runtime.executors.onnx_graph import Node
from runtime.executors.onnx_ops import OPS, OpContext


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
Run = Callable[[int], object]


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
