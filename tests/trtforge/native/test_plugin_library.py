"""The TensorRT plugin library as a file: found, asked, stamped, examined."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.trtforge.store.test_stamps import HERE, MADE_ON, STAMPS, TOKENIZER
from trtforge.examination.engines import tensorrt_plugins
from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.machine.gpus import Gpu
from trtforge.native.plugin_library import LIBRARY, VARIABLE, device_capability, find_plugin_library, plugin_library
from trtforge.pipeline.stages.bundle import _serves_with
from trtforge.store.stamps import check_stamps
from trtforge.tables import stack_table

SOURCE = """
const char* trtforge_plugin_version(void) { return "1.2"; }
const char* trtforge_plugin_abi(void) { return "0123456789abcdef"; }
const char* trtforge_plugin_contract(void) { return "op X"; }
const char* trtforge_plugin_tensorrt(void) { return "10.14.1"; }
const char* trtforge_plugin_kernels(void) { return KERNELS; }
int trtforge_plugin_checked(void) { return CHECKED; }
int trtforge_plugin_device_capability(void) { return DEVICE; }
"""


def compile_library(folder: Path, *, kernels: str = "{}", checked: int = 0, device: int = -1) -> Path:
    """A library with the questions' answers and nothing else."""
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "x.c").write_text(SOURCE)
    quoted = kernels.replace('"', '\\"')
    defines = [f'-DKERNELS="{quoted}"', f"-DCHECKED={checked}", f"-DDEVICE={device}"]
    subprocess.run(["gcc", "-shared", "-fPIC", *defines, "-o", folder / LIBRARY, folder / "x.c"], check=True)
    return folder / LIBRARY


def test_a_library_is_asked(tmp_path: Path) -> None:
    made = plugin_library(compile_library(tmp_path, kernels='{"source_hash": "h"}', device=90))
    assert (made.version, made.abi, made.tensorrt, made.checked) == ("1.2", "0123456789abcdef", "10.14.1", False)
    assert made.stamp()["kernels"] == "h" and len(made.stamp()["sha256"]) == 64
    assert device_capability(made) == "sm_90"
    assert device_capability(plugin_library(compile_library(tmp_path / "none"))) is None


def test_a_library_whose_answers_make_no_sense(tmp_path: Path) -> None:
    with pytest.raises(ForgeError, match="TF-OPS-202"):
        plugin_library(compile_library(tmp_path, kernels="no JSON"))


def test_the_newest_build_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("TRTFORGE_PLUGIN_CACHE", str(tmp_path))
    assert find_plugin_library() is None
    for age, name in ((30, "tensorrt-a"), (10, "tensorrt-b"), (20, "tensorrt-c"), (0, "shimmed-tensorrt-d")):
        (tmp_path / name).mkdir()
        for file in ("report.json", LIBRARY):
            (tmp_path / name / file).touch()
        stamp = 1_700_000_000 - age
        os.utime(tmp_path / name / "report.json", (stamp, stamp))
    (tmp_path / "tensorrt-half").mkdir()
    assert find_plugin_library() == tmp_path / "tensorrt-b" / LIBRARY
    monkeypatch.setenv(VARIABLE, "/elsewhere.so")
    assert find_plugin_library() == Path("/elsewhere.so")


def test_doctor_examines_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "missing.so"))
    item = tensorrt_plugins()
    assert item.status == "missing" and "plugins build" in item.remedy and item.builds == ("tensorrt",)
    for checked, status in ((0, "ok"), (1, "warning")):
        monkeypatch.setenv(VARIABLE, str(compile_library(tmp_path / str(checked), checked=checked)))
        assert tensorrt_plugins().status == status


def test_a_gpu_without_kernels_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the library and by doctor: before a kernel is asked of a driver that has none."""
    made = compile_library(tmp_path, kernels='{"architectures": "80-real,90-real,100-real"}')
    library = plugin_library(made)
    for architecture in ("sm_80", "sm_89", "sm_90", "sm_103"):
        library.require_kernels(architecture)
    with pytest.raises(EnvironmentLacks) as caught:
        library.require_kernels("sm_75")
    assert caught.value.code == "TF-OPS-205" and caught.value.numbers["kernels"] == ["sm_80", "sm_90", "sm_100"]
    plugin_library(compile_library(tmp_path / "shim")).require_kernels("sm_75")  # kernels that run on a CPU
    monkeypatch.setenv(VARIABLE, str(made))
    assert tensorrt_plugins((Gpu("B300", 288 << 30, "sm_103"),)).status == "ok"
    item = tensorrt_plugins((Gpu("H100", 80 << 30, "sm_90"), Gpu("RTX 5090", 32 << 30, "sm_120")))
    assert item.status == "missing" and "no kernels for sm_120" in item.detail


@pytest.mark.parametrize(("here", "found"), [("0123456789abcdef", False), ("f" * 16, True), (None, True)])
def test_verify_compares_the_abi(tmp_path: Path, here: str | None, found: bool) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "tokenizer.json").write_bytes(TOKENIZER)
    stamps = {**STAMPS, "target": "tensorrt", "gpu_architectures": ["sm_90"], "plugin_abi": "0123456789abcdef"}
    manifest: dict[str, Any] = {"stamps": stamps, "machine": MADE_ON}
    findings = check_stamps(tmp_path, manifest, replace(HERE, plugin_abi=here))
    assert [(f.code, f.severity) for f in findings] == ([("TF-BND-034", "error")] if found else [])


def test_a_bundle_needs_the_tensorrt_that_compiled_it() -> None:
    row = stack_table().row("trt-11.4")
    assert row is not None
    rows = {item["name"]: item["version"] for item in _serves_with(row, {"version": "10.14.1.48"})}
    assert rows["TensorRT"] == "10.14.1.48"
    assert {item["name"]: item["version"] for item in _serves_with(row, {})}["TensorRT"] == "11.4.0"
