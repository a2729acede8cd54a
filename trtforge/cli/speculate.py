"""``trtforge speculate``: what drafts gain, and that they change nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trtforge.cli import common
from trtforge.cli.common import RecipeArgument, SetOption, StoreOption

if TYPE_CHECKING:
    from trtforge.console import Console

app = typer.Typer(help="Speculative decoding of a recipe's engine.", no_args_is_help=True, rich_markup_mode=None)

#: the stage that this group measures with
STAGE = "speculation"


@app.command("measure")
@common.forge_command
def measure(
    console: Console,
    recipe: RecipeArgument,
    overrides: SetOption = None,
    store: StoreOption = None,
    force: Annotated[bool, typer.Option("--force", help="Measure again even when it is cached.")] = False,
) -> None:
    """Hold a recipe's engine with drafts against itself without; exit 1 when a gate is missed."""
    from trtforge.cli.run import run_loaded
    from trtforge.recipe.load import load_recipe

    loaded = load_recipe(recipe, overrides or ())
    run_loaded(console, loaded, common.open_store(store), until=STAGE, force=[STAGE] if force else [], only_needed=True)
