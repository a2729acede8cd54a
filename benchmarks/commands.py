"""Seconds of the commands that people wait for most: help, preflight, and a rerun of a recipe that changed nothing.

    python -m benchmarks.commands [--quick] [--recipe FILE]

Each is a fresh process, interpreter and imports included; medians of the rounds count. The rerun is measured when
the recipe has been run to its bundle (``make demo``), else it is named as left out. Exit code 1 when a limit is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import common

LIMITS = {"help": 0.3, "check": 2.0, "unchanged run": 2.0}
RECIPE = Path("configs/smollm2-135m-fp8.yaml")


def seconds(arguments: list[str], rounds: int) -> list[float]:
    """Wall times of ``trtforge`` with these arguments; the command must succeed."""
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-m", "trtforge", *arguments], cwd=common.ROOT, check=True, capture_output=True)
        times.append(time.perf_counter() - begin)
    return times


def finished(recipe: Path) -> bool:
    """Whether every stage of the recipe is cached."""
    command = [sys.executable, "-m", "trtforge", "explain", str(recipe), "--json"]
    answer = subprocess.run(command, cwd=common.ROOT, check=True, capture_output=True, text=True)
    return all(stage["status"] == "cached" for stage in json.loads(answer.stdout)["stages"])


def main() -> int:
    """Print the table; 1 when a median is over its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three rounds instead of eleven")
    parser.add_argument("--recipe", type=Path, default=RECIPE, metavar="FILE")
    options = parser.parse_args()
    commands = {"help": ["--help"], "check": ["check", str(options.recipe)]}
    if finished(options.recipe):
        commands["unchanged run"] = ["run", str(options.recipe)]
    else:
        print(f"unchanged run: left out, {options.recipe} has not been run to its bundle here")
    missed = False
    for name, arguments in commands.items():
        times = seconds(arguments, 3 if options.quick else 11)
        median, limit = statistics.median(times), LIMITS[name]
        missed = missed or median >= limit
        print(f"{name:14} {median:5.2f} s ({min(times):.2f}-{max(times):.2f}), limit {limit:.1f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
