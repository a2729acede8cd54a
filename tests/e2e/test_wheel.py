"""A wheel, installed far from any checkout among modules of others that have our packages' names: it is whole."""

from __future__ import annotations

import ctypes
import json
import os
import site
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from plugins.cuda import abi
from plugins.cuda.build import SHARED, build_shim_library, built_library, find_nvcc, read_report, source_hash
from plugins.structs import arguments, cuda_call
from plugins.tensorrt.build import layer_hash
from tests.support.fat_binaries import machine_code
from tests.support.tensorrt_headers import tensorrt_headers
from tests.support.tiny import write_tiny_llama
from trtforge.ground.errors import EnvironmentLacks
from trtforge.ground.own_packages import NAMES
from trtforge.native import ops
from trtforge.native.cache import VARIABLE
from trtforge.native.plugin_library import LIBRARY

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))
HELD = (*sorted(NAMES), "configs")
#: what of the checkout's files no run needs
LEFT_OUT = (".gitignore",)
#: a small model's run of a recipe that ships
SMALL = (
    "build.limits={max_batch_size: 4, max_num_tokens: 256, max_seq_len: 768}",
    "build.kv_cache={block_size: 16, memory: 4MiB}",
    "quantize.calibration={samples: 4, sequence_length: 64}",
    "evals.perplexity={tokens: 512, window: 128, stride: 64, gate: {max_increase: 100%}}",
    "evals.generation={prompts: 2, max_tokens: 8, gate: {min_sane: 0}}",
    "evals.suite.gate=null",  # random weights are right on nothing
    "evals.engine_parity={prompts: 4, gate: {min_top1_agreement: 90%}}",
    "bench={concurrency: [1], requests_per_level: 2, max_tokens: 8}",
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel in it, and a folder to work in."""

    bin: Path
    folder: Path
    foreign: Path

    def __call__(self, *words: str, seconds: float = 300, **more: str) -> subprocess.CompletedProcess[str]:
        """A program of the environment, run in the folder; ``more`` are further variables of its environment."""
        path = (self.bin, Path(sys.executable).parent, os.environ["PATH"])
        return subprocess.run(
            [str(self.bin / words[0]), *words[1:]],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.foreign), "PATH": os.pathsep.join(map(str, path)), **more},
            timeout=seconds,
            check=False,
        )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout; what its host library is compiled from lies in the build folder of the install."""
    out = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(out), str(ROOT)]
    done = subprocess.run(build, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    [made] = out.glob("trtforge-*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel in an environment of its own that sees the libraries of this one, but not its trtforge."""
    folder = tmp_path_factory.mktemp("far")
    venv, foreign, work = folder / "venv", folder / "foreign", folder / "work"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True, timeout=120)
    [packages] = venv.glob("lib/python*/site-packages")
    # a folder that a .pth file adds is searched, but its own .pth files (the editable install's) are not read
    (packages / "libraries.pth").write_text("".join(f"{path}\n" for path in site.getsitepackages()))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(venv / "bin" / "python")]
    subprocess.run([*pip, "install", "-q", "--no-deps", "--no-index", str(wheel)], check=True, timeout=300)
    for place in (foreign, work, packages):
        place.mkdir(exist_ok=True)
        for name in HELD:
            (place / f"{name}.py").write_text("raise SystemExit('a module of somebody else')\n")
    return Installed(venv / "bin", work, foreign)


def test_everything_of_the_checkout_travels(wheel: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "--", "trtforge", *HELD], cwd=ROOT, capture_output=True, text=True)
    assert listed.returncode == 0, listed.stderr
    tracked = [path for path in listed.stdout.splitlines() if Path(path).name not in LEFT_OUT]
    expected = {f"trtforge/_packages/{path}": path for path in tracked if not path.startswith("trtforge/")}
    expected |= {path: path for path in tracked if path.startswith("trtforge/")}
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        assert set(expected) - held == set()
        assert {path.split("/")[0].split("-")[0] for path in held} == {"trtforge", "trtforge.pth"}
        assert [path for path in held if "__pycache__" in path] == []
        for inside, path in expected.items():
            if path.startswith(("configs/", "plugins/")):
                assert archive.read(inside) == (ROOT / path).read_bytes(), path


def test_the_packages_of_the_wheel_are_the_ones_that_run(installed: Installed) -> None:
    names = ", ".join(sorted(NAMES))
    done = installed("python", "-c", f"import trtforge, {names}; print(trtforge.__file__, runtime.__file__)")
    assert done.returncode == 0, done.stderr
    spine, runtime = map(Path, done.stdout.split())
    assert spine.is_relative_to(installed.bin.parent)
    assert runtime == spine.parent / "_packages" / "runtime" / "__init__.py"


