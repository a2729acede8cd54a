"""Processes that render chat templates: started when needed, kept, replaced when they die.

Policy: the calling thread waits for its own text only. Each process does one job at a time; a caller that finds none
idle starts another, up to :data:`MOST`, and waits for its turn past that. A job that is not done after
:data:`ORDINARY_SECONDS` gives its place away and goes on beside, at low priority, where there is room for few: so
ordinary chats do not wait for slow ones, however many there are. What passes a limit loses its process, not the
caller's. The processes end with this one, however it ends.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

#: processor seconds of a job: a chat of 200,000 tokens takes about a tenth
SECONDS = 2.0
#: seconds on the clock after which a job is given up whatever it did with them
CLOCK_SECONDS = 20.0
#: seconds that a process may take to start
START_SECONDS = 60.0
#: address space of a process; Python and jinja2 take about 40 MB of it
BYTES = 512 * 2**20
#: characters of a text: more than the longest contexts hold (a million tokens are about four million characters)
CHARACTERS = 16 * 2**20
#: processor seconds after which a job is a slow one; most take a hundredth of it
ORDINARY_SECONDS = 0.15
#: processes at most, of those that render and of those that go on beside with slow jobs
MOST = 4
MOST_SLOW = 2
#: seconds between two looks at what a job has used
_LOOK = 0.05

_SCRIPT = Path(__file__).with_name("chat_process.py")
#: what a template's process may know: how Python is found, and which time it is here
_ENVIRONMENT = ("PATH", "LD_LIBRARY_PATH", "PYTHONHOME", "TZ")


class PastLimit(Exception):
    """A job was more than it is given: ``processor time``, ``time``, ``memory``, ``output`` or ``a place beside slow
    ones``."""


class NoRenderer(Exception):
    """No process can be started, and why."""


class _Process:
    """One process and its socket; not thread-safe."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [_interpreter(), "-s", "-S", "-B", str(_SCRIPT)],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                    start_new_session=True,  # the terminal's interrupt is the parent's to handle
                )
        except OSError as error:
            ours.close()
            raise NoRenderer(f"{type(error).__name__}: {error}") from None
        self._socket = ours
        path = [entry for entry in sys.path if isinstance(entry, str)]
        limits = {"path": path, "bytes": BYTES, "seconds": SECONDS, "characters": CHARACTERS}
        try:
            answer = self.ask(json.dumps(limits).encode(), START_SECONDS)
        except PastLimit as error:
            raise NoRenderer(f"it does not start ({error}; exit code {self._process.returncode})") from None
        if "ready" not in answer:
            self.end()
            raise NoRenderer(str(answer.get("missing")))

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def used(self) -> float:
        """Processor seconds since its start; 0 where the system does not tell."""
        try:
            # the fields after the name, which is in brackets and may hold anything
            fields = Path(f"/proc/{self._process.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            return 0.0

    def yield_to_others(self) -> None:
        """Go on at the lowest priority."""
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, self._process.pid, 19)

    def ask(
        self, body: bytes, seconds: float = CLOCK_SECONDS, *, on_wait: Callable[[], None] | None = None
    ) -> dict[str, Any]:
        """The answer to a message in JSON; a process without one is ended.

        ``on_wait`` is called again and again until the answer begins; what it raises ends the process too.

        Raises:
            PastLimit: it ended, or the time did.
        """
        deadline = time.monotonic() + seconds
        try:
            self._socket.settimeout(seconds)
            # a process that has died must not end this one with SIGPIPE
            self._socket.sendall(len(body).to_bytes(8, "little") + body, socket.MSG_NOSIGNAL)
            size = int.from_bytes(self._exactly(8, deadline, on_wait), "little")
            answer = json.loads(self._exactly(size, deadline))
            assert isinstance(answer, dict)
        except TimeoutError:
            self.end()
            raise PastLimit("time") from None
        except OSError:
            raise PastLimit(self._why_ended()) from None
        except BaseException:  # Ctrl-C: an answer that nobody reads would be the next job's
            self.end()
            raise
        return answer

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._socket.close()

    def forget(self) -> None:
        """Leave it to the process that this one was forked from."""
        self._process.returncode = 0  # nothing to wait for here
        self._socket.close()

    def _why_ended(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOCK_SECONDS)
        code = self._process.poll()
        self.end()
        # without an answer: the kernel's memory killer, or a stack that a nested expression filled
        return "processor time" if code == -signal.SIGPROF else "memory"

    def _exactly(self, count: int, deadline: float, on_wait: Callable[[], None] | None = None) -> bytes:
        parts = []
        while count:
            left = deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left if on_wait is None else min(left, _LOOK))
            try:
                part = self._socket.recv(min(count, 1 << 20))
            except TimeoutError:
                if on_wait is None:
                    raise
                on_wait()
                continue
            if not part:
                raise ConnectionResetError
            parts.append(part)
            count -= len(part)
        return b"".join(parts)


