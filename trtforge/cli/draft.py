"""``trtforge draft``: drafters for speculative decoding, whoever trained them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtforge.cli import common
from trtforge.ground.errors import ExitCode

if TYPE_CHECKING:
    from trtforge.ground.console import Console

app = typer.Typer(help="Look into drafters and convert them.", no_args_is_help=True, rich_markup_mode=None)

DraftArgument = Annotated[Path, typer.Argument(metavar="DIR", help="The drafter's folder.")]
TargetOption = Annotated[
    Path | None, typer.Option("--target", metavar="DIR", help="Hold it against the model that it drafts for.")
]


@app.command("inspect")
@common.forge_command
def inspect(console: Console, folder: DraftArgument, target: TargetOption = None) -> None:
    """Say what a drafter is, what each server lacks of it, and what is wrong; reads headers only.

    Exit code 1 where something is wrong with it.
    """
    from trtforge.drafting.inspection import inspect_folder

    found = inspect_folder(folder, target)
    document = found.to_json()
    console.result(document)
    dialect = f", written as {found.dialect.title} write it" if found.dialect is not None else ""
    console.heading(f"{folder.resolve().name}: {found.kind.title}{dialect}")
    console.table("Drafter", ["what", "value"], [[name, value] for name, value in _rows(document)])
    if "consumers" in document:
        console.table(
            "What is missing for",
            ["program", "missing"],
            [[name, "; ".join(missing) or "nothing"] for name, missing in document["consumers"].items()],
        )
    for item in found.findings:
        console.print(f"{item.severity} {item.code}: {item.message}")
        for remedy in item.remedies:
            console.print(f"  → {remedy}")
    faults = len(found.errors)
    console.value(f"{found.kind.name}: {faults or 'no'} error{'s' if faults != 1 else ''}")
    if faults:
        raise common.Failed(ExitCode.GATE_FAILED)


@app.command("convert")
@common.forge_command
def convert(
    console: Console,
    folder: DraftArgument,
    to: Annotated[
        str, typer.Option("--to", metavar="DIALECT", help="specforge, speculators, modelopt or tensorrt-llm.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="The new folder.")],
    target: TargetOption = None,
    allow_loss: Annotated[
        list[str] | None, typer.Option("--allow-loss", metavar="NAME", help="What may be lost, by name; repeatable.")
    ] = None,
) -> None:
    """Write an EAGLE-3 drafter in another dialect; what would be lost is refused unless it is named."""
    from trtforge.drafting.conversion import convert as run

    made = run(folder, to, output, target=target, allow_loss=allow_loss or ())
    document = made.to_json()
    console.result(document)
    for item in document["warnings"]:
        console.warning(f"{item['code']}: {item['message']}")
    for name in document["config_keys_left_out"]:
        console.print(f"config.json: {name} means nothing to a drafter and is left out")
    console.value(f"{output}: {document['from']} → {document['to']}")


def _rows(document: dict[str, Any]) -> list[tuple[str, str]]:
    """The document as lines of a table, what is nested under its names."""
    rows: list[tuple[str, str]] = []
    for name, value in document.items():
        if name in ("findings", "consumers", "title"):
            continue
        pairs = value.items() if isinstance(value, dict) else [("", value)]
        for inner, item in pairs:
            if item is not None:
                shown = ", ".join(map(str, item)) if isinstance(item, list) else str(item)
                rows.append((f"{name} {inner}".strip().replace("_", " "), shown))
    return rows
