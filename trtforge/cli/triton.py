"""``trtforge triton``: model repositories."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtforge.cli import common, repositories
from trtforge.ground.errors import ForgeError

if TYPE_CHECKING:
    from trtforge.ground.console import Console

app = typer.Typer(help="Write and check Triton model repositories.", no_args_is_help=True, rich_markup_mode=None)


@app.command("emit")
@common.forge_command
def emit(
    console: Console,
    engine: Annotated[Path, typer.Argument(metavar="ENGINE_DIR", help="An engine, or the checkpoint for llmapi.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The repository's folder: empty or new.")],
    name: Annotated[
        str | None, typer.Option(help="The model's name, as clients say it (native); default the recipe's, or model.")
    ] = None,
    layout: Annotated[
        str | None, typer.Option(help="The repository's layout; default the recipe's, else native.")
    ] = None,
    recipe: Annotated[
        Path | None, typer.Option("--recipe", metavar="RECIPE", help="The recipe that it follows.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option("--tokenizer", metavar="DIR", help="The tokenizer, when not beside the engine.")
    ] = None,
    overrides: common.SetOption = None,
) -> None:
    """Write a model repository for an engine; its limits come from the engine, the rest from the recipe."""
    from triton_repo.layouts.emit import emit_for
    from trtforge.recipe.load import load_recipe, recipe_from_mapping
    from trtforge.targets.layouts import LAYOUTS

    changes = list(overrides or [])
    if layout is not None:
        changes.append(f"triton.layout={common.one_of(layout, list(LAYOUTS), option='--layout', code='TF-CLI-004')}")
    if recipe is not None:
        loaded = load_recipe(recipe, changes)
    else:
        loaded = recipe_from_mapping({"name": "model", "model": {"source": str(engine)}}, overrides=changes)
    written = loaded.recipe.layout
    if name is not None and not written.own_runtime:
        raise ForgeError(
            "TF-CLI-021",
            f"--name has no effect on the layout {written.name}",
            asked=f"--name {name}",
            why="Its models have the names that clients and the other models of the layout know.",
            remedies=["leave --name out", "--layout native"],
        )
    document = emit_for(loaded, engine, out, name=name or loaded.recipe.name, tokenizer=tokenizer)
    console.result({"repository": str(out), **document})
    console.value(str(out))


@app.command("launch")
@common.forge_command
def launch(
    console: Console,
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A bundle's directory.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The scripts' folder: empty or new.")],
    nodes: Annotated[int, typer.Option(help="Machines that the ranks are spread over, evenly.")] = 1,
    host: Annotated[str, typer.Option(help="Address that the first server listens on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="First port; every rank takes three.")] = 8000,
) -> None:
    """Write start scripts for other nodes, ports or addresses than the bundle's own in launch/ are for.

    Where this machine shows GPUs, they must be enough for a node.
    """
    from launcher.plans import plan, visible_devices
    from launcher.scripts import write_scripts
    from triton_repo.layouts.writing import writing
    from trtforge.recipe.load import load_recipe

    if not (bundle / "recipe.yaml").is_file() or not (bundle / "repository").is_dir():
        raise ForgeError(
            "TF-LCH-047",
            "this is no bundle with a repository",
            asked=str(bundle),
            why="The scripts start servers in the bundle, for the recipe that it carries.",
            remedies=["trtforge run RECIPE prints the bundle's path"],
        )
    place, inside = out.resolve(), bundle.resolve()
    if place == inside or inside in place.parents:
        raise ForgeError(
            "TF-LCH-048",
            "the scripts would lie inside the bundle",
            asked=str(out),
            why="A published bundle is sealed: with other files in it, it does not verify any more.",
            remedies=[f"{inside.parent / f'{inside.name}-launch'}"],
        )
    made = plan(
        load_recipe(bundle / "recipe.yaml").recipe, nodes=nodes, devices=visible_devices(), host=host, first_port=port
    )
    with writing(out) as folder:
        files = write_scripts(made, folder, bundle=os.path.relpath(inside, place))
    names = [path.name for path in files]
    console.result({"folder": str(out), "files": names, "plan": made.to_json()})
    console.value(f"{out}: {', '.join(names)}")


@app.command("explain")
@common.forge_command
def explain(
    console: Console,
    parameter: Annotated[str | None, typer.Argument(metavar="PARAMETER", help="A parameter; without it: all.")] = None,
) -> None:
    """What a parameter of the layouts means, may be and needs; without a name the list."""
    from triton_repo.parameters import explain as rows_of

    rows = rows_of(parameter)
    console.result({"parameters": rows})
    if parameter is None:
        console.table(
            "Parameters",
            ["parameter", "layout", "values", "default", "meaning"],
            [[row["name"], row["layout"], row["values"], row["default"], row["meaning"]] for row in rows],
        )
        console.value(f"{len(rows)} parameters; trtforge triton explain PARAMETER says more")
        return
    for row in rows:
        facts = [
            ("meaning", row["meaning"]),
            ("values", row["values"]),
            ("default", "none: it is required" if row["required"] else row["default"] or "not set"),
            ("needs", "; ".join(row["needs"]) or "nothing else"),
            ("models", f"{', '.join(row['models'])} ({row['place']})"),
            ("recipe", row["recipe"] or "triton.parameters" if row["place"] == "parameter" else row["recipe"] or "–"),
            ("elsewhere", ", ".join(row["elsewhere"]) or "nothing of the kind"),
            ("versions", row["versions"]),
            ("source", row["source"]),
        ]
        if row["template"]:
            facts.insert(1, ("in NVIDIA's template", row["template"]))
        console.table(f"{row['name']} in {row['layout']}", ["", row["name"]], [list(fact) for fact in facts])
    console.value("; ".join(f"{row['name']} ({row['layout']}): {row['meaning']}" for row in rows))


app.command("lint")(repositories.lint)
app.command("diff")(repositories.diff)
app.command("upgrade")(repositories.upgrade)
