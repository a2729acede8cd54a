"""Many threads, one engine: every request ends once, nobody hangs, whatever dies."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from runtime.engine import EngineConfig, EngineCore
from runtime.executors.base import StepBatch
from runtime.request import FinishReason, GenerationResult, Request, RequestOutput
from runtime.sampling import SamplingParams
from runtime.serving import AsyncEngine
from tests.support.simulation import SimulatedExecutor
from trtforge.ground.errors import ForgeError

WAIT = 20.0


class Gate(SimulatedExecutor):
    """Steps only while the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()

    def execute(self, batch: StepBatch) -> np.ndarray:
        self.entered.set()
        assert self.open.wait(WAIT)
        return super().execute(batch)


class Client:
    """Collects one request's outputs."""

    def __init__(self) -> None:
        self.result = GenerationResult()
        self.done = threading.Event()
        self.ends = 0

    def __call__(self, output: RequestOutput) -> None:
        self.result.add(output)
        if output.finished:
            self.ends += 1
            self.done.set()

    def wait(self) -> GenerationResult:
        assert self.done.wait(WAIT), "no end"
        return self.result


@pytest.fixture
def executor() -> Gate:
    return Gate()


@pytest.fixture
def engine(executor: Gate) -> Iterator[AsyncEngine]:
    made = AsyncEngine(EngineCore(executor, config=EngineConfig(max_waiting=64)))
    yield made
    executor.open.set()
    assert made.shutdown(WAIT)


def request(prompt: list[int], max_tokens: int = 8, **fields: object) -> Request:
    return Request(prompt_token_ids=prompt, params=SamplingParams(max_tokens=max_tokens), **fields)


def free(engine: AsyncEngine) -> bool:
    """Whether all blocks come free soon."""
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        if engine.core.pool.num_used == 0:
            return True
        time.sleep(0.005)
    return False


