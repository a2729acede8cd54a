"""Runs code that a model wrote, in a process with little to reach.

The process has its own temporary folder and an empty environment, limits on processor time, memory, file sizes and
processes, and a deadline after which it and its children are killed. Where ``unshare`` can make them, it has a user,
a network and a process namespace of its own: no network, and no process outlives it, not even one that left its
session. Its tests run in its own process: they find code that is wrong, not code that sets out to fool them. It reads
what the user may read; run evaluations of code in a container when that matters.
"""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

SECONDS = 10.0
MEMORY = 512 * 2**20
FILE_BYTES = 2**20
PROCESSES = 64
FILES = 64
#: characters of what a failed run printed that are kept
_SHOWN = 400


@dataclass(frozen=True)
class Ran:
    """What came of a run: ``detail`` says why it did not pass; ``isolated`` whether it had no network."""

    passed: bool
    detail: str
    isolated: bool


@functools.cache
def network_isolation() -> tuple[str, ...]:
    """The command in front that takes the network away, and ends what outlives the program where this machine can.

    Empty where it allows no such namespace.
    """
    unshare = shutil.which("unshare")
    if unshare is None:
        return ()
    for more in (("--pid", "--fork", "--kill-child"), ()):
        command = (unshare, "--user", "--map-root-user", "--net", *more, "--")
        if subprocess.run([*command, "true"], capture_output=True, check=False, timeout=10).returncode == 0:
            return command
    return ()


def run_python(code: str, tests: str, *, seconds: float = SECONDS, memory: int = MEMORY) -> Ran:
    """Run ``code`` and then ``tests`` in one module; passed when the last statement was reached without an exception.

    That it was is said by a word which only the run's end prints: code that ends the process early has not passed.
    """
    isolation = network_isolation()
    word = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="trtforge-code-") as folder:
        program = Path(folder) / "program.py"
        program.write_text(f"{code}\n\n{tests}\n\nprint({word!r})\n", encoding="utf-8", errors="replace")
        # a file, not a pipe: what it prints is bounded like all that it writes
        with tempfile.TemporaryFile() as printed:
            process = subprocess.Popen(
                [*isolation, sys.executable, "-I", "-S", "-B", str(program)],
                cwd=folder,
                env={"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8"},
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=functools.partial(_limit, seconds, memory),
            )
            late = False
            try:
                process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                late = True
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            printed.seek(0)
            text = printed.read().decode("utf-8", errors="replace")
    said = text.rstrip().endswith(word)
    passed = not late and process.returncode == 0 and said
    detail = f"not done after {seconds:g} s" if late else "" if passed else text.replace(word, "")[-_SHOWN:]
    if not passed and not detail:
        detail = f"it ended early with code {process.returncode}"
    return Ran(passed, detail, bool(isolation))


def _limit(seconds: float, memory: int) -> None:
    """In the child, before the program: limits that it cannot raise."""
    for kind, most in (
        (resource.RLIMIT_CPU, int(seconds) + 1),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, FILE_BYTES),
        (resource.RLIMIT_NOFILE, FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (most, most))
    # counted over all of the user's processes: root's and a busy user's are above any sensible number already
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NPROC, (PROCESSES, PROCESSES))
