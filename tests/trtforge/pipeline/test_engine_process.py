"""Engines of stages: closed before a server starts; on a GPU in a process that has ended by then."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import types
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from runtime.engine import EngineCore
from runtime.offline import Engine
from runtime.serving import AsyncEngine
from tests.runtime.executor_support import tiny_engine
from tests.support.simulation import SimulatedExecutor
from trtforge.ground.errors import ForgeError
from trtforge.ground.progress import SilentProgress
from trtforge.pipeline import gpu_memory
from trtforge.pipeline.stages import bench, engine_process, parity, smoke
from trtforge.pipeline.stages.engine_process import engine_of, runs_on_gpu
from trtforge.recipe.schema import Bench, Speculation
from trtforge.recipe.schema_serving import Serving
from trtforge.targets.torch import TORCH

ANSWERS = ["The capital of France is", "One, two, three"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_engine(tmp_path_factory.mktemp("engine"))[0]


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_process, "runs_on_gpu", lambda directory: True)


class Recorder(SilentProgress):
    def __init__(self) -> None:
        self.said: list[Any] = []

    def start(self, description: str, total: float | None = None) -> None:
        self.said.append((description, total))

    def note(self, text: str) -> None:
        self.said.append(text)


# What children are asked: they import these.


def process_id(engine: Engine, progress: Any) -> int:
    progress.start("asked", 2.0)
    progress.note("seen")
    return os.getpid()


def refuse(engine: Engine, progress: Any) -> None:
    engine.generate(["x"], [])


def break_down(engine: Engine, progress: Any) -> None:
    raise ValueError("a bug")


def die(engine: Engine, progress: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def test_which_engines_run_on_a_gpu(tmp_path: Path, directory: Path) -> None:
    assert not runs_on_gpu(directory) and not runs_on_gpu(tmp_path)
    (tmp_path / "engine.json").write_text('{"target": "tensorrt"}')
    assert runs_on_gpu(tmp_path)


def test_an_engine_of_a_gpu_has_a_process_that_ends_with_the_block(directory: Path, on_gpu: None) -> None:
    """Same answers, progress and refusals as here; a bug is one, and the process answers on."""
    progress = Recorder()
    with engine_of(directory, progress) as ask:
        child = ask(process_id)
        assert child != os.getpid() and not gone(child)
        assert progress.said[-2:] == [("asked", 2.0), "seen"]
        with pytest.raises(ForgeError, match="TF-RUN-065"):
            ask(refuse)
        with pytest.raises(RuntimeError, match="ValueError: a bug"):
            ask(break_down)
        far: smoke.Offline = ask(smoke.answer_offline, ANSWERS, 6)
    assert gone(child)
    with Engine.load(directory) as engine:
        near = smoke.answer_offline(engine, SilentProgress(), ANSWERS, 6)
    assert (far.texts, far.tokens) == (near.texts, near.tokens) and far.max_batch_size == near.max_batch_size


def test_a_process_that_dies_says_how(directory: Path, on_gpu: None) -> None:
    with pytest.raises(ForgeError) as caught, engine_of(directory, SilentProgress()) as ask:
        ask(die)
    assert caught.value.code == "TF-RUN-121" and "SIGKILL" in caught.value.message


def test_a_directory_that_is_none_is_refused_by_its_reader(tmp_path: Path, on_gpu: None) -> None:
    with pytest.raises(ForgeError, match="TF-RUN-001"), engine_of(tmp_path, SilentProgress()):
        raise AssertionError


@contextlib.contextmanager
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[weakref.ref[Any]]]:
    """References to program (weights) and pools of every engine that is loaded; no cycle is collected meanwhile."""
    refs: list[weakref.ref[Any]] = []
    load = Engine.load

    def loaded(*arguments: Any, **options: Any) -> Engine:
        engine = load(*arguments, **options)
        executor: Any = engine.executor
        refs.append(weakref.ref(executor._lowered))
        refs.extend(weakref.ref(pool.untyped_storage()) for pool in executor._pools.values())
        return engine

    monkeypatch.setattr(Engine, "load", loaded)
    gc.collect()
    gc.disable()
    try:
        yield refs
    finally:
        gc.enable()


class ServerStarts(Exception):
    """The moment at which the memory must be free."""


@pytest.mark.parametrize("stage", ["smoke", "bench"])
def test_nothing_is_held_when_the_server_starts(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    context = types.SimpleNamespace(
        progress=SilentProgress(),
        inputs={
            "build": types.SimpleNamespace(path=directory),
            "parity": types.SimpleNamespace(summary={"noise": 0.0}),
        },
        out=tmp_path,
        recipe_dir=tmp_path,
        recipe=types.SimpleNamespace(
            serving=Serving(),
            name="tiny",
            bench=Bench(concurrency=(1, 2), requests_per_level=2, max_tokens=3, slo=None),
            speculation=Speculation(),
        ),
    )
    with held(monkeypatch) as refs:

        def start(context: Any, log: Path) -> Any:
            assert len(refs) > 1 and not [ref for ref in refs if ref() is not None]
            raise ServerStarts

        monkeypatch.setattr(smoke.serving, "live_server", start)
        with pytest.raises(ServerStarts):
            {"smoke": smoke.SmokeStage, "bench": bench.BenchStage}[stage]().run(context)


def test_parity_closes_its_engine(directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = types.SimpleNamespace(target=TORCH)
    context = types.SimpleNamespace(
        progress=SilentProgress(), inputs={"build": types.SimpleNamespace(path=directory)}, recipe=build
    )
    with held(monkeypatch) as refs:
        with parity._engine(context) as engine:
            assert engine.logits(torch.tensor([3, 4, 5])).shape[0] == 3 and engine.activations and engine.longest > 3
        del engine
        assert len(refs) > 1 and not [ref for ref in refs if ref() is not None]


def test_engines_hold_no_cycle() -> None:
    """An engine that nobody has any more is gone at once, with what its executor holds."""
    gc.collect()
    gc.disable()
    try:
        executor = SimulatedExecutor()
        core = EngineCore(executor)
        core.stats()
        refs = [weakref.ref(executor), weakref.ref(core)]
        del executor, core
        assert not [ref for ref in refs if ref() is not None]
    finally:
        gc.enable()


def test_a_server_that_shut_down_has_closed_its_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []
    executor = SimulatedExecutor()
    monkeypatch.setattr(executor, "close", lambda: closed.append(True))
    server = AsyncEngine(EngineCore(executor))
    assert not closed and server.shutdown(10.0) and closed == [True]


def test_a_closed_executor_does_not_step(directory: Path) -> None:
    engine = Engine.load(directory)
    engine.close()
    engine.close()
    with pytest.raises(RuntimeError, match="closed"):
        engine.logits([3, 4])


def test_near_ties_need_no_engine() -> None:
    """Logits were kept before the server took the memory."""
    rows = torch.tensor([[0.0, 5.0, 5.0, 1.0], [9.0, 0.0, 1.0, 2.0]]).numpy()
    offline = smoke.Offline({"p": "bx"}, {"p": [1, 0]}, {"p": [3]}, {"p": rows}, "bfloat16", False, 8, 2)
    partings = smoke.Partings(offline, lambda tokens: "".join("xbcd"[token] for token in tokens), 0.0)
    assert partings("p", "cd").near_tie
    assert not partings("p", "dx").near_tie and not partings("p", "bd").near_tie


@pytest.mark.parametrize("used", [True, False])
def test_stages_leave_nothing_in_torchs_cache(monkeypatch: pytest.MonkeyPatch, used: bool) -> None:
    emptied: list[bool] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: used)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(True))
    gpu_memory.release_gpu_memory()
    assert emptied == [True] * used
