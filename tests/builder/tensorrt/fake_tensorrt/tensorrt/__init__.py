"""A package called ``tensorrt`` for the worker's process: the recorded bindings, answering as the test asks.

``FAKE_TENSORRT`` is a JSON object: ``version``, ``spec`` (the worker's own file, for the network's inputs) and
``mode``: what goes wrong, if anything.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.support.tensorrt_bindings import Bindings, HostMemory

_asked = json.loads(os.environ["FAKE_TENSORRT"])
_spec = json.loads(Path(sys.argv[1]).read_text())
_types = {"FLOAT": "FLOAT", "FLOAT16": "HALF", "BFLOAT16": "BF16", "FLOAT8E4M3FN": "FP8", "INT32": "INT32",
          "INT64": "INT64", "BOOL": "BOOL"}  # fmt: skip


def _parse(this: Any, model: bytes, path: str | None = None) -> bool:
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
    aliased = _bindings.named("IBuilderConfig.set_preview_feature")[-1][1]
    if _asked["mode"] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if _asked["mode"] == "killed by a signal without a name":
        os.kill(os.getpid(), signal.SIGRTMIN + 1)
    if _asked["mode"] == "hangs":
        signal.pause()
    if _asked["mode"] == "builder fails" or (_asked["mode"] == "alias refused" and aliased):
        about = "aliased plugin I/O is not supported" if aliased and "alias" in _asked["mode"] else "no implementation"
        logger.log(_bindings.ILogger.Severity.ERROR, about)
        return None
    return HostMemory(b"plan of " + str(len(_asked["version"])).encode())


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
