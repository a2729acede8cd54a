"""``python -m scripts.fuzz TARGET [--seconds N] [--first CASE] [--cases N]``; exit code 1 when there are faults.

Run it from the checkout's root, at a low priority (``nice -n 10``). ``all`` runs every target in turn. One case again:
``--first CASE --cases 1``.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import resource
import sys

from scripts.fuzz.harness import run_target
from scripts.fuzz.targets import TARGETS

#: address space of the process: a case that asks for more gets a MemoryError, which is a fault
ADDRESS_SPACE = 24 * 2**30


def main() -> int:
    """Run, and print one JSON object a target."""
    parser = argparse.ArgumentParser(prog="python -m scripts.fuzz", description="Mutated inputs against their readers.")
    parser.add_argument("target", choices=[*TARGETS, "all"])
    parser.add_argument("--seconds", type=float, help="stop after that many seconds a target (default 60)")
    parser.add_argument("--first", type=int, default=0, metavar="CASE", help="number of the first case")
    parser.add_argument("--cases", type=int, help="stop after that many cases")
    options = parser.parse_args()
    seconds = options.seconds if options.seconds is not None or options.cases is not None else 60.0
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, resource.getrlimit(resource.RLIMIT_AS)[1]))
    faulty = False
    for name in TARGETS if options.target == "all" else [options.target]:
        target = TARGETS[name]
        faulthandler.dump_traceback_later((seconds or 3600) + 60 * target.seconds, exit=True)  # a hang in native code
        tally = run_target(target, first=options.first, cases=options.cases, seconds=seconds)
        for numbers in tally.kinds().values():  # the first of each kind whole
            print(f"case {numbers[0]}: {tally.faults[numbers[0]]}", file=sys.stderr)
        print(json.dumps({"target": name, **tally.to_json()}, indent=2), flush=True)
        faulty = faulty or bool(tally.faults)
    faulthandler.cancel_dump_traceback_later()
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main())
