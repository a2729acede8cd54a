"""A command that is a group as well: its first word is one of a few others, or it is the command's own argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from typer import Typer
from typer.core import TyperCommand
from typer.main import get_command


def with_subcommands(own: Callable[..., Any], **others: Callable[..., Any]) -> dict[str, Any]:
    """Arguments of ``Typer.command`` for a function that keeps its arguments beside the commands ``others``.

    A file that is called as one of them is named with its folder (``./advise``).
    """
    made = {name: _command(function) for name, function in others.items()}

    class WithSubcommands(TyperCommand):
        """The command; ``beside`` are the others by name."""

        beside = made

        def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
            if args and args[0] in made:
                return made[args[0]].make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)
            return super().make_context(info_name, args, parent, **extra)

    listed = "\n\n".join(f"{own.__name__} {name}: {command.get_short_help_str(100)}" for name, command in made.items())
    return {"cls": WithSubcommands, "epilog": f"Beside it:\n\n{listed}"}


def _command(function: Callable[..., Any]) -> Any:
    app = Typer(add_completion=False, rich_markup_mode=None)
    app.command()(function)
    return get_command(app)