def test_32_clients_from_8_threads(engine: AsyncEngine, executor: Gate) -> None:
    clients = [Client() for _ in range(32)]

    def submit(part: list[int]) -> None:
        for i in part:
            engine.submit(request([i, i + 1, i + 2]), clients[i])

    threads = [threading.Thread(target=submit, args=(list(range(k, 32, 8)),)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, client in enumerate(clients):
        assert client.wait().token_ids == executor.greedy([i, i + 1, i + 2], 8)
        assert client.ends == 1
    assert free(engine)


def test_stream_iterator(engine: AsyncEngine, executor: Gate) -> None:
    tokens = [t for output in engine.stream(request([1, 2])) for t in output.token_ids]
    assert tokens == executor.greedy([1, 2], 8)


def test_stream_closed_early_cancels(engine: AsyncEngine) -> None:
    stream = engine.stream(request([1], 50))
    next(stream)
    stream.close()
    assert free(engine)
    assert engine.drain(WAIT)


def test_cancel(engine: AsyncEngine, executor: Gate) -> None:
    executor.open.clear()
    client = Client()
    request_id = engine.submit(request([1], 50), client)
    assert engine.cancel(request_id)
    executor.open.set()
    assert client.wait().finish_reason is FinishReason.CANCELLED
    assert client.ends == 1 and free(engine)
    assert not engine.cancel(request_id) and not engine.cancel("unknown")


def test_client_that_disappears_is_cancelled(engine: AsyncEngine, executor: Gate) -> None:
    calls = []

    def gone(output: RequestOutput) -> None:
        calls.append(output)
        raise ConnectionResetError("client left")

    other = Client()
    engine.submit(request([1], 50), gone)
    engine.submit(request([2], 20), other)
    assert other.wait().token_ids == executor.greedy([2], 20)
    assert len(calls) == 1 and free(engine) and engine.alive


def test_bad_request_is_refused_to_its_caller(engine: AsyncEngine) -> None:
    with pytest.raises(ForgeError, match="TF-RUN-051"):
        engine.submit(request([1] * 99), Client())
    executor_client = Client()
    engine.submit(request([1]), executor_client)
    executor_client.wait()


def test_duplicate_ids(engine: AsyncEngine, executor: Gate) -> None:
    executor.open.clear()
    client = Client()
    engine.submit(request([1], request_id="same"), client)
    with pytest.raises(ForgeError, match="TF-RUN-053"):
        engine.submit(request([1], request_id="same"), Client())
    executor.open.set()
    client.wait()
    again = Client()
    while True:  # the id is free once the final output was delivered
        try:
            engine.submit(request([1], request_id="same"), again)
            break
        except ForgeError:
            time.sleep(0.001)
    again.wait()


def test_bounded_queue(executor: Gate) -> None:
    engine = AsyncEngine(EngineCore(executor, config=EngineConfig(max_waiting=3)))
    executor.open.clear()
    clients = [Client()]
    engine.submit(request([1]), clients[0])
    assert executor.entered.wait(WAIT)
    for _ in range(3):
        clients.append(Client())
        engine.submit(request([2]), clients[-1])
    with pytest.raises(ForgeError, match="TF-RUN-056"):
        engine.submit(request([3]), Client())
    executor.open.set()
    for client in clients:
        client.wait()
    assert engine.shutdown(WAIT)


def test_failed_step_reaches_every_client_and_the_engine_stays_up(engine: AsyncEngine, executor: Gate) -> None:
    executor.open.clear()
    clients = [Client(), Client()]
    engine.submit(request([1], 40), clients[0])
    assert executor.entered.wait(WAIT)
    engine.submit(request([2], 40), clients[1])
    executor.fault = RuntimeError("kernel failed")
    executor.open.set()
    # whoever was in the failed step ends with its error; whoever came after it is served
    assert clients[0].wait().finish_reason is FinishReason.ERROR
    assert clients[0].result.error is not None and clients[0].result.error["code"] == "TF-RUN-059"
    clients[1].wait()
    after = Client()
    engine.submit(request([3]), after)
    assert after.wait().token_ids == executor.greedy([3], 8)
    assert engine.alive and engine.ready


def test_engine_that_fails_for_good_is_dead_not_hanging() -> None:
    class Broken(SimulatedExecutor):
        def execute(self, batch: StepBatch) -> np.ndarray:
            raise RuntimeError("gone")

    engine = AsyncEngine(EngineCore(Broken()), max_failures=2)
    for _ in range(2):
        client = Client()
        try:
            engine.submit(request([1]), client)
        except ForgeError as error:
            assert error.code == "TF-RUN-058"
            break
        assert client.wait().finish_reason is FinishReason.ERROR
    end = time.monotonic() + WAIT
    while engine.alive and time.monotonic() < end:
        time.sleep(0.005)
    assert not engine.alive and engine.death is not None
    with pytest.raises(ForgeError, match="TF-RUN-058"):
        engine.submit(request([1]), Client())
    assert engine.drain(1.0) and engine.shutdown(1.0)


def test_thread_that_dies_tells_everybody(executor: Gate) -> None:
    class Fatal(BaseException):
        pass

    core = EngineCore(executor)
    engine = AsyncEngine(core)
    executor.open.clear()
    clients = [Client() for _ in range(3)]
    for client in clients:
        engine.submit(request([1], 30), client)
    executor.fault = Fatal()
    executor.open.set()
    for client in clients:
        result = client.wait()
        assert result.finish_reason is FinishReason.ERROR and client.ends == 1
    assert engine.shutdown(WAIT) and not engine.alive


def test_drain_finishes_the_live_and_refuses_the_new(engine: AsyncEngine, executor: Gate) -> None:
    executor.open.clear()
    client = Client()
    engine.submit(request([1], 20), client)
    assert not engine.drain(0.05), "still running"
    with pytest.raises(ForgeError, match="TF-RUN-057"):
        engine.submit(request([2]), Client())
    assert not engine.ready and engine.alive
    executor.open.set()
    assert engine.drain(WAIT)
    assert len(client.wait().token_ids) == 20


def test_shutdown_cancels_what_does_not_end_in_time(executor: Gate) -> None:
    executor.open.clear()
    engine = AsyncEngine(EngineCore(executor))
    client = Client()
    engine.submit(request([1], 60), client)
    opener = threading.Timer(0.2, executor.open.set)
    opener.start()
    assert engine.shutdown(0.05) or engine.shutdown(WAIT)
    client.wait()
    assert client.ends == 1 and engine.core.pool.num_used == 0
    with pytest.raises(ForgeError, match=r"TF-RUN-05[78]"):
        engine.submit(request([1]), Client())


def test_callback_may_use_the_engine(engine: AsyncEngine) -> None:
    second = Client()

    def chain(output: RequestOutput) -> None:
        if output.finished:
            engine.submit(request([5]), second)

    engine.submit(request([4]), chain)
    second.wait()


def test_stats_while_running(engine: AsyncEngine) -> None:
    client = Client()
    engine.submit(request([1], 30), client)
    assert engine.stats()["kv_blocks_total"] == 64
    client.wait()
    assert engine.core.metrics.prometheus_text().startswith("# HELP")


def test_a_request_that_cannot_be_set_up_ends_alone(executor: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    core = EngineCore(executor)
    attach = core._attach

    def failing(live, sequence):
        if live.prepared.request.params.max_tokens == 3:
            raise MemoryError("no room")
        return attach(live, sequence)

    monkeypatch.setattr(core, "_attach", failing)
    engine = AsyncEngine(core)
    bad, good = Client(), Client()
    engine.submit(Request(prompt_token_ids=[5], params=SamplingParams(max_tokens=3)), bad)
    engine.submit(Request(prompt_token_ids=[5], params=SamplingParams(max_tokens=4)), good)
    error = bad.wait().error
    assert error is not None and error["code"] == "TF-RUN-069" and "no room" in error["message"]
    assert len(good.wait().token_ids) == 4
    assert engine.alive and not core.has_unfinished() and core.pool.num_used == 0
    assert engine.shutdown(WAIT)


def test_a_request_is_scheduled_when_its_first_step_begins() -> None:
    """Time that its own step takes is no queueing."""
    now = [100.0]

    class Slow(SimulatedExecutor):
        def execute(self, batch: StepBatch) -> np.ndarray:
            now[0] += 5.0
            return super().execute(batch)

    core = EngineCore(Slow(), clock=lambda: now[0])
    core.add_request(request([1, 2, 3], 2))
    now[0] = 102.0
    times = core.step()[0].times
    assert times is not None
    assert (times.arrival, times.first_scheduled, times.first_token) == (100.0, 102.0, 107.0)
