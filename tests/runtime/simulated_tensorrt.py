"""A TensorRT that runs plans on the host: real signatures, and execution through the addresses that were bound.

``execute_async_v3`` reads its inputs from the addresses and shapes of the context, runs the ONNX graph with the
runtime's own interpreter, and writes outputs and pools to their addresses. What the executor binds, pads, orders and
reads back is exercised for real; kernels are not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from runtime.executors.interpreter import Interpreter
from runtime.executors.onnx_graph import load_graph
from tests.support.tensorrt_bindings import Bindings

_DTYPES = {
    "FLOAT": torch.float32, "FLOAT16": torch.float16, "BFLOAT16": torch.bfloat16, "FLOAT8E4M3FN": torch.float8_e4m3fn,
    "INT32": torch.int32, "INT64": torch.int64, "BOOL": torch.bool,
}  # fmt: skip
SCRATCH = {0: 1000, 1: 4000}


def tensor_at(address: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The memory at an address as a tensor; writing to it writes there."""
    count = int(np.prod(shape)) if shape else 1
    size = count * torch.empty(0, dtype=dtype).element_size()
    raw = torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=torch.uint8)
    return raw.view(dtype).view(shape)


class HostDevice:
    """Host memory in the place of a GPU's; a captured graph keeps the shapes that it was recorded with."""

    name = "host"
    architecture = "sm_90"
    stream = 0

    def __init__(self) -> None:
        self.captured = 0
        self.replayed = 0
        self.recording = False

    def zeros(self, shape: list[int], dtype: torch.dtype, what: str) -> torch.Tensor:
        size = torch.empty(0, dtype=dtype).element_size()
        return torch.zeros([*shape, size], dtype=torch.uint8).view(dtype).reshape(shape)

    def host_buffer(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(count, dtype=dtype)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        assert not self.recording, "inputs are filled outside the graph"
        target.copy_(source)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self.captured += 1
        self.recording = True
        work()
        self.recording = False

        def replay() -> None:
            self.replayed += 1
            work()

        return replay

    def synchronize(self) -> None:
        assert not self.recording


class Simulation:
    """Answers of the bindings for one engine.

    Attributes:
        trt: the module.
        runs: (profile, shapes) of every execution.
    """

    def __init__(self, version: str, graph_dir: Path, inputs: list[dict[str, Any]], outputs: list[str]) -> None:
        self.trt = Bindings(version)
        self.inputs, self.outputs = inputs, outputs
        self.graph = load_graph(graph_dir / "model.onnx")
        self.interpreter = Interpreter(self.graph)
        self.runs: list[tuple[int, dict[str, tuple[int, ...]]]] = []
        self.refuse: str | None = None
        names = [*(value["name"] for value in inputs), *outputs]
        self.trt.answers.update(
            {
                "get_plugin_registry": lambda this: self.trt.make("IPluginRegistry"),
                "IPluginRegistry.load_library": lambda this, plugin_path: object(),
                "Runtime.deserialize_cuda_engine": lambda this, plan: self.trt.make("ICudaEngine"),
                "ICudaEngine.num_io_tensors": lambda this: len(names),
                "ICudaEngine.get_tensor_name": lambda this, index: names[index],
                "ICudaEngine.num_optimization_profiles": lambda this: 2,
                "ICudaEngine.get_device_memory_size_for_profile_v2": lambda this, profile_index: SCRATCH[profile_index],
                "ICudaEngine.get_tensor_shape": lambda this, name: self.graph.outputs[name].shape,
                "ICudaEngine.get_weight_streaming_automatic_budget": lambda this: 77,
                "ICudaEngine.create_execution_context": self._context,
                "IExecutionContext.set_tensor_address": self._address,
                "IExecutionContext.set_input_shape": self._shape,
                "IExecutionContext.set_device_memory": lambda this, memory, size: None,
                "IExecutionContext.set_optimization_profile_async": self._profile,
                "IExecutionContext.execute_async_v3": self._execute,
            }
        )

    def _context(self, engine: Any, strategy: Any) -> Any:
        return self.trt.make("IExecutionContext", addresses={}, shapes={}, profile=None)

    def _address(self, context: Any, name: str, memory: int) -> bool:
        context.addresses[name] = memory
        return True

    def _shape(self, context: Any, name: str, shape: tuple[int, ...]) -> bool:
        context.shapes[name] = tuple(shape)
        return self.refuse != name

    def _profile(self, context: Any, profile_index: int, stream_handle: int) -> bool:
        context.__dict__["profile"] = profile_index
        return True

    def _execute(self, context: Any, stream_handle: int) -> bool:
        if self.refuse == "execute":
            return False
        feeds = {}
        for value in self.inputs:
            name = value["name"]
            tensor = tensor_at(context.addresses[name], context.shapes[name], _DTYPES[value["type"]])
            feeds[name] = tensor.view(torch.uint8) if name == "tree_mask" else tensor
        results = self.interpreter.run(feeds)
        for name in self.outputs:
            if name.startswith("kv_pool_"):
                assert context.addresses[name] == context.addresses[name.removesuffix("_out")], "updated in place"
                continue
            made = results[name]
            tensor_at(context.addresses[name], tuple(made.shape), made.dtype).copy_(made)
        self.runs.append((context.profile, dict(context.shapes)))
        return True
