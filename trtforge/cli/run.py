"""``trtforge run`` and ``trtforge explain``: the whole pipeline."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtforge.cli import common
from trtforge.cli.common import RecipeArgument, SetOption, StoreOption
from trtforge.ground.errors import ForgeError

if TYPE_CHECKING:
    from trtforge.ground.console import Console
    from trtforge.pipeline.result import RunResult
    from trtforge.pipeline.stage import Stage
    from trtforge.recipe.load import LoadedRecipe
    from trtforge.store.store import Store

#: the stage that brings the model here
FETCH_STAGE = "intake"
#: the stage that needs what the target's machine has
BUILD_STAGE = "build"

#: how many reasons a table shows for a stage, and characters of each
_REASONS, _REASON = 3, 160

UntilOption = Annotated[str | None, typer.Option("--until", metavar="STAGE", help="Stop after this stage.")]
ForceOption = Annotated[
    list[str] | None,
    typer.Option("--force", metavar="STAGE", help="Run this stage even when it is cached; repeatable."),
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="DIR", help="Where the bundle is linked; default ./bundles.")
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
    full_check: Annotated[
        bool, typer.Option("--full-check", help="Hash every file of a cached artifact before use.")
    ] = False,
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
    stages: Sequence[Stage] | None = None,
    judge: Callable[[RunResult], Mapping[str, Any]] | None = None,
) -> RunResult:
    """Preflight, then the pipeline (of ``stages``; default those of every run), then the summary.

    What ``judge`` says of the result stands in the command's document too.
    Errors carry the path of the run's log.
    """
    from trtforge.cli.observer import ConsoleObserver
    from trtforge.cli.summary import show_run
    from trtforge.pipeline.catalogue import default_stages
    from trtforge.pipeline.pipeline import Pipeline

    pipeline = Pipeline(stages or default_stages(), store)
    pipeline.check_names(force, "--force")
    builds = any(stage.name == BUILD_STAGE for stage in pipeline.select(loaded.recipe, until, only_needed=only_needed))
    observer = ConsoleObserver(console)
    forced = list(force)

    def go(last: str | None, again: list[str], needed: bool) -> RunResult:
        return pipeline.run(
            loaded,
            last,
            again,
            observer=observer,
            output=output,
            full_check=full_check,
            only_needed=needed,
            capture_output=True,
        )

    try:
        if not check_before_run(console, loaded, store, builds=builds, forced=forced):
            # the model is fetched first, so that its shape is checked before anything expensive starts
            result = go(FETCH_STAGE, [name for name in forced if name == FETCH_STAGE], False)
            forced = [name for name in forced if name != FETCH_STAGE]
            if until != FETCH_STAGE:
                check_before_run(console, loaded, store, builds=builds, forced=forced, repeat=True)
                observer.seen.add(FETCH_STAGE)
                result = go(until, forced, only_needed)
        else:
            result = go(until, forced, only_needed)
    except BaseException as error:
        observer.close()
        if pipeline.last_result is not None and pipeline.last_result.log is not None:
            error.log = str(pipeline.last_result.log)  # type: ignore[attr-defined]
        raise
    console.result({**result.to_json(), **(judge(result) if judge is not None else {})})
    show_run(console, loaded.recipe.name, result)
    return result


def check_before_run(
    console: Console,
    loaded: LoadedRecipe,
    store: Store,
    *,
    builds: bool = True,
    forced: Collection[str] = (),
    repeat: bool = False,
) -> bool:
    """Preflight; warnings are shown, errors end the command before anything is loaded.

    ``builds``: the run goes through the build, so what this machine lacks for it ends the command too (exit code 3);
    ``forced``: stages that run although the store has their results.

    Returns:
        Whether the model was here to be looked at; ``repeat`` leaves out what a first pass has said.
    """
    from trtforge.preflight import refusal

    model = common.inspect_model(loaded)
    report = common.preflight(loaded, model=model, store=store.root, forced=forced)
    stops = report.blocked or (builds and bool(report.lacks))
    for finding in report.findings:
        if stops and finding.stops_build:
            continue
        if not finding.blocks and not (repeat and not finding.needs_model):
            note = f" (waived: {finding.waived})" if finding.waived else ""
            console.warning(f"{finding.code}: {finding.message}{note}")
    if stops:
        raise refusal(report, loaded.recipe.name)
    return model is not None


@common.forge_command
def explain(
    console: Console,
    recipe: RecipeArgument,
    until: UntilOption = None,
    overrides: SetOption = None,
    store: StoreOption = None,
) -> None:
    """Say for every stage whether it is cached, and if not, what changed."""
    from trtforge.ground.units import format_seconds
    from trtforge.pipeline.catalogue import default_stages
    from trtforge.pipeline.explain import explain as explain_stages
    from trtforge.pipeline.pipeline import Pipeline
    from trtforge.recipe.load import load_recipe

    loaded = load_recipe(recipe, overrides or ())
    pipeline = Pipeline(default_stages(), common.open_store(store, read_only=True))
    rows = explain_stages(pipeline, loaded, until)
    builds = any(stage.name == BUILD_STAGE for stage in pipeline.select(loaded.recipe, until))
    refused = refusals(loaded, pipeline.store.root, builds=builds)
    console.result(
        {
            "recipe": str(recipe),
            "name": loaded.recipe.name,
            "refused": refused,
            "stages": [row.to_json() for row in rows],
        }
    )
    console.table(
        f"{loaded.recipe.name}",
        ["stage", "next run", "took", "why"],
        [
            [row.stage, row.status, "" if row.seconds is None else format_seconds(row.seconds), shortened(row.reasons)]
            for row in rows
        ],
    )
    if refused:
        console.warning(f"a run would be refused: {', '.join(refused)}; `trtforge check {recipe}` says why")
    waiting = [row.stage for row in rows if row.status not in ("cached", "left out")]
    console.value(f"would run: {', '.join(waiting)}" if waiting else "everything is cached")


def shortened(reasons: Sequence[str]) -> str:
    """The first reasons and how many there are beside; ``--json`` has them all."""
    shown = [text if len(text) <= _REASON else f"{text[: _REASON - 1]}…" for text in reasons[:_REASONS]]
    more = len(reasons) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")


def refusals(loaded: LoadedRecipe, store: Path, *, builds: bool = True) -> list[str]:
    """Codes for which preflight would refuse a run; a source that cannot be looked into counts too.

    ``builds``: the run goes through the build, so what this machine lacks for it counts.
    """

    try:
        model = common.inspect_model(loaded)
    except ForgeError as error:
        return [error.code]
    findings = common.preflight(loaded, model=model, store=store).findings
    return [finding.code for finding in findings if finding.blocks or (builds and finding.stops_build)]
