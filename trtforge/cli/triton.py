"""``trtforge triton``: model repositories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtforge.cli import common, repositories

if TYPE_CHECKING:
    from trtforge.console import Console

app = typer.Typer(help="Write and check Triton model repositories.", no_args_is_help=True, rich_markup_mode=None)


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


app.command("lint")(repositories.lint)
app.command("diff")(repositories.diff)
app.command("upgrade")(repositories.upgrade)
