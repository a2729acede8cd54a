"""``trtforge run`` and ``trtforge explain``: the whole pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtforge.cli import common
from trtforge.cli.common import RecipeArgument, SetOption, StoreOption

if TYPE_CHECKING:
    from trtforge.console import Console
    from trtforge.pipeline.result import RunResult
    from trtforge.recipe.load import LoadedRecipe
    from trtforge.store.store import Store

UntilOption = Annotated[str | None, typer.Option("--until", metavar="STAGE", help="Stop after this stage.", show_default=False)]
ForceOption = Annotated[
    list[str] | None, typer.Option("--force", metavar="STAGE", help="Run this stage even when it is cached; repeatable.")
]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="DIR", help="Where the bundle is linked; default ./bundles.", show_default=False),
]


@common.forge_command
def run(
    console: Console,
    recipe: RecipeArgument,
    until: UntilOption = None,
    force: ForceOption = None,
    overrides: SetOption = None,
    store: StoreOption = None,
    output: OutputOption = None,
    full_check: Annotated[bool, typer.Option("--full-check", help="Hash every file of a cached artifact before use.")] = False,
) -> None:
    """Run a recipe: checkpoint in, verified bundle out. Finished stages are not run again."""
    from trtforge.recipe.load import load_recipe

    loaded = load_recipe(recipe, overrides or ())
    run_loaded(
        console, loaded, common.open_store(store), until=until, force=force or (), output=output, full_check=full_check
    )


def run_loaded(
    console: Console,
    loaded: LoadedRecipe,
    store: Store,
    *,
    until: str | None = None,
    force: Any = (),
    output: Path | None = None,
    full_check: bool = False,
    only_needed: bool = False,
) -> RunResult:
    """Preflight, then the pipeline, then the summary; errors carry the path of the run's log."""
    from trtforge.cli.observer import ConsoleObserver
    from trtforge.cli.summary import show_run
    from trtforge.pipeline.pipeline import Pipeline
    from trtforge.pipeline.stages import all_stages

    pipeline = Pipeline(all_stages(), store)
    pipeline.check_names(force, "--force")
    pipeline.select(until)
    check_before_run(console, loaded, store)
    observer = ConsoleObserver(console)
    try:
        result = pipeline.run(
            loaded,
            until,
            list(force),
            observer=observer,
            output=output,
            full_check=full_check,
            only_needed=only_needed,
            capture_output=True,
        )
    except BaseException as error:
        observer.close()
        if pipeline.last_result is not None and pipeline.last_result.log is not None:
            error.log = str(pipeline.last_result.log)  # type: ignore[attr-defined]
        raise
    console.result(result.to_json())
    show_run(console, loaded, result)
    return result


def check_before_run(console: Console, loaded: LoadedRecipe, store: Store) -> None:
    """Preflight; warnings are shown, errors end the command before anything is loaded."""
    from trtforge.errors import EnvironmentLacks
    from trtforge.preflight import refusal

    try:
        model = common.inspect_model(loaded)
    except EnvironmentLacks as lacking:
        # a registry out of reach: everything may be cached, and intake says it again if not
        console.warning(f"the model's headers could not be read ({lacking.message}); rules on shapes are skipped")
        model = None
    report = common.preflight(loaded, model=model, store=store.root)
    for finding in report.findings:
        if not finding.blocks:
            note = f" (waived: {finding.waived})" if finding.waived else ""
            console.warning(f"{finding.code}: {finding.message}{note}")
    if report.blocked:
        raise refusal(report, loaded.recipe.name)


@common.forge_command
def explain(
    console: Console,
    recipe: RecipeArgument,
    until: UntilOption = None,
    overrides: SetOption = None,
    store: StoreOption = None,
) -> None:
    """Say for every stage whether it is cached, and if not, what changed."""
    from trtforge.pipeline.explain import explain as explain_stages
    from trtforge.pipeline.pipeline import Pipeline
    from trtforge.pipeline.stages import all_stages
    from trtforge.recipe.load import load_recipe
    from trtforge.recipe.units import format_seconds

    loaded = load_recipe(recipe, overrides or ())
    rows = explain_stages(Pipeline(all_stages(), common.open_store(store)), loaded, until)
    console.result({"recipe": str(recipe), "name": loaded.recipe.name, "stages": [row.to_json() for row in rows]})
    console.table(
        f"{loaded.recipe.name}",
        ["stage", "next run", "took", "why"],
        [
            [row.stage, row.status, "" if row.seconds is None else format_seconds(row.seconds), "; ".join(row.reasons)]
            for row in rows
        ],
    )
    waiting = [row.stage for row in rows if row.status != "cached"]
    console.value(f"would run: {', '.join(waiting)}" if waiting else "everything is cached")
