"""What every command shares: the three output options, errors to exit codes, and late access to the rest.

Commands are thin: they call a library function and print what it returns. This module must stay cheap to
import, because ``trtforge --help`` imports it.
"""

from __future__ import annotations

import errno
import inspect
import os
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtforge.ground.errors import ExitCode, ForgeError, interrupted

if TYPE_CHECKING:
    from triton_repo.parameters import Parameter
    from trtforge.ground.console import Console
    from trtforge.models.record import Model
    from trtforge.preflight import Report, Surroundings
    from trtforge.preflight.sources import Located
    from trtforge.recipe.load import LoadedRecipe
    from trtforge.store.store import Store

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors and the result's one line only.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="Print tracebacks and the stages' notes.")]
RecipeArgument = Annotated[
    Path, typer.Argument(metavar="RECIPE", help="The recipe's YAML file, or the name of one that ships.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, for example bench.max_tokens=64; repeatable."),
]
StoreOption = Annotated[
    Path | None, typer.Option("--store", metavar="DIR", help="The artifact store; default $TRTFORGE_HOME or .trtforge.")
]

#: bytes of weights that a look at what is made may hash: about a quarter of a second
MOST_HASHED = 256 << 20


class Failed(Exception):
    """Ends a command with an exit code after it has printed its result itself."""

    def __init__(self, code: ExitCode) -> None:
        super().__init__(str(int(code)))
        self.code = code


@contextmanager
def writing(output: Path) -> Iterator[None]:
    """What the system refuses while files are written below ``output``, as ``TF-CLI-064``."""
    try:
        yield
    except OSError as error:
        raise ForgeError(
            "TF-CLI-064",
            f"nothing can be written to {output}: {error.strerror or error}",
            asked=f"--output {output}",
            why="The folder is made where it is not there, and the files are written into it.",
            remedies=["name a folder that you may write to"],
        ) from error


