"""``trtforge engine``: engine directories."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtforge.cli import common
from trtforge.cli.engine_drafts import measured_policy, recorded_policy, show_policy, show_speculation
from trtforge.ground.errors import ExitCode

if TYPE_CHECKING:
    from builder.targets.description import Description
    from trtforge.ground.console import Console

app = typer.Typer(help="Look into engine directories.", no_args_is_help=True, rich_markup_mode=None)


@app.command("info")
@common.forge_command
def info(
    console: Console,
    engine: Annotated[Path, typer.Argument(metavar="ENGINE_DIR", help="An engine directory, or a bundle.")],
    capability: Annotated[
        str | None, typer.Option(help="Answer for this processor level (avx2, avx512 …) instead of this machine.")
    ] = None,
    each: Annotated[bool, typer.Option("--each", help="One row for every linear.")] = False,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Load the engine, measure what drafts cost here, and say which lengths pay."),
    ] = False,
) -> None:
    """Say for every linear what is stored, what is executed, and whether natively or emulated.

    For TensorRT-LLM: what was asked, whether it was compiled, and where a compiled engine differs. A folder that
    trtllm-build wrote by itself is read too.
    """
    from builder.targets import describe, engine_info
    from builder.targets.trtllm.description import describe_foreign
    from builder.targets.trtllm.readback import compare_engine, is_trtllm_engine, read_trtllm_engine

    folder = engine / "engine" if (engine / "engine" / "engine.json").is_file() else engine
    if not (folder / "engine.json").is_file() and is_trtllm_engine(folder):
        compiled = read_trtllm_engine(folder)
        foreign = {**compiled.to_json(), "findings": [item.to_json() for item in compare_engine(compiled, {})]}
        console.result(foreign)
        show(console, describe_foreign(foreign, folder.resolve().name))
        return
    document = engine_info(folder, capability)
    policy = measured_policy(folder) if measure else recorded_policy(engine)
    if policy is not None:
        document["policy"] = policy
    console.result(document)
    show(console, describe(document), document, each=each, beside=_read_back(engine))


def show(
    console: Console,
    described: Description,
    document: dict[str, Any] | None = None,
    *,
    each: bool = False,
    beside: Sequence[str] = (),
) -> None:
    """An engine in words, with what it drafts by; exit 1 when it is broken.

    Args:
        document: of an engine of ours.
        each: show the tables of every part.
        beside: lines said before the verdicts.
    """
    from trtforge.targets import TARGETS

    console.heading(described.heading)
    console.table(described.about.title, described.about.columns, described.about.rows)
    if document is not None and TARGETS[document["target"]].runs_here:
        show_speculation(console, document)
        show_policy(console, document.get("policy"))
    for table in (*described.parts, *(described.each if each else ())):
        console.table(table.title, table.columns, table.rows)
    for line in (*beside, *described.verdicts):
        console.value(line)
    if described.broken:
        raise common.Failed(ExitCode.GATE_FAILED)


def _read_back(bundle: Path) -> list[str]:
    """What parity found when it read the packed weights back, where a bundle has brought its evidence."""
    path = bundle / "evidence" / "parity.json"
    if not path.is_file():
        return []
    try:
        found = json.loads(path.read_text(encoding="utf-8")).get("weights")
        return [f"parity read back {found['weights']:,} packed weights: {found['changed']:,} are not the stored ones"]
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return []  # an older bundle's, or not one of ours: it says nothing of weights
