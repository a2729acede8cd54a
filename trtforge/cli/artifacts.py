"""``trtforge artifacts``: what the store holds."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtforge.cli import common
from trtforge.cli.common import StoreOption
from trtforge.ground.errors import ForgeError

if TYPE_CHECKING:
    from trtforge.ground.console import Console

app = typer.Typer(help="List, show and remove what the store holds.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
@common.forge_command
def list_(console: Console, store: StoreOption = None) -> None:
    """List every artifact with its size and who uses it."""
    from trtforge.ground.units import format_seconds, format_size
    from trtforge.store.gc import disk_bytes, list_artifacts

    opened = common.open_store(store, read_only=True)
    rows = list_artifacts(opened)
    total = sum(row.bytes for row in rows)
    on_disk = disk_bytes(opened)
    console.result(
        {
            "store": str(opened.root),
            "bytes": total,
            "disk_bytes": on_disk,
            "artifacts": [row.to_json() for row in rows],
        }
    )
    console.table(
        f"{opened.root}: {len(rows)} artifacts, {format_size(total)}, on the disk {format_size(on_disk)}",
        ["stage", "key", "size", "last used", "state", "used by"],
        [
            [
                row.stage,
                row.key[:16],
                format_size(row.bytes),
                f"{format_seconds(max(0.0, time.time() - row.last_used))} ago",
                row.damage or ("gates passed" if row.gates_passed else "gate missed"),
                ", ".join(row.used_by),
            ]
            for row in rows
        ],
    )
    if console.mode == "quiet":
        for row in rows:
            console.value(f"{row.stage}/{row.key[:16]}")


@app.command("show")
@common.forge_command
def show(
    console: Console,
    name: Annotated[str, typer.Argument(help="stage/key, the beginning of a key, a lone stage, or a path.")],
    store: StoreOption = None,
) -> None:
    """Show one artifact: its files, figures, gates and where it came from."""
    from trtforge.cli.summary import figure_rows
    from trtforge.ground.units import format_size
    from trtforge.store.gc import show_artifact
    from trtforge.store.store import Damage

    common.refuse_unusable({"name": Path(name)})
    found = show_artifact(common.open_store(store, read_only=True), name)
    if isinstance(found, Damage):
        raise ForgeError(
            "TF-CLI-002",
            f"the artifact {found.path} is damaged: {found.reason}",
            asked=name,
            why="An artifact that fails its check is not used.",
            remedies=["run the recipe again: the artifact is built anew", "trtforge artifacts gc"],
        )
    manifest = found.manifest
    console.result({"path": str(found.path), "manifest": manifest})
    console.heading(f"{found.stage}/{found.key[:16]}  {found.path}")
    files = manifest.get("files") or ()
    console.table(
        "Files",
        ["file", "size", "sha256"],
        [[item["path"], format_size(int(item["size"])), item["sha256"][:16]] for item in files],
    )
    console.table("Figures", ["figure", "value"], figure_rows(manifest))
    if console.mode == "quiet":
        console.value(str(found.path))


@app.command("gc")
@common.forge_command
def gc(
    console: Console,
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", metavar="TIME", help="Keep what was used since, for example 12h or 7d."),
    ] = None,
    keep_last: Annotated[int | None, typer.Option("--keep-last", min=0, help="Keep this many of each stage.")] = None,
    forget: Annotated[
        list[str] | None, typer.Option("--forget", metavar="RECIPE", help="Unprotect what this recipe used.")
    ] = None,
    scratch: Annotated[bool, typer.Option("--scratch", help="Remove resumable work of unfinished stages too.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    store: StoreOption = None,
) -> None:
    """Remove artifacts that no recipe's last run uses."""
    from trtforge.ground.units import format_size
    from trtforge.store.gc import collect

    report = collect(
        common.open_store(store),
        older_than=None if older_than is None else parse_age(older_than),
        keep_last=keep_last,
        forget_runs=forget or (),
        scratch=scratch,
        dry_run=dry_run,
    )
    console.result(report.to_json())
    console.table(
        "Removed" if not dry_run else "Would be removed",
        ["stage", "key", "size"],
        [[row.stage, row.key[:16], format_size(row.bytes)] for row in report.removed],
    )
    verb = "would free" if dry_run else "freed"
    console.value(f"{verb} {format_size(report.bytes)}: {len(report.removed)} artifacts; {report.kept} kept")


def parse_age(text: str) -> float:
    """Seconds of ``12h``, ``7d``, ``30m`` or ``30min``; raises TF-CLI-003."""
    from trtforge.ground.units import parse_seconds

    # as command lines have ages; a recipe's times have no days, and no m that could be milli
    given = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([wdm])\s*", text)
    if given:
        return float(given.group(1)) * {"w": 604_800, "d": 86_400, "m": 60}[given.group(2)]
    try:
        return parse_seconds(text)
    except ValueError as error:
        raise ForgeError(
            "TF-CLI-003", str(error), asked=f"--older-than {text}", remedies=["--older-than 7d", "--older-than 12h"]
        ) from None
