"""``trtforge plugins``: the native libraries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtforge.cli import common

if TYPE_CHECKING:
    from trtforge.console import Console

app = typer.Typer(help="Build, inspect and test the native libraries.", no_args_is_help=True, rich_markup_mode=None)


@app.command("info")
@common.forge_command
def info(console: Console) -> None:
    """Say which host library is loaded, its version and which kernels this processor takes."""
    from plugins import host

    document = host.info()
    console.result(document)
    console.table("Host library", ["what", "value"], [[key, value] for key, value in document.items()])
    if console.mode == "quiet":
        console.value(str(document.get("path", "")))


@app.command("test")
@common.forge_command
def test(console: Console) -> None:
    """Compare the host library with the PyTorch reference on this machine; exit 1 on a difference."""
    from trtforge.cli.plugin_checks import run_checks
    from trtforge.errors import ExitCode

    with console.progress("plugins") as progress:
        checks = run_checks(progress)
    failed = [check for check in checks if not check.passed]
    console.result(
        {"passed": not failed, "checks": [{"name": c.name, "passed": c.passed, "detail": c.detail} for c in checks]}
    )
    console.table(
        "Checks",
        ["check", "verdict", "detail"],
        [[c.name, "passed" if c.passed else "failed", c.detail] for c in checks],
    )
    console.value(f"{len(checks) - len(failed)} of {len(checks)} checks passed")
    if failed:
        raise common.Failed(ExitCode.GATE_FAILED)


@app.command("build")
@common.forge_command
def build(
    console: Console,
    source: Annotated[
        Path | None,
        typer.Option(
            "--source",
            metavar="DIR",
            help="The source tree with CMakeLists.txt; default: beside the package.",
            show_default=False,
        ),
    ] = None,
    build_dir: Annotated[
        Path | None, typer.Option("--build-dir", metavar="DIR", help="Default SOURCE/build/host.", show_default=False)
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Compilers at once.")] = 2,
) -> None:
    """Build the host library from a source tree with CMake."""
    from trtforge.native_build import build_host_library

    with console.progress("plugins") as progress:
        path = build_host_library(source, build_dir, jobs=jobs, progress=progress)
    console.result({"library": str(path), "use": f"export TRTFORGE_HOST_LIBRARY={path}"})
    console.value(str(path))
