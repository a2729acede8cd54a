"""The command as a process: exit codes, purity of stdout, signals, and what ``--help`` imports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.builder.planner.models import bare

ROOT = Path(__file__).parents[3]


def trtforge(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trtforge", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TRTFORGE_HOME": str(cwd / "store"), **environment},
        timeout=120,
        check=False,
    )


def test_help_imports_nothing_that_it_does_not_need() -> None:
    script = (
        "import sys; from trtforge.cli.main import invoke; invoke(['--help']); "
        "heavy = 'torch rich pydantic yaml numpy psutil quantize runtime builder'.split(); "
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stderr.strip() == "[]"


def test_exit_codes(tmp_path: Path) -> None:
    assert trtforge("schema", cwd=tmp_path).returncode == 0
    assert trtforge("check", "gone.yaml", cwd=tmp_path).returncode == 2
    assert trtforge("nonsense", cwd=tmp_path).returncode == 2


@pytest.mark.parametrize("words", [["--help"], ["check", "x.yaml", "--json"]], ids=["help", "check"])
def test_a_python_that_strips_docstrings_is_refused(tmp_path: Path, words: list[str]) -> None:
    """A rule's reason and a command's help are docstrings."""
    stripped = trtforge(*words, cwd=tmp_path, PYTHONOPTIMIZE="2")
    assert stripped.returncode == 3 and "TF-ENV-033" in stripped.stdout + stripped.stderr
    assert "TF-ENV-033" not in trtforge(*words, cwd=tmp_path, PYTHONOPTIMIZE="1").stdout


def test_rules_cannot_be_had_without_their_reasons(tmp_path: Path) -> None:
    """Neither by the command, nor by a program that imports them."""
    script = "import trtforge.preflight.engine as engine; print(len(engine.all_rules()))"
    command = [sys.executable, "-OO", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 1 and "TF-ENV-033" in done.stderr


def test_no_colour_in_a_pipe_even_when_forced_elsewhere(tmp_path: Path) -> None:
    done = trtforge("stack", cwd=tmp_path, TERM="xterm-256color")
    assert "\x1b" not in done.stdout + done.stderr


def test_a_store_that_cannot_be_written_is_an_environment_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = trtforge("artifacts", "gc", "--store", str(tmp_path / "file" / "store"), "--json", cwd=tmp_path)
    assert done.returncode == 3
    assert json.loads(done.stdout)["error"]["code"] == "TF-STO-001"


_NOISY = """
import os, sys
from trtforge.cli import common
import typer

app = typer.Typer()

@app.command()
@common.forge_command
def noisy(console, fail: bool = False):
    print("library chatter")
    os.write(1, b"native chatter\\n")
    os.system("echo child chatter")
    if fail:
        raise RuntimeError("bug with hf_" + "AbCdEfGhIjKlMnOpQrStUvWxYz01234567")
    console.result({"ok": True})
    print("more chatter")

app()
"""


@pytest.mark.parametrize("fail", [False, True])
def test_stdout_carries_one_document_whatever_libraries_print(tmp_path: Path, fail: bool) -> None:
    (tmp_path / "noisy.py").write_text(_NOISY)
    done = subprocess.run(
        [sys.executable, "noisy.py", "--json", *(["--fail"] if fail else [])],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    document = json.loads(done.stdout)
    if fail:
        assert done.returncode == 4
        assert document["error"]["code"] == "TF-INTERNAL"
        assert "AbCdEfGhIj" not in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
    else:
        assert (done.returncode, document) == (0, {"ok": True})
    for chatter in ("library", "native", "child"):
        assert f"{chatter} chatter" in done.stderr


_WAITING = """
import sys, time
from trtforge.cli import common
import typer

app = typer.Typer()

@app.command()
@common.forge_command
def wait(console):
    print("waiting", file=sys.stderr, flush=True)
    time.sleep(60)

