"""Runs in a process of its own: our builder session with TensorRT for RTX's real parser and builder, no GPU needed.

The network is the paged graph with its plugin nodes replaced by identities (attention gives the query back, pools
pass through), because RTX has no such plugins. Everything else is what the target does: the bytes that are parsed with
external weights, the strongly typed network, both profiles, flags, timing cache, monitor and log.

Prints one JSON object: the session's facts and the number of progress events, or the step that failed.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import onnx
import tensorrt_rtx as rtx
from onnx import helper

from builder.targets.tensorrt.lowering import Network, lower
from builder.targets.tensorrt.profiles import Sizes
from builder.targets.tensorrt.session import BuildFailed, build_plan
from builder.targets.tensorrt.target import make_spec
from trtforge.recipe.schema import Build, Limits

LIMITS = Limits(max_batch_size=8, max_num_tokens=64, max_seq_len=256)


class Registry:
    """RTX is given no plugin library."""

    def load_library(self, plugin_path: str) -> object:
        return plugin_path


class Rtx:
    """The module with what needs a GPU, or has no meaning there, replaced."""

    __version__ = "10.16.1"  # RTX 1.7 has its parser and its typing

    def __init__(self, architecture: str) -> None:
        class Builder(rtx.Builder):
            def create_builder_config(self) -> Any:
                config = super().create_builder_config()
                config.num_compute_capabilities = 1
                config.set_compute_capability(getattr(rtx.ComputeCapability, architecture), 0)
                return config

        self.Builder = Builder

    def get_plugin_registry(self) -> Registry:
        return Registry()

    def __getattr__(self, name: str) -> Any:
        return getattr(rtx, name)


def without_plugins(network: Network) -> Network:
    model = onnx.load_from_string(network.model)
    nodes = []
    for node in model.graph.node:
        if node.op_type == "PagedAttention":
            nodes.append(helper.make_node("Identity", [node.input[0]], [node.output[0]], name=node.name))
            nodes.append(helper.make_node("Identity", [node.input[3]], [node.output[1]], name=f"{node.name}/pool"))
        else:
            nodes.append(node)
    read = {name for node in nodes for name in node.input}
    inputs = [value for value in model.graph.input if value.name in read]
    del model.graph.node[:], model.graph.input[:]
    model.graph.node.extend(nodes)
    model.graph.input.extend(inputs)
    described = [value for value in network.inputs if value["name"] in read]
    return dataclasses.replace(network, model=model.SerializeToString(), inputs=described)


def main(graph: str, out: str, architecture: str, missing: str) -> None:
    network = without_plugins(lower(Path(graph), frozenset(filter(None, missing.split(",")))))
    sizes = Sizes.of(LIMITS, block_size=32, num_blocks=50)
    build = Build(target="tensorrt", limits=LIMITS)
    cache = Path(out) / "timing.cache"
    spec = make_spec(Path(graph), Path(out), network, sizes, build, Path("/none.so"), cache)
    events: list[dict[str, Any]] = []
    try:
        facts = build_plan(Rtx(architecture), spec, events.append)
    except BuildFailed as failure:
        facts = {"failed": failure.step, "messages": failure.messages}
    print(json.dumps({**facts, "events": len(events)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
