"""A package called ``tensorrt`` for the worker's process: the recorded bindings, answering as the test asks.

``FAKE_TENSORRT`` is a JSON object: ``version``, ``spec`` (the worker's own file, for the network's inputs) and
``mode``: what goes wrong, if anything.

Aliases are as NVIDIA's texts say. A plugin's alias counts only where the builder's preview feature allows it
(NvInferRuntime.h, ``getAliasedInput``); a build whose plugins declare one without it ends with error 4 (TensorRT's
samples); TensorRT may insert copies for it (the same header), and TensorRT Edge-LLM met versions that reject the
engine. Here a plugin declares what its node's field ``aliased`` says, as the library's does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import onnx

from tests.support.tensorrt_bindings import Bindings, HostMemory

_asked = json.loads(os.environ["FAKE_TENSORRT"])
_spec = json.loads(Path(sys.argv[1]).read_text())
_types = {"FLOAT": "FLOAT", "FLOAT16": "HALF", "BFLOAT16": "BF16", "FLOAT8E4M3FN": "FP8", "INT32": "INT32",
          "INT64": "INT64", "BOOL": "BOOL"}  # fmt: skip


#: plugin nodes of the parsed model that declare an alias
_declared: list[str] = []
#: bytes of a layer's pool for each block, where a plan keeps a copy
_COPY = 100


def _parse(this: Any, model: bytes, path: str | None = None) -> bool:
    for node in onnx.load_from_string(model).graph.node:
        fields = {a.name: a.i for a in node.attribute}
        if node.domain == "trtforge" and fields.get("aliased"):
            _declared.append(node.name)
    if _asked["mode"] == "plugin refuses":
        logger = _bindings.named("Builder.__init__")[0][0]
        logger.log(_bindings.ILogger.Severity.ERROR, "TF-OPS-203: PagedAttention version 1: field 'x' is unknown")
    return _asked["mode"] not in ("parser refuses", "plugin refuses")


def _build(this: Any, network: Any, config: Any) -> HostMemory | None:
    print("TensorRT prints to standard output", flush=True)
    monitor = config.progress_monitor
    monitor.phase_start("Building Engine", None, 4)
    for step in range(4):
        monitor.phase_start("tactics", "Building Engine", 9)
        monitor.step_complete("tactics", 8)
        monitor.phase_finish("tactics")
        monitor.step_complete("Building Engine", step)
    monitor.phase_finish("Building Engine")
    logger = _bindings.named("Builder.__init__")[0][0]
    features = {feature.name: on for feature, on in _bindings.named("IBuilderConfig.set_preview_feature")}
    if _asked["mode"] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if _asked["mode"] == "killed by a signal without a name":
        os.kill(os.getpid(), signal.SIGRTMIN + 1)
    if _asked["mode"] == "hangs":
        signal.pause()
    refused = "no implementation" if _asked["mode"] == "builder fails" else None
    if _declared and not features.get("ALIASED_PLUGIN_IO_10_03"):
        refused = (
            f"Error Code 4: Internal Error (Aliased I/O used by plugin {_declared[0]} [PluginV3_V3ONE] but "
            "PreviewFeature::kALIASED_PLUGIN_IO_10_03 not enabled.)"
        )
    elif _declared and "declared is rejected" in _asked["mode"]:
        refused = "Error Code 9: Skipping tactic 0x0 due to exception: aliased tensors are not supported"
    if refused is not None:
        logger.log(_bindings.ILogger.Severity.ERROR, refused)
        return None
    return HostMemory(b"declared" if _declared else b"undeclared")


def _memory(context: Any) -> int:
    """Activations, and a copy of one layer's pool where this TensorRT keeps one."""
    blocks = context.shapes["kv_pool_0"][0]
    how = "declared" if _declared else "undeclared"
    return 5000 + (_COPY * blocks if f" {how} copies" in f" {_asked['mode']}" else 0)


def _shape(context: Any, name: str, shape: tuple[int, ...]) -> bool:
    context.shapes[name] = tuple(shape)
    return True


_bindings = Bindings(_asked["version"])
_inputs = [
    _bindings.make("ITensor", name=value["name"], dtype=getattr(_bindings.DataType, _types[value["type"]]))
    for value in _spec["inputs"]
]
_cache = _bindings.make("ITimingCache")
_kept = Path(_spec["timing_cache"])
_before = _kept.read_bytes() if _kept.is_file() else b""
_bindings.answers.update(
    {
        "INetworkDefinition.num_inputs": lambda this: len(_inputs),
        "INetworkDefinition.num_outputs": lambda this: len(_spec["outputs"]),
        "INetworkDefinition.num_layers": lambda this: 7,
        "INetworkDefinition.get_input": lambda this, index: _inputs[index],
        "INetworkDefinition.get_output": lambda this, index: _bindings.make("ITensor", name=_spec["outputs"][index]),
        "IBuilderConfig.add_optimization_profile": lambda this, profile: 0,
        "IBuilderConfig.get_timing_cache": lambda this: _cache,
        "IBuilderConfig.set_timing_cache": lambda this, cache, ignore_mismatch: True,
        "ITimingCache.serialize": lambda this: HostMemory(_before + b"+"),
        "Builder.build_serialized_network": _build,
        "Runtime.deserialize_cuda_engine": lambda this, plan: (
            None if _asked["mode"] == "does not load" else _bindings.make("ICudaEngine")
        ),
        "ICudaEngine.create_execution_context": lambda this, strategy: _bindings.make("IExecutionContext", shapes={}),
        "IExecutionContext.set_input_shape": _shape,
        "IExecutionContext.update_device_memory_size_for_shapes": _memory,
        "get_plugin_registry": lambda this: _bindings.make("IPluginRegistry"),
        "IPluginRegistry.load_library": lambda this, plugin_path: object(),
        "OnnxParser.parse": _parse,
        "OnnxParser.num_errors": lambda this: 1,
        "OnnxParser.get_error": lambda this, index: _bindings.make("ParserError"),
        "ParserError.node_operator": lambda this: "Swish",
        "ParserError.node_name": lambda this: "/model/act",
        "ParserError.desc": lambda this: "no importer",
    }
)


def __getattr__(name: str) -> Any:
    return getattr(_bindings, name)
