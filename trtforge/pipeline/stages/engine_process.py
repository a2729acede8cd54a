"""An engine for the length of a ``with``: in this process on a CPU, in one of its own on a GPU.

Policy: a GPU's memory is planned for one engine, and the next one is in another process: Triton's, or TensorRT's
builder. What a process held is the driver's again when it ends and not before (CUDA's context, the caches of torch and
TensorRT), so an engine that runs on a GPU is loaded, asked and ended in a child. On a CPU nobody waits for the memory:
the engine is loaded here and closed. What is asked is a function of the engine that both can import.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from trtforge.ground.errors import ExitCode, ForgeError
from trtforge.ground.json_file import read_json_file
from trtforge.ground.processes import told_end
from trtforge.ground.progress import Progress
from trtforge.targets import TARGETS

if TYPE_CHECKING:
    from runtime.offline import Engine

#: seconds that a child gets to end by itself
_PATIENCE = 30.0


class Ask(Protocol):
    """``ask(function, ...)``: what ``function(engine, progress, ...)`` returns."""

    def __call__(self, function: Callable[..., Any], /, *arguments: Any) -> Any: ...


@contextlib.contextmanager
def engine_of(directory: Path, progress: Progress) -> Iterator[Ask]:
    """The engine of a directory; its memory is free when the block is left.

    Functions, arguments and results must be picklable.

    Raises:
        ForgeError: what loading and the functions raise; ``TF-RUN-121`` the engine's process died.
    """
    if not runs_on_gpu(directory):
        from runtime.offline import Engine

        with Engine.load(directory) as engine:
            yield lambda function, *arguments: function(engine, progress, *arguments)
        return
    context = multiprocessing.get_context("spawn")  # a fork would take this process's threads and libraries along
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, str(directory)), daemon=True)
    process.start()
    there.close()
    try:
        _answer(here, process, progress)  # loaded, or why not
        yield lambda function, *arguments: _call(here, process, progress, function, arguments)
    finally:
        with contextlib.suppress(OSError):
            here.send(None)
        here.close()
        process.join(_PATIENCE)
        if process.is_alive():
            process.kill()
            process.join()
        process.close()


def runs_on_gpu(directory: Path) -> bool:
    """Whether an engine is loaded on a GPU; its reader says what is wrong with a directory that is none."""
    try:
        return TARGETS[read_json_file(directory / "engine.json")["target"]].needs_gpu
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _call(here: Connection, process: Any, progress: Progress, function: Any, arguments: tuple[Any, ...]) -> Any:
    try:
        here.send((function, arguments))
    except OSError as error:
        raise _died(process) from error
    return _answer(here, process, progress)


def _answer(here: Connection, process: Any, progress: Progress) -> Any:
    """What the child says at last; its progress on the way."""
    while True:
        try:
            kind, *values = here.recv()
        except (EOFError, OSError) as error:
            raise _died(process) from error
        if kind == "progress":
            name, arguments = values
            getattr(progress, name)(*arguments)
        elif kind == "refused":
            said = values[0]
            raise ForgeError(said.pop("code"), said.pop("message"), **said | {"exit_code": ExitCode(said["exit_code"])})
        elif kind == "failed":
            raise RuntimeError(f"in the engine's process: {values[0]}")
        else:
            return values[0]


def _died(process: Any) -> ForgeError:
    process.join(_PATIENCE)
    code = process.exitcode
    return ForgeError(
        "TF-RUN-121",
        f"the process that ran the engine ended with {told_end(code)}",
        asked="an engine in a process of its own",
        numbers={"exit_code": code},
        why="SIGKILL is most often the machine's memory; a fault in a kernel or a driver ends a process too",
        remedies=[
            "look into the run's log and the kernel's (dmesg)",
            "trtforge doctor",
            "build with smaller build.limits",
        ],
    )


class _SentProgress:
    """Progress that the parent shows."""

    def __init__(self, there: Connection) -> None:
        self._there = there

    def start(self, description: str, total: float | None = None) -> None:
        self._there.send(("progress", "start", (description, total)))

    def advance(self, amount: float = 1.0) -> None:
        self._there.send(("progress", "advance", (amount,)))

    def note(self, text: str) -> None:
        self._there.send(("progress", "note", (text,)))


def _serve(there: Connection, directory: str) -> None:
    """The child: loads, answers until nothing more is asked or the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's interrupt is the parent's, which then ends this
    from runtime.offline import Engine

    progress = _SentProgress(there)
    engine: Engine | None = None

    def load() -> None:
        nonlocal engine
        engine = Engine.load(directory)

    def answered(work: Callable[[], Any]) -> bool:
        try:
            there.send(("done", work()))
        except ForgeError as error:
            there.send(("refused", error.to_json()))
            return False
        except Exception:
            there.send(("failed", traceback.format_exc()))
            return False
        return True

    with contextlib.suppress(EOFError, OSError):
        if not answered(load):
            return
        while (asked := there.recv()) is not None:
            function, arguments = asked
            answered(partial(function, engine, progress, *arguments))
