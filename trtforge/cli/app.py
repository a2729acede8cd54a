"""The commands of ``trtforge``. Their modules import nothing heavy: ``--help`` starts in a fraction of a second."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

import typer
from typer.main import get_command

from trtforge import __version__
from trtforge.cli import (
    advise,
    artifacts,
    audit,
    bench,
    bundle,
    check,
    compare,
    doctor,
    draft,
    engine,
    health,
    matrix,
    mix,
    observe,
    openai,
    plan,
    plugins,
    recipes,
    run,
    sensitivity,
    speculate,
    stages,
    triton,
)
from trtforge.cli.subcommands import with_subcommands
from trtforge.ground.docstrings import require_docstrings
from trtforge.ground.errors import ExitCode, ForgeError

app = typer.Typer(
    name="trtforge",
    help="Checkpoint in, verified deployment out: quantize, gate, build, serve.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"trtforge {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Checkpoint in, verified deployment out: quantize, gate, build, serve."""


_COMMANDS: tuple[tuple[str, Any], ...] = (
    ("run", run.run),
    ("check", check.check),
    ("plan", plan.plan),
    ("explain", run.explain),
    ("init", recipes.init),
    ("schema", recipes.schema),
    ("formats", recipes.formats),
    ("stack", recipes.stack),
    ("doctor", doctor.doctor),
    ("audit", audit.audit),
    ("matrix", matrix.matrix),
    ("eval", stages.evaluate),
    ("compare", compare.compare),
    ("build", stages.build),
    ("verify", bundle.verify),
    ("serve", bundle.serve),
    ("health", health.health),
    ("openai", openai.openai),
    ("bench", bench.bench),
)
for _name, _function in _COMMANDS:
    app.command(_name)(_function)
_beside = with_subcommands(stages.quantize, advise=advise.advise, mix=mix.mix, sensitivity=sensitivity.sensitivity)
app.command("quantize", **_beside)(stages.quantize)
for _name, _group in (
    ("artifacts", artifacts.app),
    ("draft", draft.app),
    ("engine", engine.app),
    ("observe", observe.app),
    ("plugins", plugins.app),
    ("speculate", speculate.app),
    ("triton", triton.app),
):
    app.add_typer(_group, name=_name)


@cache
def _command() -> Any:
    """The tree of commands, made once: typer makes it anew for each command line, in most of a short command's time."""
    return get_command(app)


def invoke(arguments: Sequence[str]) -> int:
    """Run one command line; its exit code. Usage errors are printed (as JSON with ``--json``) and give 2.

    An empty argument is one of them: as a path it would mean the working directory, and is most often a shell's
    variable that holds nothing.

    Raises:
        KeyboardInterrupt: Ctrl-C outside a command's body; inside it is the command's to say.
    """
    if "" in arguments:
        return _said(_empty(arguments), arguments)
    try:
        require_docstrings()
    except ForgeError as lacks:
        return _said(lacks, arguments)
    try:
        code = _command()(list(arguments), prog_name="trtforge", standalone_mode=False)
    except typer.Exit as done:
        return int(done.exit_code)
    except typer.Abort:
        return 130
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return _usage(error, arguments)
    if code == ExitCode.INTERRUPTED and not isinstance(code, ExitCode):
        # typer's own number for Ctrl-C before or after a command's body, which says it and returns an ExitCode
        raise KeyboardInterrupt
    return int(code or 0)


def _empty(arguments: Sequence[str]) -> ForgeError:
    place = list(arguments).index("")
    before = f" after {arguments[place - 1]}" if place else ""
    return ForgeError(
        "TF-CLI-016",
        f"argument {place + 1}{before} is empty",
        asked=shlex.join(["trtforge", *arguments]),
        why="No command takes an empty argument; a shell's variable that is not set becomes one.",
        remedies=["set the variable, or leave the argument out"],
    )


def _said(refusal: ForgeError, arguments: Sequence[str]) -> int:
    from trtforge.ground.console import Console

    Console("json" if "--json" in arguments else "human").error(refusal)
    return int(refusal.exit_code)


def _usage(error: Any, arguments: Sequence[str]) -> int:

    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "trtforge"
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(error.format_message())
        return 0
    refusal = ForgeError(
        "TF-CLI-001",
        str(error.format_message()),
        asked=f"trtforge {' '.join(arguments)}",
        remedies=[f"{path} --help"],
    )
    return _said(refusal, arguments)