def test_a_program_without_trtforge_keeps_its_own_modules(installed: Installed) -> None:
    done = installed("python", "-c", "import evals")
    assert done.returncode == 1 and "somebody else" in done.stderr


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_that_ships_is_found_and_checked(installed: Installed, name: str) -> None:
    done = installed("trtforge", "check", name, "--no-model", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["rules"] > 100


def test_what_lies_beside_a_recipe_travels_with_it(installed: Installed) -> None:
    done = installed("trtforge", "explain", "smollm2-135m-eagle3", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    [heads] = installed.bin.parent.glob("lib/python*/site-packages/trtforge/_packages/configs/heads")
    done = installed("trtforge", "draft", "inspect", str(heads / "smollm2-135m-eagle3"), "--json")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_recipe_that_ships_runs_to_its_bundle(installed: Installed) -> None:
    """With a small model instead of SmolLM2; the server's Python model runs in a process that Triton starts."""
    write_tiny_llama(installed.folder / "model")
    sets = [
        word
        for text in (f"model.source={installed.folder / 'model'}", "model.sha256=null", *SMALL)
        for word in ("--set", text)
    ]
    done = installed("trtforge", "run", "smollm2-135m-fp8", *sets, "--json", seconds=800)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    result = json.loads(done.stdout)
    assert {stage["status"] for stage in result["stages"]} == {"ran"}
    assert "smoke" in {stage["stage"] for stage in result["stages"]}
    done = installed("trtforge", "verify", result["link"])
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_native_libraries_are_built_from_the_wheel(installed: Installed) -> None:
    """The same sources as the checkout's: what was compiled of those is what the wheel would compile."""
    build_shim_library()
    script = (
        "import trtforge, json; from pathlib import Path; from plugins.cuda.build import *; "
        "from plugins.cuda.build import source_tree; from plugins.tensorrt.build import layer_hash; "
        "made = build_shim_library(); "
        "print(json.dumps([has_sources(), source_hash(), layer_hash(source_tree()), str(made.library), made.seconds]))"
    )
    done = installed("python", "-c", script)
    assert done.returncode == 0, done.stderr
    sources, cuda, tensorrt, library, seconds = json.loads(done.stdout)
    assert (sources, cuda, tensorrt) == (True, source_hash(), layer_hash(ROOT / "plugins"))
    assert Path(library).is_file() and seconds == 0
    done = installed("python", "-c", CONFIGURE)
    assert done.returncode == 0, done.stderr
    assert "Build files have been written" in done.stdout


@pytest.fixture(scope="module")
def compiled(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cache after the command, for one architecture: CUDA ops, and over them TensorRT's plugins."""
    try:
        find_nvcc()
    except EnvironmentLacks as lacks:
        pytest.skip(lacks.message)
    folder = tmp_path_factory.mktemp("cache")
    command = ("trtforge", "plugins", "build", "--arch", "90", "--tensorrt-include", str(tensorrt_headers()), "--json")
    done = installed(*command, seconds=800, **{VARIABLE: str(folder)})
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_nvcc_compiles_the_plugins_of_the_wheel(compiled: Path) -> None:
    made = {path.name: path for path in compiled.glob("*/lib*.so")}
    assert set(made) == {SHARED, LIBRARY}
    for path in made.values():
        report = json.loads(path.with_name("report.json").read_text())
        assert report["seconds"] > 0, "compiled here, and from nowhere else"
        assert source_hash()[:16] in path.parent.name or layer_hash(ROOT / "plugins")[:16] in path.parent.name
        assert subprocess.run(["nm", "-D", path], capture_output=True, check=True).stdout.count(b" T ") > 0


def test_nvcc_compiles_without_warnings_or_spills(compiled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Warnings are errors; the library of the checkout's very sources opens without a driver and says what it holds."""
    monkeypatch.setenv(VARIABLE, str(compiled))
    library = built_library()
    assert library is not None and library.is_relative_to(compiled)
    kernels = read_report(library.parent)
    assert {use.architecture for use in kernels} == {"90"}
    assert machine_code(library.read_bytes()) == {90}
    assert not [use for use in kernels if use.spill_store_bytes or use.spill_load_bytes]
    assert {use.kernel.split("<")[0] for use in kernels} == {
        "attentionCheck", "attentionWrite", "attentionMerge", "attentionMma", "attentionSimt", "treeChildren",
        "treeSelect", "acceptPath", "moveCheck", "moveRows",
    }  # fmt: skip
    opened = ctypes.CDLL(str(library))
    abi.bind(opened)
    assert b'"architectures": "90-real"' in opened.trtforge_cuda_info()
    if not torch.cuda.is_available():
        args = arguments(ops.PAGED_ATTENTION, block_size=16, num_heads=2, num_kv_heads=2, head_size=64)
        assert opened.trtforge_cuda_attention_workspace(args, cuda_call(), ctypes.c_uint64()) == 17
        assert b"device 0" in opened.trtforge_cuda_last_error()


CONFIGURE = """
import subprocess, tempfile
import trtforge
from trtforge.ground.own_packages import root
with tempfile.TemporaryDirectory() as folder:
    print(subprocess.run(["cmake", "-S", root(), "-B", folder], check=True, capture_output=True, text=True).stdout)
"""


def test_an_unknown_recipe_is_refused_with_the_nearest(installed: Installed) -> None:
    done = installed("trtforge", "run", "smollm2-135m-fp88", "--json")
    error = json.loads(done.stdout)["error"]
    assert (done.returncode, error["code"]) == (2, "TF-RCP-001")
    assert "smollm2-135m-fp8" in error["remedies"][0]
