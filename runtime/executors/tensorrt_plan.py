"""A TensorRT plan with its buffers: pools, inputs, outputs, contexts and graphs; what the executors over it share.

Every tensor has one buffer of its largest size for the plan's life: addresses never change, and a step only sets
shapes. Pools are bound as input and output at one address. Decode steps are padded to a bucket; each bucket has an
execution context and a CUDA graph of its own (a captured graph is bound to its context's shapes), and all contexts
share one piece of scratch memory, because steps run one after another. Everything else runs in the context of the
mixed profile.
"""

from __future__ import annotations

import importlib
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch

from plugins.trees import MAX_NODES
from runtime.executors.base import StepBatch
from runtime.executors.batch_check import check_batch, longest_query, mask_of
from runtime.executors.cuda_device import CudaDevice
from runtime.executors.decode_padding import bucket_of, is_decode, pad
from runtime.executors.onnx_graph import TORCH_DTYPES
from runtime.executors.tensorrt_engine import (
    NETWORK_FILE,
    TensorrtEngine,
    check_loadable,
    lacks_tensorrt,
    no_memory,
    plan_refused,
    read_tensorrt_engine,
)
from trtforge.native.plugin_library import PluginLibrary, plugin_library
from trtforge.targets.tensorrt import Input

log = logging.getLogger("trtforge.tensorrt")

DECODE_PROFILE, MIXED_PROFILE = 0, 1
_NUMBERS = ("FLOAT", "FLOAT16", "BFLOAT16")
LONGEST_QUERY, JOINED = "longest_query", "joined"
_INDEX_INPUTS = ("input_ids", "positions", "query_start", "sequence_lengths", "block_table", "logit_indices")
#: plugin libraries that this process has given to TensorRT's registry, which would take them twice
_REGISTERED: set[Path] = set()


@dataclass
class _Buffer:
    """An index input: host memory that is filled, device memory that the plan reads."""

    host: torch.Tensor
    device: torch.Tensor


