"""What is loaded, by libraries compiled here: each is asked by its own function; pip's word is kept beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from trtforge.ground.errors import ForgeError
from trtforge.stack import check, probe
from trtforge.stack.check import check_piece, check_stack, fits
from trtforge.stack.probe import Loaded, tensorrt_version
from trtforge.tables import Component, stack_table

LIBRARIES = {
    "libnvinfer.so.10": """
extern "C" int getInferLibVersion() { return 101401; }
extern "C" int getInferLibBuildVersion() { return 48; }
""",
    "libcudart.so": """
extern "C" int cudaRuntimeGetVersion(int* version) { *version = 13000; return 0; }
""",
    "libnvidia-ml.so.1": """
#include <cstring>
extern "C" int nvmlInit_v2() { return 0; }
extern "C" int nvmlSystemGetDriverVersion(char* text, unsigned size)
{
    std::strncpy(text, "580.65.06", size);
    return 0;
}
""",
    "crash/libnvinfer.so": """
#include <csignal>
extern "C" int getInferLibVersion() { std::raise(SIGSEGV); return 0; }
""",
}


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("libraries")
    if shutil.which("g++") is None:
        pytest.fail("g++ is needed: the package's own build needs it too")
    for name, text in LIBRARIES.items():
        target = folder / name
        target.parent.mkdir(exist_ok=True)
        command = ["g++", "-shared", "-fPIC", "-O0", "-x", "c++", "-", "-o", str(target)]
        subprocess.run(command, input=text, text=True, check=True)
    return folder


@pytest.fixture
def loaded(libraries: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The libraries are on the loader's path; there is no driver file."""
    monkeypatch.setenv("LD_LIBRARY_PATH", str(libraries))
    monkeypatch.setattr(probe, "_DRIVER_FILE", tmp_path / "version")
    return libraries


def ask(kind: str, version: str = "1", distribution: str | None = None) -> Loaded:
    row = {"name": "x", "version": version, "probe": kind, "distribution": distribution}
    return probe.probe(Component.model_validate(row))


def test_libraries_are_asked_by_their_own_functions(loaded: Path, tmp_path: Path) -> None:
    tensorrt = ask("tensorrt")
    assert tensorrt == Loaded("10.14.1.48", str(loaded / "libnvinfer.so.10"), None)
    assert ask("cudart") == Loaded("13.0", str(loaded / "libcudart.so"), None)
    assert ask("driver").version == "580.65.06"
    (tmp_path / "version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build\nGCC version: 12.2\n"
    )
    assert ask("driver") == Loaded("575.57.08", str(tmp_path / "version"), None)


def test_pip_and_the_loader_may_disagree(loaded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "installed", lambda distribution: "10.13.3.9")
    component = Component(name="TensorRT", version="10.14.1.48", probe="tensorrt", distribution="tensorrt")
    piece = check_piece(component, probe.probe(component))
    assert piece.verdict == "ok" and [code for code, _ in piece.findings] == ["TF-STK-003"]
    assert "pip says TensorRT 10.13.3.9, but 10.14.1.48 loads" in piece.findings[0][1]


def test_a_library_that_crashes_is_absent_and_nothing_else_happens(
    libraries: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(libraries / "crash"))
    assert ask("tensorrt").version is None


