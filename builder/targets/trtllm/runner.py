"""trtllm-build in place: where TensorRT-LLM can be imported, its own command compiles the engine.

Policy: the version is asked of the package that Python would import, in a process of its own (importing it takes
a minute of memory and loads CUDA). The command's output goes to a log; a build that fails takes its output
folder with it and is told by the log's last lines.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import deque
from importlib.util import find_spec
from pathlib import Path

from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.ground.processes import ended_with_us
from trtforge.ground.progress import Progress
from trtforge.machine.gpus import gpu_architectures

COMMAND = "trtllm-build"
#: what the builder prints when it writes a rank's plan
_WRITTEN = "Serializing engine to"
_TAIL = 12
_VERSION_CODE = "import tensorrt_llm; print('\\n' + tensorrt_llm.__version__)"


def why_not_here(version: str) -> str | None:
    """Why the engine of that version cannot be compiled on this machine; None when it can."""
    if find_spec("tensorrt_llm") is None or shutil.which(COMMAND) is None:
        return f"TensorRT-LLM {version} is not installed on the machine that ran this"
    if not gpu_architectures():
        return "the machine that ran this has no GPU, and an engine is compiled on the one that serves it"
    try:
        found = _installed_version()
    except ImportError as error:
        return f"TensorRT-LLM is installed and cannot be imported: {error}"
    if found != version:
        return f"TensorRT-LLM {found} is not the stack's {version}"
    return None


def _installed_version() -> str:
    """``tensorrt_llm.__version__`` of this Python's package.

    Raises:
        ImportError: importing it fails, with the line that says why.
    """
    try:
        done = subprocess.run([sys.executable, "-c", _VERSION_CODE], capture_output=True, text=True, timeout=300)
    except (OSError, subprocess.SubprocessError) as error:
        raise ImportError(str(error)) from error
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        said = done.stderr.strip().splitlines()
        raise ImportError(said[-1] if said else f"Python ended with code {done.returncode}")
    return lines[-1].strip()


def run_build(command: list[str], out: Path, log: Path, *, ranks: int, progress: Progress) -> None:
    """Run trtllm-build; ``out`` is what its ``--output_dir`` says and is removed when it fails.

    Raises:
        EnvironmentLacks: ``TF-BLD-050`` the command does not start.
        ForgeError: ``TF-BLD-051`` it ended with an error, told by its last lines.
    """
    progress.start("trtllm-build", float(ranks))
    tail: deque[str] = deque(maxlen=_TAIL)
    code: int | None = None
    try:
        try:
            process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                cwd=log.parent,
                start_new_session=True,  # its workers are in its group, and end with it
            )
        except OSError as error:
            raise EnvironmentLacks(
                "TF-BLD-050",
                f"{command[0]} does not start: {error}",
                asked=" ".join(command[:1]),
                why="TensorRT-LLM's command is missing or broken.",
                remedies=["use the stack's container (trtforge stack list)", "install TensorRT-LLM again"],
            ) from error
        with ended_with_us(process):
            assert process.stdout is not None
            with log.open("w", encoding="utf-8") as file:
                for line in process.stdout:
                    file.write(line)
                    tail.append(line.rstrip())
                    if _WRITTEN in line:
                        progress.advance(1.0)
            code = process.wait()
    finally:
        if code != 0:
            shutil.rmtree(out, ignore_errors=True)
    if code != 0:
        raise ForgeError(
            "TF-BLD-051",
            f"{command[0]} ended with code {code}",
            asked=" ".join(command),
            numbers={"exit_code": code},
            why=" | ".join(line for line in tail if line) or "it printed nothing",
            remedies=[
                "read the lines above: out of memory wants smaller build.limits or more ranks",
                "trtforge stack check compares what is loaded with what the stack needs",
            ],
        )
