"""One RTX engine in a process of its own; run as a file with a request in JSON.

Policy: a second build of a process differs in bytes from a first one, and what the compiler does to a process
(aborts among it) must stay out of ours. So this file imports nothing of ours. The process runs on the heap of
``heap.c``, without which the bytes differ between processes too. Standard output carries one JSON object a line::

    {"event": "phase", "name": …, "steps": …} | {"event": "step", "name": …, "done": …} | {"event": "end", "name": …}
    {"event": "done", "bytes": …, "layers": …} | {"event": "failed", "step": …, "messages": […]}

Standard error carries the compiler's log.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1


def say(**event: Any) -> None:
    """One event for the parent."""
    os.write(_EVENTS, (json.dumps(event) + "\n").encode())


def fail(step: str, messages: list[str]) -> None:
    """Tell why, and end."""
    say(event="failed", step=step, messages=messages)
    sys.exit(1)


def main(request: dict[str, Any]) -> None:
    """Parse, build, write."""
    process = ctypes.CDLL(None)
    if not hasattr(process, "trtforge_heap_mark"):
        fail("heap", [os.environ.get("LD_PRELOAD", "")])
    with open(request["model"], "rb") as file:  # noqa: PTH123 (nothing is imported that is not needed)
        model = file.read()
    folder, name = os.path.split(request["weights"])
    os.chdir(folder)  # the parser is told a name: a path's length would move what is allocated after it
    process.trtforge_heap_mark(1)
    try:
        import tensorrt_rtx as trt
    except (ImportError, OSError) as error:
        fail("import", [str(error)])
    errors: list[str] = []

    class Logger(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity <= trt.ILogger.Severity.INFO:
                print(f"[{severity.name}] {message}", file=sys.stderr, flush=True)
            if severity <= trt.ILogger.Severity.ERROR:
                errors.append(message)

    class Monitor(trt.IProgressMonitor):
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
            say(event="phase", name=phase_name, steps=num_steps)

        def step_complete(self, phase_name: str, step: int) -> bool:
            say(event="step", name=phase_name, done=step + 1)
            return True

        def phase_finish(self, phase_name: str) -> None:
            say(event="end", name=phase_name)

    logger, monitor = Logger(), Monitor()
    capability = getattr(trt.ComputeCapability, request["capability"], None)
    if capability is None:
        fail("capability", [name for name in trt.ComputeCapability.__members__ if name.startswith("SM")])
    process.trtforge_heap_mark(2)  # the import read this installation's paths
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    say(event="phase", name="reading the graph", steps=1)
    if not parser.parse(model, name):
        fail("parse", [str(parser.get_error(i).desc()) for i in range(parser.num_errors)] or errors)
    say(event="end", name="reading the graph")
    config = builder.create_builder_config()
    config.progress_monitor = monitor
    config.profiling_verbosity = trt.ProfilingVerbosity.LAYER_NAMES_ONLY
    config.num_compute_capabilities = 1
    config.set_compute_capability(capability, 0)
    for shapes in request["profiles"]:
        profile = builder.create_optimization_profile()
        for name, (low, usual, high) in shapes.items():
            profile.set_shape(name, low, usual, high)
        config.add_optimization_profile(profile)
    layers = network.num_layers
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        fail("build", errors)
    with open(request["engine"], "wb") as engine:  # noqa: PTH123
        engine.write(plan)
    say(event="done", bytes=plan.nbytes, layers=layers, version=trt.__version__)


if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a killed parent leaves no compiler behind
    # what the libraries print belongs to the log, not among the events
    _EVENTS = os.dup(1)
    os.dup2(2, 1)
    main(json.load(sys.stdin))
