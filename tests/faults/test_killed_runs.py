"""SIGKILL and SIGINT at random moments: a rerun ends with the hashes of an undisturbed run and leaves nothing over."""

from __future__ import annotations

import functools
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import forked
from tests.support.synthetic import content_hashes
from tests.support.thorough import often
from trtforge.store.integrity import verify_directory
from trtforge.store.store import Store

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "tests.support.synthetic"


def command(store: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", PROGRAM, "--store", str(store), *options]


def run(store: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return forked.run(PROGRAM, ["--store", str(store), *options], seconds=60)


@functools.cache
def steps(folder: Path) -> tuple[str, ...]:
    """The names of all steps of an undisturbed run, in order; the run also leaves the hashes to compare with."""
    return tuple(run(folder / ".trtforge", "--steps").stdout.split())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert len(steps(folder)) > 40
    return folder


def assert_recovers(store: Path, undisturbed: Path) -> None:
    """A rerun succeeds, publishes the same content, and leaves no temporary or scratch directory."""
    after = run(store)
    assert after.returncode == 0, after.stderr
    opened = Store(store)
    assert content_hashes(opened) == content_hashes(Store(undisturbed / ".trtforge"))
    for artifact in opened.artifacts():
        assert verify_directory(artifact.path).ok
    assert not list((store / "tmp").iterdir())
    assert not list((store / "scratch").glob("*/*"))
    again = run(store)
    assert again.returncode == 0, again.stderr
    assert {status for status, _ in json.loads(again.stdout).values()} == {"cached"}


def test_steps_cover_every_phase_of_every_stage(undisturbed: Path) -> None:
    names = steps(undisturbed)
    for stage in ("intake", "quantize", "evaluate", "bench", "bundle"):
        assert f"{stage}.begin" in names
        assert f"{stage}.written" in names
    for phase in ("publish.hashed", "seal.manifest_written", "seal.complete_written", "publish.renamed"):
        assert names.count(phase) == 5
    for phase in ("share.kept", "share.linked", "share.replaced"):
        assert phase in names


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["SIGKILL", "SIGINT", "SIGTERM"])
def test_killed_at_every_few_steps(undisturbed: Path, tmp_path: Path, kind: str) -> None:
    """One store is killed again and again, each time some steps further; a fresh one at a random step."""
    total = len(steps(undisturbed))
    rng = random.Random(kind)
    expected = {"SIGKILL": -signal.SIGKILL, "SIGINT": 130, "SIGTERM": 130}[kind]
    for index in sorted(rng.sample(range(total), often(4, 12))):
        store = tmp_path / f"at{index}" / ".trtforge"
        killed = run(store, "--die-at", str(index), "--signal", kind)
        assert killed.returncode == expected, (steps(undisturbed)[index], killed.stderr)
        if kind != "SIGKILL":
            assert not list((store / "tmp").iterdir()), "an interrupted run cleans up itself"
        assert_recovers(store, undisturbed)


@pytest.mark.slow
def test_killed_again_and_again_on_one_store(undisturbed: Path, tmp_path: Path) -> None:
    rng = random.Random(1)
    store = tmp_path / ".trtforge"
    for _ in range(often(8, 24)):
        run(store, "--die-at", str(rng.randrange(0, 14)))
    assert_recovers(store, undisturbed)


@pytest.mark.slow
def test_killed_at_random_times(undisturbed: Path, tmp_path: Path) -> None:
    rng = random.Random(2)
    for index in range(often(4, 12)):
        store = tmp_path / f"t{index}" / ".trtforge"
        process = forked.Forked(PROGRAM, ["--store", str(store), "--pause", "0.03"])
        time.sleep(rng.uniform(0.05, 0.6))
        process.send_signal(rng.choice([signal.SIGKILL, signal.SIGINT]))
        process.wait(30)
        assert_recovers(store, undisturbed)


def test_two_runs_at_once_do_the_work_once(undisturbed: Path, tmp_path: Path) -> None:
    store = tmp_path / ".trtforge"
    both = [
        subprocess.Popen(command(store, "--pause", "0.05"), cwd=ROOT, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    outputs = [json.loads(process.communicate(timeout=60)[0]) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    for stage in outputs[0]:
        assert sorted([outputs[0][stage][0], outputs[1][stage][0]]) == ["cached", "ran"], stage
        assert outputs[0][stage][1] == outputs[1][stage][1]
    assert_recovers(store, undisturbed)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def start_two(store: Path) -> tuple[subprocess.Popen[str], subprocess.Popen[str]]:
    """One run that is busy in its first stage, and one that waits for it."""
    first = subprocess.Popen(command(store, "--pause", "100"), cwd=ROOT, text=True)
    wait_until(lambda: bool(list(store.glob("locks/intake-*.holder"))))
    second = subprocess.Popen(command(store), cwd=ROOT, stdout=subprocess.PIPE, text=True)
    wait_until(lambda: "waiting for process" in "".join(log.read_text() for log in (store / "logs").iterdir()))
    return first, second


def test_an_interrupted_waiting_run_leaves_the_other_alone(undisturbed: Path, tmp_path: Path) -> None:
    store = tmp_path / ".trtforge"
    first, second = start_two(store)
    second.send_signal(signal.SIGINT)
    assert second.wait(30) == 130
    assert first.poll() is None
    first.send_signal(signal.SIGTERM)
    assert first.wait(30) == 130
    assert_recovers(store, undisturbed)


def test_a_waiting_run_takes_over_when_the_other_is_killed(undisturbed: Path, tmp_path: Path) -> None:
    store = tmp_path / ".trtforge"
    first, second = start_two(store)
    assert second.poll() is None, "the second run waits"
    first.kill()
    first.wait()
    output = json.loads(second.communicate(timeout=30)[0])
    assert {status for status, _ in output.values()} == {"ran"}
    assert_recovers(store, undisturbed)
