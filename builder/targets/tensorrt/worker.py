"""One build in a process of its own: ``python -m builder.targets.tensorrt.worker SPEC``.

Standard output carries one JSON object a line: progress, then ``{"event": "done", …}`` or ``{"event": "failed", …}``.
Whatever else is printed (TensorRT's own output) is the parent's to log.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from builder.targets.tensorrt.session import BuildFailed, Spec, build_plan

#: prctl(PR_SET_PDEATHSIG): the worker ends with its parent, however that ended
_PR_SET_PDEATHSIG = 1


def main(spec_path: str) -> int:
    """Run the build of a spec file; 0 when the plan is written."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    # TensorRT's libraries print to standard output: it becomes the log's, and the answers keep the real one
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)

    def report(event: dict[str, Any]) -> None:
        answers.write(json.dumps(event) + "\n")

    spec = Spec.read(Path(spec_path))
    try:
        facts = build_plan(importlib.import_module("tensorrt"), spec, report)
    except BuildFailed as failure:
        report({"event": "failed", "step": failure.step, "messages": failure.messages[-12:]})
        return 1
    except (ImportError, OSError, RuntimeError, TypeError, ValueError) as error:
        report({"event": "failed", "step": "session", "messages": [f"{type(error).__name__}: {error}"]})
        return 1
    report({"event": "done", **facts})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
