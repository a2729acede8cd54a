"""``trtforge health``: is a served bundle well."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtforge.cli import common
from trtforge.ground.errors import ForgeError

if TYPE_CHECKING:
    from trtforge.ground.console import Console


@common.forge_command
def health(
    console: Console,
    url: Annotated[str, typer.Argument(metavar="URL", help="The Triton server's HTTP address, http://HOST:PORT.")],
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model's name there; default: the bundle's, or all models.")
    ] = None,
    level: Annotated[str, typer.Option(metavar="LEVEL", help="live, ready or deep.")] = "ready",
    bundle: Annotated[Path | None, typer.Option(metavar="DIR", help="The bundle that it serves.")] = None,
    timeout: Annotated[
        float, typer.Option(min=0.05, max=3600, help="Seconds that the server may take to say how it is.")
    ] = 5.0,
) -> None:
    """Ask a server how it is: live, its model ready, or (deep) answering as its bundle was tested; exit 1 if not."""
    from launcher.health.asking import Server
    from launcher.health.checks import LEVELS, check, require_tokens
    from launcher.health.recording import read_recording

    common.one_of(level, LEVELS, option="--level", code="TF-HLT-011")
    recording = None
    if level == "deep":
        if bundle is None:
            raise ForgeError(
                "TF-HLT-012",
                "--level deep needs the bundle that is served",
                asked="--level deep",
                why="What the server must answer is recorded in it.",
                remedies=["--bundle BUNDLE", "--level ready"],
            )
        recording = read_recording(bundle)
        require_tokens(recording)
        model = model or recording.model
    elif bundle is not None:
        model = model or _model_of(bundle)
    server = Server(url, timeout)
    found = check(server, level, model, recording)
    console.result(
        {
            "url": server.base,
            "model": model,
            "level": level,
            "healthy": True,
            "checks": [item.to_json() for item in found],
        }
    )
    for item in found:
        console.print(f"  {item.name}: {item.detail}")
    console.value(f"{server.base}: {level}")


def _model_of(bundle: Path) -> str:
    """The name of the model that clients of a bundle ask."""
    from trtforge.recipe.load import load_recipe

    recipe = load_recipe(bundle / "recipe.yaml").recipe
    return recipe.layout.asked_model(recipe.name)
