"""A module run as a program in a process of its own, forked from one that has imported the heavy libraries.

A fresh interpreter spends ten seconds of a processor on torch, transformers and ModelOpt before it does anything that
a fault test is about. The standard library's fork server imports them once; what it forks has its own process id, dies
of its own signals, and shares nothing with this process. Its environment is the one of the first start.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HEAVY = (
    "torch",
    "transformers.models.auto.modeling_auto",
    "transformers.models.llama.modeling_llama",
    "modelopt.torch.quantization",
    "modelopt.torch.export",
    "onnx",
)
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(list(HEAVY))


class Forked:
    """A started program, with what of ``subprocess.Popen`` the fault tests need."""

    def __init__(self, module: str, words: Sequence[str], *, out: Path | None = None, err: Path | None = None) -> None:
        """Start ``python -m module words`` in the checkout, in a new session; output goes to files or nowhere."""
        paths = [str(path) if path else os.devnull for path in (out, err)]
        # the fork server takes over where it was started from
        with contextlib.chdir(ROOT):
            self._process = _SERVER.Process(target=_program, args=(module, list(words), *paths))
            self._process.start()

    def poll(self) -> int | None:
        """The exit status, a signal's number negative; None while it runs."""
        return self._process.exitcode

    def wait(self, seconds: float) -> int:
        """The exit status; ``TimeoutError`` when it still runs after so many seconds."""
        self._process.join(seconds)
        status = self.poll()
        if status is None:
            raise TimeoutError(f"process {self._process.pid} still runs after {seconds} s")
        return status

    def send_signal(self, number: int) -> None:
        """Send one signal to the process, and to no child of it."""
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()


def run(module: str, words: Sequence[str], *, seconds: float = 600) -> subprocess.CompletedProcess[str]:
    """Run a module to its end; what it wrote to standard output and standard error is in the result."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = Forked(module, words, out=out, err=err)
        try:
            status = process.wait(seconds)
        finally:
            process.kill()
        return subprocess.CompletedProcess([module, *words], status, out.read_text(), err.read_text())


def _program(module: str, words: list[str], out: str, err: str) -> None:
    os.setsid()
    for path, descriptor in ((out, 1), (err, 2)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.argv = [module, *words]
    os.chdir(ROOT)
    runpy.run_module(module, run_name="__main__", alter_sys=True)
