"""Loading the host library: where it is looked for, what is refused, and that ctypes and the C header agree."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from plugins.host import abi, library
from plugins.host.library import HostLibrary, find_library, load_library
from trtforge.ground.errors import EnvironmentLacks, ExitCode, ForgeError
from trtforge.native import host_library

ROOT = Path(__file__).parents[2]
HEADER = ROOT / "plugins/include/trtforge/host_abi.h"


def test_info_names_everything(host: HostLibrary) -> None:
    info = host.info()
    assert info["abi"] == abi.ABI_VERSION
    assert info["isa"] in info["isas_available"]
    assert set(info["isas_available"]) <= set(info["isas_compiled"])
    assert {"plain", "avx2", "avx512", "avx512_vbmi", "avx512_bf16"} <= set(info["isas_compiled"])
    assert len(info["source_hash"]) == 64
    assert info["compiler"].startswith("g++ ")
    assert Path(info["path"]).is_file()


ORPHAN = """
import ctypes, os, threading, time
import plugins.host
library = plugins.host.load()
threading.Thread(target=library.leave_with_parent, args=(os.getppid(), 50), daemon=True).start()
time.sleep(0.5)  # the thread has begun to wait
print(os.getpid(), flush=True)
ctypes.PyDLL(None).sleep(300)  # PyDLL keeps the GIL
"""


def test_a_process_leaves_with_its_parent_though_its_gil_is_held(tmp_path: Path) -> None:
    parent = "import subprocess, sys; print(subprocess.Popen([sys.executable, sys.argv[1]], stdout=1).pid, flush=True)"
    script = tmp_path / "orphan.py"
    script.write_text(ORPHAN)
    process = subprocess.Popen([sys.executable, "-c", f"{parent}; input()", str(script)], cwd=ROOT, text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    orphan = psutil.Process(int(process.stdout.readline()))
    assert int(process.stdout.readline()) == orphan.pid
    time.sleep(0.3)
    assert orphan.is_running(), "while its parent lives it stays"
    process.kill()
    process.wait()
    gone, _ = psutil.wait_procs([orphan], timeout=20)
    process.stdin.close()
    process.stdout.close()
    assert gone


@pytest.mark.parametrize("arguments", [(0, 500), (-1, 500), (4, 0), (4, 1000)])
def test_leaving_with_no_parent_is_refused(host: HostLibrary, arguments: tuple[int, int]) -> None:
    with pytest.raises(ForgeError, match="a process and 1 to 999 milliseconds"):
        host.leave_with_parent(*arguments)


def test_prototypes_match_the_header() -> None:
    text = HEADER.read_text()
    declared = dict(re.findall(r"\b(trtforge_\w+)\(([^)]*)\);", text))
    declared.pop("trtforge_last_error()", None)
    assert set(declared) == set(abi.PROTOTYPES)
    for name, arguments in declared.items():
        count = 0 if arguments.strip() == "void" else len(arguments.split(","))
        assert len(abi.PROTOTYPES[name]) == count, name
    statuses = {int(value) for _, value in re.findall(r"(TRTFORGE_[A-Z_]+) = (\d+)", text)}
    assert statuses - {0} == set(abi.STATUS)


def test_missing_library_says_how_to_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(library.LIBRARY_VARIABLE, str(tmp_path / "nowhere.so"))
    with pytest.raises(EnvironmentLacks, match="TF-OPS-001") as missing:
        find_library()
    assert missing.value.exit_code == ExitCode.ENVIRONMENT
    monkeypatch.delenv(library.LIBRARY_VARIABLE)
    monkeypatch.setattr(host_library, "HOST_LIBRARY", "nowhere.so")
    with pytest.raises(EnvironmentLacks, match="TF-OPS-001") as missing:
        find_library()
    assert any("g++" in remedy for remedy in missing.value.remedies)


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    broken = tmp_path / "libtrtforge_host.so"
    broken.write_bytes(b"not a library")
    with pytest.raises(EnvironmentLacks, match="TF-OPS-002"):
        load_library(broken)


def test_another_abi(monkeypatch: pytest.MonkeyPatch, host: HostLibrary) -> None:
    monkeypatch.setattr(abi, "ABI_VERSION", 999)
    with pytest.raises(EnvironmentLacks, match="TF-OPS-003"):
        load_library(host.path)


def test_a_library_of_older_sources(monkeypatch: pytest.MonkeyPatch, host: HostLibrary) -> None:
    monkeypatch.setitem(abi.PROTOTYPES, "trtforge_not_yet", ())
    with pytest.raises(EnvironmentLacks, match="TF-OPS-003") as refused:
        load_library(host.path)
    assert refused.value.numbers == {"missing": ["trtforge_not_yet"]}


def test_isa_is_refused_by_name(host: HostLibrary) -> None:
    with pytest.raises(ForgeError, match="TF-OPS-004") as refused:
        host.select_isa("mmx")
    assert "plain" in refused.value.message
    lacking = set(host.info()["isas_compiled"]) - set(host.info()["isas_available"])
    for name in lacking:
        with pytest.raises(ForgeError, match="cannot run instruction set"):
            host.select_isa(name)
    host.select_isa("plain")
    assert host.isa == "plain"
    host.select_isa(None)


@pytest.mark.parametrize(("asked", "outcome"), [("plain", "plain"), ("mmx", "TF-OPS-004")])
def test_environment_chooses_the_isa(
    monkeypatch: pytest.MonkeyPatch, host: HostLibrary, asked: str, outcome: str
) -> None:
    """In a process of its own: the choice is made at the first use."""
    script = (
        "from plugins.host import load\nfrom trtforge.ground.errors import ForgeError\n"
        "try:\n    print(load().isa)\nexcept ForgeError as error:\n    print(error.code)\n"
    )
    monkeypatch.setenv(library.ISA_VARIABLE, asked)
    monkeypatch.setenv(library.LIBRARY_VARIABLE, str(host.path))
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == outcome


def test_loading_needs_no_torch(host: HostLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.LIBRARY_VARIABLE, str(host.path))
    script = "import sys\nfrom plugins.host import load\nload().info()\nprint('torch' in sys.modules)\n"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_threads_follow_torch(host: HostLibrary) -> None:
    import torch

    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert host.info()["threads"] == threads
    finally:
        torch.set_num_threads(before)


def test_units_share_no_weak_symbols(host: HostLibrary) -> None:
    """Code of a wider instruction set merged into the plain path would be SIGILL on an older CPU."""
    if shutil.which("nm") is None:
        pytest.fail("nm (binutils) comes with g++; the package build needs both")
    symbols = subprocess.run(
        ["nm", "-C", "--defined-only", str(host.path)], capture_output=True, text=True, check=True
    ).stdout
    weak = [line for line in symbols.splitlines() if re.search(r" [WVu] ", line)]
    assert not [line for line in weak if "isa_" in line]


def test_exports_only_the_abi(host: HostLibrary) -> None:
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", str(host.path)], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split()[-1].split("@")[0] for line in symbols.splitlines() if " T " in line}
    assert set(abi.PROTOTYPES) <= names
    assert {name for name in names if not name.startswith(("trtforge_", "_init", "_fini"))} == set()
