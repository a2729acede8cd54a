"""From a graph to the lowered program: choose operations, order them, give values a place.

Policy: every value starts out as the result of the interpreter's operator; a match replaces the
producer of its outputs, and what nothing needs any more falls away. So an incomplete match costs
speed, never meaning. In-place operations are used where the order of the program proves that nobody
reads the old value afterwards, and copy otherwise. What was left to the interpreter is part of the
report.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from typing import Any

import torch

from plugins.host.library import HostLibrary
from runtime.executors import matching
from runtime.executors.binding import Binder, Lowered, Op
from runtime.executors.interpreter import check_operators, constant_value, run_node
from runtime.executors.kernels import TorchKernels
from runtime.executors.linears import Capability, PackedLinear, pack
from runtime.executors.matching import GraphView, HeadNorm, InputQuant, LinearMatch
from runtime.executors.onnx_graph import Graph, Node
from runtime.executors.onnx_ops import OpContext, attention_params
from runtime.executors.simplify import decided, simplify
from runtime.executors.weights import LinearSource, Scratch


class Lowering:
    """Builds a :class:`Lowered` program; one use.

    Args:
        graph: the engine's graph.
        kernels: elementwise and attention kernels.
        capability: what linears may use.
        dtype: dtype of activations (what 16-bit floats of the graph are held in).
        max_rows: most tokens of a step.
        max_positions: rows of the rotary tables.
        exact_rows: rows must not depend on their number.
        library: the host op library for linears; None does without.
        progress: called with each packed linear's stored bytes.
        choices: inputs that have one value in this program (:func:`decided`).
        packs: packed linears by the names of their weights, shared between programs of one graph.
    """

    def __init__(
        self,
        graph: Graph,
        kernels: TorchKernels,
        capability: Capability,
        dtype: torch.dtype,
        *,
        max_rows: int,
        max_positions: int,
        exact_rows: bool = True,
        library: HostLibrary | None = None,
        progress: Callable[[int], None] | None = None,
        choices: Mapping[str, bool] | None = None,
        packs: dict[tuple[str, ...], PackedLinear] | None = None,
    ) -> None:
        check_operators(graph.nodes)
        self.context = OpContext(dtype)
        self.graph = simplify(decided(graph, choices) if choices else graph, self.context)
        self.packs = packs
        self.view = GraphView(self.graph, self.context)
        self.kernels, self.capability, self.dtype = kernels, capability, dtype
        self.max_rows, self.max_positions = max_rows, max_positions
        self.device = capability.device
        self.progress = progress
        self.exact, self.library = exact_rows, library
        self.scratch = Scratch()
        self.producer: dict[str, Op] = {}
        self.segments: dict[str, tuple[str, int, int]] = {}  # value -> (packed value, first column, width)
        self.linears: list[PackedLinear] = []
        self.notes: list[str] = []

    # -- choosing ------------------------------------------------------------------------------------------

    def lower(self) -> Lowered:
        """Match, order, allocate and bind."""
        for i, node in enumerate(self.graph.nodes):
            if all(name in self.view.constant for name in node.outputs):
                continue
            op = Op(
                "interpret", i, [n for n in node.inputs if n], [n for n in node.outputs if n], params={"node": node}
            )
            for name in op.outs:
                self.producer[name] = op
        self._embeddings()
        self._linears()
        self.scratch = Scratch()  # let go of the memory
        self._splits()
        self._scales()
        self._gated()
        self._attention()
        self._gathers()
        self._splits()
        self._norms()
        self._concats()
        self._casts()
        self._scaled_results()
        ops = self._ordered()
        self._drop_hazards(ops)
        self._fold_scales(ops)
        return Binder(self, ops, self.kernels, self.dtype, self.max_rows).bind()

    def _put(self, op: Op) -> None:
        for name in op.outs:
            self.producer[name] = op

    def _embeddings(self) -> None:
        for i, node in enumerate(self.graph.nodes):
            table = self.view.raw(node.inputs[0]) if node.inputs else None
            if node.kind != "Gather" or table is None or node.inputs[1] != "input_ids":
                continue
            if len(table.shape) == 2 and node.attribute("axis", 0) == 0 and table.data.dtype.is_floating_point:
                out = node.outputs[0]
                self._put(Op("embedding", i, ["input_ids"], [out], {out: table.shape[1]}, params={"table": table}))

    def _linears(self) -> None:
        groups: dict[tuple[Any, ...], list[LinearMatch]] = {}
        for node in self.graph.nodes:
            found = matching.match_linear(self.view, node)
            if found is None:
                continue
            weight = found.weight
            key = (found.source, self._quant_key(found.quant), weight.format, weight.group, weight.shape[1])
            groups.setdefault(key, []).append(found)
        for number, matches in enumerate(groups.values()):
            self._linear_group(f"linear:{number}", matches)

    def _quant_key(self, quant: InputQuant | None) -> tuple[Any, ...]:
        if quant is None:
            return ()
        factors = self.view.evaluate(quant.factors).float().numpy().tobytes() if quant.factors else b""
        return (quant.kind, quant.scale, factors)

    def _linear_group(self, name: str, matches: list[LinearMatch]) -> None:
        """One packed linear with the quantization of its input, columns in the graph's order."""
        index = min(self.view.index[id(m.node)] for m in matches)
        quant, source, width = matches[0].quant, matches[0].source, matches[0].weight.shape[1]
        sources = [m.weight for m in matches]
        packed = self._packed(sources, quant)
        for weight in sources:
            weight.release()
            if self.progress:
                self.progress(weight.stored_bytes)
        packed.input = quant.kind if quant is not None and quant.kind != "scale" else ""
        self.linears.append(packed)
        if quant is not None and quant.factors and quant.method is not None:
            scaled = f"{name}:scaled"
            factors = InputQuant("scale", 1.0, quant.factors)
            self._put_quantize(index, source, scaled, width, {"quant": factors, "out_scale": 1.0})
            source = scaled
        if quant is not None and not packed.kernel.quantizes_input:
            quantized = f"{name}:input"
            params: dict[str, Any] = {"quant": quant, "out_scale": 1.0}
            biased = any(weight.bias is not None for weight in sources)
            movable = quant.kind != "scale" and self.dtype == torch.float32 and not biased
            if movable and isinstance(packed.out_scale, float):
                # the factor goes onto the quantized activations, exact to float32's rounding; a bias, which the kernel
                # holds divided by it, would not get it back
                params["out_scale"], packed.out_scale = packed.out_scale, None
            self._put_quantize(index, source, quantized, width, params)
            source = quantized
        out = f"{name}:output"
        self._put(Op("linear", index, [source], [out], params={"packed": packed}, buffers={source: width}))
        first = 0
        for match in matches:
            self.segments[match.output] = (out, first, match.weight.shape[0])
            self.producer[match.output] = self.producer[out]
            first += match.weight.shape[0]

    def _put_quantize(self, index: int, source: str, out: str, width: int, params: dict[str, Any]) -> None:
        """A rounding or factors of a linear's input, in place where nothing else reads it."""
        quantize = Op("quantize", index, [source], [out], {out: width}, params=params)
        quantize.inplace, quantize.buffers = {out: source}, {source: width}
        self._put(quantize)

    def _packed(self, sources: list[LinearSource], quant: InputQuant | None) -> PackedLinear:
        """The linears packed, or the pack that another program of the graph made of them."""
        # what a quantized input moves between pack and activations belongs to one program
        key = tuple(source.name for source in sources) if self.packs is not None and quant is None else ()
        if self.packs is not None and key in self.packs:
            return self.packs[key]
        packed = pack(
            sources,
            self.capability,
            self.dtype,
            input_scale=quant.scale if quant is not None and quant.kind == sources[0].format else None,
            exact=self.exact,
            scratch=self.scratch,
            library=self.library,
        )
        if self.packs is not None and key:
            self.packs[key] = packed
        return packed

    def _gated(self) -> None:
        for i, node in enumerate(self.graph.nodes):
            found = matching.match_gated(self.view, node)
            if found is None or found[0] not in self.segments or found[1] not in self.segments:
                continue
            gate, up, _ = found
            width = self.segments[gate][2]
            if width == self.segments[up][2]:
                out = node.outputs[0]
                self._put(Op("silu_mul", i, [gate, up], [out], {out: width}))

    def _attention(self) -> None:
        for i, node in enumerate(self.graph.nodes):
            if node.kind != "trtforge::PagedAttention":
                continue
            scales = [self.view.scalar(n) if n else 1.0 for n in (node.inputs + [""] * 10)[7:9]]
            found = matching.match_attention(self.view, node)
            if found is None or None in scales or any(n not in self.segments for n in (found.q, found.k, found.v)):
                continue
            params = attention_params(node, *[1.0 if s is None else s for s in scales])
            out, pool = node.outputs[0], node.inputs[3]
            indexes = [n for n in (*node.inputs[4:7], *node.inputs[9:10]) if n]
            caches = (found.rotary.cos, found.rotary.sin) if found.rotary is not None else ()
            for cache in caches:
                self._rotary_table(cache)
            ins = [found.q, found.k, found.v, pool, *indexes, *(f"{cache}:rows" for cache in caches)]
            op = Op("attention", i, ins, [out], {out: params.num_heads * params.head_size})
            op.params = {"match": found, "params": params}
            op.params |= {"q_norm": self._norm_weight(found.q_norm), "k_norm": self._norm_weight(found.k_norm)}
            self._put(op)
            if len(node.outputs) > 1:
                alias = Op("alias", i, [pool, out], [node.outputs[1]], params={"of": pool})
                self._put(alias)

    def _norm_weight(self, norm: HeadNorm | None) -> tuple[torch.Tensor, float] | None:
        if norm is None:
            return None
        return self._weight_of(norm.weight).flatten(), norm.epsilon

    def _weight_of(self, name: str) -> torch.Tensor:
        """A norm's weight as the kernels take it: float32 on a CPU."""
        weight: torch.Tensor = self.view.evaluate(name)
        return weight.float().contiguous() if self.device == "cpu" else weight.to(self.device)

    def _rotary_table(self, name: str) -> None:
        """Evaluate a positions-only expression once for all positions; the program then looks rows up."""
        out = f"{name}:rows"
        if out in self.producer:
            return
        positions = torch.arange(self.max_positions, dtype=torch.int64)
        # like the graph's own numbers, but never rounded to 16 bits: the kernels take float32
        wide = OpContext(torch.float32)
        table = self._positional_value(name, positions, wide).reshape(self.max_positions, -1)
        table = table.float().contiguous().to(self.device)
        self._put(Op("table", 0, ["positions"], [out], params={"table": table}))

    def _positional_value(self, name: str, positions: torch.Tensor, context: OpContext) -> torch.Tensor:
        values: dict[str, Any] = {"positions": positions}

        def value(wanted: str) -> Any:
            if wanted not in values:
                if wanted in self.view.graph.constants:
                    values[wanted] = constant_value(self.view.graph.constants[wanted], context)
                else:
                    node = self.view.producer[wanted]
                    values.update(run_node(node, {n: value(n) for n in node.inputs if n}, context))
            return values[wanted]

        return value(name)

    def _gathers(self) -> None:
        for i, node in enumerate(self.graph.nodes):
            if node.kind == "Gather" and node.inputs[1] == "logit_indices" and node.attribute("axis", 0) == 0:
                self._put(Op("gather", i, [node.inputs[0], "logit_indices"], [node.outputs[0]]))

    def fed_rows(self, name: str) -> bool:
        """Whether an input of the graph holds a row of numbers a token: [T, width] floats."""
        info = self.graph.inputs.get(name)
        return info is not None and info.dtype in ("FLOAT", "FLOAT16", "BFLOAT16") and len(info.shape) == 2

    def _width(self, name: str) -> int | None:
        """The columns of a value that is known to be [rows, D]."""
        if name in self.segments:
            return self.segments[name][2]
        if self.fed_rows(name):
            size = self.graph.inputs[name].shape[1]
            return size if isinstance(size, int) else None
        op = self.producer.get(name)
        return op.widths.get(name) if op is not None else None

    def _splits(self) -> None:
        """Parts of a value's columns: read where they are."""
        for node in self.graph.nodes:
            width = self._width(node.inputs[0]) if node.kind == "Split" else None
            if width is None or node.attribute("axis", 0) not in (-1, 1) or node.outputs[0] in self.segments:
                continue
            base, first, _ = self.segments.get(node.inputs[0], (node.inputs[0], 0, width))
            for name, part in zip(node.outputs, self._parts(node, width), strict=True):
                self.segments[name] = (base, first, part)
                first += part
                self.producer.pop(name)
                if base in self.producer:
                    self.producer[name] = self.producer[base]

    def _parts(self, split: Node, width: int) -> list[int]:
        """The widths of a Split's parts: as its second input says, else equal ones, the last perhaps smaller."""
        if len(split.inputs) > 1 and split.inputs[1]:
            return [int(size) for size in self.view.evaluate(split.inputs[1])]
        count = len(split.outputs)
        part = -(-width // count)
        return [*[part] * (count - 1), width - part * (count - 1)]

    def _scales(self) -> None:
        """Products of rows and a number; in place where the order allows."""
        for i, node in enumerate(self.graph.nodes):
            found = matching.match_scale(self.view, node)
            width = self._width(found.source) if found is not None else None
            if found is None or width is None or found.output in self.graph.outputs:
                continue
            x, out = found.source, found.output
            op = Op("scale", i, [x], [out], {out: width}, {out: x}, {"factor": found.factor})
            self._put(op)

    def _scaled_results(self) -> None:
        """The same for what the graph returns, in the type that it comes in."""
        for i, node in enumerate(self.graph.nodes):
            found = matching.match_scale(self.view, node)
            if found is None or found.output not in self.graph.outputs:
                continue
            source = self.producer.get(found.source)
            if self._width(found.source) is not None or (source is not None and source.kind == "cast"):
                self._put(Op("scale_result", i, [found.source], [found.output], params={"factor": found.factor}))

    def _concats(self) -> None:
        """Values side by side."""
        for i, node in enumerate(self.graph.nodes):
            if node.kind != "Concat" or node.attribute("axis") not in (-1, 1):
                continue
            found = [self._width(name) for name in node.inputs]
            widths = [width for width in found if width is not None]
            if len(widths) == len(found):
                out = node.outputs[0]
                self._put(Op("concat", i, list(node.inputs), [out], {out: sum(widths)}, params={"widths": widths}))

    def _casts(self) -> None:
        """Results in another type than activations have: logits in float32."""
        for i, node in enumerate(self.graph.nodes):
            to = self.view.dtype.get(node.outputs[0]) if node.kind == "Cast" else None
            if to is not None and self._width(node.inputs[0]) is not None:
                self._put(Op("cast", i, [node.inputs[0]], [node.outputs[0]], params={"dtype": to}))

    def _norms(self) -> None:
        """Norms, fused with the residual sum in front of them; sums left over stay in place where they can."""
        summed: set[str] = set()
        for i, node in enumerate(self.graph.nodes):
            if node.kind != "RMSNormalization" or node.attribute("axis", -1) not in (-1, 1):
                continue
            if node.inputs[1] not in self.view.constant:
                continue
            weight = self.view.evaluate(node.inputs[1])
            if weight.dim() != 1 or not self._two_dimensional(node.inputs[0]):
                continue
            x, out, width = node.inputs[0], node.outputs[0], weight.numel()
            params = {"weight": self._weight_of(node.inputs[1]), "epsilon": node.attribute("epsilon", 1e-5)}
            add = self.view.producer.get(x)
            parts = self._residual(add) if add is not None and x not in summed else None
            if parts is None:
                self._put(Op("rms_norm", i, [x], [out], {out: width}, params=params, buffers={x: width}))
                continue
            residual, other = parts
            summed.add(x)
            op = Op("add_rms_norm", self.view.index[id(add)], [residual, other], [x, out], {x: width, out: width})
            op.params, op.inplace, op.buffers = params, {x: residual}, {residual: width}
            self._put(op)
        for i, node in enumerate(self.graph.nodes):
            if node.kind == "Add" and node.outputs[0] not in summed and (parts := self._residual(node)) is not None:
                residual, other = parts
                out, width = node.outputs[0], self._width(other)
                assert width is not None
                op = Op("add", i, [residual, other], [out], {out: width}, {out: residual}, buffers={residual: width})
                self._put(op)

    def _two_dimensional(self, name: str) -> bool:
        """Whether a value is known to be [rows, D]: it comes from an operation that makes such."""
        if self.fed_rows(name) or name in self.segments:
            return True
        op = self.producer.get(name)
        if op is None:
            return False
        if op.kind == "gather":
            return self._two_dimensional(op.ins[0])
        if op.kind == "interpret" and op.params["node"].kind == "Add":
            return self._residual(op.params["node"]) is not None
        return op.kind != "interpret"

    def _residual(self, add: Node) -> tuple[str, str] | None:
        """(residual, what is added to it) of an Add: a linear's output, or rows that a norm or a factor made of one."""
        if add.kind != "Add":
            return None
        for residual, other in (add.inputs, add.inputs[::-1]):
            if other in self.segments and residual not in self.segments and self._two_dimensional(residual):
                return residual, other
        if all(name in self.segments for name in add.inputs):  # the first of two linears' results is copied
            return add.inputs[0], add.inputs[1]
        for residual, other in (add.inputs, add.inputs[::-1]):
            made = self.producer.get(other)
            if made is not None and made.kind in ("rms_norm", "scale") and self._two_dimensional(residual):
                return residual, other
        return None

    # -- ordering ------------------------------------------------------------------------------------------

    def _ordered(self) -> list[Op]:
        """The operations that the outputs need, in an order that respects data, close to the graph's."""
        needed: dict[int, Op] = {}
        queue = [self.producer[name] for name in self.graph.outputs if name in self.producer]
        while queue:
            op = queue.pop()
            if id(op) not in needed:
                needed[id(op)] = op
                queue += [self.producer[name] for name in op.ins if name in self.producer]
        waiting: dict[int, int] = {}
        followers: dict[int, list[Op]] = {}
        for op in needed.values():
            before = {id(self.producer[n]) for n in op.ins if n in self.producer} - {id(op)}
            waiting[id(op)] = len(before)
            for key in before:
                followers.setdefault(key, []).append(op)
        serial = {key: i for i, key in enumerate(needed)}
        ready = [(op.index, serial[id(op)], op) for op in needed.values() if waiting[id(op)] == 0]
        heapq.heapify(ready)
        ordered = []
        while ready:
            _, _, op = heapq.heappop(ready)
            ordered.append(op)
            for follower in followers.get(id(op), []):
                waiting[id(follower)] -= 1
                if waiting[id(follower)] == 0:
                    heapq.heappush(ready, (follower.index, serial[id(follower)], follower))
        return ordered

    def _fold_scales(self, ops: list[Op]) -> None:
        """Move the factor on quantized activations into the norm in front: codes(x·c; s·c)·c equals codes(x; s)·c."""
        for op in ops:
            factor = op.params.get("out_scale", 1.0) if op.kind == "quantize" else 1.0
            norm = self.producer.get(op.ins[0])
            if factor == 1.0 or not op.inplace or norm is None or norm.kind not in ("rms_norm", "add_rms_norm"):
                continue
            # in place means that nothing else reads the norm's output afterwards; before is as bad here
            if sum(op.ins[0] in other.ins for other in ops) > 1:
                continue
            quant: InputQuant = op.params["quant"]
            norm.params["weight"] = norm.params["weight"] * factor
            op.params |= {"quant": InputQuant(quant.kind, quant.scale * factor), "out_scale": 1.0}

    def _drop_hazards(self, ops: list[Op]) -> None:
        """Keep an in-place operation only where nothing reads the old value later."""
        last: dict[str, int] = {}
        for i, op in enumerate(ops):
            for name in op.ins:
                last[name] = i
        for name in self.graph.outputs:
            last[name] = len(ops)
        for i, op in enumerate(ops):
            for out, source in list(op.inplace.items()):
                owner = self.producer.get(source)
                owned = owner is not None and source in owner.widths and source not in self.segments
                if last[source] > i or not owned:
                    del op.inplace[out]
