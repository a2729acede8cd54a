"""``trtforge bench``: the load test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trtforge.cli import common

if TYPE_CHECKING:
    from trtforge.console import Console


@common.forge_command
def bench(console: Console, target: Annotated[str, typer.Argument(metavar="BUNDLE|RECIPE")]) -> None:
    """Measure an engine under load."""
