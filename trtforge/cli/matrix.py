"""``trtforge matrix``: a recipe in every format, measured and compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtforge.cli import common
from trtforge.cli.common import RecipeArgument, SetOption, StoreOption

if TYPE_CHECKING:
    from trtforge.ground.console import Console
    from trtforge.pipeline.matrix import MatrixRow, Variant
    from trtforge.pipeline.result import RunResult


@common.forge_command
def matrix(
    console: Console,
    recipe: RecipeArgument,
    formats: Annotated[
        str | None,
        typer.Option(
            "--formats",
            metavar="NAME[:GROUP],…",
            help="Which formats, each with a group size where it has one; default all of trtforge formats.",
            show_default=False,
        ),
    ] = None,
    overrides: SetOption = None,
    store: StoreOption = None,
) -> None:
    """Quantize and evaluate a recipe in every format; one table of size, perplexity and paired differences."""
    from trtforge.cli.observer import ConsoleObserver
    from trtforge.ground.errors import ExitCode, ForgeError
    from trtforge.ground.units import format_size
    from trtforge.pipeline.catalogue import default_stages
    from trtforge.pipeline.matrix import LAST, Variant, measure, pairs, parse_variants, ungated, with_groups
    from trtforge.pipeline.pipeline import Pipeline
    from trtforge.pipeline.stages.verdicts import judge
    from trtforge.recipe.load import load_recipe

    common.refuse_chosen_formats(overrides or (), "matrix")
    variants, opened = parse_variants(formats), common.open_store(store)
    base = load_recipe(recipe, [*(overrides or ()), *Variant("none").overrides])
    pipeline, observer = Pipeline(default_stages(), opened), ConsoleObserver(console)

    def go(loaded: Any, until: str) -> RunResult:
        try:
            return pipeline.run(loaded, until, observer=observer, only_needed=True, capture_output=True)
        except BaseException:
            observer.close()
            raise

    def run(variant: Variant) -> RunResult:
        loaded = load_recipe(recipe, [*(overrides or ()), *variant.overrides])
        console.heading(f"{loaded.recipe.name}: {variant.name}")
        report = common.preflight(loaded, model=common.inspect_model(loaded), store=opened.root)
        stops = [finding for finding in report.findings if finding.blocks]
        if stops:
            first = stops[0]
            raise ForgeError(first.code, first.message, asked=first.asked, why=first.why, remedies=first.remedies)
        return go(ungated(loaded), LAST)

    def finished(row: MatrixRow) -> None:
        observer.seen.update(("intake", "baseline"))
        if row.refusal is not None:
            console.warning(f"{row.variant.name}: {row.refusal['code']} {row.refusal['message']}")

    checkpoint = go(base, "intake").artifact("intake").path
    variants = with_groups(variants, checkpoint, base.recipe.quantize.unquantized)
    rows = measure(variants, run, lambda before, after: judge(base.recipe, before, after)[1], finished)
    console.result({"recipe": base.recipe.name, "rows": [row.to_json() for row in rows], "pairs": pairs(rows)})
    console.table(
        f"{base.recipe.name} by format, best first (95 % intervals; differences in pairs of tokens)",
        ["format", "size", "perplexity", "over unquantized", "over the row above", "verdict"],
        [_cells(row, format_size(row.bytes)) for row in rows],
    )
    if console.mode == "quiet":
        for row in rows:
            console.value(row.variant.name)
    if all(row.increase is None for row in rows):
        raise common.Failed(ExitCode.GATE_FAILED)


def _cells(row: MatrixRow, size: str) -> list[str]:
    if row.increase is None or row.perplexity is None:
        assert row.refusal is not None
        return [row.variant.name, "", "", "", "", f"{row.status}: {row.refusal['code']} {row.refusal['message']}"]
    missed = ", ".join(gate.name for gate in row.gates if not gate.passed)
    verdict = f"missed {missed}" if missed else "passed" if row.gates else "no gate"
    return [
        row.variant.name,
        size,
        f"{row.perplexity['value']:.3f}",
        row.increase.shown("+.2%"),
        "" if row.worse is None else row.worse.shown("+.2%"),
        f"{verdict}; emulated" if row.emulated else verdict,
    ]
