"""Entry point of ``trtforge``: what a process owes its caller from its first moment to its last.

Policy: this module imports nothing but the standard library, so that Ctrl-C during the imports of the rest ends like
any other, with exit code 130 and no traceback, and so that a stdout that takes no output is said in one line.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence


def invoke(arguments: Sequence[str]) -> int:
    """Run one command line; its exit code."""
    from trtforge.cli.app import invoke as run

    return run(arguments)


def main() -> None:
    arguments = sys.argv[1:]
    try:
        code = invoke(arguments)
        if sys.stdout is not None:
            sys.stdout.flush()
    except KeyboardInterrupt:
        code = _interrupted(arguments)
    except OSError as error:
        code = _lost(error)
    # the exit code stands: what comes while the interpreter ends must not change it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def _interrupted(arguments: Sequence[str]) -> int:
    """Say it as a command does, even when none had begun; a second Ctrl-C changes nothing any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    from trtforge.ground.console import Console
    from trtforge.ground.errors import ExitCode, interrupted

    Console("json" if "--json" in arguments else "human").error(interrupted())
    return int(ExitCode.INTERRUPTED)


def _lost(error: OSError) -> int:
    """The help or the version could not be printed."""
    from trtforge.ground.console import Console, output_lost

    # what is still buffered must not fail again when the interpreter ends
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    lost = output_lost(error)
    Console().error(lost)
    return int(lost.exit_code)


if __name__ == "__main__":
    main()
