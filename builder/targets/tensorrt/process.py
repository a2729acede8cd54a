"""Runs the worker: progress from its lines, its output in the build's log, refusals with codes.

Policy: TensorRT builds in a process of its own, one build a process: a build that dies of memory or of a kernel takes
nothing with it, and no state of an earlier build is left.
"""

from __future__ import annotations

import subprocess
from collections import deque
from pathlib import Path
from typing import Any

from builder.targets.tensorrt.session import Spec
from trtforge.ground import start
from trtforge.ground.errors import ForgeError
from trtforge.ground.processes import ended_with_us, event_of, told_end
from trtforge.ground.progress import Progress
from trtforge.native.plugin_library import said_by_plugins
from trtforge.targets import DEFAULT

_TAIL = 12
_WORKER = "builder.targets.tensorrt.worker"


def run_worker(spec: Spec, spec_path: Path, progress: Progress) -> dict[str, Any]:
    """Build what ``spec`` says; the worker's facts.

    Raises:
        ForgeError: ``TF-BLD-107`` the parser or the network's interface, ``TF-BLD-108`` the builder,
            ``TF-BLD-109`` the process ended without an answer.
    """
    spec.write(spec_path)
    answer: dict[str, Any] | None = None
    depth = _Phases(progress)
    progress.start("TensorRT", None)
    with Path(spec.log).open("ab") as log:
        process = subprocess.Popen(
            start.command(_WORKER, [str(spec_path)]),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            errors="replace",
            env=start.variables(),
            start_new_session=True,  # the terminal's interrupt is the parent's to handle
        )
        with ended_with_us(process):
            assert process.stdout is not None
            for line in process.stdout:
                event = event_of(line)
                if event is None:
                    log.write(line.encode())
                elif event["event"] in ("done", "failed"):
                    answer = event
                else:
                    depth.tell(event)
            process.wait()
    if answer is None:
        raise _died(process.returncode, Path(spec.log))
    if answer["event"] == "failed":
        raise _refused(answer, spec)
    return {key: value for key, value in answer.items() if key != "event"}


class _Phases:
    """TensorRT's nested phases as steps: the outermost one that counts is what a person watches."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._shown: str | None = None
        self._done = 0

    def tell(self, event: dict[str, Any]) -> None:
        if event["event"] == "start" and (self._shown is None or event["parent"] is None) and event["steps"] > 1:
            self._shown, self._done = event["phase"], 0
            self._progress.start(f"TensorRT: {event['phase']}", float(event["steps"]))
        elif event["event"] == "step" and event["phase"] == self._shown:
            step = event["step"] + 1
            self._progress.advance(float(max(0, step - self._done)))
            self._done = max(self._done, step)
        elif event["event"] == "finish" and event["phase"] == self._shown:
            self._shown = None


def _tail(log: Path) -> list[str]:
    with log.open(encoding="utf-8", errors="replace") as file:
        return [line.rstrip() for line in deque(file, maxlen=_TAIL) if line.strip()]


def _refused(answer: dict[str, Any], spec: Spec) -> ForgeError:
    step, messages = answer["step"], list(answer["messages"])
    said = " | ".join(messages) or "it said nothing"
    said_so = said_by_plugins(messages)
    if said_so is not None:
        return ForgeError(
            said_so[0],
            said_so[1],
            asked=spec.weights,
            numbers={"step": step, "messages": messages},
            why="A plugin refused its node; TensorRT only says that it could not be made.",
            remedies=[
                f"build.target: {DEFAULT.name} runs the same graph",
                "docs/plugins.md lists the fields, types and shapes that have kernels",
            ],
        )
    if step in ("parse", "interface", "plugins"):
        return ForgeError(
            "TF-BLD-107",
            f"TensorRT does not take the graph ({step}): {messages[0] if messages else 'no message'}",
            asked=spec.weights,
            numbers={"messages": messages},
            why=said,
            remedies=[
                "trtforge stack check compares the TensorRT that is loaded with the stack",
                "another version: trt-10.16 or trt-11.4 (trtforge stack list)",
                f"build.target: {DEFAULT.name} runs the same graph",
            ],
        )
    return ForgeError(
        "TF-BLD-108",
        f"TensorRT's builder failed ({step}): {messages[0] if messages else 'no message'}",
        asked=spec.plan,
        numbers={"messages": messages, "aliased_io": spec.aliased_io},
        why=said,
        remedies=[
            "read build.log",
            "out of memory wants smaller build.limits or build.tensorrt.workspace",
            "build.tensorrt.optimization_level: 2 tries fewer kernels",
        ],
    )


def _died(code: int, log: Path) -> ForgeError:
    tail = _tail(log)
    return ForgeError(
        "TF-BLD-109",
        f"The process that ran TensorRT's builder ended with {told_end(code)}",
        asked=str(log),
        numbers={"exit_code": code, "log": tail},
        why=tail[-1] if tail else "It wrote no log.",
        remedies=[
            "SIGKILL is most often the machine's memory: about 4 GB for each billion parameters are needed",
            "read build.log",
            "trtforge stack check tells whether the libraries fit together",
        ],
    )
