"""A TensorRT that runs plans on the host: real signatures, and execution through the addresses that were bound.

``execute_async_v3`` reads its inputs from the addresses and shapes of the context, runs the ONNX graph with the
runtime's own interpreter, and writes outputs and pools to their addresses. What the executor binds, pads, orders and
reads back is exercised for real; kernels are not.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from plugins.host.library import load_library
from runtime.executors.interpreter import Interpreter
from runtime.executors.onnx_graph import load_graph
from tests.support.tensorrt_bindings import Bindings

_DTYPES = {
    "FLOAT": torch.float32, "FLOAT16": torch.float16, "BFLOAT16": torch.bfloat16, "FLOAT8E4M3FN": torch.float8_e4m3fn,
    "INT32": torch.int32, "INT64": torch.int64, "BOOL": torch.bool,
}  # fmt: skip
Profiles = list[dict[str, tuple[tuple[int, ...], ...]]]
#: device memory of a context by profile, and what streaming weights adds to it
SCRATCH = {0: 1000, 1: 4000}
STREAMING_SCRATCH = 600
#: bytes of the simulated GPU, and of the weights that may be streamed: not all of them fit
MEMORY, STREAMABLE = 64 * 2**20, 80 * 2**20


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
        self.entered: list[int] = []
        self.released = 0
        #: PagedKVMove's calls; None: a machine without the ops' library
        self.moves: int | None = 0
        self._storages: list[weakref.ref[torch.UntypedStorage]] = []

    @property
    def allocated(self) -> int:
        """Bytes of every tensor that :meth:`zeros` made and that somebody still holds."""
        alive = [storage for ref in self._storages if (storage := ref()) is not None]
        return sum(storage.nbytes() for storage in alive)

    def zeros(self, shape: list[int], dtype: torch.dtype, what: str) -> torch.Tensor:
        size = torch.empty(0, dtype=dtype).element_size()
        made = torch.zeros([*shape, size], dtype=torch.uint8)
        self._storages.append(weakref.ref(made.untyped_storage()))
        return made.view(dtype).reshape(shape)

    def enter(self) -> None:
        self.entered.append(threading.get_ident())

    def release(self) -> None:
        self.released += 1

    def host_buffer(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(count, dtype=dtype)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        assert not self.recording, "inputs are filled outside the graph"
        target.copy_(source)

    def move_rows(self, pools: Sequence[torch.Tensor], *arrays: np.ndarray) -> bool:
        if self.moves is None:
            return False
        self.moves += 1
        load_library().paged_kv_move(list(pools), *map(torch.from_numpy, arrays))
        return True

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
        profiles: smallest, optimal and largest shape of each dynamic input, by profile: what the plan was built for.
    """

    def __init__(
        self,
        version: str,
        graph_dir: Path,
        inputs: list[dict[str, Any]],
        outputs: list[str],
        device: HostDevice,
        profiles: Profiles,
    ) -> None:
        self.trt = Bindings(version)
        self.device = device
        self.profiles = profiles
        self.contexts: weakref.WeakSet[Any] = weakref.WeakSet()
        self.streamed = False
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
                "ICudaEngine.get_device_memory_size_for_profile_v2": self._memory,
                "ICudaEngine.get_tensor_shape": lambda this, name: self.graph.outputs[name].shape,
                "ICudaEngine.streamable_weights_size": lambda this: STREAMABLE,
                "ICudaEngine.get_weight_streaming_automatic_budget": self._automatic_budget,
                "ICudaEngine.weight_streaming_budget_v2=": self._set_budget,
                "ICudaEngine.create_execution_context": self._context,
                "IExecutionContext.set_tensor_address": self._address,
                "IExecutionContext.set_input_shape": self._shape,
                "IExecutionContext.set_device_memory": lambda this, memory, size: None,
                "IExecutionContext.set_optimization_profile_async": self._profile,
                "IExecutionContext.execute_async_v3": self._execute,
            }
        )

    # Weight streaming as NvInferRuntime.h states it: see the comments of ICudaEngine and enqueueV3 there.

    def _automatic_budget(self, engine: Any) -> int:
        """Close to the memory that is free now, at most every weight."""
        weights = engine.__dict__.get("weight_streaming_budget_v2", STREAMABLE)
        return max(0, min(STREAMABLE, MEMORY - self.device.allocated - (weights if self.streamed else 0)))

    def _set_budget(self, engine: Any, budget: int) -> None:
        """Allocates the weights; not while a context lives."""
        if self.contexts:
            raise RuntimeError("the budget cannot be modified while there are active IExecutionContexts")
        if self.device.allocated + budget > MEMORY:
            raise RuntimeError("out of memory")
        self.streamed = True

    def _memory(self, engine: Any, profile_index: int) -> int:
        """Stateful: depends on the budget that was set."""
        budget = engine.__dict__.get("weight_streaming_budget_v2", STREAMABLE)
        return SCRATCH[profile_index] + (STREAMING_SCRATCH if budget < STREAMABLE else 0)

    def _context(self, engine: Any, strategy: Any) -> Any:
        context = self.trt.make("IExecutionContext", addresses={}, shapes={}, profile=None)
        self.contexts.add(context)
        return context

    def _address(self, context: Any, name: str, memory: int) -> bool:
        context.addresses[name] = memory
        return True

    def _shape(self, context: Any, name: str, shape: tuple[int, ...]) -> bool:
        low, _, high = self.profiles[context.profile][name]
        fits = all(a <= size <= b for a, size, b in zip(low, shape, high, strict=True))
        context.shapes[name] = tuple(shape)
        return fits and self.refuse != name

    def _profile(self, context: Any, profile_index: int, stream_handle: int) -> bool:
        context.__dict__["profile"] = profile_index
        return True

    def _execute(self, context: Any, stream_handle: int) -> bool:
        if self.refuse == "execute" or (self.streamed and self.device.recording):
            return False  # an engine built for weight streaming is not captured
        feeds = {}
        for value in self.inputs:
            name = value["name"]
            if name not in self.graph.inputs:
                continue  # longest_query: the plugins' own, and only its shape is read
            shape = context.shapes.get(name, tuple(value["shape"]))  # nobody sets the shape of what has a fixed one
            tensor = tensor_at(context.addresses[name], shape, _DTYPES[value["type"]])
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
