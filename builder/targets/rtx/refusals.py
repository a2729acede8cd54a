"""What the compiler of TensorRT for RTX refuses, as errors with codes and remedies.

The compiler's messages carry its source's line numbers; what they mean does not change with those, so the
patterns name only the words that tell one refusal from another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from trtforge.ground.errors import EnvironmentLacks, ExitCode, ForgeError
from trtforge.targets import DEFAULT

#: said wherever there is no driver, and harmless: building needs none
_NOISE = re.compile(r"CUDA driver version is insufficient|^\s*$")
_DATATYPES = re.compile(
    r"Cannot compile for target\(s\) (?P<targets>[\w, ]+), because .*?datatypes: (?P<types>[\w, ]+)"
)
_MEMORY = re.compile(
    r"out of memory|bad_alloc|insufficient memory|memory allocation|cannot allocate memory|MemoryError", re.IGNORECASE
)
_NODE = re.compile(r"node.{0,40}?name: (?P<node>\S+) and operator: (?P<op>\w+)|Invalid Node - (?P<invalid>\S+)")
_SHOWN = 6


def telling(messages: Sequence[str]) -> list[str]:
    """The messages without what every machine without a driver says, each once, shortened."""
    lines = [line for message in messages for line in message.splitlines() if not _NOISE.search(line)]
    return [line[:400] for line in dict.fromkeys(lines)]


def refusal(step: str, messages: Sequence[str], *, architecture: str, asked: str) -> ForgeError:
    """The error for a failed step of the worker (``heap``, ``import``, ``capability``, ``parse`` or ``build``)."""
    said = telling(messages)
    whole = " ".join(said)
    numbers: dict[str, Any] = {"architecture": architecture, "messages": said[:_SHOWN]}
    if step == "heap":
        return EnvironmentLacks(
            "TF-BLD-090",
            "The compiler's process did not load the heap that RTX engines are built under",
            asked=asked,
            numbers={"LD_PRELOAD": whole},
            why="A file system mounted noexec, or a loader that takes no LD_PRELOAD; build.log has the loader's words. "
            "Under the C library's heap two builds of one graph may differ.",
            remedies=["keep the store (TRTFORGE_HOME) on a file system that is not mounted noexec"],
        )
    if step == "import":
        return EnvironmentLacks(
            "TF-BLD-080",
            f"tensorrt_rtx does not import: {whole or 'no reason given'}",
            asked=asked,
            why="RTX engines are compiled by TensorRT for RTX, on the CPU; its wheel is missing or broken.",
            remedies=["pip install 'trtforge[rtx]'", f"build.target: {DEFAULT.name} needs no compiler"],
        )
    if step == "capability":
        known = [f"sm_{name.removeprefix('SM')}" for name in messages]
        return ForgeError(
            "TF-BLD-081",
            f"This TensorRT for RTX does not compile for {architecture}",
            asked=f"build.architectures: {architecture}",
            numbers={"known": known},
            why="It knows the architectures of RTX GPUs only.",
            remedies=[f"build.architectures: [{name}]" for name in known],
        )
    if found := _DATATYPES.search(whole):
        return ForgeError(
            "TF-BLD-082",
            f"{architecture} has no {found['types'].strip()}: the compiler refuses the graph",
            asked=asked,
            numbers={**numbers, "datatypes": found["types"].replace(" ", "").split(",")},
            why="Types need hardware: bfloat16 and INT4 weights sm_80, FP8 sm_89, FP4 sm_120, or later.",
            remedies=[
                "build.architectures: those of GPUs that have the type (trtforge check names them)",
                "model.dtype: float16 with quantize.format: none compiles for all",
            ],
        )
    if _MEMORY.search(whole):
        return _out_of_memory(asked, numbers)
    if step == "parse":
        at = _NODE.search(whole)
        node = (at["node"] or at["invalid"]) if at else None
        return ForgeError(
            "TF-BLD-084",
            f"The parser of TensorRT for RTX refuses the graph{f' at {node}' if node else ''}",
            asked=asked,
            numbers={**numbers, "node": node},
            why=" | ".join(said[:3]) or "it gave no reason",
            remedies=[
                f"build.target: {DEFAULT.name}",
                "quantize.format: none tells whether the format's nodes are the reason",
            ],
        )
    return ForgeError(
        "TF-BLD-085",
        f"The compiler made no RTX engine for {architecture}",
        asked=asked,
        numbers=numbers,
        why=" | ".join(said[:3]) or "it gave no reason",
        remedies=["read build.log in the stage's folder", f"build.target: {DEFAULT.name}", "quantize.format: none"],
    )


def _out_of_memory(asked: str, numbers: dict[str, Any]) -> ForgeError:
    return ForgeError(
        "TF-BLD-083",
        "The compiler ran out of memory",
        asked=asked,
        numbers=numbers,
        why="It holds the model's weights several times while it builds.",
        remedies=["build on a machine with more memory", "lower build.limits"],
        exit_code=ExitCode.ENVIRONMENT,
    )


def died(code: int, log_tail: Sequence[str], *, architecture: str, asked: str) -> ForgeError:
    """The error for a worker that ended without an answer; ``code`` is negative for a signal."""
    said = [line for line in log_tail if not line.startswith("[INFO]")]  # the compiler's figures speak of memory too
    if _MEMORY.search(" ".join(said)):
        return _out_of_memory(asked, {"architecture": architecture, "exit_code": code, "messages": said})
    how = f"signal {-code}" if code < 0 else f"code {code}"
    return ForgeError(
        "TF-BLD-086",
        f"The compiler's process ended with {how} and left no RTX engine for {architecture}",
        asked=asked,
        numbers={"exit_code": code, "last_lines": list(log_tail)},
        why="Signal 9 is the system's answer to too much memory, signal 6 an abort of the compiler itself."
        if code < 0
        else " | ".join(log_tail[-3:]) or "it printed nothing",
        remedies=["build on a machine with more memory", "read build.log in the stage's folder"],
    )
