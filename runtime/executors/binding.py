"""Binds ordered operations to buffers and kernels: the last step of lowering.

Policy: row buffers are allocated for ``max_num_tokens`` rows and reused by width as soon as the order of
operations allows; results of linears are fresh tensors in slots that are reused the same way, so the
memory of a step does not grow with the number of layers. An operand that is not in the form its
kernel needs is copied into it, and the copy is counted in the report.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from runtime.executors import program
from runtime.executors.kernels import TorchKernels
from runtime.executors.linears import PackedLinear
from runtime.executors.matching import GraphView, InputQuant
from runtime.executors.onnx_graph import Graph, Node
from runtime.executors.onnx_ops import OpContext
from runtime.executors.program import Program, Ref, Slot, Step, StepState
from runtime.executors.row_order import ROW_PADDING


@dataclass
class Op:
    """An operation before it has a place: what it reads, makes, and overwrites.

    ``inplace`` maps an output to the input whose storage it takes over; ``widths`` are the columns of
    outputs that live in row buffers; outputs without a width are whole tensors of their own.
    """

    kind: str
    index: int
    ins: list[str]
    outs: list[str]
    widths: dict[str, int] = field(default_factory=dict)
    inplace: dict[str, str] = field(default_factory=dict)
    params: dict[str, Any] = field(default_factory=dict)
    #: inputs that must be whole row buffers
    buffers: dict[str, int] = field(default_factory=dict)


@dataclass
class Lowered:
    """The program with the slots through which an executor feeds and reads it."""

    program: Program
    inputs: dict[str, Slot]
    outputs: dict[str, Ref]
    state: StepState
    linears: list[PackedLinear]
    report: dict[str, Any]


class LoweringResult(Protocol):
    """What binding needs of a finished :class:`~runtime.executors.lowering.Lowering`."""

    graph: Graph
    view: GraphView
    device: str
    #: value -> (packed value, first column, width)
    segments: dict[str, tuple[str, int, int]]
    producer: dict[str, Op]
    linears: list[PackedLinear]

    def fed_rows(self, name: str) -> bool:
        """Whether an input of the graph holds a row of numbers a token."""


class Binder:
    """Gives values their slots and makes the program's steps, for one type of activations and a number of rows."""

    def __init__(
        self, lowering: LoweringResult, ops: list[Op], kernels: TorchKernels, dtype: torch.dtype, max_rows: int
    ) -> None:
        self.low, self.ops = lowering, ops
        self.kernels, self.dtype, self.max_rows = kernels, dtype, max_rows
        self.context = OpContext(dtype)
        self.refs: dict[str, Ref] = {}
        self.state = StepState()
        self.free: dict[Any, list[Slot]] = {}
        self.inputs = {name: Slot(rowed=lowering.fed_rows(name)) for name in lowering.graph.inputs}
        self.refs.update({name: Ref(slot) for name, slot in self.inputs.items()})
        self.logit_rows: set[str] = {"logit_indices"}
        self.steps: list[Step] = []
        self.buffer_bytes = 0
        self.copies = 0

    def bind(self) -> Lowered:
        """Walk the operations in order, allocating and releasing by last use."""
        dying = self._last_uses()
        for i, op in enumerate(self.ops):
            logits = any(self.low.segments.get(name, (name,))[0] in self.logit_rows for name in op.ins)
            if logits:
                self.logit_rows.update(op.outs)
            self._bind_op(op, logits)
            for root, key in dying.get(i, []):
                self.free.setdefault(key, []).append(self.refs[root].slot)
        return Lowered(
            Program(self.steps),
            self.inputs,
            {name: self._ref(name) for name in self.low.graph.outputs},
            self.state,
            self.low.linears,
            self._report(),
        )

    def _last_uses(self) -> dict[int, list[tuple[str, Any]]]:
        """For each operation: the storages that nobody needs after it."""
        owner: dict[str, str] = {}  # value -> the value that its storage was made for
        keys: dict[str, Any] = {}
        last: dict[str, int] = {}
        for i, op in enumerate(self.ops):
            for name in op.ins:
                packed = self.low.segments.get(name, (name,))[0]
                if (root := owner.get(packed)) is not None:
                    last[root] = i
            for out in op.outs:
                source = op.inplace.get(out)
                if source is not None and source in owner:
                    owner[out] = owner[source]
                elif out in op.widths:
                    owner[out], keys[out] = out, ("rows", op.widths[out])
                elif op.kind == "linear":
                    owner[out], keys[out] = out, ("fresh", op.params["packed"].width)
                elif op.kind == "gather":
                    owner[out], keys[out] = out, None
                if out in owner:
                    last[owner[out]] = i
        kept = {
            owner[self.low.segments.get(n, (n,))[0]]
            for n in self.low.graph.outputs
            if self.low.segments.get(n, (n,))[0] in owner
        }
        dying: dict[int, list[tuple[str, Any]]] = {}
        for root, i in last.items():
            if root in kept or keys[root] is None:
                continue  # gathered rows keep their own buffer: there are few of them
            dying.setdefault(i, []).append((root, keys[root]))
        return dying

    def _rows(self, width: int) -> Slot:
        """A row buffer, reused when one of this width is free."""
        pool = self.free.get(("rows", width))
        if pool:
            return pool.pop()
        tensor = torch.zeros(self.max_rows + ROW_PADDING, width, dtype=self.dtype, device=self.low.device)
        self.buffer_bytes += tensor.numel() * tensor.element_size()
        return Slot(tensor, rowed=True, reused=True)

    def _fresh(self, width: int) -> Slot:
        pool = self.free.get(("fresh", width))
        return pool.pop() if pool else Slot(rowed=True)

    def _output(self, op: Op, name: str) -> Slot:
        """The slot of an output in a row buffer; an in-place one takes its input's over."""
        source = op.inplace.get(name)
        slot = self._rows(op.widths[name]) if source is None else self.refs[source].slot
        self.refs[name] = Ref(slot, 0, op.widths[name])
        return slot

    def _ref(self, name: str) -> Ref:
        if name in self.low.segments:
            packed, first, width = self.low.segments[name]
            return Ref(self.refs[packed].slot, first, width)
        if name not in self.refs:
            value = self.low.view.evaluate(name)
            self.refs[name] = Ref(Slot(value.to(self.low.device) if isinstance(value, torch.Tensor) else value))
        return self.refs[name]

    def _buffer(self, name: str, width: int, logits: bool) -> Slot:
        """The slot of an input that has to be a row buffer; copies it into one when it is not."""
        ref = self._ref(name)
        if name not in self.low.segments and ref.slot.rowed and ref.slot.t is not None and ref.width in (-1, width):
            return ref.slot
        slot = self._rows(width)
        self._copy(ref, slot, logits)
        return slot

    def _copy(self, source: Ref, slot: Slot, logits: bool) -> None:
        """Put a value into a buffer that something changes, or needs as one."""

        def run(rows: int) -> None:
            slot.t[:rows] = source.value(rows)

        self._step(run, "copies", logits)
        self.copies += 1

    def _fresh_result(self, op: Op, value: Callable[[int], torch.Tensor], part: str, logits: bool) -> None:
        """An output that is a new tensor in each step: what ``value`` gives for the step's rows."""
        slot = Slot(rowed=True)
        self.refs[op.outs[0]] = Ref(slot)

        def run(rows: int) -> None:
            slot.t = value(rows)

        self._step(run, part, logits)

    def _step(self, run: program.Run, part: str, logits: bool) -> None:
        self.steps.append(Step(run, part, logits))

    def _bind_op(self, op: Op, logits: bool) -> None:
        getattr(self, f"_bind_{op.kind}")(op, logits)

    def _bind_embedding(self, op: Op, logits: bool) -> None:
        kernels, table = self.kernels, op.params["table"].data.to(self.low.device)
        ids, slot = self._ref("input_ids").slot, self._output(op, op.outs[0])
        self._step(lambda rows: kernels.embedding(table, ids.t, slot.t, rows), "embedding", logits)

    def _bind_table(self, op: Op, logits: bool) -> None:
        """Rows of a table by position (rotary cos and sin)."""
        table, positions = op.params["table"], self._ref("positions").slot
        self._fresh_result(op, lambda rows: table.index_select(0, positions.t), "rotary", logits)

    def _bind_rms_norm(self, op: Op, logits: bool) -> None:
        kernels, weight, epsilon = self.kernels, op.params["weight"], op.params["epsilon"]
        x = self._buffer(op.ins[0], op.buffers[op.ins[0]], logits)
        slot = self._output(op, op.outs[0])
        self._step(lambda rows: kernels.rms_norm(x.t, weight, epsilon, slot.t, rows), "norms", logits)

    def _residual(self, op: Op, logits: bool) -> Slot:
        """The buffer that a residual sum accumulates in, filled with the residual."""
        slot = self._output(op, op.outs[0])
        if op.outs[0] not in op.inplace:
            self._copy(self._ref(op.ins[0]), slot, logits)
        return slot

    def _bind_add_rms_norm(self, op: Op, logits: bool) -> None:
        kernels, weight, epsilon = self.kernels, op.params["weight"], op.params["epsilon"]
        residual = self._residual(op, logits)
        slot, x = self._output(op, op.outs[1]), self._ref(op.ins[1])
        self._step(
            lambda rows: kernels.add_rms_norm(residual.t, x.columns(), weight, epsilon, slot.t, rows), "norms", logits
        )

    def _bind_add(self, op: Op, logits: bool) -> None:
        kernels, residual, x = self.kernels, self._residual(op, logits), self._ref(op.ins[1])
        self._step(lambda rows: kernels.add(residual.t, x.columns(), rows), "norms", logits)

    def _bind_quantize(self, op: Op, logits: bool) -> None:
        quant: InputQuant = op.params["quant"]
        x = self._buffer(op.ins[0], op.buffers[op.ins[0]], logits)
        slot, part = self._output(op, op.outs[0]), "activation quantization"
        if quant.method is None:  # a factor a column (AWQ's pre_quant_scale)
            factors = self.low.view.evaluate(quant.factors).to(self.dtype).flatten().to(self.low.device)
            self._step(lambda rows: torch.mul(x.t[:rows], factors, out=slot.t[:rows]), part, logits)
        else:
            kernel, scale = getattr(self.kernels, str(quant.method.input_kernel)), quant.scale
            out_scale = quant.method.kept_scale(scale) * op.params["out_scale"]
            self._step(lambda rows: kernel(x.t, scale, out_scale, slot.t, rows), part, logits)

    def _bind_linear(self, op: Op, logits: bool) -> None:
        x = self._buffer(op.ins[0], op.buffers[op.ins[0]], logits)
        packed: PackedLinear = op.params["packed"]
        slot = self._fresh(packed.width)
        self.refs[op.outs[0]] = Ref(slot, 0, packed.width)
        # logits keep the precision that they come in
        final = any(n in self.low.graph.outputs and s[0] == op.outs[0] for n, s in self.low.segments.items())
        run = program.linear(packed, x, slot, None if final else self.dtype)
        self._step(run, "logits linear" if logits else "linears", logits)

    def _bind_attention(self, op: Op, logits: bool) -> None:
        kernels, found, params = self.kernels, op.params["match"], op.params["params"]
        q, k, v = (self._ref(name) for name in (found.q, found.k, found.v))
        for ref, norm in ((q, op.params["q_norm"]), (k, op.params["k_norm"])):
            if norm is not None:
                self._step(self._head_norm(ref, *norm), "norms", logits)
        if found.rotary is not None:
            cos, sin = (self._ref(f"{cache}:rows").slot for cache in (found.rotary.cos, found.rotary.sin))
            size = params.head_size
            self._step(lambda rows: kernels.rope(q.columns(), k.columns(), size, cos.t, sin.t, rows), "rotary", logits)
        slot, pool, state = self._output(op, op.outs[0]), self._ref(found.node.inputs[3]).slot, self.state

        def attend(rows: int) -> None:
            assert state.index is not None
            kernels.paged_attention(q.columns(), k.columns(), v.columns(), pool.t, state.index, params, slot.t, rows)

        self._step(attend, "attention", logits)

    def _head_norm(self, x: Ref, weight: torch.Tensor, epsilon: float) -> program.Run:
        kernels = self.kernels
        return lambda rows: kernels.head_norm(x.columns(), weight, epsilon, rows)

    def _bind_concat(self, op: Op, logits: bool) -> None:
        slot, ends = self._output(op, op.outs[0]), list(itertools.accumulate(op.params["widths"]))
        parts = list(zip(map(self._ref, op.ins), [0, *ends], ends, strict=False))

        def run(rows: int) -> None:
            for ref, first, end in parts:
                slot.t[:rows, first:end] = ref.value(rows)

        self._step(run, "joins", logits)

    def _bind_cast(self, op: Op, logits: bool) -> None:
        source, dtype = self._ref(op.ins[0]), op.params["dtype"]
        self._fresh_result(op, lambda rows: source.value(rows).to(dtype), "casts", logits)

    def _bind_scale(self, op: Op, logits: bool) -> None:
        x, factor, slot = self._ref(op.ins[0]), op.params["factor"], self._output(op, op.outs[0])
        self._step(lambda rows: torch.mul(x.value(rows), factor, out=slot.t[:rows]), "factors", logits)

    def _bind_scale_result(self, op: Op, logits: bool) -> None:
        x, factor = self._ref(op.ins[0]), op.params["factor"]
        self._fresh_result(op, lambda rows: x.value(rows) * factor, "factors", logits)

    def _bind_alias(self, op: Op, logits: bool) -> None:
        self.refs[op.outs[0]] = self._ref(op.params["of"])

    def _bind_silu_mul(self, op: Op, logits: bool) -> None:
        kernels, gate, up = self.kernels, self._ref(op.ins[0]), self._ref(op.ins[1])
        slot = self._output(op, op.outs[0])
        self._step(
            lambda rows: kernels.silu_mul(gate.columns(), up.columns(), slot.t, rows), "activation function", logits
        )

    def _bind_gather(self, op: Op, logits: bool) -> None:
        source = self._ref(op.ins[0])
        whole = source.slot.rowed and source.slot.t is not None and op.ins[0] not in self.low.segments
        if not whole:
            return self._gather_by_interpreter(op)
        width = source.slot.t.shape[1]
        x, indices, slot = source.slot, self._ref("logit_indices").slot, self._rows(width)
        self.refs[op.outs[0]] = Ref(slot, 0, width)
        # the source has T rows, the step L: index_select reads the whole buffer
        self._step(lambda rows: torch.index_select(x.t, 0, indices.t, out=slot.t[:rows]), "logit rows", True)
        return None

    def _gather_by_interpreter(self, op: Op) -> None:
        node = Node("Gather", "", op.outs[0], op.ins, op.outs, {"axis": 0})
        self._bind_interpret(Op("interpret", op.index, op.ins, op.outs, params={"node": node}), False)

    def _bind_interpret(self, op: Op, logits: bool) -> None:
        node: Node = op.params["node"]
        inputs = [self._ref(name) if name else None for name in node.inputs]
        outputs: list[Slot | None] = []
        for name in node.outputs:
            slot = Slot() if name else None
            outputs.append(slot)
            if slot is not None and self.low.producer.get(name) is op:
                self.refs[name] = Ref(slot)
            elif slot is not None:
                self.refs.setdefault(name, Ref(slot))
        self._step(program.interpret(node, self.context, inputs, outputs), "interpreter", logits)

    def _report(self) -> dict[str, Any]:
        return {
            "operations": Counter(op.kind for op in self.ops if op.kind != "interpret"),
            "interpreted": Counter(op.params["node"].kind for op in self.ops if op.kind == "interpret"),
            "steps": len(self.steps),
            "copies": self.copies,
            "buffer_bytes": self.buffer_bytes,
        }
