"""The plugin cache and the compilers under bad conditions: a coded refusal or a new build, never a crash."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from plugins import building
from plugins.cuda import build
from plugins.cuda.library import CudaLibrary
from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.ground.shared_object import check_whole
from trtforge.native import cache
from trtforge.native.plugin_library import plugin_library

ROOT = Path(__file__).parents[2]
FILES = ("a.txt",)


def made(text: str = "x") -> Callable[[Path, Path], dict[str, Any]]:
    def make(scratch: Path, ready: Path) -> dict[str, Any]:
        (ready / "a.txt").write_text(text)
        return {"kernels": []}

    return make


def not_again(scratch: Path, ready: Path) -> dict[str, Any]:
    raise AssertionError("it is there already")


def test_a_build_is_made_once(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "k"
    assert building.build_once(folder, FILES, made()) > 0
    assert building.build_once(folder, FILES, not_again) == 0
    assert sorted(path.name for path in folder.iterdir()) == ["a.txt", "report.json"]


@pytest.mark.parametrize("damage", ["a.txt gone", "a.txt empty", "report gone", "report cut short", "report a list"])
def test_a_damaged_build_is_made_anew(tmp_path: Path, damage: str) -> None:
    folder = tmp_path / "k"
    building.build_once(folder, FILES, made("first"))
    path = folder / ("a.txt" if damage.startswith("a.txt") else "report.json")
    path.unlink()
    if not damage.endswith("gone"):
        path.write_text({"empty": "", "short": '{"ker', "list": "[]"}[damage.split()[-1]])
    assert not building.is_whole(folder, FILES)
    assert building.build_once(folder, FILES, made("second")) > 0
    assert (folder / "a.txt").read_text() == "second"


def test_a_finished_build_is_taken_from_a_cache_that_is_only_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "k"
    building.build_once(folder, FILES, made())

    def no_lock(path: str) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(building, "FileLock", no_lock)
    assert building.build_once(folder, FILES, not_again) == 0
    with pytest.raises(EnvironmentLacks, match="TF-ENV-011") as lacks:
        building.build_once(tmp_path / "other", FILES, made())
    assert "Read-only" in lacks.value.message and cache.VARIABLE in lacks.value.remedies[0]


def test_a_file_where_the_cache_should_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file" / "k", tmp_path / "file" / "below" / "k"):
        with pytest.raises(EnvironmentLacks, match="TF-ENV-011"):
            building.build_once(folder, FILES, made())


def test_a_full_disk_leaves_nothing(tmp_path: Path) -> None:
    def full(scratch: Path, ready: Path) -> dict[str, Any]:
        (ready / "a.txt").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(EnvironmentLacks, match="No space left"):
        building.build_once(tmp_path / "k", FILES, full)
    assert [path.name for path in tmp_path.iterdir()] == ["k.lock"]


def test_what_a_killed_build_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".k-dead" / "build").mkdir(parents=True)
    (tmp_path / ".other-alive").mkdir()
    building.build_once(tmp_path / "k", FILES, made())
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other-alive", "k", "k.lock"]


def test_two_builds_at_once_make_one(tmp_path: Path) -> None:
    calls = []

    def slow(scratch: Path, ready: Path) -> dict[str, Any]:
        calls.append(scratch)
        time.sleep(0.2)
        return made()(scratch, ready)

    threads = [threading.Thread(target=building.build_once, args=(tmp_path / "k", FILES, slow)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1 and building.is_whole(tmp_path / "k", FILES)


def test_an_interrupt_ends_what_the_tool_started(tmp_path: Path) -> None:
    """Only the Python process is told, as by a CI system; its compilers must not go on."""
    note = tmp_path / "pid"
    program = f"from plugins.building import call; call(['sh', '-c', 'sh -c \"echo $$ > {note}; sleep 60\"; true'])"
    process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 20
    while not (note.exists() and note.read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) != 0
    child = Path("/proc") / note.read_text().strip() / "stat"
    while child.exists() and child.read_text().split()[2] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)


# --- compilers ------------------------------------------------------------------------------------------------


def program(path: Path, text: str, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("kind", ["not there", "not executable", "no program", "fails", "says nothing"])
def test_a_broken_nvcc_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    text = {"no program": "garbage", "fails": "#!/bin/sh\nexit 3\n"}.get(kind, "#!/bin/sh\n")
    if kind != "not there":
        program(tmp_path / "nvcc", text, 0o644 if kind == "not executable" else 0o755)
    monkeypatch.setenv("CUDACXX", str(tmp_path / "nvcc"))
    with pytest.raises(EnvironmentLacks, match="TF-ENV-003") as lacks:
        build.build_cuda_library(["80"])
    assert str(tmp_path / "nvcc") in lacks.value.asked


def test_nvcc_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CMake takes CUDACXX=nvcc too."""
    program(tmp_path / "nvcc-13", "#!/bin/sh\necho 'release 13.0, V13.0.88'\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDACXX", "nvcc-13")
    assert build.find_nvcc() == (str(tmp_path / "nvcc-13"), (13, 0))


@pytest.mark.parametrize("given", ["/nowhere/g++", "NO_PROGRAM", "'", "FAILS"])
def test_a_broken_host_compiler_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    program(tmp_path / "NO_PROGRAM", "garbage")
    program(tmp_path / "FAILS", "#!/bin/sh\nexit 3\n")
    monkeypatch.setenv("CXX", str(tmp_path / given) if given.isupper() else given)
    with pytest.raises(EnvironmentLacks, match="TF-ENV-001"):
        build.build_shim_library()


def test_a_compiler_with_a_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CXX='ccache g++', as CMake reads it."""
    plain = build._host_compiler()
    monkeypatch.setenv("CXX", f"{shutil.which('env')} g++")
    assert build._host_compiler() == plain


# --- libraries that were cut short ----------------------------------------------------------------------------


def test_a_library_that_was_cut_short_is_refused(shim: CudaLibrary, tmp_path: Path) -> None:
    """The loader would map it and end the process by SIGBUS."""
    whole = shim.path.read_bytes()
    check_whole(shim.path)
    for size in (5, 40, 64, 1000, len(whole) // 2, len(whole) - 1):
        path = tmp_path / f"{size}.so"
        path.write_bytes(whole[:size])
        with pytest.raises(EnvironmentLacks, match="TF-OPS-008"):
            CudaLibrary(path)
        with pytest.raises(ForgeError, match="TF-OPS-202"):
            plugin_library(path)


def test_a_damaged_build_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shim: CudaLibrary) -> None:
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    folder = tmp_path / f"cuda-{build.source_hash()[:16]}-80"
    shutil.copytree(shim.path.parent, folder)
    assert build.built_library() == folder / build.SHARED
    os.truncate(folder / build.SHARED, 5000)
    assert build.built_library() is None
    (folder / "report.json").write_text('{"kernels": [{"kernel": 1')
    assert build.read_report(folder) == ()
