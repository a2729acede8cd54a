"""``trtforge plugins``: the native libraries."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtforge.cli import common
from trtforge.ground.errors import EnvironmentLacks, ExitCode

if TYPE_CHECKING:
    from plugins.cuda.build import KernelUse
    from trtforge.ground.console import Console

app = typer.Typer(help="Build, inspect and test the native libraries.", no_args_is_help=True, rich_markup_mode=None)


class Library(enum.StrEnum):
    """What ``plugins build`` can build."""

    HOST = "host"
    CUDA = "cuda"
    TENSORRT = "tensorrt"


@app.command("info")
@common.forge_command
def info(console: Console) -> None:
    """Say which libraries are here, their versions, and which kernels this processor and the GPUs take."""
    from plugins.cuda.build import report_of
    from plugins.host import load

    document = load().info()
    cuda, kernels = _cuda_info()
    console.table("Host library", ["what", "value"], [[key, value] for key, value in document.items()])
    console.table("CUDA library", ["what", "value"], [[key, value] for key, value in cuda.items()])
    if kernels:
        _kernel_table(console, kernels)
    console.result({**document, "cuda": {**cuda, "kernels": report_of(kernels)}})
    if console.mode == "quiet":
        console.value(str(document.get("path", "")))


def _cuda_info() -> tuple[dict[str, Any], tuple[KernelUse, ...]]:
    from plugins.cuda.build import read_report
    from plugins.cuda.library import CudaLibrary, find_cuda_library

    try:
        library = CudaLibrary(find_cuda_library())
    except EnvironmentLacks as lacks:
        return {"built": False, "why": f"{lacks.code}: {lacks.message}", "remedy": lacks.remedies[0]}, ()
    return {"built": True, **library.info()}, read_report(library.path.parent)


def _kernel_table(console: Console, kernels: tuple[KernelUse, ...]) -> None:
    """Registers and spills of each kernel, one column an architecture."""
    names = sorted({use.kernel for use in kernels})
    columns = list(dict.fromkeys(use.architecture for use in sorted(kernels, key=lambda u: len(u.architecture))))
    cells = {
        (use.kernel, use.architecture): f"{use.registers}"
        + (f" +{use.spill_store_bytes + use.spill_load_bytes} B spilled" if use.spill_store_bytes else "")
        for use in kernels
    }
    rows = [[name, *(cells.get((name, column), "") for column in columns)] for name in names]
    console.table("Registers a thread", ["kernel", *(f"sm_{column}" for column in columns)], rows)


@app.command("test")
@common.forge_command
def test(console: Console) -> None:
    """Compare the libraries with the PyTorch reference on this machine; exit 1 on a difference.

    The CUDA ops run on the GPU where there is one, and under the host shim elsewhere.
    """
    from plugins.selftest import run_selftest
    from plugins.selftest_cuda import can_run, run_cuda_checks

    with console.progress("plugins") as progress:
        checks = run_selftest(progress=progress)
        lacks = can_run()
        if lacks is None:
            checks += run_cuda_checks(progress=progress)
    failed = [check for check in checks if not check.passed]
    console.result(
        {
            "passed": not failed,
            "checks": [{"name": c.name, "passed": c.passed, "detail": c.detail} for c in checks],
            "cuda_skipped": lacks,
        }
    )
    console.table(
        "Checks",
        ["check", "verdict", "detail"],
        [[c.name, "passed" if c.passed else "failed", c.detail] for c in checks],
    )
    skipped = f"; the CUDA ops were not tested ({lacks})" if lacks else ""
    console.value(f"{len(checks) - len(failed)} of {len(checks)} checks passed{skipped}")
    if failed:
        raise common.Failed(ExitCode.GATE_FAILED)


@app.command("build")
@common.forge_command
def build(
    console: Console,
    library: Annotated[
        Library, typer.Argument(help="Which library; --tensorrt-include means tensorrt.")
    ] = Library.HOST,
    source: Annotated[
        Path | None,
        typer.Option(
            "--source", metavar="DIR", help="The source tree with CMakeLists.txt; default: beside the package."
        ),
    ] = None,
    build_dir: Annotated[
        Path | None, typer.Option("--build-dir", metavar="DIR", help="Host only; default SOURCE/build/host.")
    ] = None,
    arch: Annotated[
        str | None,
        typer.Option(
            "--arch", metavar="LIST", help="CUDA architectures, such as 90 or 80,89; default: all that have kernels."
        ),
    ] = None,
    tensorrt_include: Annotated[
        Path | None, typer.Option("--tensorrt-include", metavar="DIR", help="Folder with NvInfer.h.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Compilers at once.")] = 2,
) -> None:
    """Build a native library: the host ops (g++), the CUDA ops (nvcc), or the TensorRT plugins over them.

    CUDA and TensorRT builds are kept by the hash of their sources, architectures and compilers.
    """
    if library is Library.TENSORRT or tensorrt_include is not None:
        _build_tensorrt(console, source, tensorrt_include, arch, jobs)
    elif library is Library.CUDA:
        _build_cuda(console, source, arch, jobs)
    else:
        from trtforge.native.build import build_host_library

        with console.progress("plugins") as progress:
            path = build_host_library(source, build_dir, jobs=jobs, progress=progress)
        console.result({"library": str(path), "use": f"export TRTFORGE_HOST_LIBRARY={path}"})
        console.value(str(path))


def _architectures(arch: str | None) -> tuple[str, ...]:
    from plugins.cuda.build import ARCHITECTURES, check_architectures

    return ARCHITECTURES if arch is None else check_architectures(arch.split(","))


def _build_cuda(console: Console, source: Path | None, arch: str | None, jobs: int) -> None:
    from plugins.cuda.build import build_cuda_library, report_of

    plugins = None if source is None else source / "plugins"
    with console.progress("plugins") as progress:
        made = build_cuda_library(_architectures(arch), plugins=plugins, jobs=jobs, progress=progress)
    _kernel_table(console, made.kernels)
    console.result(
        {
            "library": str(made.library),
            "static_library": str(made.static_library),
            "seconds": round(made.seconds, 1),
            "log": str(made.folder / "build.log"),
            "kernels": report_of(made.kernels),
            "use": f"export TRTFORGE_CUDA_LIBRARY={made.library}",
        }
    )
    console.value(str(made.library))


def _build_tensorrt(console: Console, source: Path | None, include: Path | None, arch: str | None, jobs: int) -> None:
    from plugins.tensorrt.build import build_plugin_library

    plugins = None if source is None else source / "plugins"
    with console.progress("plugins") as progress:
        made = build_plugin_library(include, _architectures(arch), plugins=plugins, jobs=jobs, progress=progress)
    console.result({"library": str(made.library), "seconds": round(made.seconds, 1)})
    console.value(str(made.library))
