"""Runs in a process of its own with a lean TensorRT on PYTHONPATH: what its plugin registry says of our library.

Prints one JSON object. No Runtime is made and the registry's other creators are not looked at: both need a GPU.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import tensorrt_lean_bindings as trt

_KINDS = {"INT32": np.int32, "FLOAT32": np.float32}


def field(name: str, kind: str, value: float) -> Any:
    return trt.PluginField(name, np.array([value], dtype=_KINDS[kind]), getattr(trt.PluginFieldType, kind))


def create(creator: Any, fields: list[list[Any]], phase: str) -> Any:
    collection = trt.PluginFieldCollection([field(*entry) for entry in fields])
    return creator.create_plugin("layer", collection, getattr(trt.TensorRTPhase, phase))


def describe(plugin: Any) -> dict[str, Any]:
    kinds = trt.PluginCapabilityType
    build = plugin.get_capability_interface(kinds.BUILD)
    return {
        "build": type(build).__name__,
        "runtime": type(plugin.get_capability_interface(kinds.RUNTIME)).__name__,
        "core": type(plugin.get_capability_interface(kinds.CORE)).__name__,
        "outputs": build.num_outputs,
        "timing_cache_id": build.timing_cache_id,
    }


def main(library: str, asked: dict[str, Any]) -> None:
    registry = trt.get_plugin_registry()
    loaded = registry.load_library(library) is not None
    answers: dict[str, Any] = {"version": trt.__version__, "loaded": loaded, "ops": {}, "refused": []}
    for op, fields in asked["good"].items():
        creator = registry.get_creator(op, asked["versions"][op], "trtforge")
        plugin = create(creator, fields, "BUILD")
        answers["ops"][op] = {
            "creator": [type(creator).__name__, creator.name, creator.plugin_version, creator.plugin_namespace],
            "fields": {entry.name: str(entry.type).rpartition(".")[2] for entry in creator.field_names},
            "plugin": None if plugin is None else describe(plugin),
            "at_run_time": create(creator, fields, "RUNTIME") is not None,
        }
    for op, fields in asked["bad"]:
        made = create(registry.get_creator(op, asked["versions"][op], "trtforge"), fields, "BUILD")
        answers["refused"].append(made is None)
    answers["other_namespace"] = registry.get_creator("PagedAttention", asked["versions"]["PagedAttention"], "") is None
    answers["other_version"] = registry.get_creator("PagedAttention", "1", "trtforge") is None
    print(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
