"""Watches the processes that run a server's Python models, because Triton does not.

Triton 2.51 stays ready when a model's process (its "stub") is gone: new requests are refused, those in flight of a
decoupled model wait for ever. So a server is watched from outside, and is ended with its model.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

#: how a stub is called; a dead one shows the kernel's 15 characters of it
_STUB = "triton_python_b"
PERIOD = 0.25
#: seconds that answers on their way get: a model that ends itself has told its clients why
GRACE = 1.0


def stubs_of(server: int) -> dict[psutil.Process, str]:
    """The stubs below a server's process, dead ones that nobody collected among them, with their models' names.

    A process that a model forked for itself keeps the stub's name and is none.
    """
    found: dict[psutil.Process, str] = {}
    try:
        below = psutil.Process(server).children(recursive=True)
    except psutil.Error:
        return found
    for process in below:
        try:
            if process.name().startswith(_STUB):
                found[process] = _model(process.cmdline())
        except psutil.ZombieProcess:
            found[process] = _model(())
        except psutil.Error:
            continue
    numbers = {process.pid for process in found}
    return {process: model for process, model in found.items() if _parent(process) not in numbers}


def _parent(process: psutil.Process) -> int | None:
    try:
        return process.ppid()
    except psutil.Error:
        return None


def _model(command: Sequence[str]) -> str:
    """The model's name from its stub's command line: ``…/triton_python_backend_stub …/MODEL/VERSION/model.py …``."""
    return Path(command[1]).parent.parent.name if len(command) > 1 else "a Python model"


def lives(process: psutil.Process) -> bool:
    """Whether a process runs: a zombie does not, nor does another one that took its number."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


class StubWatch:
    """A thread that says once which models' processes died.

    Args:
        server: process id of a server that is ready.
        on_death: called on the watch's own thread with the models' names as soon as they died.
        after: called on that thread :data:`GRACE` seconds later.
    """

    def __init__(self, server: int, on_death: Callable[[list[str]], None], after: Callable[[], None]) -> None:
        self._stubs = stubs_of(server)
        self._on_death = on_death
        self._after = after
        self._stop = threading.Event()
        threading.Thread(target=self._run, name="stub-watch", daemon=True).start()

    def stop(self) -> None:
        """From now on a stub may end: the server is being stopped."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(PERIOD):
            if not all(lives(process) for process in self._stubs):
                break
        else:
            return
        self._on_death(sorted({model for process, model in self._stubs.items() if not lives(process)}))
        if not self._stop.wait(GRACE):
            self._after()
