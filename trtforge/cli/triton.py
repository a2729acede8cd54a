"""``trtforge triton``: model repositories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtforge.cli import common

if TYPE_CHECKING:
    from trtforge.console import Console

app = typer.Typer(help="Write and check Triton model repositories.", no_args_is_help=True, rich_markup_mode=None)
EngineOption = Annotated[
    Path | None,
    typer.Option(
        "--engine",
        metavar="DIR",
        help="The engine that it serves, when its own reference does not reach it.",
        show_default=False,
    ),
]


@app.command("emit")
@common.forge_command
def emit(
    console: Console,
    engine: Annotated[Path, typer.Argument(metavar="ENGINE_DIR", help="An engine directory.", show_default=False)],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="The repository's folder: empty or new.", show_default=False)
    ],
    name: Annotated[str, typer.Option(help="The model's name, as clients say it.")] = "model",
    layout: Annotated[str, typer.Option(help="The repository's layout.")] = "native",
) -> None:
    """Write a model repository for an engine; its limits come from the engine."""
    import os

    from triton_repo.layouts import native
    from trtforge.tables import stack_table

    common.one_of(layout, stack_table().implemented_layouts, option="--layout", code="TF-CLI-004")
    # Triton starts the stub in the model's folder
    reference = os.path.relpath(engine.resolve(), (out / name).resolve())
    document = native.emit(engine, out, name=name, engine_reference=reference)
    console.result({"repository": str(out), **document})
    console.value(str(out))


@app.command("lint")
@common.forge_command
def lint(
    console: Console,
    repository: Annotated[Path, typer.Argument(metavar="REPOSITORY", help="A model repository.", show_default=False)],
    engine: EngineOption = None,
) -> None:
    """Check a model repository as a unit; exit 1 on an error."""
    from triton_repo.validate import validate_repository
    from trtforge.errors import ExitCode

    findings = validate_repository(repository, engine)
    errors = sum(item.severity == "error" for item in findings)
    console.result(
        {"repository": str(repository), "passed": not errors, "findings": [item.to_json() for item in findings]}
    )
    if findings:
        console.table(
            "Findings",
            ["code", "verdict", "where", "finding", "remedy"],
            [[item.code, item.severity, item.path, item.message, item.remedy] for item in findings],
        )
    console.value(
        f"{repository}: {'refused' if errors else 'ready'} ({errors} errors, {len(findings) - errors} warnings)"
    )
    if errors:
        raise common.Failed(ExitCode.GATE_FAILED)
