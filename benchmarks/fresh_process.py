"""What the benchmarks of the checks share: a command of ``trtforge`` in a fresh process, imports included."""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_CHILD = """
import sys
from trtforge.cli.main import invoke
invoke(sys.argv[1:])
print("torch" in sys.modules, file=sys.stderr)
"""


@dataclass(frozen=True)
class Round:
    """Wall-clock seconds of one command, seconds of processor time, its JSON document, and whether torch came in."""

    seconds: float
    processor_seconds: float
    document: dict[str, Any]
    torch_imported: bool


def measure(*arguments: str) -> Round:
    """One round of ``trtforge`` with these arguments and ``--json``."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, *arguments, "--json"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    seconds = time.perf_counter() - start
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Round(seconds, processor, json.loads(done.stdout), done.stderr.split()[-1] == "True")


def figures_of(rounds: Sequence[Round]) -> dict[str, Any]:
    """What every benchmark of this kind reports of its rounds."""
    seconds = [one.seconds for one in rounds]
    return {
        "median_seconds": statistics.median(seconds),
        "fastest": min(seconds),
        "slowest": max(seconds),
        "processor_seconds": statistics.fmean(one.processor_seconds for one in rounds),
        "torch_imported": any(one.torch_imported for one in rounds),
        "cores": os.cpu_count(),
    }
