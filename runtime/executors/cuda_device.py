"""Memory, the stream and CUDA graphs of one GPU, by torch: what the TensorRT executor needs of CUDA.

Kept apart so that the executor's own work (shapes, padding, addresses, order) runs against host memory in tests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from runtime.executors.tensorrt_engine import lacks_gpu, no_memory


class Device(Protocol):
    """Where tensors live and work is queued."""

    name: str
    #: ``sm_90``
    architecture: str

    @property
    def stream(self) -> int:
        """Handle of the stream that all work goes to."""

    def zeros(self, shape: list[int], dtype: torch.dtype, what: str) -> torch.Tensor:
        """Zeros on the device; raises TF-RUN-116 naming ``what``."""

    def host_buffer(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Host memory that copies to the device run from."""

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record ``work`` (queued once before, so that everything is warm) and return what replays it."""

    def synchronize(self) -> None:
        """Wait for the stream."""


class CudaDevice:
    """A CUDA device under torch.

    Raises:
        EnvironmentLacks: ``TF-RUN-114`` torch has no CUDA or there is no such device.
    """

    def __init__(self, name: str = "cuda") -> None:
        if not torch.cuda.is_available():
            raise lacks_gpu(f"torch {torch.__version__} sees none")
        self.device = torch.device(name)
        if self.device.type != "cuda" or (self.device.index or 0) >= torch.cuda.device_count():
            raise lacks_gpu(f"{name} is none of {torch.cuda.device_count()} CUDA devices")
        self.name = torch.cuda.get_device_name(self.device)
        major, minor = torch.cuda.get_device_capability(self.device)
        self.architecture = f"sm_{major}{minor}"
        torch.cuda.set_device(self.device)
        self._stream = torch.cuda.Stream(self.device)

    @property
    def stream(self) -> int:
        return int(self._stream.cuda_stream)

    def zeros(self, shape: list[int], dtype: torch.dtype, what: str) -> torch.Tensor:
        try:
            if dtype == torch.float8_e4m3fn:
                return torch.zeros(shape, dtype=torch.uint8, device=self.device).view(dtype)
            return torch.zeros(shape, dtype=dtype, device=self.device)
        except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
            count = 1
            for size in shape:
                count *= size
            raise no_memory(what, count * torch.empty(0, dtype=dtype).element_size(), str(error)) from error

    def host_buffer(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(count, dtype=dtype, pin_memory=True)

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
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


__all__ = ["CudaDevice", "Device"]
