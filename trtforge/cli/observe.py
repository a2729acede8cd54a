"""``trtforge observe``: what a monitoring system needs to watch a served bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtforge.cli import common
from trtforge.ground.errors import ForgeError

if TYPE_CHECKING:
    from trtforge.ground.console import Console

app = typer.Typer(no_args_is_help=True, help="Watch a served bundle.", rich_markup_mode=None)


@app.command("emit")
@common.forge_command
def emit(
    console: Console,
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="The bundle that is served.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to write into.")],
    server: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="The server's metrics page.")] = None,
    dcgm: Annotated[str, typer.Option(metavar="HOST:PORT", help="dcgm-exporter, for targets on a GPU.")] = (
        "127.0.0.1:9400"
    ),
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files of the pack that are there.")] = False,
) -> None:
    """Write prometheus.yml, rules.yml (alerts by the bundle's SLO), a Grafana board and DCGM counters."""
    from launcher.observe.emit import write_pack
    from launcher.observe.figures import figures_of
    from launcher.observe.pack import Places, left_out, pack
    from trtforge.recipe.load import load_recipe

    recipe_file = bundle / "recipe.yaml"
    if not recipe_file.is_file():
        raise ForgeError(
            "TF-HLT-032",
            f"{bundle} is no bundle: it has no recipe.yaml",
            asked=str(bundle),
            why="Layout, model and SLO are read from it.",
            remedies=["trtforge run RECIPE prints the bundle's path", "trtforge artifacts list"],
        )
    recipe = load_recipe(recipe_file).recipe
    if not recipe.target.layouts:
        raise ForgeError(
            "TF-HLT-033",
            f"no server serves bundles of target {recipe.build.target}",
            asked=str(bundle),
            why="Its engines are loaded by applications, which have no metrics page.",
            remedies=["a bundle of a target that a Triton layout serves"],
        )
    # trtllm-serve, whose page the LLM API's figures are on, has one port for everything
    place = server or ("127.0.0.1:8000" if recipe.target.llm_api else "127.0.0.1:8002")
    places = Places(_place(place), _place(dcgm) if recipe.target.needs_gpu else None)
    written = write_pack(pack(recipe, places), out, overwrite=overwrite)
    missing = left_out(recipe, figures_of(recipe.layout, recipe.name))
    console.result({"files": [str(path) for path in written], "left_out": missing})
    for path in written:
        console.print(f"  {path}")
    for text in missing:
        console.print(f"  no rule for {text}")
    console.value(str(out))


def _place(text: str) -> str:
    from launcher.health.asking import base_of

    return base_of(text).partition("://")[2]