def make_folder(output: Path | None) -> None:
    """Make the folder of ``--output`` before the work begins; raises ``TF-CLI-064``."""
    if output is not None:
        with writing(output):
            output.mkdir(parents=True, exist_ok=True)
            if not os.access(output, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _output(*, json_output: JsonOption = False, quiet: QuietOption = False, debug: DebugOption = False) -> Console:
    """The console that the options of every command ask for."""
    from trtforge.ground.console import Console

    return Console("json" if json_output else "quiet" if quiet else "human", debug)


def forge_command(function: Callable[..., None]) -> Callable[..., None]:
    """Give a function its console, ``--json``, ``--quiet`` and ``--debug``, and turn errors into exit codes.

    The function's first parameter is the console; the rest are typer parameters.
    """
    output = _parameters(_output)

    def command(**arguments: Any) -> None:
        from trtforge.ground.console_guard import quiet_libraries, stdout_guard

        console = _output(**{item.name: arguments.pop(item.name) for item in output})
        quiet_libraries()

        def body() -> None:
            # a store has refusals of its own: some commands do without one
            refuse_unusable({name: value for name, value in arguments.items() if name != "store"})
            function(console, **arguments)

        with stdout_guard(console):
            code = _run(body, console)
        raise typer.Exit(code)

    # what typer reads of a command: its name and help, and its parameters behind the console
    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__signature__ = inspect.Signature([*_parameters(function)[1:], *output])  # type: ignore[attr-defined]
    return command


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """A function's parameters with their types, the console's known without importing it; typer passes all by name."""
    known = {"Console": object, **function.__globals__}
    found = inspect.signature(function, eval_str=True, globals=known).parameters.values()
    return [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in found]


def refuse_unusable(arguments: Mapping[str, Any]) -> None:
    """Refuse the paths among named values that the system cannot look up, before a command asks what lies there.

    Every command's own paths go through here; what may be a path or something else is its command's to give.

    Raises:
        ForgeError: ``TF-CLI-022``.
    """
    from trtforge.ground.paths import path_fault

    for name, value in arguments.items():
        for path in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(path, Path) and (fault := path_fault(path)):
                shown = str(path) if len(str(path)) <= 80 else f"{str(path)[:80]}…"
                raise ForgeError(
                    "TF-CLI-022",
                    f"{name.replace('_', '-')} {shown!r} is no path: {fault}",
                    asked=shown,
                    why="The system looks up no such path, for reading or for writing.",
                    remedies=["name the file or folder that is meant"],
                )


def _run(body: Callable[[], None], console: Console) -> ExitCode:
    try:
        body()
    except Failed as failed:
        return failed.code
    except (Exception, KeyboardInterrupt) as error:
        told = _told(error)
        _say(console, told, getattr(error, "log", None))
        return told.exit_code if isinstance(told, ForgeError) else ExitCode.INTERNAL
    return ExitCode.OK


def _told(error: BaseException) -> BaseException:
    """What a user is told of an error: his own Ctrl-C and what the system denies him are no faults of trtforge."""
    if _of_an_interrupt(error):
        return interrupted()
    return _not_permitted(error) if isinstance(error, PermissionError) else error


def _of_an_interrupt(error: BaseException) -> bool:
    """Whether it came of Ctrl-C: a module that is being imported makes an ImportError of it, C code a SystemError."""
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop()
        if isinstance(one, KeyboardInterrupt):
            return True
        if one is not None and id(one) not in seen:  # cause and context of an error mostly are the same one
            seen.add(id(one))
            todo += [one.__cause__, one.__context__]
    return False


def _not_permitted(error: PermissionError) -> ForgeError:
    """What the system does not let this user do is no fault of trtforge, wherever it comes up."""
    place = str(error.filename) if error.filename is not None else "a file"
    refused = ForgeError(
        "TF-CLI-023",
        f"{place}: {error.strerror or error}",
        asked=place,
        numbers={"user": os.geteuid()},
        why="This user may not read or write there; of a folder, files are reached only with its right to search (x).",
        remedies=[f"ls -ld {shlex.quote(place)} shows the rights", "run as a user who has them, or change them"],
    )
    refused.__cause__ = error
    return refused


def _say(console: Console, error: BaseException, log: str | None) -> None:
    """Print an error; where stdout does not take its document, that is said on stderr, and the exit code stays."""
    try:
        console.error(error, log=log)
    except ForgeError as lost:
        console.error(lost)


def server_log(name: str) -> Path:
    """Where the output of a server goes that is started for ``name``: beside the logs of runs."""
    from trtforge.pipeline.runlog import log_file
    from trtforge.store.store import default_root

    return log_file(default_root(None) / "logs", name)


def open_store(option: Path | None, *, read_only: bool = False) -> Store:
    """The artifact store that ``--store``, ``TRTFORGE_HOME`` or the working directory says.

    ``read_only`` is for commands that only look: nothing is made, and a store without write permission will do.
    """
    from trtforge.store.store import Store, default_root

    root = default_root(option)
    if read_only:  # else making it says so
        refuse_unusable({"store": root})
    return Store(root, read_only=read_only)


def preflight(
    loaded: LoadedRecipe,
    *,
    model: Model | None,
    store: Path | None = None,
    machine: Surroundings | bool = True,
    forced: Collection[str] = (),
) -> Report:
    """Preflight of a loaded recipe with the shipped format table.

    ``store`` is where the results would go, or are already; of ``forced`` stages they do not count.
    """
    from trtforge.formats.table import load_formats
    from trtforge.preflight import check_report

    table, recipe = load_formats(), loaded.recipe
    parameters: Mapping[str, Parameter] | None = None
    if recipe.triton.parameters:
        from triton_repo.parameters import load_parameters

        rows = load_parameters(recipe.triton.layout).rows
        parameters = {row.name: row for row in rows if "tensorrt_llm" in row.models}
    return check_report(
        loaded,
        model=model,
        formats={row.name: row for row in table.formats},
        kv_modes={row.name: row for row in table.kv_modes},
        machine=machine,
        store=store,
        locate=locate,
        parameters=parameters,
        made=None if store is None else lambda: made_stages(loaded, store) - set(forced),
    )


def made_stages(loaded: LoadedRecipe, root: Path) -> set[str]:
    """The stages of a recipe whose results the store at ``root`` has; none where that cannot be told.

    Nor where telling would mean to hash weights: what no run has hashed as it is now, none has made anything of.
    """
    from quantize.intake import unread_bytes
    from trtforge.pipeline.catalogue import default_pipeline
    from trtforge.pipeline.explain import explain
    from trtforge.store.store import Store

    with suppress(ForgeError, OSError):  # a source that cannot be read costs nothing to look at
        if unread_bytes(loaded.recipe.model.source, loaded.directory) > MOST_HASHED:
            return set()
    try:
        rows = explain(default_pipeline(Store(root, read_only=True)), loaded)
    except (ForgeError, OSError):
        return set()
    return {row.stage for row in rows if row.path is not None or row.status == "left out"}


def locate(source: str, directory: Path) -> Located:
    """Where a source that a recipe names lies on this machine, or why it cannot lie there.

    Of a Hub model that is not downloaded, the folder of its headers, where that was fetched.
    """
    from quantize.intake.api import default_cache_dir
    from quantize.intake.hub import cached_commit, hub_cache
    from quantize.intake.hub_headers import cached_folder
    from quantize.intake.source import parse_source
    from trtforge.preflight.sources import Located

    try:
        parsed = parse_source(source, directory)
        if parsed.kind == "directory":
            return Located(source, parsed.path)
        if parsed.kind == "hf":
            commit = cached_commit(parsed)
            folder = hub_cache() / f"models--{parsed.repo.replace('/', '--')}" / "snapshots" / str(commit)
            here = folder if commit and folder.is_dir() else cached_folder(parsed, default_cache_dir())
            return Located(source, here, fetched=True)
    except ForgeError as error:
        return Located(source, problem=error.message, remedies=tuple(error.remedies))
    return Located(source)


def inspect_model(loaded: LoadedRecipe, *, early: bool = False) -> Model | None:
    """The checkpoint's record, from headers only; None when it is not on this machine yet.

    ``early`` reads a Hub model's headers by ranges, and takes a configuration without weights. Raises whatever intake
    refuses of a source that is here.
    """
    from quantize.intake import inspect_source

    model = loaded.recipe.model
    found = inspect_source(model.source, loaded.directory, allow_remote_code=model.allow_remote_code, early=early)
    return None if found is None else found.model


def counted(number: int, thing: str) -> str:
    """``1 rule``, ``2 rules``."""
    return f"{number} {thing}" + ("" if number == 1 else "s")


def refuse_chosen_formats(overrides: Sequence[str], command: str) -> None:
    """Refuse a format that ``--set`` asks a command for which chooses the formats itself: ``TF-CLI-063``."""
    for text in overrides:
        if text.partition("=")[0].strip() in ("quantize", "quantize.format", "quantize.group_size", "quantize.mixed"):
            raise ForgeError(
                "TF-CLI-063",
                f"--set {text} has no meaning for {command}, which sets formats and group sizes itself",
                asked=f"--set {text}",
                why="It would be overruled by each format that is measured.",
                remedies=["--formats NAME:GROUP,…", "--set quantize.scope=mlp and other keys below quantize"],
            )


def one_of(value: str, known: Sequence[str], *, option: str, code: str) -> str:
    """``value`` when it is known; else a refusal that names the nearest."""
    if value in known:
        return value
    from trtforge.ground.names import nearest

    near = nearest(value, list(known))
    raise ForgeError(
        code,
        f"{option} {value} is not known",
        asked=f"{option} {value}",
        numbers={"known": list(known)},
        remedies=[f"{option} {near}"] if near else [f"{option} {name}" for name in known],
    )
