"""Fixtures of the op library's conformance suite: one run per instruction set that this machine can execute."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from plugins.cuda.build import build_shim_library
from plugins.cuda.library import CudaLibrary, find_cuda_library
from plugins.host import load
from plugins.host.library import HostLibrary
from plugins.shared_ops import SharedOps
from trtforge.ground.errors import EnvironmentLacks


@pytest.fixture(autouse=True)
def unwritten_memory_shows() -> Iterator[None]:
    """``torch.empty`` gives NaN and the largest integers: an output that no kernel wrote may else hold the memory of an
    earlier, equal one."""
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


def _available() -> list[str]:
    try:
        return [str(name) for name in load().info()["isas_available"]]
    except EnvironmentLacks:
        # Collected, and failing in the fixture with the reason, instead of vanishing.
        return ["missing"]


@pytest.fixture(scope="session")
def host() -> HostLibrary:
    """The host library as it was built; a missing library fails the suite with the remedy."""
    return load()


@pytest.fixture(params=_available())
def library(request: pytest.FixtureRequest, host: HostLibrary) -> Iterator[HostLibrary]:
    """The host library on each instruction set in turn."""
    host.select_isa(request.param)
    yield host
    host.select_isa(None)
    host.set_threads(0)


@pytest.fixture(scope="session")
def shim() -> CudaLibrary:
    """The CUDA kernels under the host shim; compiled once per source hash."""
    return CudaLibrary(build_shim_library().library)


@pytest.fixture(scope="session")
def gpu() -> CudaLibrary:
    """The CUDA kernels on a GPU; skips where there is none or the library has not been built."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU (or a CPU build of torch)")
    try:
        return CudaLibrary(find_cuda_library())
    except EnvironmentLacks as lacks:
        pytest.skip(lacks.message)


@pytest.fixture
def shim_down(shim: CudaLibrary) -> Iterator[CudaLibrary]:
    """The host shim with threads in falling order: what a missing barrier lets through in one order, shows in one."""
    shim.shim_order(descending=True)
    yield shim
    shim.shim_order(descending=False)


@pytest.fixture(params=["shim", "shim_down", "gpu"])
def kernels(request: pytest.FixtureRequest) -> Iterator[CudaLibrary]:
    """The CUDA library wherever it can run."""
    library: CudaLibrary = request.getfixturevalue(request.param)
    yield library
    library.checked, library.multiprocessors = True, 0


@pytest.fixture(params=["host", "shim", "shim_down", "gpu"])
def ops(request: pytest.FixtureRequest) -> SharedOps:
    """Every implementation that can run here."""
    library: SharedOps = request.getfixturevalue(request.param)
    return library
