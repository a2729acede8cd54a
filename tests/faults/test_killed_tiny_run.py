"""SIGKILL inside every stage of the real pipeline, one after the other on one store: the end is the same."""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import forked
from tests.support.forked import Forked
from tests.support.thorough import often
from tests.support.tiny_recipe import write_tiny_recipe
from trtforge.store.integrity import verify_directory
from trtforge.store.store import Store

PROGRAM = "tests.support.tiny_recipe"
STAGES = ("intake", "baseline", "quantize", "evaluate", "graph", "build", "parity")

pytestmark = pytest.mark.e2e


def start(recipe: Path, store: Path, *options: str) -> Forked:
    return Forked(PROGRAM, [str(recipe), "--store", str(store), *options])


def run(recipe: Path, store: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return forked.run(PROGRAM, [str(recipe), "--store", str(store), *options])


def hashes(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr[-3000:]
    return {stage["stage"]: stage["content_hash"] for stage in json.loads(done.stdout)["stages"]}


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_recipe(tmp_path_factory.mktemp("recipe"))


@pytest.fixture(scope="module")
def undisturbed(recipe: Path) -> dict[str, Any]:
    return hashes(run(recipe, recipe.parent / ".trtforge"))


def test_killed_in_every_stage(recipe: Path, undisturbed: dict[str, Any], tmp_path: Path) -> None:
    """Before its work or after it, when the directory is full but not published."""
    store = tmp_path / ".trtforge"
    rng = random.Random(4)
    for stage in STAGES:
        step = rng.choice(("begin", "written"))
        assert run(recipe, store, "--die-at", f"{stage}.{step}").returncode == -9, (stage, step)
    assert hashes(run(recipe, store)) == undisturbed
    for artifact in Store(store).artifacts():
        assert verify_directory(artifact.path).ok
    assert not list((store / "tmp").iterdir())


#: what is killed within, and after how many of its samples
SAMPLES = (
    ("baseline", "windows", 2),
    ("baseline", "noise", 1),
    ("baseline", "answers", 1),
    ("baseline", "tasks", 2),
    ("baseline", "needles", 1),
    ("baseline", "tails", 1),
    ("evaluate", "windows", 3),
    ("evaluate", "needles", 1),
    ("parity", "positions", 2),
    ("parity", "own_answers", 1),
    ("parity", "windows", 1),
    ("parity", "tails", 1),
)


def test_killed_within_every_evaluation_nothing_is_measured_twice(tmp_path: Path) -> None:
    """A sample is on the disk when it is measured: a run that goes on takes it over, and ends with the same hashes."""
    recipe = write_tiny_recipe(tmp_path)
    text = recipe.read_text().replace("stride: 64,", "stride: 64, noise_tokens: 256,")
    text = text.replace("engine_parity: {prompts: 4,", "engine_parity: {prompts: 4, tokens: 256,")
    probes = "  suite: {samples: 1, gate: null}\n  long_context: {lengths: [256, 512], depths: [0.5], samples: 1}\n"
    recipe.write_text(text.replace("build:\n", f"{probes}build:\n"))
    store, log = tmp_path / ".trtforge", tmp_path / "samples.log"
    for stage, name, count in SAMPLES:
        done = run(recipe, store, "--samples-log", str(log), "--die-at-sample", f"{name}:{count}", "--until", stage)
        assert done.returncode == -9, (stage, name, done.stderr[-2000:])
    ended = hashes(run(recipe, store, "--samples-log", str(log)))
    measured = log.read_text().splitlines()
    assert len(measured) == len(set(measured)), "a sample was measured twice"
    assert {line.split()[1] for line in measured} == {f"{name}.jsonl" for _, name, _ in SAMPLES}
    assert hashes(run(recipe, tmp_path / "other")) == ended


def servers_of(store: Path) -> list[psutil.Process]:
    """Triton processes whose command line names the store."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and any(str(store) in part for part in process.cmdline()):
                found.append(process)
    return found


def test_killed_while_its_server_runs(recipe: Path, undisturbed: dict[str, Any], tmp_path: Path) -> None:
    """The server does not outlive the run that started it, and the next run finishes the bundle."""
    store = tmp_path / ".trtforge"
    shutil.copytree(recipe.parent / ".trtforge", store)
    process = start(recipe, store, "--until", "smoke")
    deadline = time.monotonic() + 120
    while not any("starting the Triton server" in log.read_text() for log in (store / "logs").iterdir()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(1.0)
    assert any("tritonserver" in " ".join(server.cmdline()) for server in servers_of(store))
    process.kill()
    process.wait(60)
    while servers_of(store):
        assert time.monotonic() < deadline, servers_of(store)
        time.sleep(0.2)
    after = hashes(run(recipe, store, "--until", "smoke"))
    assert {stage: after[stage] for stage in undisturbed} == undisturbed
    assert not list((store / "tmp").iterdir())


def test_killed_at_random_times(recipe: Path, undisturbed: dict[str, Any], tmp_path: Path) -> None:
    store = tmp_path / ".trtforge"
    rng = random.Random(5)
    for _ in range(often(3, 8)):  # a run that nothing disturbs takes some four seconds
        process = start(recipe, store)
        time.sleep(rng.uniform(0.1, 4.0))
        process.kill()
        process.wait(60)
    assert hashes(run(recipe, store)) == undisturbed
    assert not list((store / "tmp").iterdir())


@pytest.fixture(scope="module")
def finished(recipe: Path, undisturbed: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """A store with everything up to the bundle, and its hashes."""
    store = recipe.parent / "finished" / ".trtforge"
    shutil.copytree(recipe.parent / ".trtforge", store)
    return store, hashes(run(recipe, store, "--until", "bundle"))


def unfinished(finished: Path, folder: Path, *stages: str) -> Path:
    """A copy of the finished store without the artifacts of some stages."""
    store = folder / ".trtforge"
    shutil.copytree(finished, store, symlinks=True)
    for stage in stages:
        shutil.rmtree(store / "artifacts" / stage)
    return store


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_stopped_at_random_times_of_the_benchmark(
    recipe: Path, finished: tuple[Path, dict[str, Any]], tmp_path: Path, number: int
) -> None:
    store = unfinished(finished[0], tmp_path, "bench", "bundle")
    rng = random.Random(int(number))
    for attempt in range(often(2, 4)):
        before = set((store / "logs").iterdir())
        process = start(recipe, store, "--until", "bundle")
        deadline = time.monotonic() + 120
        while not any("bench: " in log.read_text() for log in set((store / "logs").iterdir()) - before):
            assert process.poll() is None, attempt
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(rng.uniform(0.2, 4.0))
        process.send_signal(number)
        assert process.wait(60) != 0, "it ended before it was stopped"
        while servers_of(store):
            assert time.monotonic() < deadline, servers_of(store)
            time.sleep(0.2)
        assert not (store / "artifacts" / "bench").exists() or not any((store / "artifacts" / "bench").iterdir())
    assert hashes(run(recipe, store, "--until", "bundle")) == finished[1]
    assert not list((store / "tmp").iterdir())


def test_killed_while_the_bundle_is_made(recipe: Path, finished: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Whatever the moment, there is no bundle or a whole one, and the rerun links it."""
    store = unfinished(finished[0], tmp_path, "bundle")
    for step in ("bundle.begin", "bundle.written", "publish.hashed", "seal.manifest_written", "publish.renamed"):
        done = run(recipe, store, "--until", "bundle", "--die-at", step)
        assert done.returncode == -9, (step, done.stderr[-2000:])
        for bundle in (store / "artifacts" / "bundle").glob("*"):
            assert verify_directory(bundle).ok, step
            shutil.rmtree(bundle)
    assert hashes(run(recipe, store, "--until", "bundle")) == finished[1]
    assert verify_directory(tmp_path / "bundles" / "tiny").ok
    assert not list((store / "tmp").iterdir())
