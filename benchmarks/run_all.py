"""Every benchmark in one run, one after the other, on the engines of the shipped recipes.

    python -m benchmarks.run_all [--quick] [--json FILE]

The first run downloads and builds what is measured; OpenVINO joins when ``benchmarks.openvino_setup`` has made
its environment. Exit code 1 when any bar is missed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import common, continuous_batching, single_stream

#: module, options, options of a quick run: benchmarks that report by their exit code
OTHERS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("benchmarks.scheduler", (), ("--steps", "60")),
    ("benchmarks.attention", (), ("--quick",)),
    ("benchmarks.commands", (), ("--quick",)),
    ("benchmarks.graph_70b", (), ()),
    ("benchmarks.preflight", (), ("--rounds", "2")),
    ("benchmarks.lint", (), ("--rounds", "2")),
    ("benchmarks.audit", (), ("--rounds", "2")),
    ("benchmarks.planner_bars", (), ()),
    ("benchmarks.evaluation", (), ("--rounds", "2")),
    ("benchmarks.triton_repository", (), ("--quick",)),
    ("benchmarks.guided_speculation", (), ("--quick",)),
    ("benchmarks.speculation_host", (), ("--steps", "60")),
    ("benchmarks.openai_front", (), ("--quick",)),
)


def main() -> int:
    """Run all; the summary comes last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common.add_arguments(parser)
    arguments = parser.parse_args()
    common.find_models(arguments)
    figures: dict[str, Any] = {}
    held: dict[str, bool] = {}
    for module in (single_stream, continuous_batching):
        name = module.__name__.rsplit(".", 1)[1]
        figures[name] = module.measure(arguments)
        module.report(figures[name])
        held |= {f"{name}: {bar}": ok for bar, ok in figures[name]["bars"].items()}
    for module_name, options, quick in OTHERS:
        print(f"\n{module_name}", flush=True)
        command = [sys.executable, "-m", module_name, *(quick if arguments.quick else options)]
        held[module_name] = subprocess.run(command, cwd=common.ROOT, check=False).returncode == 0
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures | {"held": held}, indent=1) + "\n")
    print("\nsummary")
    for name, ok in held.items():
        print(f"  {'holds ' if ok else 'MISSED'} {name}")
    return 0 if all(held.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
