"""The NVIDIA GPUs of this machine, by NVML (nvidia-ml-py): name, memory, architecture, and what a process sees of them.

Policy: no binding, no driver or a driver that does not answer means no GPUs, and :func:`gpus` says which. A GPU that
does not answer for itself (lost, held by another) is left out; the others stand. NVML counts GPUs in the order of
their PCI addresses, which CUDA does too for GPUs of one kind.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Gpu:
    """A GPU: product name, bytes of memory, architecture such as ``sm_90``, and NVML's identifier.

    ``slices`` are the parts that it was cut into (MIG), of which a process sees one at a time.
    """

    name: str
    memory: int
    architecture: str
    uuid: str = ""
    slices: tuple[Gpu, ...] = ()


@dataclass(frozen=True)
class Gpus:
    """All GPUs that the driver shows, in its order; ``lacking`` says why there are none."""

    all: tuple[Gpu, ...] = ()
    lacking: str = ""


def architecture_name(major: int, minor: int) -> str:
    """``sm_90`` of compute capability (9, 0)."""
    return f"sm_{major}{minor}"


def gpus() -> Gpus:
    """The GPUs of this machine, asked once a process."""
    return _ask()


@functools.cache
def _ask() -> Gpus:
    try:
        with _nvml() as nvml:
            count = nvml.nvmlDeviceGetCount()
            found = [_gpu(nvml, index) for index in range(count)]
    except _NoGpus as error:
        return Gpus(lacking=str(error))
    shown = tuple(gpu for gpu in found if gpu is not None)
    if shown:
        return Gpus(shown)
    return Gpus(lacking=f"none of {count} GPUs answers" if count else "the driver shows no GPU")


def visible_gpus() -> tuple[Gpu, ...]:
    """The GPUs that CUDA in this process would see."""
    return visible(gpus().all, os.environ.get("CUDA_VISIBLE_DEVICES"))


def gpu_architectures() -> tuple[str, ...]:
    """``sm_90`` … of the visible GPUs, without duplicates."""
    return architectures(visible_gpus())


def architectures(shown: tuple[Gpu, ...]) -> tuple[str, ...]:
    """The architectures of these GPUs, without duplicates."""
    return tuple(sorted({gpu.architecture for gpu in shown}))


def visible(shown: tuple[Gpu, ...], setting: str | None) -> tuple[Gpu, ...]:
    """What ``CUDA_VISIBLE_DEVICES`` leaves: indices, or identifiers (``GPU-…``, ``MIG-…``) and beginnings of them.

    Like CUDA, a list ends at its first entry that names no GPU, and one that was cut (MIG) is seen as its first slice.

    Source: https://docs.nvidia.com/cuda/cuda-programming-guide, "CUDA Environment Variables"; NVIDIA's MIG user guide.
    """
    if setting is None:
        return tuple(_as_seen(gpu) for gpu in shown)
    chosen: list[Gpu] = []
    for item in (part.strip() for part in setting.split(",")):
        if item.lstrip("-").isdigit():
            named = [shown[int(item)]] if 0 <= int(item) < len(shown) else []
        elif item.startswith("GPU-"):
            named = [gpu for gpu in shown if gpu.uuid.startswith(item)]
        elif item.startswith("MIG-"):
            named = [part for gpu in shown for part in gpu.slices if part.uuid.startswith(item)]
        else:
            named = []
        if len(named) != 1:
            break
        chosen.append(_as_seen(named[0]))
    return tuple(chosen)


def free_gpu_memory() -> int:
    """Free bytes of the first visible GPU now; the host's where it shares them; 0 when no GPU answers."""
    shown = visible_gpus()
    if not shown:
        return 0
    try:
        with _nvml() as nvml:
            try:
                return int(nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByUUID(shown[0].uuid)).free)
            except nvml.NVMLError as error:
                return _host_memory().available if _has_none(nvml, error) else 0
    except _NoGpus:
        return 0


class _NoGpus(Exception):
    """Why NVML cannot be asked."""


@contextmanager
def _nvml() -> Iterator[Any]:
    """NVML, started; raises :class:`_NoGpus` where it cannot be, or where asking it fails as a whole."""
    try:
        import pynvml
    except ImportError:
        raise _NoGpus("nvidia-ml-py is not installed, so no GPU can be asked for") from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        missing = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        raise _NoGpus(
            "there is no NVIDIA driver" if error.value in missing else f"the NVIDIA driver does not answer: {error}"
        ) from None
    try:
        yield pynvml
    except pynvml.NVMLError as error:
        raise _NoGpus(f"the NVIDIA driver does not answer: {error}") from None
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _gpu(nvml: Any, index: int) -> Gpu | None:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        architecture = architecture_name(*nvml.nvmlDeviceGetCudaComputeCapability(handle))
        return Gpu(
            nvml.nvmlDeviceGetName(handle),
            _total_memory(nvml, handle),
            architecture,
            nvml.nvmlDeviceGetUUID(handle),
            tuple(_slices(nvml, handle, architecture)),
        )
    except nvml.NVMLError:
        return None


def _slices(nvml: Any, handle: Any, architecture: str) -> Iterator[Gpu]:
    """The MIG devices of a GPU; a driver or GPU that knows none has none."""
    try:
        enabled, _ = nvml.nvmlDeviceGetMigMode(handle)
        count = nvml.nvmlDeviceGetMaxMigDeviceCount(handle) if enabled else 0
    except nvml.NVMLError:
        return
    for number in range(count):
        try:
            part = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
            yield Gpu(
                nvml.nvmlDeviceGetName(part),
                _total_memory(nvml, part),
                architecture,
                nvml.nvmlDeviceGetUUID(part),
            )
        except nvml.NVMLError:
            continue  # the places of slices that were not made


def _total_memory(nvml: Any, handle: Any) -> int:
    """A GPU that shares the host's memory (GB10) has none of its own to name."""
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).total)
    except nvml.NVMLError as error:
        if _has_none(nvml, error):
            return _host_memory().total
        raise


def _has_none(nvml: Any, error: Any) -> bool:
    return bool(error.value == nvml.NVML_ERROR_NOT_SUPPORTED)


def _host_memory() -> Any:
    import psutil

    return psutil.virtual_memory()


def _as_seen(gpu: Gpu) -> Gpu:
    return gpu.slices[0] if gpu.slices else gpu
