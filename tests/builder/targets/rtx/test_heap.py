"""The heap of RTX builds: rising addresses, memory that goes back, and what happens where it cannot be had."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from builder.targets.rtx.compiler import Request, compile_engine
from builder.targets.rtx.heap import LIBRARY, compile_heap
from tests.builder.targets.rtx.models import native_graph, rtx_build
from tests.support.engines import build_engine
from trtforge.ground.errors import ExitCode, ForgeError
from trtforge.ground.progress import SilentProgress

#: what the snippets start with: the C library's functions as they are in that process
PRELUDE = """
import ctypes, json, os, random, threading
lib = ctypes.CDLL(None, use_errno=True)
for name, arguments in {"malloc": 1, "calloc": 2, "realloc": 2, "aligned_alloc": 2, "malloc_usable_size": 1}.items():
    function = getattr(lib, name)
    function.argtypes, function.restype = [ctypes.c_void_p] * arguments, ctypes.c_void_p
lib.free.argtypes, lib.free.restype = [ctypes.c_void_p], None
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
def show(value):
    print(json.dumps(value))
"""


@pytest.fixture(scope="module")
def heap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_heap(tmp_path_factory.mktemp("heap"))


def under(heap: Path, code: str) -> Any:
    """What a snippet shows in a process with the heap."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code],
        env={**os.environ, "LD_PRELOAD": str(heap)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert not done.stderr
    return json.loads(done.stdout)


def test_addresses_rise_whatever_is_freed_and_by_whom(heap: Path) -> None:
    code = """
rng = random.Random(3)
sizes = [rng.choice([1, 24, 500, 5000, 16000, 70_000, 3_000_000]) for _ in range(3000)]
blocks, lock = [], threading.Lock()
def other():
    for _ in range(2900):
        while not blocks:
            pass
        lib.free(blocks.pop(rng.randrange(len(blocks))))
thread = threading.Thread(target=other)
thread.start()
seen = []
for size in sizes:
    seen.append(lib.malloc(size))
    blocks.append(seen[-1])
thread.join()
show([seen, sizes])
"""
    seen, sizes = under(heap, code)
    assert all(a + size <= b for a, size, b in zip(seen, sizes, seen[1:], strict=False))
    assert all(address % 16 == 0 for address in seen)


def test_freed_memory_goes_back(heap: Path) -> None:
    code = """
before = resident()
for size in (4000, 100_000, 5_000_000):
    for _ in range(800_000_000 // size):
        block = lib.malloc(size)
        ctypes.memset(block, 1, size)
        lib.free(block)
show(resident() - before)
"""
    assert under(heap, code) < 50e6


def test_a_block_that_stays_keeps_its_values(heap: Path) -> None:
    code = """
kept = []
for n in range(20_000):
    block = lib.malloc(100)
    if n % 500:
        lib.free(block)
    else:
        ctypes.memset(block, n // 500, 100)
        kept.append(block)
show([list(ctypes.string_at(block, 100)) for block in kept])
"""
    assert under(heap, code) == [[n] * 100 for n in range(40)]


def test_the_other_functions(heap: Path) -> None:
    code = """
found = {}
block = lib.malloc(10)
ctypes.memmove(block, b"0123456789", 10)
longer = lib.realloc(block, 50_000)
found["grown"] = [longer != block, ctypes.string_at(longer, 10).decode()]
found["shrunk"] = lib.realloc(longer, 5) == longer
found["usable"] = [lib.malloc_usable_size(lib.malloc(n)) >= n for n in (1, 17, 16_383, 16_384, 10**6)]
found["zeros"] = ctypes.string_at(lib.calloc(300, 7), 2100) == bytes(2100)
found["overflow"] = lib.calloc(2**40, 2**40)
found["too_long"] = [lib.malloc(2**62), ctypes.get_errno()]
found["aligned"] = [lib.aligned_alloc(a, 100) % a for a in (1, 64, 4096, 32768)]
lib.free(None)
child = os.fork()
if not child:
    lib.free(lib.malloc(10**6))
    os._exit(7)
found["fork"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
show(found)
"""
    found = under(heap, code)
    assert found == {
        "grown": [True, "0123456789"],
        "shrunk": True,
        "usable": [True] * 5,
        "zeros": True,
        "overflow": None,
        "too_long": [None, 12],
        "aligned": [0] * 4,
        "fork": 7,
    }


def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ForgeError) as caught:
        compile_heap(tmp_path)
    assert caught.value.code == "TF-ENV-001" and caught.value.exit_code == ExitCode.ENVIRONMENT


def test_a_compiler_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho 'no such option' >&2\nexit 4\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(ForgeError) as caught:
        compile_heap(tmp_path)
    assert caught.value.code == "TF-BLD-089" and caught.value.exit_code == ExitCode.ENVIRONMENT
    assert caught.value.numbers == {"exit_code": 4, "last_lines": ["no such option"]}


def test_a_compiler_that_is_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "compiler"
    compiler.write_text("garbage")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(ForgeError, match="TF-BLD-089") as caught:
        compile_heap(tmp_path)
    assert "Exec format error" in caught.value.numbers["last_lines"][0]


def test_a_worker_without_the_heap_builds_nothing(tmp_path: Path) -> None:
    request = Request(tmp_path / "m", tmp_path / "m", tmp_path / "e.rtx", "sm_89", ())
    with pytest.raises(ForgeError) as caught:
        compile_engine(
            request, tmp_path / "build.log", heap=tmp_path / LIBRARY, asked="build.target", progress=SilentProgress()
        )
    assert caught.value.code == "TF-BLD-090" and caught.value.exit_code == ExitCode.ENVIRONMENT
    assert LIBRARY in (tmp_path / "build.log").read_text(), "the loader's words are in the log"


def test_the_heap_is_there_before_the_compiler_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorrt_rtx_libs", reason="tensorrt-rtx is not installed: pip install 'trtforge[rtx]'")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ForgeError) as caught:
        build_engine(native_graph(tmp_path / "g"), tmp_path / "e", name="tiny", build=rtx_build("sm_80"))
    assert caught.value.code == "TF-ENV-001"
