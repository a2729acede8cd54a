"""A graph made smaller before it is lowered: inputs that are decided, casts that change nothing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from runtime.executors.matching import GraphView
from runtime.executors.onnx_graph import Graph, Node
from runtime.executors.onnx_ops import OpContext


def decided(graph: Graph, choices: Mapping[str, bool]) -> Graph:
    """The graph in which each input of ``choices`` has one value: a Where that reads it is the side it chooses.

    Both sides of such a Where have the result's shape; that is the contract of those inputs.
    """
    renamed: dict[str, str] = {}
    nodes = []
    for node in graph.nodes:
        inputs = [renamed.get(name, name) for name in node.inputs]
        if node.kind == "Where" and inputs[0] in choices:
            renamed[node.outputs[0]] = inputs[1 if choices[inputs[0]] else 2]
        else:
            nodes.append(replace(node, inputs=inputs))
    kept = {name: info for name, info in graph.inputs.items() if name not in choices}
    return replace(graph, nodes=_needed(nodes, graph.outputs), inputs=kept)


def simplify(graph: Graph, context: OpContext) -> Graph:
    """Drop casts and identities that change nothing in the program's number format."""
    view = GraphView(graph, context)
    renamed: dict[str, str] = {}
    kept: list[Node] = []
    for node in graph.nodes:
        source = renamed.get(node.inputs[0], node.inputs[0]) if node.inputs else ""
        if not view.is_alias(node) or source in view.constant or source in graph.inputs:
            kept.append(node)
        elif node.outputs[0] not in graph.outputs:
            renamed[node.outputs[0]] = source
        elif source not in graph.outputs:  # the value is made under the output's name instead
            renamed = {k: node.outputs[0] if v == source else v for k, v in renamed.items()}
            renamed[source] = node.outputs[0]
        else:
            kept.append(node)
    nodes = [
        replace(
            n,
            inputs=[renamed.get(name, name) for name in n.inputs],
            outputs=[renamed.get(name, name) for name in n.outputs],
        )
        for n in kept
    ]
    return replace(graph, nodes=nodes)


def _needed(nodes: list[Node], outputs: Collection[str]) -> list[Node]:
    """The nodes that the outputs come from."""
    wanted, found = set(outputs), []
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.outputs):
            wanted.update(name for name in node.inputs if name)
            found.append(node)
    return found[::-1]
