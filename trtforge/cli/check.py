"""``trtforge check``: preflight only."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtforge.cli import common, forms
from trtforge.cli.common import RecipeArgument, SetOption, StoreOption
from trtforge.ground.errors import ExitCode, ForgeError

if TYPE_CHECKING:
    from trtforge.ground.console import Console
    from trtforge.preflight import Finding, Report


@common.forge_command
def check(
    console: Console,
    recipe: RecipeArgument,
    overrides: SetOption = None,
    store: StoreOption = None,
    model: Annotated[bool, typer.Option(help="Read the model's headers; without, rules on shapes are skipped.")] = True,
    form: Annotated[
        str, typer.Option("--format", help="table, sarif (code scanning) or github (annotations).")
    ] = "table",
) -> None:
    """Check a recipe against the model's headers, the tables and this machine; exit 1 on an error."""
    from quantize.intake import not_here
    from trtforge.preflight.places import placed, refused_model, unapplied
    from trtforge.recipe.load import load_recipe
    from trtforge.recipe.sources import is_fetched
    from trtforge.store.store import default_root

    forms.chosen(console, form, code="TF-CLI-014")
    refused: ForgeError | None = None
    shape = None
    with forms.refusals_shown(console, recipe, form):
        loaded = load_recipe(recipe, overrides or ())
        try:
            shape = common.inspect_model(loaded, early=True) if model else None
        except ForgeError as error:
            if form == "table":
                raise
            refused = error
        report = common.preflight(loaded, model=shape, store=default_root(store))
    absent = not_here(loaded.recipe.model.source, loaded.directory) if model and not refused else None
    if form != "table":
        found = placed(loaded, report)
        if refused is not None:
            forms.show(console, [refused_model(loaded, refused), *found], form)
        else:
            forms.show(console, [*found, *unapplied(loaded, report, recipe, absent)], form)
        if refused is not None:
            raise common.Failed(refused.exit_code)
    else:
        console.result({"recipe": str(recipe), "name": loaded.recipe.name, "model_absent": absent, **report.to_json()})
        show(console, report, recipe, unseen=shape is None and refused is None)
        if absent:
            fetched = is_fetched(loaded.recipe.model.source)
            console.print(absent + (f": `trtforge run {recipe} --until intake` fetches it" if fetched else ""))
    if report.blocked:
        raise common.Failed(ExitCode.GATE_FAILED)


def show(console: Console, report: Report, recipe: Path, *, unseen: bool) -> None:
    """The findings as a table, then each one's reason and ways out; ``unseen``: no rule has looked at the model."""
    if report.findings:
        rows = [[finding.code, _word(finding), finding.message] for finding in report.findings]
        console.table("Findings", ["code", "verdict", "finding"], rows)
        for finding in report.findings:
            console.print(f"\n{finding.code}  {finding.title}")
            console.print(f"  asked: {finding.asked}")
            console.print(f"  why:   {finding.why}" + (f" ({finding.source})" if finding.source else ""))
            for index, remedy in enumerate(finding.remedies):
                console.print(f"  {'works:' if index == 0 else '      '} {remedy}")
            if finding.waived:
                console.print(f"  waived: {finding.waived}")
            elif finding.blocks and not finding.waivable:
                console.print("  this rule cannot be waived: what it refuses cannot work")
        if report.together is not None:
            left = report.together.leaves
            rest = f"leave {', '.join(left)}" if left else "leave nothing that blocks"
            console.print(f"\nTogether these changes {rest}:")
            for text in report.together.lines:
                console.print(f"  {text}")
        console.print()
    for reason, codes in report.unapplied.items():
        console.print(f"{common.counted(len(codes), 'rule')} skipped, {reason}: {', '.join(codes)}")
    found = Counter(_word(finding) for finding in report.findings)
    ready = "nothing found without the model" if unseen else "ready"
    ready += ", but not to be built on this machine" if report.lacks else ""
    verdict = "refused" if report.blocked else ready
    counts = [common.counted(report.rules - len(report.skipped), "rule")]
    counts += [common.counted(found[severity], severity) for severity in ("error", "warning")]
    counts += [f"{found['waived']} waived"] if found["waived"] else []
    console.value(f"{recipe}: {verdict} ({', '.join(counts)})")


def _word(finding: Finding) -> str:
    return "waived" if finding.waived else finding.severity
