"""``--format`` of the checks: a table for people, SARIF or GitHub annotations for tools.

A tool that reads stdout gets its form in every case: what keeps a check from running at all is a finding too, with
the file and, where the refusal names one, the line. The refusal itself is said on stderr as always.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trtforge.cli import common
from trtforge.ground.errors import ForgeError

if TYPE_CHECKING:
    from trtforge.ground.console import Console
    from trtforge.rules.rule import Breach, Finding, Place, Told

FORMATS = ("table", "sarif", "github")
_PLACE = re.compile(r"(?P<file>.+?):(?P<line>\d+)(?::(?P<column>\d+))?")


def chosen(console: Console, form: str, *, code: str) -> str:
    """The form that ``--format`` names.

    Raises:
        ForgeError: ``code`` when there is no such form, or ``--json`` claims the output too.
    """
    common.one_of(form, FORMATS, option="--format", code=code)
    if form != "table" and console.mode == "json":
        raise ForgeError(
            code,
            f"--json and --format {form} both claim the output",
            asked=f"--json --format {form}",
            remedies=[f"--format {form}", "--json"],
        )
    return form


def show(console: Console, found: Sequence[Finding[Breach]], form: str) -> None:
    """Write the findings as SARIF (always one document) or GitHub annotations (one a line; none: nothing)."""
    from trtforge import __version__
    from trtforge.rules.output import github, sarif_text

    text = sarif_text(found, version=__version__) if form == "sarif" else github(found)
    if text:
        console.value(text.rstrip("\n"))


@contextlib.contextmanager
def refusals_shown(console: Console, file: Path, form: str) -> Iterator[None]:
    """In a tool's form, write what keeps the check of ``file`` from running; it is raised in every case."""
    try:
        yield
    except ForgeError as error:
        if form != "table":
            show(console, list(refusals(error, file)), form)
        raise


def refusals(error: ForgeError, file: Path) -> Iterator[Finding[Told]]:
    """What keeps a check from running, as findings: one for each offender that the refusal lists, else one."""
    from trtforge.rules.rule import Finding, Identity, Told, refused

    offenders = error.numbers.get("offenders")
    if not isinstance(offenders, list) or not offenders:
        yield refused(error, _place(str(error.asked or ""), file))
        return
    rule = Identity(error.code, "error", why=error.why or "")
    for item in offenders:
        remedy = item.get("remedy")
        told = Told(f"{item.get('key')}: {item.get('problem')}", (str(remedy),) if remedy else ())
        yield Finding(rule, told, place=_place(str(item.get("where", "")), file))


def _place(text: str, file: Path) -> Place:
    """The place that ``FILE:LINE[:COLUMN]`` names; ``file`` for anything else."""
    from trtforge.rules.rule import Place

    match = _PLACE.fullmatch(text)
    if match is None or not Path(match["file"]).is_file():
        return Place(str(file))
    return Place(match["file"], int(match["line"]), int(match["column"]) if match["column"] else None)
