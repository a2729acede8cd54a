"""What the plugin tests need from outside: TensorRT's headers and its lean runtimes, pinned by hash.

Everything lies in a cache folder between runs and is downloaded with pip from the configured index. Without it, and
without an index, the tests skip and say which download is missing.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest
from filelock import FileLock

from plugins.tensorrt.build import build_shim_plugin_library
from tests.plugins.tensorrt.harness import Harness
from tests.support.tensorrt_headers import downloads, pip, tensorrt_headers

#: lean runtimes: real plugin registries that need no GPU as long as no Runtime is made
LEAN = {
    "10.16.1.11": {
        "tensorrt-lean-cu13-libs": "0ae1ad997a02e9cc0b260da4068eedabb34025f102d2ec6afda848f05cd2ce18",
        "tensorrt-lean-cu13-bindings": "39872e2a13478306164135128ea9250101e9c5dddf94ce3f5ca643ee71e54cc0",
    },
    "11.4.0.106": {
        "tensorrt-lean-cu13-libs": "e022b8d0e21f19258657aec6760e1de8b454ed176f76217e3f7ec2036c5a9410",
        "tensorrt-lean-cu13-bindings": "539faf8524d7e8c5d893857d97d170ef3636f3e71262aafa670797f740e9086a",
    },
}


@pytest.fixture(scope="session")
def headers() -> Path:
    """The folder with TensorRT's headers."""
    return tensorrt_headers()


@pytest.fixture(scope="session", params=sorted(LEAN))
def lean(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """Version and folder of a lean runtime's packages."""
    version = str(request.param)
    folder = downloads()
    target = folder / f"tensorrt-lean-{version}"
    with FileLock(f"{target}.lock"):
        if not target.is_dir():
            partial = folder / f".lean-{version}-{os.getpid()}"
            pip(
                folder,
                ["install", "--target", str(partial)],
                {f"{name}=={version}": digest for name, digest in LEAN[version].items()},
            )
            partial.rename(target)
    return version, target


@pytest.fixture(scope="session")
def plugin_library(headers: Path) -> Path:
    """The plugin library over kernels that run on the CPU."""
    return build_shim_plugin_library(headers).library


@pytest.fixture(scope="session")
def checked_library(headers: Path) -> Path:
    """The same, with indices checked on the device."""
    return build_shim_plugin_library(headers, checked=True).library


@pytest.fixture(scope="session")
def harness_file(headers: Path) -> Path:
    """The compiled C++ harness."""
    source = Path(__file__).with_name("harness.cpp")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    target = downloads() / f"harness-{digest}.so"
    cuda = next(
        (Path(p) / "include" for p in _cuda_roots() if (Path(p) / "include/cuda_runtime_api.h").is_file()), None
    )
    if cuda is None:
        pytest.skip("TensorRT's headers need cuda_runtime_api.h, and no CUDA toolkit was found")
    with FileLock(f"{target}.lock"):
        if not target.is_file():
            partial = target.with_suffix(".partial")
            command = ["g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror"]
            includes = ["-isystem", str(headers), "-isystem", str(cuda)]
            subprocess.run([*command, *includes, str(source), "-o", str(partial), "-ldl"], check=True)
            partial.rename(target)
    return target


def _cuda_roots() -> list[str]:
    named = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    return [*filter(None, named), "/usr/local/cuda", *map(str, sorted(Path("/usr/local").glob("cuda-*"), reverse=True))]


@pytest.fixture(scope="session")
def harness(harness_file: Path, plugin_library: Path) -> Harness:
    """The plugin library under the harness."""
    return Harness(harness_file, plugin_library)


@pytest.fixture(scope="session")
def checked_harness(harness_file: Path, checked_library: Path, tmp_path_factory: pytest.TempPathFactory) -> Harness:
    """The checked library under a harness of its own (a harness holds one library)."""
    copy = tmp_path_factory.mktemp("harness") / "checked.so"
    copy.write_bytes(harness_file.read_bytes())
    return Harness(copy, checked_library)
