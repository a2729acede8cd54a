"""``trtforge triton lint``, ``diff`` and ``upgrade``: repositories that are there already, whoever wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtforge.cli import common, forms
from trtforge.ground.errors import ExitCode

if TYPE_CHECKING:
    from triton_repo.lint.run import Report
    from trtforge.ground.console import Console

EngineOption = Annotated[
    Path | None,
    typer.Option(
        "--engine", metavar="DIR", help="The engine that it serves, when its own reference does not reach it."
    ),
]


@common.forge_command
def lint(
    console: Console,
    repository: Annotated[Path, typer.Argument(metavar="REPOSITORY", help="A model repository.")],
    engine: EngineOption = None,
    format_: Annotated[str, typer.Option("--format", metavar="FORMAT", help="table, sarif or github.")] = "table",
    launch: Annotated[
        list[Path] | None,
        typer.Option(
            "--launch",
            metavar="FILE",
            help="A script or manifest that starts a server on it (repeatable); default those that lie near it.",
        ),
    ] = None,
) -> None:
    """Check any Triton model repository, and the lines that start a server on it; exit 1 on an error."""
    from triton_repo.lint.run import lint_repository

    forms.chosen(console, format_, code="TF-CLI-020")
    with forms.refusals_shown(console, repository, format_):
        report = lint_repository(repository, engine, launch_files=launch or (), near=True)
    if format_ == "table":
        _show(console, report)
    else:
        forms.show(console, report.findings, format_)
    if not report.passed:
        raise common.Failed(ExitCode.GATE_FAILED)


def _show(console: Console, report: Report) -> None:
    counts = {severity: report.count(severity) for severity in ("error", "warning", "note")}
    console.result(
        {
            "repository": str(report.repository),
            "models": report.models,
            "passed": report.passed,
            "counts": counts,
            "findings": [item.to_json() for item in report.findings],
        }
    )
    if report.findings:
        console.table(
            "Findings",
            ["code", "verdict", "where", "finding", "what would work"],
            [
                [
                    item.code,
                    item.severity,
                    f"{item.path}:{item.line}" if item.line else item.path,
                    item.message,
                    item.remedy,
                ]
                for item in report.findings
            ],
        )
        for code in sorted({item.code for item in report.findings if item.severity != "note"}):
            first = next(item for item in report.findings if item.code == code)
            console.print(f"{code}  {first.title}: {first.why} ({first.source})")
    console.value(
        f"{report.repository}: {'ready' if report.passed else 'refused'} ({report.models} models, "
        + ", ".join(common.counted(count, severity) for severity, count in counts.items())
        + ")"
    )


@common.forge_command
def diff(
    console: Console,
    old: Annotated[Path, typer.Argument(metavar="OLD", help="A model repository.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Another one.")],
) -> None:
    """Say what two repositories say differently, and what it means; exit 1 when they differ.

    Paths that lead to the same place are shown and are no difference.
    """
    from triton_repo.diff import diff_repositories

    comparison = diff_repositories(old, new)
    versions = {"old": comparison.old_versions, "new": comparison.new_versions}
    console.result(
        {
            "old": str(old),
            "new": str(new),
            "same": comparison.same,
            "versions": versions,
            "differences": [item.to_json() for item in comparison.differences],
        }
    )
    if comparison.differences:
        console.table(
            "Differences",
            ["model", "what", "field", "old", "new", "meaning", "line"],
            [
                [item.model, item.kind, item.field, item.old, item.new, item.meaning, item.line]
                for item in comparison.differences
            ],
        )
    for name, pair in versions.items():
        if pair is not None:
            said = pair[0] if pair[0] == pair[1] else f"{pair[0]} to {pair[1]}"
            console.print(f"{name}: parameters of TensorRT-LLM's backend {said}")
    places = sum(item.kind == "location" for item in comparison.differences)
    count = len(comparison.differences) - places
    said = common.counted(count, "difference") if count else "no difference"
    console.value(said + (f" ({common.counted(places, 'path')} to the same place)" if places else ""))
    if not comparison.same:
        raise common.Failed(ExitCode.GATE_FAILED)


@common.forge_command
def upgrade(
    console: Console,
    repository: Annotated[Path, typer.Argument(metavar="REPOSITORY", help="A model repository.")],
    to: Annotated[str, typer.Option("--to", metavar="VERSION", help="TensorRT-LLM's version.")],
    out: Annotated[
        Path, typer.Option("--output", "-o", metavar="OUT", help="The new repository: an empty or new folder.")
    ],
    since: Annotated[
        str | None, typer.Option("--from", metavar="VERSION", help="Its version; found from its parameters.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="DIR", help="For 1.3 and later: the checkpoint to load.")
    ] = None,
) -> None:
    """Write a repository for another version of TensorRT-LLM; exit 1 when the result still has an error."""
    from triton_repo.upgrade import upgrade_repository

    result = upgrade_repository(repository, out, to=to, since=since, checkpoint=checkpoint)
    console.result(
        {
            "repository": str(out),
            "layout": result.layout,
            "from": result.old_version,
            "to": result.new_version,
            "done": [step.to_json() for step in result.done],
            "left": [step.to_json() for step in result.left],
            "passed": result.passed,
            "findings": [item.to_json() for item in result.findings],
        }
    )
    for title, steps in (("Done", result.done), ("Left to do", result.left)):
        if steps:
            console.table(
                title, ["model", "action", "what", "meaning"], [[s.model, s.action, s.what, s.meaning] for s in steps]
            )
    faults = [item for item in result.findings if item.severity != "note"]
    if faults:
        console.table(
            "Findings in the new repository",
            ["code", "verdict", "where", "finding"],
            [[f.code, f.severity, f"{f.path}:{f.line or 1}", f.message] for f in faults],
        )
    console.value(
        f"{out}: {result.layout} of {result.new_version} from {result.old_version} ({len(result.done)} changes, "
        f"{len(result.left)} left to do{'' if result.passed else ', with errors: trtforge triton lint'})"
    )
    if not result.passed:
        raise common.Failed(ExitCode.GATE_FAILED)
