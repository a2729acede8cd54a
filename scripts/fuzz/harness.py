"""Runs mutated cases of one target and judges each by one rule.

The rule: a case ends by itself or with a :class:`~trtforge.ground.errors.ForgeError` of exit code 1 to 3, within its
time and memory. Anything else is a fault: another exception, exit code 4, a hang, too much memory, a half-written
artifact. The same number gives the same case of a target.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import shutil
import signal
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from trtforge.ground.errors import ForgeError

#: one case: draws from the Random, works in the empty folder
Attempt = Callable[[random.Random, Path], None]
_CODE = re.compile(r"TF-[A-Z][A-Z0-9]*-\d{3}|TF-INTERRUPTED")


class Fault(Exception):
    """What an attempt finds wrong by itself."""


class Hung(BaseException):
    """A case took longer than it may; no ``except Exception`` of ours keeps it."""


@dataclass(frozen=True)
class Target:
    """What is fuzzed.

    Attributes:
        name: as the command line says it.
        about: what is mutated and what reads it.
        make: the attempt over valid inputs, which it writes into an empty folder.
        seconds: of processor a case may take.
        megabytes: by which a case may raise the process's memory.
        cases: how many ``make test`` runs.
    """

    name: str
    about: str
    make: Callable[[Path], Attempt]
    seconds: float = 10.0
    megabytes: int = 512
    cases: int = 60


@dataclass
class Tally:
    """How the cases ended: "fine" or a code → how many; and the faults in words."""

    ends: Counter[str] = field(default_factory=Counter)
    faults: dict[int, str] = field(default_factory=dict)
    seconds: float = 0.0
    slowest: float = 0.0
    most_megabytes: float = 0.0

    @property
    def cases(self) -> int:
        """Cases run."""
        return self.ends.total() + len(self.faults)

    def kinds(self) -> dict[str, list[int]]:
        """The faults by kind (a traceback's last frame and line) → the numbers of the cases."""
        found: dict[str, list[int]] = {}
        for number, text in sorted(self.faults.items()):
            places = re.findall(r'File ".*?([^/"]+/[^/"]+)", line (\d+)', text)
            place = f" ({places[-1][0]}:{places[-1][1]})" if places else ""
            found.setdefault(text.strip().splitlines()[-1][:200] + place, []).append(number)
        return found

    def to_json(self) -> dict[str, Any]:
        """Figures for people and documents."""
        return {
            "cases": self.cases,
            "seconds": round(self.seconds, 1),
            "fine": self.ends["fine"],
            "refused": self.ends.total() - self.ends["fine"],
            "codes": dict(sorted((code, n) for code, n in self.ends.items() if code != "fine")),
            "slowest_seconds": round(self.slowest, 2),
            "most_megabytes": round(self.most_megabytes),
            "faults": {words: numbers[:20] for words, numbers in self.kinds().items()},
        }


def run_target(
    target: Target,
    *,
    first: int = 0,
    cases: int | None = None,
    seconds: float | None = None,
) -> Tally:
    """Run cases ``first``, ``first`` + 1, … until ``cases`` are done or ``seconds`` are over; main thread only."""
    tally = Tally()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"fuzz-{target.name}-") as temporary:
        pristine, folder = Path(temporary) / "valid", Path(temporary) / "case"
        pristine.mkdir()
        attempt = target.make(pristine)
        number = first
        while (cases is None or number < first + cases) and (seconds is None or time.monotonic() < started + seconds):
            folder.mkdir()
            text = run_case(target, attempt, number, folder, tally)
            if text is not None:
                tally.faults[number] = text
            _remove(folder)
            number += 1
    tally.seconds = time.monotonic() - started
    return tally


def run_case(target: Target, attempt: Attempt, number: int, folder: Path, tally: Tally) -> str | None:
    """One case; the fault in words, or None."""
    draw = random.Random(f"{target.name} {number}")
    before, fresh = _memory("VmRSS"), _forget_peak()
    began = time.process_time()
    try:
        with _limited(target.seconds):
            attempt(draw, folder)
        end = "fine"
    except ForgeError as error:
        if int(error.exit_code) not in (1, 2, 3) or not _CODE.fullmatch(error.code):
            return f"{error.code} with exit code {int(error.exit_code)}"
        end = error.code
    except Hung:
        return f"more than {target.seconds:g} s: {_where()}"
    except Fault as fault:
        return str(fault)
    except BaseException:
        return traceback.format_exc(limit=-8)
    took, grew = time.process_time() - began, (_memory("VmHWM") - before if fresh else 0.0)
    tally.slowest, tally.most_megabytes = max(tally.slowest, took), max(tally.most_megabytes, grew)
    if grew > target.megabytes:
        return f"{grew:.0f} MB of memory; {target.megabytes} are allowed"
    tally.ends[end] += 1
    return None


def command(*arguments: str | Path) -> dict[str, Any]:
    """Run one command of ``trtforge`` with ``--json`` in this process; its document.

    Raises:
        ForgeError: its refusal.
        Fault: exit code 4 or another that it may not have, or no document.
    """
    from trtforge.cli.app import invoke

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = invoke([*map(str, arguments), "--json"])
    try:
        document = json.loads(out.getvalue())
    except ValueError:
        raise Fault(f"exit code {code}, no document: {out.getvalue()[-500:]} {err.getvalue()[-2000:]}") from None
    if code not in (0, 1, 2, 3):
        raise Fault(f"exit code {code}: {json.dumps(document)[:2000]}")
    error = document.get("error") if isinstance(document, dict) else None
    if isinstance(error, dict):
        raise ForgeError(str(error["code"]), str(error["message"]), exit_code=error["exit_code"])
    if code:
        raise ForgeError("TF-CLI-001", "findings", exit_code=code)
    return document if isinstance(document, dict) else {"result": document}


_stack: list[str] = []


def _where() -> str:
    return "".join(_stack[-6:])


@contextlib.contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def hung(number: int, frame: FrameType | None) -> None:
        _stack[:] = traceback.format_stack(frame)
        raise Hung

    # processor time for loops, time on the clock (far more of it) for waits
    before = {number: signal.signal(number, hung) for number in (signal.SIGPROF, signal.SIGALRM)}
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, 20 * seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


def _forget_peak() -> bool:
    """Start the process's peak of memory anew; False where the kernel does not let us."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _memory(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    return 0.0


def _remove(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(folder)
