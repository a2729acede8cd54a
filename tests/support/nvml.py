"""A driver library that shows the GPUs that a test names, asked through the real binding."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from pathlib import Path

import pynvml
import pytest

from trtforge.machine import gpus

H100 = "NVIDIA H100 80GB HBM3,81559,9.0,GPU-8932f937-0001"
RTX_4090 = "NVIDIA GeForce RTX 4090,24564,8.9,GPU-77aa0000-0002"
GB10 = "NVIDIA GB10,-,12.1,GPU-10101010-0003"
SLICED = "NVIDIA H100 80GB HBM3,81559,9.0,GPU-55550000-0004+MIG-aaaa,9856+MIG-bbbb,40320"
LOST = "?,0,9.0,GPU-00000000-0005"


@functools.cache
def library() -> Path:
    """The compiled library, once a process."""
    folder = Path(tempfile.mkdtemp(prefix="fake-nvml-"))
    source = Path(__file__).with_name("fake_nvml.c")
    path = folder / "libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(path), str(source)], check=True, capture_output=True)
    return path


def show(monkeypatch: pytest.MonkeyPatch, *shown: str, fails: int = 0) -> None:
    """Make this process see these GPUs; ``fails``: the error that starting NVML ends with."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("FAKE_NVML", f"!{fails}" if fails else ";".join(shown))
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(library())))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    forget(monkeypatch)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask anew what was asked once a process, and again when the test is over."""
    monkeypatch.setattr(gpus, "_ask", functools.cache(gpus._ask.__wrapped__))
