"""Memory, the stream and CUDA graphs of one GPU, by torch: what the TensorRT executor needs of CUDA.

Kept apart so that the executor's own work (shapes, padding, addresses, order) runs against host memory in tests.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from runtime.executors.tensorrt_engine import lacks_gpu, no_memory
from runtime.speculation.device_ops import cuda_ops
from trtforge.machine.gpus import architecture_name


class CudaDevice:
    """A CUDA device under torch: where tensors live and work is queued.

    Attributes:
        architecture: such as ``sm_90``.

    Args:
        name: ``cuda`` for the thread's current device, or ``cuda:1``.

    Raises:
        EnvironmentLacks: ``TF-RUN-114`` torch has no CUDA or there is no such device.
    """

    def __init__(self, name: str = "cuda") -> None:
        if not torch.cuda.is_available():
            raise lacks_gpu(f"torch {torch.__version__} sees none")
        self.device = _indexed(name)
        self.name = torch.cuda.get_device_name(self.device)
        major, minor = torch.cuda.get_device_capability(self.device)
        self.architecture = architecture_name(major, minor)
        self.enter()
        self._stream = torch.cuda.Stream(self.device)

    @property
    def stream(self) -> int:
        """Handle of the stream that all work goes to."""
        return int(self._stream.cuda_stream)

    def zeros(self, shape: list[int], dtype: torch.dtype, what: str) -> torch.Tensor:
        """Zeros on the device; raises TF-RUN-116 naming ``what``."""
        try:
            if dtype == torch.float8_e4m3fn:
                return torch.zeros(shape, dtype=torch.uint8, device=self.device).view(dtype)
            return torch.zeros(shape, dtype=dtype, device=self.device)
        except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
            raise no_memory(what, math.prod(shape) * dtype.itemsize, str(error)) from error

    def host_buffer(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Host memory that copies to the device run from."""
        return torch.zeros(count, dtype=dtype, pin_memory=True)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def move_rows(
        self,
        pools: Sequence[torch.Tensor],
        block_table: npt.NDArray[np.int32],
        base_positions: npt.NDArray[np.int32],
        path: npt.NDArray[np.int32],
        lengths: npt.NDArray[np.int32],
    ) -> bool:
        """Queue PagedKVMove on pools of one shape; False where no library of the ops is here."""
        library = cuda_ops()
        if library is None:
            return False
        with torch.cuda.stream(self._stream):
            arrays = (block_table, base_positions, path, lengths)
            tensors = [torch.from_numpy(np.ascontiguousarray(a)).to(self.device) for a in arrays]
            library.paged_kv_move(list(pools), *tensors)
        return True

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record ``work`` (queued once before, so that everything is warm) and return what replays it."""
        graph = torch.cuda.CUDAGraph()
        self.synchronize()
        with torch.cuda.graph(graph, stream=self._stream):
            work()

        def replay() -> None:
            with torch.cuda.stream(self._stream):
                graph.replay()

        return replay

    def synchronize(self) -> None:
        self._stream.synchronize()

    def enter(self) -> None:
        """Make this the calling thread's device: CUDA keeps one a thread, and who steps is not who loaded."""
        torch.cuda.set_device(self.device)

    def release(self) -> None:
        """Give memory back that no tensor holds any more."""
        self.synchronize()
        gc.collect()  # a graph and its closures may hold each other
        torch.cuda.empty_cache()


def _indexed(name: str) -> torch.device:
    """The device with its index: ``set_device`` takes no other, and tensors of another thread must mean the same."""
    count = torch.cuda.device_count()
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise lacks_gpu(f"{name} names no device") from error
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        if 0 <= index < count:
            return torch.device("cuda", index)
    raise lacks_gpu(f"{name} is none of {count} CUDA devices")
