"""``trtforge speculate``: what drafts gain, and that they change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtforge.cli import common
from trtforge.cli.common import RecipeArgument, SetOption, StoreOption
from trtforge.ground.errors import ForgeError

if TYPE_CHECKING:
    from trtforge.ground.console import Console

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


@app.command("train")
@common.forge_command
def train(
    console: Console,
    recipe: RecipeArgument,
    tokens: Annotated[
        int, typer.Option(min=1, max=10**10, help="Tokens of answers that the target writes, at least.")
    ] = 400_000,
    draft_vocab: Annotated[int, typer.Option(min=2, help="Tokens of the target that the head may draft.")] = 4096,
    epochs: Annotated[float, typer.Option(min=0.01, max=1000.0, help="Passes over the text.")] = 8.0,
    steps: Annotated[int | None, typer.Option(min=1, max=10**9, help="Training steps, instead of --epochs.")] = None,
    time_budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="Train no longer than this, for example 90min.")
    ] = None,
    draft_steps: Annotated[int, typer.Option(min=1, max=16, help="Drafts that training looks ahead.")] = 4,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Of prompts, answers, weights and order.")] = 0,
    overrides: SetOption = None,
    store: StoreOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Copy the head there too.")
    ] = None,
    force: Annotated[
        list[str] | None, typer.Option("--force", metavar="STAGE", help="Run this stage even when it is cached.")
    ] = None,
) -> None:
    """Train an EAGLE-3 head for a recipe's model on text that its engine writes.

    Text, states, training and head are stages: cached, and resumed after a kill.
    """
    from trtforge.cli.run import run_loaded
    from trtforge.cli.stages import require_empty
    from trtforge.ground.files import copy_tree
    from trtforge.pipeline.catalogue import default_stages
    from trtforge.pipeline.stages.drafter import draft_stages
    from trtforge.pipeline.stages.drafter.options import DraftOptions
    from trtforge.recipe.load import load_recipe

    options = DraftOptions(
        seed=seed,
        tokens=tokens,
        draft_vocab=draft_vocab,
        draft_steps=draft_steps,
        epochs=epochs,
        steps=steps,
        time_budget=_seconds(time_budget),
    )
    if output is not None:
        require_empty(output)
    loaded = load_recipe(recipe, overrides or ())
    stages = [*default_stages(), *draft_stages(options)]
    result = run_loaded(
        console,
        loaded,
        common.open_store(store),
        stages=stages,
        until=stages[-1].name,
        force=force or [],
        only_needed=True,
    )
    made = result.artifact(stages[-1].name)
    folder = made.path / "head"
    if output is not None:
        copy_tree(folder, output)
        folder = output
    console.table("Accepted length on held-out prompts", ["class", "prompts", "accepted length"], _rows(made.summary))
    console.value(str(folder))


def _seconds(text: str | None) -> float | None:
    """A time option; raises TF-CLI-053 for what is none."""
    from trtforge.ground.units import parse_seconds

    if text is None:
        return None
    try:
        found = parse_seconds(text)
    except ValueError as error:
        raise ForgeError(
            "TF-CLI-053",
            f"--time-budget {text!r} is no time",
            asked=text,
            why=str(error),
            remedies=["--time-budget 90min"],
        ) from error
    return found


def _rows(summary: Any) -> list[list[str]]:
    return [
        [
            kind,
            str(found["prompts"]),
            f"{found['accepted_length']:.2f} [{found['interval']['low']:.2f}, {found['interval']['high']:.2f}]",
        ]
        for kind, found in summary["classes"].items()
    ]
