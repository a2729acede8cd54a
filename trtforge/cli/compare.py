"""``trtforge compare``: bundles and evaluations side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtforge.cli import common

if TYPE_CHECKING:
    from trtforge.ground.console import Console


@common.forge_command
def compare(
    console: Console,
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="BUNDLE BUNDLE…",
            help="Bundles, or artifacts of the stage evaluate; differences are taken from the first.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Write report.json, .md, .html and junit.xml there.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Compare size, quality (paired with the first) and speed; say which of them nothing beats.

    Exit 1 when one of them has missed a gate of its own.
    """
    from evals.comparison import junit, report
    from evals.report import write_report
    from trtforge.ground.errors import ExitCode, ForgeError
    from trtforge.pipeline.comparison import read_entries

    if len(folders) < 2:
        raise ForgeError(
            "TF-EVL-025",
            "one deployment alone cannot be compared",
            asked=f"trtforge compare {folders[0]}",
            why="Differences are taken from the first of several.",
            remedies=["trtforge compare BUNDLE BUNDLE"],
        )
    common.make_folder(output)
    with console.progress("compare") as progress:
        entries = read_entries(folders, progress)
    made = report(entries)
    written: list[str] = []
    if output is not None:
        with common.writing(output):
            written = [str(path) for path in write_report(made, output, more={"junit.xml": junit(entries)})]
    console.result({**made.data, "verdict": made.verdict, "passed": made.passed, "written": written})
    for section in made.sections:
        for table in section.tables:
            console.table(section.title, list(table.columns), [list(row) for row in table.rows])
        if section.text:
            console.print(section.text)
    for path in written:
        console.print(path)
    console.value(made.verdict)
    if made.passed is False:
        raise common.Failed(ExitCode.GATE_FAILED)
