"""Building the CUDA op library: what is refused, what is kept, what the compiler's report becomes; and its C ABI."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from plugins.cuda import abi, build, library
from plugins.cuda.library import CudaLibrary
from trtforge.ground.errors import EnvironmentLacks, ExitCode, ForgeError
from trtforge.native import cache
from trtforge.native.plugin_library import runs_on
from trtforge.tables import architecture_table

ROOT = Path(__file__).parents[2]
HEADER = ROOT / "plugins/include/trtforge/cuda_abi.h"

PTXAS = """
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_ZN8trtforge4cuda13attentionSimtIfEEvNS0_15AttentionParamsENS0_8TaskListE' for 'sm_90'
ptxas info    : Function properties for _ZN8trtforge4cuda13attentionSimtIfEEvNS0_15AttentionParamsENS0_8TaskListE
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 92 registers, used 1 barriers
ptxas info    : Compile time = 345.312 ms
ptxas info    : Compiling entry function '_ZN8trtforge4cuda10acceptPathENS0_12AcceptParamsE' for 'sm_80'
ptxas info    : Function properties for _ZN8trtforge4cuda10acceptPathENS0_12AcceptParamsE
    16 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 42 registers, used 1 barriers, 16 bytes cumulative stack size
"""  # noqa: E501


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without a CUDA toolkit; the folder is first on its PATH."""
    for name in ("CUDACXX", "CUDA_HOME", "CUDA_PATH", library.LIBRARY_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(build, "DEFAULT_ROOT", str(tmp_path / "nowhere"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def test_missing_nvcc_is_named(no_cuda: Path) -> None:
    with pytest.raises(EnvironmentLacks, match="TF-ENV-003") as lacks:
        build.build_cuda_library()
    assert lacks.value.exit_code == ExitCode.ENVIRONMENT
    assert any("cuda-nvcc" in remedy for remedy in lacks.value.remedies)


def test_old_nvcc_is_refused_with_both_versions(no_cuda: Path) -> None:
    executable(no_cuda / "nvcc", "echo 'Cuda compilation tools, release 11.8, V11.8.89'")
    with pytest.raises(EnvironmentLacks, match="too old") as lacks:
        build.find_nvcc()
    assert lacks.value.numbers == {"found": "11.8", "needed": "12.8"}


def test_nvcc_is_found_in_cuda_home(no_cuda: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nvcc = executable(tmp_path / "toolkit/bin/nvcc", "echo 'release 13.0, V13.0.88'")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "toolkit"))
    assert build.find_nvcc() == (str(nvcc), (13, 0))


@pytest.mark.parametrize("asked", [["75"], ["90", "sm_70"], [], [" "], ["120a"]])
def test_unknown_architectures(asked: list[str]) -> None:
    with pytest.raises(ForgeError, match="TF-CLI-030") as refused:
        build.check_architectures(asked)
    assert "90" in refused.value.remedies[0]


def test_architectures_have_one_order() -> None:
    assert build.check_architectures(["sm_120", "80", "90"]) == ("80", "90", "120")


def test_compiler_report() -> None:
    first, second = build.parse_ptxas(PTXAS)
    assert first == build.KernelUse("acceptPath", "80", 42, 8, 12, 16)
    assert second == build.KernelUse("attentionSimt<float>", "90", 92, 0, 0, 0)
    assert build.parse_ptxas("nothing here") == ()


def test_hash_follows_every_source(tmp_path: Path) -> None:
    tree = tmp_path / "plugins"
    shutil.copytree(ROOT / "plugins/cuda", tree / "cuda", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "plugins/include", tree / "include")
    hashes = {build.source_hash(tree)}
    assert hashes == {build.source_hash()}
    names = (
        "cuda/eagle.cu",
        "include/trtforge/cuda/platform.cuh",
        "include/trtforge/random.hpp",
        "include/trtforge/tree_layout.hpp",
        "include/trtforge/both.hpp",
        "cuda/CMakeLists.txt",
    )
    for name in names:
        (tree / name).write_text((tree / name).read_text() + "\n")
        hashes.add(build.source_hash(tree))
    (tree / "include/trtforge/simd.hpp").write_text("// the host library's own")
    hashes.add(build.source_hash(tree))
    assert len(hashes) == 1 + len(names)


def test_failed_build_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    executable(tmp_path / "bin/cmake", "echo 'kernels.cu(3): error: expected a ;'; exit 2")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    with pytest.raises(ForgeError, match="TF-CLI-009") as failed:
        build.build_shim_library()
    assert "expected a ;" in str(failed.value.why)
    assert [path for path in (tmp_path / "cache").iterdir() if path.suffix != ".lock"] == []


def test_missing_sources(tmp_path: Path) -> None:
    """A folder with the Python files and CMakeLists.txt, but no kernels."""
    (tmp_path / "cuda").mkdir()
    shutil.copy(ROOT / "plugins/cuda/CMakeLists.txt", tmp_path / "cuda")
    with pytest.raises(ForgeError, match="TF-CLI-008"):
        build.build_shim_library(plugins=tmp_path)
    assert build.built_library(tmp_path) is None


def test_second_build_is_taken_from_the_cache(shim: CudaLibrary) -> None:
    again = build.build_shim_library()
    assert again.library == shim.path and again.seconds == 0
    assert again.static_library.is_file()
    assert (again.folder / "build.log").stat().st_size > 0
    assert shim.info()["source_hash"] == build.source_hash()


def test_nothing_built_says_how(no_cuda: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EnvironmentLacks, match="TF-OPS-007") as lacks:
        library.find_cuda_library()
    assert "trtforge plugins build" in lacks.value.remedies[0]
    monkeypatch.setenv(library.LIBRARY_VARIABLE, "/nowhere/lib.so")
    with pytest.raises(EnvironmentLacks, match="TF-OPS-007"):
        library.find_cuda_library()


def test_a_file_that_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "x.so").write_bytes(b"nothing")
    with pytest.raises(EnvironmentLacks, match="TF-OPS-008"):
        CudaLibrary(tmp_path / "x.so")


def test_another_abi(shim: CudaLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abi, "ABI_VERSION", 99)
    with pytest.raises(EnvironmentLacks, match="TF-OPS-009"):
        CudaLibrary(shim.path)


def test_prototypes_match_the_header() -> None:
    text = HEADER.read_text()
    declared = dict(re.findall(r"\b(trtforge_cuda_\w+)\(([^)]*)\);", text))
    assert set(declared) - {"trtforge_cuda_last_error()"} == set(abi.PROTOTYPES)
    for name, parameters in declared.items():
        count = 0 if parameters.strip() == "void" else len(parameters.split(","))
        assert len(abi.PROTOTYPES[name]) == count, name
    launchers = (ROOT / "plugins/include/trtforge/cuda/launchers.hpp").read_text()
    assert f"kSTATUS_WORDS = {abi.STATUS_WORDS};" in launchers


def test_exports_only_the_abi(shim: CudaLibrary) -> None:
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", str(shim.path)], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split()[-1].split("@")[0] for line in symbols.splitlines() if " T " in line}
    assert names - {"_init", "_fini"} == set(abi.PROTOTYPES)


def test_a_gpu_refuses_the_shims_switch(shim: CudaLibrary, gpu: CudaLibrary) -> None:
    with pytest.raises(ForgeError, match="TF-OPS-111"):
        gpu.shim_order(descending=True)


def test_benchmark_prepares_a_step_that_computes(shim: CudaLibrary) -> None:
    """The step that benchmarks/cuda_attention.py times is the op, with its workspace and no status words."""
    from benchmarks.cuda_attention import Case, main, prepared_step
    from plugins import reference

    for fresh in (1, 20):
        case = Case("x", 2, 40, fresh, 4, 2, 64, 16, "bfloat16")
        run, tensors = prepared_step(shim, case, "cpu")
        pool = tensors["pool"].clone()
        run()
        qkv = tensors["qkv"]
        expected = reference.paged_attention(
            qkv[:, :256], qkv[:, 256:384], qkv[:, 384:], pool, tensors["starts"], tensors["lengths"], tensors["table"],
            num_heads=4, num_kv_heads=2, head_size=64,
        )  # fmt: skip
        torch.testing.assert_close(tensors["out"].float(), expected.float(), rtol=1e-2, atol=2e-2)
        assert torch.equal(tensors["pool"], pool)
    if not torch.cuda.is_available():
        assert main([]) == ExitCode.ENVIRONMENT


def test_what_has_kernels_is_what_the_table_promises() -> None:
    """A GPU whose row names the target has machine code of ours, and the other way round."""
    for row in architecture_table().rows:
        covered = any(runs_on(code, row.name) for code in build.ARCHITECTURES)
        assert covered == ("tensorrt" in row.targets), row.name


@pytest.mark.parametrize(
    ("code", "architecture", "runs"),
    [
        ("100", "sm_100", True), ("100", "sm_103", True), ("120", "sm_121", True), ("100", "sm_120", False),
        ("80", "sm_89", True), ("86", "sm_80", False), ("80", "sm_75", False), ("90", "sm_100", False),
        ("90a", "sm_90", True), ("100a", "sm_103", False), ("", "sm_90", False), ("90", "", False),
    ],
)  # fmt: skip
def test_machine_code_runs_on_later_gpus_of_its_major_version(code: str, architecture: str, runs: bool) -> None:
    assert runs_on(code, architecture) is runs