class TensorrtPlan:
    """A deserialized plan, ready to run steps.

    Args:
        engine: what the directory states; its stamps were checked.
        trt: the module ``tensorrt``.
        hardware: memory, stream and CUDA graphs.
        plugins: the plugin library.
        num_blocks: KV blocks to allocate instead of the engine's number; never more.
        cuda_graphs: False runs decode steps without graphs.

    Raises:
        ForgeError: ``TF-RUN-115`` the plan, ``TF-RUN-116`` memory.
    """

    @classmethod
    def load(
        cls, engine_dir: Path | str, *, device: str = "cuda", num_blocks: int | None = None, cuda_graphs: bool = True
    ) -> Self:
        """Load an engine directory on a CUDA device.

        Raises:
            ForgeError: ``TF-RUN-001`` … ``003`` the directory, ``TF-RUN-111`` … ``113`` its stamps, ``TF-RUN-115``
                the plan, ``TF-RUN-116`` memory, ``TF-OPS-202`` the plugin library.
            EnvironmentLacks: ``TF-RUN-110`` TensorRT, ``TF-RUN-114`` a GPU, ``TF-OPS-201`` the plugin library.
        """
        engine = read_tensorrt_engine(Path(engine_dir))
        try:
            trt = importlib.import_module("tensorrt")
        except (ImportError, OSError) as error:
            raise lacks_tensorrt(str(error)) from error
        hardware = CudaDevice(device)
        plugins = plugin_library()
        check_loadable(engine, tensorrt=str(trt.__version__), architecture=hardware.architecture, plugins=plugins)
        return cls(engine, trt, hardware, plugins, num_blocks=num_blocks, cuda_graphs=cuda_graphs)

    def __init__(
        self,
        engine: TensorrtEngine,
        trt: Any,
        hardware: CudaDevice,
        plugins: PluginLibrary,
        *,
        num_blocks: int | None = None,
        cuda_graphs: bool = True,
    ) -> None:
        self.engine, self._trt, self._hardware = engine, trt, hardware
        info, stamp = engine.info, engine.stamp
        #: N, blocks of each pool that a scheduler may use; S, slots in one; what a step and a request may ask for
        self.num_blocks, self.block_size = (
            min(info.record.kv_cache.num_blocks, num_blocks or info.record.kv_cache.num_blocks),
            info.record.kv_cache.block_size,
        )
        self.limits = replace(engine.limits, max_logit_rows=stamp.sizes.rows)
        self._closed = False
        self._messages: list[str] = []
        self._logger = _make_logger(trt, self._messages)
        _register(trt, plugins.path)
        self._plan = self._deserialize()
        self._check_interface()
        self._pools = {
            value.name: hardware.zeros(
                [self.num_blocks + stamp.sizes.padding_blocks, *map(int, value.shape[1:])],
                TORCH_DTYPES[value.type],
                "a KV pool",
            )
            for value in engine.pools
        }
        fed = [value for value in stamp.inputs if value.name not in self._pools]
        self._inputs = {value.name: self._input(value) for value in fed}
        #: inputs that hold a row of numbers a token, with their width
        self._rows = {value.name: int(value.shape[1]) for value in fed if value.type in _NUMBERS}
        self._outputs = self._allocate_outputs()
        self._scratch = self._allocate_scratch()
        if stamp.pool_copy_bytes:
            log.warning("the plan copies %s bytes of KV pools in each step", stamp.pool_copy_bytes)
        self._mixed = self._context(MIXED_PROFILE)
        self._decode: dict[int, tuple[Any, Callable[[], None]]] = {}
        # A checked plugin library waits for the device in every call, and an engine that streams its weights does so
        # by itself (NvInferRuntime.h, enqueueV3 and isStreamCapturable): no graph can record either.
        self.cuda_graphs = cuda_graphs and not plugins.checked and not stamp.options.weight_streaming
        for bucket in stamp.decode_buckets:
            self._decode[bucket] = self._prepare_bucket(bucket)

    def close(self) -> None:
        """Release the contexts, the plan and every buffer; the executor cannot run afterwards. May be repeated."""
        if self._closed:
            return
        self._closed = True
        self._hardware.enter()
        self._hardware.synchronize()
        # graphs before contexts, contexts before the plan, the plan before its runtime
        self._decode.clear()
        self._mixed = self._plan = self._runtime = None
        self._inputs, self._outputs, self._pools = {}, {}, {}
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._hardware.release()

    @property
    def logit_width(self) -> int:
        return self.engine.info.record.vocab_size

    # -- running ---------------------------------------------------------------------------------------------

    def begin(self, batch: StepBatch) -> None:
        """Check a step, make its device the calling thread's (who steps is not who loaded), copy its blocks.

        Raises:
            ValueError: the batch breaks a limit or its arrays disagree.
        """
        engine, rows, most = self.engine, len(batch.logit_indices), self.engine.stamp.sizes.rows
        if self._closed:
            raise RuntimeError("the executor was closed")
        check_batch(batch, engine.limits, engine.info.record.vocab_size, tree=engine.tree)
        if rows > most:
            raise ValueError(f"{rows} rows of logits are over the engine's {most}")
        self._hardware.enter()
        if batch.block_copies:
            self.copy_blocks(batch.block_copies)

    def run(self, batch: StepBatch, states: Mapping[str, torch.Tensor] | None = None) -> None:
        """Run one step that has begun; its outputs are in the buffers then.

        Args:
            states: inputs that hold a row of numbers a token, by name: [T, width].

        Raises:
            RuntimeError: TensorRT refused the step.
        """
        bucket = bucket_of(batch.num_requests, tuple(self._decode)) if is_decode(batch) else None
        if bucket is not None:
            self._fill(self._padded(batch, bucket), states)
            self._decode[bucket][1]()
        else:
            shapes = self._fill(batch, states)
            self._set_shapes(self._mixed, shapes)
            self._enqueue(self._mixed)
        self._hardware.synchronize()

    def rows_of(self, name: str, rows: int) -> torch.Tensor:
        """The first ``rows`` rows of an output [rows, width], where they lie."""
        flat = self._outputs[name]
        most = self.engine.stamp.sizes.rows if name == "logits" else self.engine.limits.max_num_tokens
        width = flat.numel() // most
        return flat[: rows * width].view(rows, width)

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy whole blocks (source, destination) in every layer, in order."""
        flat = [number for pair in pairs for number in pair]
        if flat and (min(flat) < 0 or max(flat) >= self.num_blocks):
            raise ValueError(f"block copies {list(pairs)} leave the pool of {self.num_blocks} blocks")
        for pool in self._pools.values():
            for source, destination in pairs:
                self._hardware.copy(_bytes(pool[destination]), _bytes(pool[source]))

    def move_rows(
        self,
        block_table: npt.NDArray[np.int32],
        base_positions: npt.NDArray[np.int32],
        path: npt.NDArray[np.int32],
        lengths: npt.NDArray[np.int32],
    ) -> None:
        """Move the rows of accepted tree nodes together: see :meth:`Executor.move_rows`."""
        if self._hardware.move_rows(list(self._pools.values()), block_table, base_positions, path, lengths):
            return
        size = self.block_size
        for row, base, nodes, length in zip(block_table, base_positions.tolist(), path.tolist(), lengths, strict=True):
            for place, node in enumerate(nodes[:length]):
                if node == place:
                    continue
                # in order: paths rise, so no row is written before it was read
                source, target = base + node, base + place
                for pool in self._pools.values():
                    read = pool[int(row[source // size])][:, :, source % size]
                    self._hardware.copy(_bytes(pool[int(row[target // size])][:, :, target % size]), _bytes(read))

    def _padded(self, batch: StepBatch, bucket: int) -> StepBatch:
        columns = self.engine.stamp.sizes.table
        return pad(batch, bucket, columns=columns, first_block=self.num_blocks, block_size=self.block_size)

    def _fill(self, batch: StepBatch, states: Mapping[str, torch.Tensor] | None = None) -> dict[str, tuple[int, ...]]:
        """Put a step's index arrays and states on the device; the shapes of the inputs that have no fixed one."""
        arrays: dict[str, np.ndarray] = {name: getattr(batch, name) for name in _INDEX_INPUTS}
        if not len(batch.logit_indices):  # a step of chunks asks for no logits; the plan wants a row
            arrays["logit_indices"] = np.zeros(1, dtype=np.int64)
        if arrays["block_table"].shape[1] == 0:
            arrays["block_table"] = np.full((batch.num_requests, 1), -1, dtype=np.int32)
        if self.engine.tree:
            arrays["tree_mask"] = mask_of(batch).astype(np.bool_)
        # of this one the plugins read the shape alone: see builder.targets.tensorrt.lowering
        shapes: dict[str, tuple[int, ...]] = {LONGEST_QUERY: (longest_query(batch),)}
        for name, width in self._rows.items():
            shapes[name] = (batch.num_tokens, width)
            given = (states or {}).get(name)
            if given is not None:  # rows that pad a step, and what this step does not read, keep what they hold
                place = self._inputs[name].device
                self._hardware.copy(place[: given.numel()], given.reshape(-1).to(place.dtype))
        if JOINED in self._inputs:
            joined = self._inputs[JOINED]
            joined.host[0] = "taps" in (states or {})
            self._hardware.copy(joined.device, joined.host)
        for name, array in arrays.items():
            buffer, count = self._inputs[name], array.size
            if count > buffer.host.numel():
                raise ValueError(f"{name} of shape {array.shape} is over the engine's {buffer.host.numel()} values")
            buffer.host[:count] = torch.from_numpy(np.ascontiguousarray(array).reshape(-1))
            self._hardware.copy(buffer.device[:count], buffer.host[:count])
            shapes[name] = array.shape
        return shapes

    def _set_shapes(self, context: Any, shapes: dict[str, tuple[int, ...]]) -> None:
        for name, shape in shapes.items():
            if not context.set_input_shape(name, tuple(shape)):
                raise RuntimeError(f"TensorRT refused {name} of shape {tuple(shape)}: {self._last_message()}")

    def _enqueue(self, context: Any) -> None:
        if not context.execute_async_v3(self._hardware.stream):
            raise RuntimeError(f"TensorRT refused the step: {self._last_message()}")

    def _last_message(self) -> str:
        return self._messages[-1] if self._messages else "it gave no reason"

    # -- loading ---------------------------------------------------------------------------------------------

    def _deserialize(self) -> Any:
        engine, trt = self.engine, self._trt
        runtime = trt.Runtime(self._logger)
        plan = runtime.deserialize_cuda_engine(engine.plan.read_bytes())
        if plan is None:
            raise plan_refused(engine.info.directory, self._messages[-4:])
        self._runtime = runtime  # it must outlive the plan
        if engine.stamp.options.strip_weights:
            refitter = trt.Refitter(plan, self._logger)
            parser = trt.OnnxParserRefitter(refitter, self._logger)
            network = engine.info.directory / NETWORK_FILE
            if not parser.refit_from_file(str(network)) or not refitter.refit_cuda_engine():
                raise plan_refused(engine.info.directory, ["its weights cannot be put back", *self._messages[-4:]])
        return plan

    def _check_interface(self) -> None:
        """The plan's tensors against engine.json: a plan of another build would read other memory."""
        names = [self._plan.get_tensor_name(number) for number in range(self._plan.num_io_tensors)]
        wanted = {value.name for value in self.engine.stamp.inputs} | set(self.engine.stamp.outputs)
        faults = [f"tensor {name} is missing" for name in sorted(wanted - set(names))]
        faults += [f"tensor {name} is unknown" for name in sorted(set(names) - wanted)]
        if self._plan.num_optimization_profiles != 2:
            faults.append(f"there are {self._plan.num_optimization_profiles} profiles, not 2")
        if faults:
            raise plan_refused(self.engine.info.directory, faults)

    def _input(self, value: Input) -> _Buffer:
        """Buffers of an index input's largest size."""
        limits, most = self.engine.limits, self.engine.stamp.sizes
        sizes = {
            "T": limits.max_num_tokens,
            "B": limits.max_batch_size,
            "B_plus_1": limits.max_batch_size + 1,
            "M": most.table,
            "L": most.rows,
            "Q": limits.max_num_tokens,
            "W": MAX_NODES,
        }
        count = math.prod(sizes[size] if isinstance(size, str) else size for size in value.shape)
        dtype = TORCH_DTYPES[value.type]
        device = self._hardware.zeros([count], dtype, f"input {value.name}")
        # states come from the device, or from memory of the caller's
        return _Buffer(self._hardware.host_buffer(0 if value.type in _NUMBERS else count, dtype), device)

    def _allocate_outputs(self) -> dict[str, torch.Tensor]:
        engine, stamp = self.engine, self.engine.stamp
        outputs = {"logits": self._hardware.zeros([stamp.sizes.rows * self.logit_width], torch.float32, "the logits")}
        for name in stamp.outputs:
            if name != "logits" and not name.startswith("kv_pool_"):
                width = int(self._plan.get_tensor_shape(name)[-1])
                count = engine.limits.max_num_tokens * width
                outputs[name] = self._hardware.zeros([count], getattr(torch, engine.info.record.dtype), name)
        return outputs

    def _allocate_scratch(self) -> torch.Tensor:
        """The memory that all contexts share, after every other buffer: what is left decides the weights' budget.

        The order is NvInferRuntime.h's: the automatic budget is taken from the memory that is free when it is asked,
        setting it allocates the weights, no context may exist then, and the contexts' size depends on it.
        """
        if not self.engine.stamp.options.weight_streaming:
            return self._zeroed_scratch(self._scratch_bytes())
        plan = self._plan
        self._set_budget(0)  # the contexts' memory is at its largest, and must be there before the budget is asked
        scratch = self._zeroed_scratch(self._scratch_bytes())
        self._set_budget(min(plan.streamable_weights_size, plan.get_weight_streaming_automatic_budget()))
        needed = self._scratch_bytes()
        if needed > scratch.numel():
            del scratch
            self._hardware.release()
            scratch = self._zeroed_scratch(needed)
        return scratch

    def _zeroed_scratch(self, size: int) -> torch.Tensor:
        return self._hardware.zeros([max(1, size)], torch.uint8, "the plan's memory")

    def _scratch_bytes(self) -> int:
        profiles = (DECODE_PROFILE, MIXED_PROFILE)
        return max(int(self._plan.get_device_memory_size_for_profile_v2(number)) for number in profiles)

    def _set_budget(self, budget: int) -> None:
        """Bytes of weights that stay on the GPU; TF-RUN-116 when they do not fit."""
        try:
            self._plan.weight_streaming_budget_v2 = budget
            set_to = int(self._plan.weight_streaming_budget_v2)  # the property drops what the C++ call answers
        except RuntimeError:
            set_to = -1
        if set_to != budget and not 0 < set_to < budget:
            raise no_memory("the weights' budget", budget, f"TensorRT refused it: {self._last_message()}")

    def _context(self, profile: int) -> Any:
        """An execution context with every address bound; shapes are the caller's."""
        strategy = self._trt.ExecutionContextAllocationStrategy.USER_MANAGED
        context = self._plan.create_execution_context(strategy)
        if context is None:
            raise plan_refused(self.engine.info.directory, ["no execution context", *self._messages[-4:]])
        context.set_device_memory(self._scratch.data_ptr(), self._scratch.numel())
        if not context.set_optimization_profile_async(profile, self._hardware.stream):
            raise plan_refused(self.engine.info.directory, [f"profile {profile} is not taken", *self._messages[-4:]])
        # a pool and its output share an address: that is what makes the update one in place
        addresses = {name: buffer.device.data_ptr() for name, buffer in self._inputs.items()}
        addresses |= {name: tensor.data_ptr() for name, tensor in self._outputs.items()}
        for name, pool in self._pools.items():
            addresses |= {name: pool.data_ptr(), f"{name}_out": pool.data_ptr()}
            if not context.set_input_shape(name, tuple(pool.shape)):
                raise plan_refused(self.engine.info.directory, [f"{name} of {pool.shape}", *self._messages[-4:]])
        for name, address in addresses.items():
            if not context.set_tensor_address(name, address):
                raise plan_refused(self.engine.info.directory, [f"no address for {name}", *self._messages[-4:]])
        return context

    def _prepare_bucket(self, bucket: int) -> tuple[Any, Callable[[], None]]:
        """The context of a bucket and what runs it; nothing but padding blocks is written."""
        context = self._context(DECODE_PROFILE)
        empty = StepBatch(
            input_ids=np.empty(0, dtype=np.int64),
            positions=np.empty(0, dtype=np.int64),
            query_start=np.zeros(1, dtype=np.int32),
            sequence_lengths=np.empty(0, dtype=np.int32),
            block_table=np.empty((0, self.engine.stamp.sizes.table), dtype=np.int32),
            logit_indices=np.empty(0, dtype=np.int64),
        )
        self._set_shapes(context, self._fill(self._padded(empty, bucket)))
        if not self.cuda_graphs:
            return context, lambda: self._enqueue(context)
        self._enqueue(context)  # TensorRT and the plugins set up on the first call, which a graph must not record
        return context, self._hardware.capture(lambda: self._enqueue(context))

    # -- reporting -------------------------------------------------------------------------------------------

    def describe(self) -> dict[str, Any]:
        """Device, TensorRT, graphs, every linear's stored representation, bytes; JSON-able."""
        info, stamp = self.engine.info, self.engine.stamp
        pool_bytes = sum(pool.numel() * pool.element_size() for pool in self._pools.values())
        return {
            "engine": info.record.name,
            "device": self._hardware.name,
            "capability": stamp.gpu_architecture,
            "tested": False,
            "activations": info.record.dtype,
            "kernels": f"TensorRT {stamp.version}",
            "plugins": stamp.plugins.model_dump(),
            "row_invariant": False,
            "kv_cache": {
                "format": info.record.kv_cache.format,
                "num_blocks": self.num_blocks,
                "block_size": self.block_size,
                "bytes": pool_bytes,
            },
            "program": {
                "layers": stamp.layers,
                "decode_buckets": stamp.decode_buckets,
                "cuda_graphs": self.cuda_graphs,
                "aliased_io": stamp.aliased_io,
                "pool_copy_bytes": stamp.pool_copy_bytes,
            },
            "linears": info.raw.get("linears", []),
            "bytes": {
                "plan": stamp.plan_bytes,
                "kv_pools": pool_bytes,
                "scratch": self._scratch.numel(),
            },
        }


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as bytes: not every type can be copied on every device."""
    return tensor.view(torch.uint8)


def _register(trt: Any, path: Path) -> None:
    if path not in _REGISTERED:
        trt.get_plugin_registry().load_library(str(path))
        _REGISTERED.add(path)


def _make_logger(trt: Any, messages: list[str]) -> Any:
    """TensorRT's messages into this process's log; errors are kept for refusals."""
    levels = {
        trt.ILogger.Severity.INTERNAL_ERROR: logging.ERROR,
        trt.ILogger.Severity.ERROR: logging.ERROR,
        trt.ILogger.Severity.WARNING: logging.WARNING,
        trt.ILogger.Severity.INFO: logging.INFO,
    }

    class Logger(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            level = levels.get(severity, logging.DEBUG)
            log.log(level, "%s", msg)
            if level == logging.ERROR:
                messages.append(msg)
                del messages[:-20]

    return Logger()
