"""Runs any valid graph node by node: slow, and the meaning that the fast program is measured against."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from runtime.executors.onnx_graph import Constant, Graph, Node
from runtime.executors.onnx_ops import OPS, OpContext
from trtforge.ground.errors import ForgeError


def check_operators(nodes: Iterable[Node]) -> None:
    """Refuse operators without an implementation, all of them at once.

    Raises:
        ForgeError: TF-RUN-007.
    """
    unknown: dict[str, int] = {}
    for node in nodes:
        if node.kind not in OPS:
            unknown[node.kind] = unknown.get(node.kind, 0) + 1
    if unknown:
        raise ForgeError(
            "TF-RUN-007",
            f"the graph uses operators that this runtime does not implement: {', '.join(sorted(unknown))}",
            numbers={"nodes": unknown},
            why="every operator has one written contract; an unknown one cannot be run",
            remedies=["build the engine again with this version of trtforge", "update trtforge"],
        )


def constant_value(constant: Constant, context: OpContext, device: torch.device | str = "cpu") -> Any:
    """A constant as an operator wants it: 4-bit ones as they are, 16-bit floats in the context's dtype."""
    if constant.packed4:
        return constant
    data = constant.data
    if context.float_dtype is not None and data.dtype in (torch.float16, torch.bfloat16):
        data = data.to(context.float_dtype)
    return data.to(device)


def run_node(node: Node, values: Mapping[str, Any], context: OpContext) -> dict[str, Any]:
    """Execute one node on named values; returns its outputs by name."""
    inputs = [values[name] if name else None for name in node.inputs]
    outputs = OPS[node.kind](context, node, inputs)
    return {name: value for name, value in zip(node.outputs, outputs, strict=False) if name}


class Interpreter:
    """Executes a graph by its operators' definitions.

    Args:
        graph: what :func:`~runtime.executors.onnx_graph.load_graph` returned.
        context: number format and attention implementation; default: the graph's own dtypes, torch.
        device: where values live.

    Raises:
        ForgeError: TF-RUN-007 for operators without an implementation.
    """

    def __init__(self, graph: Graph, context: OpContext | None = None, device: torch.device | str = "cpu") -> None:
        check_operators(graph.nodes)
        self.graph = graph
        self.context = context or OpContext()
        self.device = device
        last: dict[str, int] = {}
        for index, node in enumerate(graph.nodes):
            for name in node.inputs:
                last[name] = index
        keep = set(graph.outputs) | set(graph.inputs)
        self._dead: list[list[str]] = [[] for _ in graph.nodes]
        for name, index in last.items():
            if name and name not in keep and name not in graph.constants:
                self._dead[index].append(name)

    @torch.inference_mode()
    def run(self, feeds: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Outputs by name for inputs by name; pools are changed in place and returned as they are."""
        values: dict[str, Any] = dict(feeds)
        for index, node in enumerate(self.graph.nodes):
            for name in node.inputs:
                if name in self.graph.constants and name not in values:
                    values[name] = constant_value(self.graph.constants[name], self.context, self.device)
            values.update(run_node(node, values, self.context))
            for name in node.inputs:  # dequantized or widened weights would pile up
                if name in self.graph.constants:
                    values.pop(name, None)
            for name in self._dead[index]:
                values.pop(name, None)
        return {name: values[name] for name in self.graph.outputs}
