"""The CUDA device on a machine without one: torch's own checks are real, the calls into the driver are recorded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from runtime.executors.cuda_device import CudaDevice
from trtforge.ground.errors import EnvironmentLacks


class Driver:
    """What torch would ask of the driver, a current device for each thread."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.current = threading.local()
        self.set: list[int] = []
        self.streams: list[torch.device] = []
        self.emptied = 0

    def set_device(self, index: int) -> None:
        self.current.index = index
        self.set.append(index)

    def get_device(self) -> int:
        return getattr(self.current, "index", 0)


class Stream:
    cuda_stream = 7

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def synchronize(self) -> None:
        pass


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Driver]:
    """``driver(n)``: torch sees n GPUs; ``torch.cuda.set_device`` itself is torch's own."""

    def make(count: int) -> Driver:
        made = Driver(count)

        def stream(device: torch.device) -> Stream:
            made.streams.append(device)
            return Stream(device)

        def empty() -> None:
            made.emptied += 1

        monkeypatch.setattr(torch._C, "_cuda_setDevice", made.set_device, raising=False)
        for name, answer in {
            "is_available": lambda: count > 0,
            "device_count": lambda: count,
            "current_device": made.get_device,
            "get_device_name": lambda device: f"GPU {device.index}",
            "get_device_capability": lambda device: (9, 0),
            "Stream": stream,
            "empty_cache": empty,
        }.items():
            monkeypatch.setattr(torch.cuda, name, answer)
        return made

    return make


def test_set_device_wants_an_index(driver: Callable[[int], Driver]) -> None:
    """What the device must avoid: this torch refuses a device without an index, on every build."""
    driver(1)
    with pytest.raises(ValueError, match="index"):
        torch.cuda.set_device(torch.device("cuda"))


@pytest.mark.parametrize(
    ("name", "current", "index"), [("cuda", 0, 0), ("cuda", 1, 1), ("cuda:0", 1, 0), ("cuda:1", 0, 1)]
)
def test_a_device_has_an_index(driver: Callable[[int], Driver], name: str, current: int, index: int) -> None:
    made = driver(2)
    made.current.index = current
    device = CudaDevice(name)
    assert (device.device.index, device.name, device.architecture) == (index, f"GPU {index}", "sm_90")
    assert made.set == [index] and made.streams == [torch.device("cuda", index)]


def test_a_thread_that_did_not_load_enters_the_device(driver: Callable[[int], Driver]) -> None:
    made = driver(2)
    device = CudaDevice("cuda:1")
    seen: list[int] = []

    def step() -> None:
        seen.append(made.get_device())
        device.enter()
        seen.append(made.get_device())

    thread = threading.Thread(target=step)
    thread.start()
    thread.join()
    assert seen == [0, 1]


@pytest.mark.parametrize("name", ["cuda:2", "cuda:-1", "cuda:x", "cpu", "cudaX", ""])
def test_devices_that_are_none(driver: Callable[[int], Driver], name: str) -> None:
    driver(2)
    with pytest.raises(EnvironmentLacks) as caught:
        CudaDevice(name)
    assert caught.value.code == "TF-RUN-114" and caught.value.exit_code == 3


def test_release_empties_torchs_cache(driver: Callable[[int], Driver]) -> None:
    made = driver(1)
    CudaDevice().release()
    assert made.emptied == 1


def test_a_machine_without_a_gpu(driver: Callable[[int], Driver]) -> None:
    driver(0)
    with pytest.raises(EnvironmentLacks, match="TF-RUN-114"):
        CudaDevice()


def test_the_torch_executor_refuses_the_same_names(driver: Callable[[int], Driver], tmp_path: Any) -> None:
    from runtime.executors.torch_executor import TorchExecutor

    driver(2)
    for name in ("cuda:2", "cuda:x", "cudaX", "xpu"):
        with pytest.raises(EnvironmentLacks, match="TF-RUN-011"):
            TorchExecutor(tmp_path, device=name)
