"""``trtforge audit``: forensics of a quantized checkpoint, whoever exported it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtforge.cli import common, forms

if TYPE_CHECKING:
    from quantize.audit import AuditReport
    from trtforge.ground.console import Console


@common.forge_command
def audit(
    console: Console,
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="CHECKPOINT", help="A folder, its config.json, or hf:ORG/NAME[@REVISION].", show_default=False
        ),
    ],
    base: Annotated[
        str | None,
        typer.Option(
            metavar="CHECKPOINT",
            help="The unquantized checkpoint that it was made of: holds rope, generation settings and tokenizer "
            "against it.",
            show_default=False,
        ),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Read all scales of a folder, whatever they weigh.")] = False,
    waive: Annotated[
        list[str] | None,
        typer.Option("--waive", metavar="CODE=REASON", help="Set a finding aside, with its reason; repeatable."),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="table, sarif (code scanning) or github (annotations).")
    ] = "table",
) -> None:
    """Audit any quantized checkpoint by its records, headers and scales; exit 1 on an error.

    Of hf: only headers and small scales are fetched, by ranges.
    """
    from quantize.audit import audit_files
    from quantize.intake.opened import open_files
    from trtforge.ground.errors import ExitCode

    forms.chosen(console, form, code="TF-CLI-060")
    with forms.refusals_shown(console, Path(checkpoint), form), console.progress("audit") as progress:
        files = open_files(checkpoint, progress)
        beside = None if base is None else open_files(base, progress)
        report = audit_files(files, base=beside, full=full, waived=_waivers(waive or []))
    if form == "table":
        _show(console, report)
    else:
        forms.show(console, report.findings, form)
    if not report.passed:
        raise common.Failed(ExitCode.GATE_FAILED)


def _waivers(given: list[str]) -> dict[str, str]:
    return {code: reason for code, _, reason in (item.partition("=") for item in given)}


def _show(console: Console, report: AuditReport) -> None:
    from trtforge.rules.rule import SEVERITIES

    console.result({"checkpoint": report.checkpoint, **report.to_json()})
    kinds = [[row["kind"], row["tensors"], row["bytes"]] for row in report.table]
    console.table("Tensors", ["kind", "tensors", "bytes"], kinds)
    if report.findings:
        rows = [[item.code, "waived" if item.waived else item.severity, item.headline] for item in report.findings]
        console.table("Findings", ["code", "verdict", "finding"], rows)
        for item in {item.code: item for item in report.findings}.values():
            console.print(f"\n{item.code}  {item.title}")
            console.print(f"  why:   {item.why}" + (f" ({item.source})" if item.source else ""))
            for remedy in item.remedies:
                console.print(f"  works: {remedy}")
            if item.waived:
                console.print(f"  waived: {item.waived}")
        console.print()
    read = report.read
    if read.get("sampled") or read.get("left_out"):
        console.print(
            f"Of {read['of']} bytes of scales {read['bytes']} were read: {read['sampled']} large tensors in samples, "
            f"{read['left_out']} not at all" + (" (--full reads all of a folder)" if read.get("sampled") else "")
        )
    if report.skipped:
        console.print(f"{len(report.skipped)} rules were skipped, there are no weights")
    sound = "sound as far as a checkpoint without weights can tell" if report.skipped else "sound"
    counts = ", ".join(common.counted(report.count(kind), kind) for kind in SEVERITIES)
    what = " ".join(dict.fromkeys(part for part in (report.tool or "unquantized", report.algorithm) if part))
    console.value(
        f"{report.checkpoint}: {what}, {sound if report.passed else 'faulty'} ({report.rules} rules, {counts})"
    )
