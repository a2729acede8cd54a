"""Runs the worker: one process an engine, progress from its events, its log kept."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.targets.rtx import refusals
from builder.targets.rtx.profiles import Shape
from trtforge.ground.processes import ended_with_us, event_of
from trtforge.ground.progress import Progress

WORKER = Path(__file__).resolve().with_name("worker.py")
_TAIL = 12


@dataclass(frozen=True)
class Request:
    """What the worker builds.

    Attributes:
        model: a file with the lowered graph.
        weights: the path that the graph's external files lie beside.
        engine: where the RTX engine goes.
        architecture: such as ``sm_89``.
        profiles: the shapes of every input by profile.
    """

    model: Path
    weights: Path
    engine: Path
    architecture: str
    profiles: tuple[dict[str, tuple[Shape, Shape, Shape]], ...]

    def to_json(self) -> str:
        return json.dumps(
            {
                "model": str(self.model.resolve()),
                "weights": str(self.weights.resolve()),
                "engine": str(self.engine.resolve()),
                "capability": self.architecture.replace("sm_", "SM"),
                "profiles": list(self.profiles),
            }
        )


def compile_engine(request: Request, log: Path, *, heap: Path, asked: str, progress: Progress) -> dict[str, Any]:
    """Build one RTX engine; ``{"bytes", "layers", "version"}``. The compiler's messages are appended to ``log``.

    Args:
        heap: the library of :func:`builder.targets.rtx.heap.compile_heap`, which the worker is started with.

    Raises:
        ForgeError: ``TF-BLD-080`` … ``TF-BLD-086`` and ``TF-BLD-090`` as :mod:`builder.targets.rtx.refusals` says.
    """
    # LD_PRELOAD separates by spaces and colons, which a path may have: it is named from the folder it lies in
    preloaded = [f"./{heap.name}", *filter(None, [os.environ.get("LD_PRELOAD")])]
    answer: dict[str, Any] | None = None
    progress.start(f"RTX engine for {request.architecture}", None)
    with log.open("ab") as file:
        file.write(f"== {request.architecture}\n".encode())
        file.flush()
        process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            errors="replace",
            start_new_session=True,
            cwd=heap.parent,
            env={**_environment(), "LD_PRELOAD": ":".join(preloaded)},
        )
        with ended_with_us(process):
            assert process.stdin is not None and process.stdout is not None
            with contextlib.suppress(BrokenPipeError):  # a worker that does not start is told by its exit code
                process.stdin.write(request.to_json())
                process.stdin.close()
            phases = _Phases(progress, request.architecture)
            for line in process.stdout:
                event = event_of(line)
                if event is not None and event["event"] in ("done", "failed"):
                    answer = event
                elif event is not None:
                    phases.tell(event)
            code = process.wait()
    if answer is not None and answer["event"] == "done" and code == 0:
        return {key: answer[key] for key in ("bytes", "layers", "version")}
    request.engine.unlink(missing_ok=True)
    if answer is None or answer["event"] == "done":
        with log.open(encoding="utf-8", errors="replace") as lines:
            tail = refusals.telling(list(deque(lines, maxlen=_TAIL)))
        raise refusals.died(code, tail, architecture=request.architecture, asked=asked)
    raise refusals.refusal(answer["step"], answer["messages"], architecture=request.architecture, asked=asked)


def _environment() -> dict[str, str]:
    """Ours without what makes Python allocate otherwise: its blocks lie among the compiler's."""
    kept = ("PYTHONPATH", "PYTHONHOME")
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON") or name in kept}


class _Phases:
    """The compiler's outermost phase as a step; phases nest, and inner ones are too short to show."""

    def __init__(self, progress: Progress, architecture: str) -> None:
        self._progress, self._architecture = progress, architecture
        self._open: list[str] = []
        self._done = 0

    def tell(self, event: dict[str, Any]) -> None:
        kind, name = event["event"], str(event.get("name"))
        if kind == "phase":
            if not self._open:
                self._done = 0
                self._progress.start(f"RTX engine for {self._architecture}: {name}", float(max(1, event["steps"])))
            self._open.append(name)
        elif kind == "step" and self._open[:1] == [name]:
            self._progress.advance(float(max(0, event["done"] - self._done)))
            self._done = max(self._done, event["done"])
        elif kind == "end" and name in self._open:
            self._open.remove(name)
