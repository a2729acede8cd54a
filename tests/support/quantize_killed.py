"""``python -m tests.support.quantize_killed SOURCE OUT SCRATCH STEP``: FP8 layer by layer, killed where STEP begins."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


class _Killing:
    def __init__(self, step: str) -> None:
        self._step = step

    def start(self, description: str, total: float | None = None) -> None:
        if description == self._step:
            os.kill(os.getpid(), signal.SIGKILL)

    def advance(self, amount: float = 1.0) -> None: ...

    def note(self, text: str) -> None: ...


def main() -> None:
    from quantize.checkpoint import quantize_checkpoint
    from trtforge.recipe.schema import Quantize

    source, out, scratch = map(Path, sys.argv[1:4])
    section = Quantize(format="fp8", kv_cache="fp8", calibration={"samples": 4, "sequence_length": 64})
    quantize_checkpoint(
        source,
        out,
        section=section,
        base_dir=source,
        scratch=scratch,
        loading="by_layer",
        progress=_Killing(sys.argv[4]),
    )


if __name__ == "__main__":
    main()
