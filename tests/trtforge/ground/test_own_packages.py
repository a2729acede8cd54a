"""Modules of others that have our packages' names are never run as ours, and ours never as theirs without a word."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from trtforge.ground import start
from trtforge.ground.own_packages import NAMES, root

ROOT = Path(__file__).parents[3]
BOMB = "raise SystemExit('a module of somebody else')\n"


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A folder with modules and packages of all our names."""
    for number, name in enumerate(sorted(NAMES)):
        package = tmp_path / name
        if number % 2:
            package.mkdir()
            (package / "__init__.py").write_text(BOMB)
        else:
            package.with_suffix(".py").write_text(BOMB)
    return tmp_path


def run(*arguments: str, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Python in ``cwd``, with ``path`` and then the checkout on ``PYTHONPATH``."""
    entries = [str(entry) for entry in (path, ROOT) if entry is not None]
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entries)},
        timeout=120,
        check=False,
    )


def test_the_names_are_all_the_packages_that_are_there() -> None:
    packages = {folder.parent.name for folder in Path(root()).glob("*/__init__.py")}
    assert packages - {"trtforge", "tests", "benchmarks", "scripts"} == NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_ours_come_before_modules_of_the_working_directory_and_of_the_path(name: str, foreign: Path) -> None:
    script = f"import trtforge, {name}; print({name}.__file__)"
    for where in ({"cwd": foreign}, {"cwd": ROOT, "path": foreign}):
        done = run("-c", script, **where)
        assert (done.returncode, done.stdout.strip()) == (0, str(ROOT / name / "__init__.py")), done.stderr


def test_a_process_without_trtforge_has_its_own_modules(tmp_path: Path) -> None:
    (tmp_path / "evals.py").write_text("OWN = 1\n")
    done = run("-c", "import evals; print(evals.OWN)", cwd=tmp_path)
    assert done.stdout.strip() == "1", done.stderr


@pytest.mark.parametrize("asked", ["evals.generation", "runtime.engine", "evals"])
def test_a_module_that_was_there_first_is_refused_with_its_path(asked: str, tmp_path: Path) -> None:
    (tmp_path / "evals.py").write_text("OWN = 1\n")
    done = run("-c", f"import evals, trtforge; print(evals.OWN, flush=True); import {asked}", cwd=tmp_path)
    assert done.stdout.strip() == "1" and done.returncode == 1
    assert "TF-ENV-032" in done.stderr.splitlines()[-1] and str(tmp_path / "evals.py") in done.stderr


def test_a_package_without_a_file_that_was_there_first_is_refused_too(tmp_path: Path) -> None:
    script = (
        "import sys, types; sys.modules['plugins'] = module = types.ModuleType('plugins'); "
        f"module.__path__ = [{str(tmp_path)!r}]; import trtforge, plugins.host"
    )
    done = run("-c", script, cwd=tmp_path)
    assert "TF-ENV-032" in done.stderr and str(tmp_path) in done.stderr, done.stderr


def test_packages_of_ours_that_were_imported_first_are_kept() -> None:
    script = "import sys, runtime; before = runtime; import trtforge, runtime; assert runtime is before; print('kept')"
    done = run("-c", script, cwd=ROOT)
    assert done.stdout.strip() == "kept", done.stderr


def test_the_command_refuses_what_a_start_up_hook_imported(tmp_path: Path) -> None:
    (tmp_path / "quantize.py").write_text("OWN = 1\n")
    (tmp_path / "sitecustomize.py").write_text("import quantize\n")
    recipe = ROOT / "configs" / "smollm2-135m-fp8.yaml"
    done = run("-m", "trtforge", "check", str(recipe), "--json", cwd=ROOT, path=tmp_path)
    assert done.returncode == 3, done.stderr
    error = json.loads(done.stdout)["error"]
    assert error["code"] == "TF-ENV-032" and str(tmp_path / "quantize.py") in error["message"]


def test_the_command_runs_beside_foreign_modules(foreign: Path) -> None:
    recipe = ROOT / "configs" / "smollm2-135m-fp8.yaml"
    done = run("-P", "-m", "trtforge", "check", str(recipe), "--json", cwd=foreign, path=foreign)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["passed"] is True


def test_programs_of_ours_start_beside_foreign_modules(foreign: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(foreign)
    monkeypatch.setenv("PYTHONPATH", str(foreign))
    command = start.command("trtforge.cli.ask", ["--help"])
    done = subprocess.run(command, env=start.variables(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 and "HOST:PORT" in done.stdout, done.stderr
    command = start.command("builder.targets.tensorrt.worker", ["no such spec"])
    done = subprocess.run(command, env=start.variables(), capture_output=True, text=True, timeout=120, check=False)
    assert "somebody else" not in done.stderr and "no such spec" in done.stderr


def test_a_package_that_the_installation_lost_is_not_looked_for_elsewhere(foreign: Path) -> None:
    script = "from trtforge.ground import own_packages; own_packages.root = lambda: '/nowhere'; import evals"
    done = run("-c", script, cwd=foreign)
    assert "ModuleNotFoundError: trtforge has lost its package evals" in done.stderr, done.stderr
