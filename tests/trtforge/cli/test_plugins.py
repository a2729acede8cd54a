"""``trtforge plugins``: what it builds, what it says of libraries that are not there, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from plugins.cuda import build, library
from trtforge.cli.main import invoke
from trtforge.native import cache


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without CUDA and with an empty plugin cache."""
    for name in ("CUDACXX", "CUDA_HOME", "CUDA_PATH", library.LIBRARY_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(build, "DEFAULT_ROOT", str(tmp_path / "nowhere"))
    monkeypatch.setattr(build.shutil, "which", lambda name, path=None: None if name == "nvcc" else f"/usr/bin/{name}")
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Calls the command; its exit code and its JSON document."""

    def call(*arguments: str) -> tuple[int, Any]:
        code = invoke(("plugins", *arguments, "--json"))
        captured = capsys.readouterr()
        return code, json.loads(captured.out or captured.err)

    return call


def test_build_without_nvcc_ends_with_3(bare: Path, run: Any) -> None:
    code, document = run("build", "cuda")
    assert code == 3
    assert "TF-ENV-003" in json.dumps(document)


def test_build_for_an_unknown_architecture_ends_with_2(bare: Path, run: Any) -> None:
    code, document = run("build", "cuda", "--arch", "75,90a")
    assert code == 2
    assert "TF-CLI-030" in json.dumps(document)


def test_every_library_is_built_from_the_sources_that_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Any
) -> None:
    """The remedy for a wheel, which has no sources, works for the TensorRT plugins too."""
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'release 13.0, V13.0.88'\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("CUDACXX", str(nvcc))
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    (tmp_path / "NvInferRuntime.h").touch()
    numbers = {"MAJOR": 10, "MINOR": 14, "PATCH": 1}
    (tmp_path / "NvInferVersion.h").write_text("".join(f"#define NV_TENSORRT_{k} {v}\n" for k, v in numbers.items()))
    for arguments in (("cuda",), ("tensorrt", "--tensorrt-include", str(tmp_path))):
        code, document = run("build", *arguments, "--source", str(tmp_path / "checkout"))
        assert code == 2 and document["error"]["code"] == "TF-CLI-008"
        assert document["error"]["asked"] == str(tmp_path / "checkout" / "plugins")


def test_info_says_what_is_not_built(bare: Path, run: Any) -> None:
    code, document = run("info")
    assert code == 0
    assert document["abi"] and document["isa"]
    cuda = document["cuda"]
    assert cuda["built"] is False and "trtforge plugins build" in cuda["remedy"]


def test_test_runs_the_cuda_ops_under_the_shim(run: Any) -> None:
    code, document = run("test")
    assert code == 0
    checks = document["checks"]
    names = [check["name"] for check in checks]
    assert document["cuda_skipped"] is None and document["passed"] is True
    assert any("attention, bfloat16 on float8_e4m3fn" in name for name in names)
    assert {"host: EagleTreeBuild", "host: EagleAccept", "host: PagedKVMove"} <= set(names)