app()
"""


def test_sigint_ends_with_130_and_one_document(tmp_path: Path) -> None:
    (tmp_path / "waiting.py").write_text(_WAITING)
    process = subprocess.Popen(
        [sys.executable, "waiting.py", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "waiting\n"
    time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert json.loads(out)["error"]["exit_code"] == 130


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m trtforge schema | head -1",
        shell=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert done.stdout == "{\n"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("delay", [0.12, 0.25, 0.4, 0.7, 1.0])
@pytest.mark.parametrize("command", [["stack"], ["plan", "r.yaml", "--gpu", "h200", "--config", "config.json"]])
def test_sigint_at_any_moment_ends_without_a_traceback(tmp_path: Path, delay: float, command: list[str]) -> None:
    """Also while modules are imported; a process that was quicker has its own exit code."""
    (tmp_path / "r.yaml").write_text("name: r\nmodel: {source: 'hf:org/model'}\n")
    (tmp_path / "config.json").write_text(json.dumps(bare()))
    process = subprocess.Popen(
        [sys.executable, "-c", _MARKED, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stderr is not None
    assert process.stderr.readline() == "started\n"
    time.sleep(delay - 0.12)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (0, 130) and "Traceback" not in err
    assert process.returncode == 0 or "TF-INTERRUPTED" in err


#: says when the interpreter itself is up: from then on every moment is the command's
_MARKED = """
import sys
from trtforge.cli import main
run = main.invoke
def invoke(arguments):
    print("started", file=sys.stderr, flush=True)
    return run(arguments)
main.invoke = invoke
main.main()
"""


@pytest.mark.parametrize(
    "command", [["schema"], ["stack", "--json"], ["--help"], ["--version"], ["check", "gone.yaml"]]
)
def test_output_that_is_lost_is_said(tmp_path: Path, command: list[str]) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "trtforge", *command],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
    if command[0] == "check":
        # nothing was for stdout: the refusal is on stderr
        assert done.returncode == 2 and "TF-CLI-015" not in done.stderr
        return
    assert (done.returncode, "TF-CLI-015" in done.stderr) == (3, True), done.stderr
    assert "Traceback" not in done.stderr and "ignored" not in done.stderr and len(done.stderr) < 800


def test_a_refusal_keeps_its_exit_code_when_stdout_is_full(tmp_path: Path) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "-m", "trtforge", "check", "gone.yaml", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            check=False,
        )
    assert done.returncode == 2 and "TF-CLI-015" in done.stderr and "Traceback" not in done.stderr


def test_a_closed_stdout_is_no_error(tmp_path: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m trtforge schema >&-",
        shell=True,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_verdict_survives_a_reader_that_goes_away(tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("name: r\nmodel: {source: 'hf:org/model'}\n")
    (tmp_path / "config.json").write_text(json.dumps(bare(num_hidden_layers=9000, hidden_size=8192)))
    done = subprocess.run(
        [
            "bash",
            "-o",
            "pipefail",
            "-c",
            f"{sys.executable} -m trtforge plan r.yaml --gpu l4 --config config.json | head -1",
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")


_INTERRUPTED = """
import sys
from trtforge.cli import common
from trtforge.ground.errors import EnvironmentLacks
import typer

app = typer.Typer()

@app.command()
@common.forge_command
def imports(console, kind: str):
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt as stop:
        if kind == "caused":
            raise ImportError("a module that was being made ready") from stop
        if kind == "refused":
            raise EnvironmentLacks("TF-QNT-013", "A package does not load") from ImportError("x")
        raise SystemError("returned a result with an exception set")

app()
"""


@pytest.mark.parametrize("kind", ["caused", "during", "refused"])
def test_what_an_interrupt_turned_into_is_an_interrupt(tmp_path: Path, kind: str) -> None:
    (tmp_path / "imports.py").write_text(_INTERRUPTED)
    done = subprocess.run(
        [sys.executable, "imports.py", kind],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 130
    assert "TF-INTERNAL" not in done.stderr and "Traceback" not in done.stderr
