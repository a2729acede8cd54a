"""``trtforge quantize sensitivity``: which linears a format hurts most, and a recipe that spares them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtforge.cli import common
from trtforge.cli.common import RecipeArgument, SetOption, StoreOption

if TYPE_CHECKING:
    from trtforge.ground.console import Console
    from trtforge.recipe.load import LoadedRecipe


@common.forge_command
def sensitivity(
    console: Console,
    recipe: RecipeArgument,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens that every group is measured on.")] = 2048,
    max_kl: Annotated[
        float | None,
        typer.Option(
            metavar="NATS",
            help="Spare linears until the divergence's upper bound is at most this; default the recipe's gate on it.",
            show_default=False,
        ),
    ] = None,
    overrides: SetOption = None,
    store: StoreOption = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the recipe that spares them.", show_default=False),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the existing file of -o.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Measure again even when it is cached.")] = False,
) -> None:
    """Measure what each linear loses in the recipe's format, and which to leave out for a bound."""
    from trtforge.cli.advise import write_changed
    from trtforge.cli.run import run_loaded
    from trtforge.pipeline.catalogue import default_stages
    from trtforge.pipeline.stages.sensitivity import SensitivityOptions, SensitivityStage, worst_rows
    from trtforge.preflight.remedies import line
    from trtforge.recipe.load import load_recipe

    loaded = load_recipe(recipe, overrides or ())
    bound = _bound(loaded, max_kl, output)
    stage = SensitivityStage(SensitivityOptions(tokens, bound))
    stages = [*default_stages(), stage]
    forced = [stage.name] if force else []
    opened = common.open_store(store)
    result = run_loaded(console, loaded, opened, stages=stages, until=stage.name, force=forced, only_needed=True)
    made = result.artifact(stage.name)
    found = made.summary
    columns = ["group", "KL, nats", "bytes saved"]
    console.table(f"The worst of {len(found['groups'])} groups, each alone", columns, worst_rows(found))
    together = found["together"]
    console.print(f"all together: {together['value']:.3g} nats [{together['low']:.3g}, {together['high']:.3g}]")
    console.print(str(made.path / "report.html"))
    changes = _changes(loaded, found)
    if not changes:
        console.value(f"{loaded.recipe.name}: the worst is {found['worst'][0]}")
        return
    for key, value in changes.items():
        console.print(line(key, value))
    if output is not None:
        head = [
            f"at most {bound:g} nats of divergence from the unquantized model over {found['positions']:,} positions"
        ]
        write_changed(
            output, loaded, changes, ["Written by `trtforge quantize sensitivity`.", *head], overwrite=overwrite
        )
    count = len(found["spared"]["groups"])
    written = "" if output is None else f"; written to {output}"
    console.value(f"{loaded.recipe.name}: {count} of {len(found['groups'])} groups are spared{written}")


def _bound(loaded: LoadedRecipe, asked: float | None, output: Path | None) -> float | None:
    """The largest divergence: asked for, or the recipe's gate; raises TF-CLI-062."""
    from trtforge.ground.errors import ForgeError

    gate = loaded.recipe.evals.perplexity.gate
    bound = asked if asked is not None else gate.max_kl if gate is not None else None
    if bound is None and output is None:
        return None
    if bound is None or not 0 < bound < float("inf"):
        raise ForgeError(
            "TF-CLI-062",
            "a recipe that spares linears needs a bound above 0",
            asked=f"--max-kl {asked:g}" if asked is not None else f"-o {output}",
            why="How many linears are spared follows from the divergence that is accepted, in nats a token.",
            remedies=["--max-kl 0.05", "evals.perplexity.gate: {max_kl: 0.05}"],
        )
    return bound


def _changes(loaded: LoadedRecipe, found: Any) -> dict[str, Any]:
    """The keys of the recipe that spare what was found; none without a bound."""
    spared = found["spared"]
    if spared is None:
        return {}
    if len(spared["groups"]) == len(found["groups"]):
        return {"quantize.format": "none", **({"quantize.mixed": None} if loaded.recipe.quantize.mixed else {})}
    return {"quantize.exclude": list(dict.fromkeys([*loaded.recipe.quantize.exclude, *spared["modules"]]))}