def test_a_library_of_a_wheel_is_found_below_sys_path(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tensorrt_libs").mkdir()
    shutil.copy(libraries / "libnvinfer.so.10", tmp_path / "tensorrt_libs")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert ask("tensorrt") == Loaded("10.14.1.48", str(tmp_path / "tensorrt_libs" / "libnvinfer.so.10"), None)


def test_packages_are_imported_in_a_process_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "tensorrt_llm"
    package.mkdir()
    (package / "__init__.py").write_text("print('[TensorRT-LLM] banner')\n__version__ = '1.2.1'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert ask("tensorrt_llm") == Loaded("1.2.1", str(package / "__init__.py"), None)
    (package / "__init__.py").write_text("raise ImportError('libcuda.so.1')\n")
    broken = ask("tensorrt_llm")
    assert broken.version is None and "cannot be imported" in broken.where


def test_torch_s_version_comes_from_the_file_that_would_be_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('never imported')\n")
    (package / "version.py").write_text("__version__ = '2.10.0a0+nv25.12'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "torch", raising=False)
    found = ask("torch", distribution=None)
    assert found == Loaded("2.10.0a0+nv25.12", str(package / "version.py"), None)
    assert fits("2.10", "2.10.0a0+nv25.12")


def test_the_triton_server_on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = tmp_path / "bin" / "tritonserver"
    binary.parent.mkdir()
    binary.write_text("#!/bin/sh\n")
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", f"{binary.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("NVIDIA_TRITON_SERVER_VERSION", raising=False)
    monkeypatch.delenv("TRITON_SERVER_VERSION", raising=False)
    assert ask("tritonserver") == Loaded(None, str(binary), None)
    (tmp_path / "TRITON_VERSION").write_text("2.64.0\n")
    assert ask("tritonserver").version == "2.64.0"
    monkeypatch.setenv("NVIDIA_TRITON_SERVER_VERSION", "25.12")
    assert ask("tritonserver").version == "25.12"


@pytest.mark.parametrize(
    ("number", "text"), [(101401, "10.14.1"), (110400, "11.4.0"), (100001, "10.0.1"), (8601, "8.6.1")]
)
def test_tensorrt_s_number(number: int, text: str) -> None:
    assert tensorrt_version(number) == text


@pytest.mark.parametrize(
    ("rule", "version", "expected"),
    [
        ("2.13", "2.13.1+cpu", True),
        ("2.13", "2.12.0", False),
        ("10.14.1.48", "10.14.1", True),
        ("10.14.1.48", "10.14.1.9", False),
        ("10.14.1.48", "10.13.3", False),
        (">=4.57,<5.15", "5.14.1", True),
        (">=4.57,<5.15", "5.15.0", False),
        (">=535.86", "580.65.06", True),
        (">=535.86", "535.54.03", False),
        ("1.3.0rc22", "1.3.0rc22", True),
        ("1.3.0rc22", "1.3.0rc15", False),
        ("25.12", "25.12", True),
        ("25.12", "26.01", False),
        ("3.12", "not a version", False),
    ],
)
def test_versions_fit_as_far_as_both_are_told(rule: str, version: str, expected: bool) -> None:
    assert fits(rule, version) is expected


def piece(version: str | None, pip: str | None = None, kind: str | None = "tensorrt") -> check.PieceCheck:
    row = {"name": "TensorRT", "version": "10.14.1.48", "probe": kind, "distribution": "t"}
    return check_piece(Component.model_validate(row), Loaded(version, "/lib/x.so" if version else "", pip))


def test_verdicts() -> None:
    assert piece("10.14.1.48").findings == ()
    assert [code for code, _ in piece("10.13.3").findings] == ["TF-STK-001"]
    assert [code for code, _ in piece(None, "10.14.1.48").findings] == ["TF-STK-002"]
    assert "although pip lists 10.14.1.48" in piece(None, "10.14.1.48").findings[0][1]
    assert [code for code, _ in piece("10.13.3.9", "10.14.1.48").findings] == ["TF-STK-001", "TF-STK-003"]
    assert piece(None, "10.13.3", kind=None).verdict == "differs"
    assert piece(None, None, kind=None).verdict == "not asked" and piece(None, None, kind=None).findings == ()


def test_a_whole_row_is_asked_and_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {item.name: item.version.lstrip(">=").split(",")[0] for item in stack_table().rows[-1].components}
    answers["numpy"] = "1.26.4"
    monkeypatch.setattr(check, "probe", lambda component, server: Loaded(answers[component.name], "/x", None))
    assert stack_table().rows[-1].name == "trtllm-1.2.1"
    assert check_stack("trtllm-1.2.1").ok
    answers["TensorRT"] = "10.13.3"
    report = check_stack("trtllm-1.2.1")
    assert not report.ok
    assert [p["name"] for p in report.to_json()["pieces"] if p["verdict"] == "differs"] == ["TensorRT"]


def test_an_unknown_stack_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ForgeError) as caught:
        check_stack("trtllm-9")
    assert caught.value.code == "TF-STK-010" and "trtllm-1.2.1" in caught.value.numbers["known"]


def test_rows_tell_how_their_pieces_are_asked() -> None:
    for row in stack_table().rows:
        names = [item.name for item in row.components]
        assert len(set(names)) == len(names)
        for item in row.components:
            assert item.probe is not None or item.distribution is not None, (row.name, item.name)
            assert not item.serving or item.probe is not None
            assert item.probe != "distribution" or item.distribution is not None
    for name in ("trtllm-1.2.1", "trtllm-1.3"):
        found = stack_table().row(name)
        assert found is not None and found.container and found.version_of("TensorRT-LLM")


@pytest.mark.parametrize(
    ("wanted", "found", "said"),
    [
        ("25.12", "2.51.0", "the stack needs the server of NVIDIA's container 25.12"),
        ("2.51.0", "25.12", "the stack needs server version 2.51.0"),
        ("25.12", "26.01", "the stack needs 25.12"),
        ("2.51.0", "2.64.0", "the stack needs 2.51.0"),
    ],
)
def test_a_container_s_month_is_not_held_against_a_server_s_own_count(wanted: str, found: str, said: str) -> None:
    component = Component(name="tritonserver", version=wanted, probe="tritonserver")
    ((code, message),) = check_piece(component, Loaded(found, "/x", None)).findings
    assert code == "TF-STK-001" and message.endswith(said)


def test_the_holes_of_what_loads_or_is_named_are_told_and_change_no_verdict() -> None:
    server = Component(name="tritonserver", version="26.11", probe="tritonserver")
    old = check_piece(server, Loaded("2.51.0", "/x", None))
    assert "CVE-2025-23310" in {known.hole.id for known in old.holes}
    assert old.to_json()["holes"][0]["bulletin"].startswith("https://")
    assert check_piece(server, Loaded("26.11", "/x", None)).holes == []
    absent = check_piece(Component(name="TensorRT-LLM", version="1.2.1", probe="tensorrt_llm"), Loaded(None))
    assert "CVE-2026-47472" in {known.hole.id for known in absent.holes}
    fine = check_piece(Component(name="tritonserver", version="2.51.0", probe="tritonserver"), Loaded("2.51.0"))
    assert fine.verdict == "ok" and not fine.findings and fine.holes
