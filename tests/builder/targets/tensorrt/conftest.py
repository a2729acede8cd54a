"""Graphs of a tiny model, and the answers of a TensorRT that takes them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.graphs.build import build_graph
from builder.targets.tensorrt import machine
from builder.targets.tensorrt.lowering import Network
from tests.builder.quantized_tiny import Quantizer
from tests.support.tensorrt_bindings import VERSIONS, Bindings, HostMemory
from tests.support.tiny import write_tiny_llama
from trtforge.native.plugin_library import PluginLibrary

PLUGINS = PluginLibrary(Path("/plugins.so"), "1", "0123456789abcdef", "", "10.14.1", {"source_hash": "s"}, False, "f")

_TYPES = {"FLOAT": "FLOAT", "FLOAT16": "HALF", "BFLOAT16": "BF16", "FLOAT8E4M3FN": "FP8", "INT32": "INT32",
          "INT64": "INT64", "BOOL": "BOOL"}  # fmt: skip


@pytest.fixture(scope="session")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``graphs(format, class, **options of build_graph)``: a graph directory, made once; read only."""
    made: dict[str, Path] = {}

    def graph(fmt: str = "none", architecture: str = "LlamaForCausalLM", **options: Any) -> Path:
        key = f"{fmt} {architecture} {sorted(options.items())}"
        if key not in made:
            folder = tmp_path_factory.mktemp("graph")
            kv_fp8 = options.get("kv_cache_format") == "fp8"
            Quantizer(write_tiny_llama(folder / "checkpoint", architecture=architecture), fmt, kv_fp8=kv_fp8)
            build_graph(folder / "checkpoint", folder / "graph", **options)
            made[key] = folder / "graph"
        return made[key]

    return graph


def network_answers(bindings: Bindings, network: Network, plan: bytes = b"plan") -> dict[str, Callable[..., Any]]:
    """What a TensorRT says that parsed the network and built the plan."""
    inputs = [
        bindings.make("ITensor", name=value["name"], dtype=getattr(bindings.DataType, _TYPES[value["type"]]))
        for value in network.inputs
    ]
    outputs = [bindings.make("ITensor", name=name) for name in network.outputs]
    cache = bindings.make("ITimingCache")
    return {
        "INetworkDefinition.num_inputs": lambda this: len(inputs),
        "INetworkDefinition.num_outputs": lambda this: len(outputs),
        "INetworkDefinition.num_layers": lambda this: 42,
        "INetworkDefinition.get_input": lambda this, index: inputs[index],
        "INetworkDefinition.get_output": lambda this, index: outputs[index],
        "IBuilderConfig.add_optimization_profile": lambda this, profile: 0,
        "IBuilderConfig.get_timing_cache": lambda this: cache,
        "IBuilderConfig.set_timing_cache": lambda this, cache, ignore_mismatch: True,
        "ITimingCache.serialize": lambda this: HostMemory(b"timings"),
        "Builder.build_serialized_network": lambda this, network, config: HostMemory(plan),
        "get_plugin_registry": lambda this: bindings.make("IPluginRegistry"),
        "IPluginRegistry.load_library": lambda this, plugin_path: object(),
        "OnnxParser.num_errors": lambda this: 0,
    }


@pytest.fixture(params=VERSIONS)
def gpu_machine(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[[str], None]:
    """A machine with this TensorRT, an H100 and the plugin library; call it to say what goes wrong in the builder."""
    root = str(Path(__file__).parent / "fake_tensorrt")

    def mode(name: str) -> None:
        monkeypatch.setenv("FAKE_TENSORRT", json.dumps({"version": request.param, "mode": name}))

    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(machine, "tensorrt_version", lambda stack: request.param)
    here = machine.Here(request.param, "sm_90", PLUGINS)
    monkeypatch.setattr(machine, "require", lambda found, architectures, stack: here)
    mode("works")
    return mode