class Workers:
    """The processes of this one. Thread-safe, and empty again in a forked child."""

    def __init__(self) -> None:
        self._reset()
        os.register_at_fork(after_in_child=self._forget)
        atexit.register(self.close)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()
        self._slow: set[_Process] = set()
        self._starting = 0

    def run(self, template: str, variables: Mapping[str, Any] | None) -> dict[str, Any]:
        """The answer of :mod:`trtforge.templates.chat_process` to one job; ``variables`` None compiles only.

        Raises:
            PastLimit, NoRenderer: there is none.
            ValueError, TypeError, RecursionError: ``variables`` are no JSON.
        """
        job = json.dumps({"template": template, "variables": variables}).encode()
        process = self._take()
        usable, before = False, process.used()

        def look() -> None:
            if process not in self._slow and process.used() - before > ORDINARY_SECONDS:
                self._set_aside(process)

        try:
            answer = process.ask(job, on_wait=look)
            # one that was set aside keeps its low priority: it is not used again
            usable = answer.get("limit") != "memory" and process not in self._slow
        finally:
            self._give(process, usable)
        if "limit" in answer:
            raise PastLimit(str(answer["limit"]))
        return answer

    def _set_aside(self, process: _Process) -> None:
        """Let a slow job go on beside the others; PastLimit where too many do already."""
        with self._changed:
            if len(self._slow) >= MOST_SLOW:
                raise PastLimit("a place beside slow ones")
            self._busy.discard(process)
            self._slow.add(process)
            self._changed.notify()
        process.yield_to_others()

    def start(self) -> None:
        """Have a process ready, so that the first job does not wait for its start.

        Raises:
            NoRenderer: none can be started.
        """
        self._give(self._take(), True)

    def close(self) -> None:
        """End the idle processes; busy ones end with their job."""
        with self._changed:
            idle, self._idle = self._idle, []
        for process in idle:
            process.end()

    def _take(self) -> _Process:
        with self._changed:
            while not self._idle and len(self._busy) + self._starting >= MOST:
                self._changed.wait()
            while self._idle:
                process = self._idle.pop()
                if process.alive:
                    self._busy.add(process)
                    return process
                process.end()
            self._starting += 1
        made: _Process | None = None
        try:
            made = _Process()
        finally:
            with self._changed:
                self._starting -= 1
                if made is not None:
                    self._busy.add(made)
                else:
                    self._changed.notify()
        return made

    def _give(self, process: _Process, usable: bool) -> None:
        with self._changed:
            self._busy.discard(process)
            self._slow.discard(process)
            if usable:
                self._idle.append(process)
            self._changed.notify()
        if not usable:
            process.end()

    def _forget(self) -> None:
        for process in (*self._idle, *self._busy, *self._slow):
            process.forget()
        self._reset()


def _interpreter() -> str:
    """This Python as a program; a server that has Python inside names itself in ``sys.executable``."""
    version = f"python3.{sys.version_info.minor}"
    candidates = (sys.executable, f"{sys.exec_prefix}/bin/{version}", shutil.which(version), shutil.which("python3"))
    for candidate in candidates:
        if candidate and Path(candidate).name.startswith("python") and os.access(candidate, os.X_OK):
            return candidate
    raise NoRenderer(f"no program {version} beside this Python or on PATH")


WORKERS = Workers()
