"""GPUs by NVML: what the driver shows, what a process sees of it, and why there are none."""

from __future__ import annotations

import sys

import psutil
import pytest

from tests.support.nvml import GB10, H100, LOST, RTX_4090, SLICED, forget, show
from trtforge.machine import gpus as module
from trtforge.machine.gpus import Gpu, Gpus, free_gpu_memory, gpu_architectures, visible, visible_gpus
from trtforge.machine.record import this_machine

MIB = 2**20
CARDS = tuple(Gpu(f"g{index}", 1 << 34, "sm_89", f"GPU-{index}{index}-x") for index in range(4))


def test_gpus_as_the_driver_shows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    show(monkeypatch, H100, RTX_4090)
    assert module.gpus() == Gpus(
        (
            Gpu("NVIDIA H100 80GB HBM3", 81_559 * MIB, "sm_90", "GPU-8932f937-0001"),
            Gpu("NVIDIA GeForce RTX 4090", 24_564 * MIB, "sm_89", "GPU-77aa0000-0002"),
        )
    )
    assert gpu_architectures() == ("sm_89", "sm_90")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpu_architectures() == ("sm_89",)
    assert free_gpu_memory() == 24_564 * MIB // 4
    assert this_machine().gpus == visible_gpus() and this_machine().no_gpus == ""


def test_a_gpu_that_shares_the_hosts_memory_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """GB10 names no memory of its own."""
    show(monkeypatch, GB10)
    assert visible_gpus() == (Gpu("NVIDIA GB10", psutil.virtual_memory().total, "sm_121", "GPU-10101010-0003"),)
    assert 0 < free_gpu_memory() < psutil.virtual_memory().total


def test_a_gpu_that_does_not_answer_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    show(monkeypatch, LOST, RTX_4090)
    assert [gpu.architecture for gpu in module.gpus().all] == ["sm_89"]
    show(monkeypatch, LOST)
    assert module.gpus() == Gpus(lacking="none of 1 GPUs answers") and free_gpu_memory() == 0


def test_a_gpu_that_was_cut_is_seen_as_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    show(monkeypatch, SLICED)
    assert [(gpu.uuid, gpu.memory) for gpu in visible_gpus()] == [("MIG-aaaa", 9856 * MIB)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-bbbb")
    assert [(gpu.uuid, gpu.memory, gpu.architecture) for gpu in visible_gpus()] == [("MIG-bbbb", 40_320 * MIB, "sm_90")]
    assert free_gpu_memory() == 40_320 * MIB // 4


@pytest.mark.parametrize(
    ("fails", "why"),
    [(9, "there is no NVIDIA driver"), (12, "there is no NVIDIA driver"), (4, "does not answer: Insufficient")],
)
def test_without_a_driver_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch, fails: int, why: str) -> None:
    show(monkeypatch, fails=fails)
    assert visible_gpus() == () and why in this_machine().no_gpus and free_gpu_memory() == 0
    show(monkeypatch)
    assert module.gpus() == Gpus(lacking="the driver shows no GPU")


def test_without_the_binding_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "nvidia-ml-py is not installed" in module.gpus().lacking


@pytest.mark.parametrize(
    ("setting", "left"),
    [
        (None, "0123"),
        ("", ""),
        ("2,0", "20"),
        ("1,7,2", "1"),
        ("-1", ""),
        ("GPU-22-x,GPU-00", "20"),
        ("GPU-,1", ""),
        ("GPU-99,1", ""),
        ("junk,1", ""),
        ("MIG-0", ""),
    ],
)
def test_cuda_visible_devices(setting: str | None, left: str) -> None:
    assert [gpu.name for gpu in visible(CARDS, setting)] == [f"g{index}" for index in left]
