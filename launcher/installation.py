"""Finds a Triton server on this machine and what it needs around it.

Two kinds are known: a ``tritonserver`` on PATH with its backends (a container, a distribution), and the
CPU build that the ``nvidia-pytriton`` wheel carries. The wheel's backends are copied once into a cache
folder, because the Python backend looks for its stub beside itself and site-packages is not ours to
write to.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import sysconfig
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from trtforge.ground.errors import EnvironmentLacks
from trtforge.stack.probe import server_on_path

_WHEEL = "nvidia-pytriton"
#: server version inside each wheel release that is known to work
WHEEL_SERVERS = {"0.7.0": "2.51.0"}
#: the Python stub of these server versions reads numpy arrays through numpy 1's ABI; with numpy 2
#: FP32 tensors arrive as zeros and BYTES abort it
NUMPY1_SERVERS = frozenset(WHEEL_SERVERS.values())


@dataclass(frozen=True)
class Installation:
    """A Triton server that can be started.

    Attributes:
        kind: ``path`` or ``wheel``.
        version: the server's version or its container's month, when known.
        binary: the executable.
        backend_directory: value of ``--backend-directory`` (None: the server's default).
        cache_directory: value of ``--cache-directory``.
        environment: variables that the server's process needs.
    """

    kind: str
    version: str | None
    binary: Path
    backend_directory: Path | None = None
    cache_directory: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)


def find_installation() -> Installation:
    """The server to use: PATH first, then the wheel.

    Raises:
        EnvironmentLacks: TF-ENV-021 (no server), TF-ENV-022 (no shared libpython), TF-ENV-023 (numpy).
    """
    on_path = shutil.which("tritonserver")
    if on_path is not None:
        return Installation(kind="path", version=server_on_path()[0], binary=Path(on_path), environment=_python_first())
    return _from_wheel()


def _from_wheel() -> Installation:
    try:
        version = metadata.version(_WHEEL)
    except metadata.PackageNotFoundError:
        version = None
    # where the wheel lies, which in an environment on top of another one is not this environment's own folder
    packages = Path(str(metadata.distribution(_WHEEL).locate_file(""))) if version else Path()
    carried = packages / "pytriton" / "tritonserver"
    binary = carried / "bin" / "tritonserver"
    if version is None or not binary.is_file():
        raise EnvironmentLacks(
            "TF-ENV-021",
            "no Triton server was found",
            why="neither tritonserver on PATH nor the nvidia-pytriton wheel is there",
            remedies=[
                "pip install --no-deps nvidia-pytriton==0.7.0",
                "run inside a Triton container (tritonserver on PATH)",
            ],
        )
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = carried / "python_backend_stubs" / python / "triton_python_backend_stub"
    if not stub.is_file():
        raise EnvironmentLacks(
            "TF-ENV-021",
            f"the Triton server of nvidia-pytriton {version} has no Python backend for Python {python}",
            remedies=["use Python 3.11 or 3.12"],
        )
    server_version = WHEEL_SERVERS.get(version)
    check_numpy(server_version)
    library_folder = find_libpython(python)
    # wheels of one release in two environments need not be the same: each has a folder of its own
    place = hashlib.sha256(str(carried).encode()).hexdigest()[:16]
    runtime = _cache_root() / f"tritonserver-{version}-py{python}-{place}"
    _prepare(carried, stub, runtime)
    environment = _python_first()
    paths = [str(packages / "nvidia_pytriton.libs"), library_folder, os.environ.get("LD_LIBRARY_PATH", "")]
    environment["LD_LIBRARY_PATH"] = ":".join(path for path in paths if path)
    return Installation(
        kind="wheel",
        version=server_version,
        binary=binary,
        backend_directory=runtime / "backends",
        cache_directory=runtime / "caches",
        environment=environment,
    )


def check_numpy(server_version: str | None) -> None:
    """Refuse numpy 2 where the server's Python stub breaks with it, partly in silence.

    Raises:
        EnvironmentLacks: TF-ENV-023.
    """
    installed = metadata.version("numpy")
    if server_version in NUMPY1_SERVERS and int(installed.split(".")[0]) >= 2:
        raise EnvironmentLacks(
            "TF-ENV-023",
            f"numpy {installed} breaks the Python backend of Triton {server_version}",
            numbers={"numpy": installed, "triton": server_version},
            why="its stub was built against numpy 1: FP32 inputs arrive as zeros and BYTES inputs abort it",
            remedies=["pip install 'numpy<2'"],
        )


def find_libpython(python: str) -> str:
    """Folder of ``libpythonX.Y.so.1.0``, or an empty string when the loader finds it by itself.

    Raises:
        EnvironmentLacks: TF-ENV-022.
    """
    import ctypes

    name = f"libpython{python}.so.1.0"
    for folder in (sysconfig.get_config_var("LIBDIR"), Path(sys.base_prefix) / "lib"):
        if folder and (Path(folder) / name).is_file():
            return str(folder)
    try:
        ctypes.CDLL(name)
    except OSError:
        raise EnvironmentLacks(
            "TF-ENV-022",
            f"libpython{python} is missing",
            why=f"Triton's Python backend loads {name}, which neither the loader nor this interpreter has",
            remedies=[f"apt-get install libpython{python}", "a Python built with --enable-shared"],
        ) from None
    return ""


def _python_first() -> dict[str, str]:
    """The stub runs the python that is first on PATH and takes that environment's packages."""
    return {"PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"}


def _cache_root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "trtforge"


def _prepare(carried: Path, stub: Path, runtime: Path) -> None:
    """Copy backends, caches and the stub into ``runtime`` unless a complete copy is there."""
    from filelock import FileLock

    done = runtime / "COMPLETE"
    stamp = f"{stub.stat().st_size} {carried}"
    runtime.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{runtime}.lock"):
        if done.is_file() and done.read_text() == stamp:
            return
        shutil.rmtree(runtime, ignore_errors=True)
        shutil.copytree(carried / "backends", runtime / "backends")
        shutil.copytree(carried / "caches", runtime / "caches")
        shutil.copy2(stub, runtime / "backends" / "python" / stub.name)
        done.write_text(stamp)
