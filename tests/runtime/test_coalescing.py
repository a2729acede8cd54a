"""Equal greedy requests in flight: one computes, all are answered; nobody's leaving is another's loss."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.engine import EngineConfig, EngineCore
from runtime.request import FinishReason, GenerationResult, Request, RequestOutput
from runtime.sampling import SamplingParams
from runtime.serving import AsyncEngine
from tests.support.simulation import SimulatedExecutor

WAIT = 20


class Steps(SimulatedExecutor):
    """Takes a step each time it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.may = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)
        self.free = threading.Event()
        self.sequences = 0

    def execute(self, batch: Any) -> Any:
        self.entered.release()
        if not self.free.is_set():
            self.may.acquire(timeout=WAIT)
        self.sequences = max(self.sequences, len(batch.query_start) - 1)
        return super().execute(batch)

    def go(self) -> None:
        self.free.set()
        self.may.release()


class Client:
    def __init__(self) -> None:
        self.result, self.done, self.outputs = GenerationResult(), threading.Event(), 0

    def __call__(self, output: RequestOutput) -> None:
        assert not self.done.is_set(), "nothing comes after the end"
        self.outputs += 1
        self.result.add(output)
        if output.finished:
            self.done.set()

    def wait(self) -> GenerationResult:
        assert self.done.wait(WAIT)
        return self.result


@pytest.fixture
def executor() -> Steps:
    return Steps()


@pytest.fixture
def engine(executor: Steps) -> Iterator[AsyncEngine]:
    made = AsyncEngine(EngineCore(executor, config=EngineConfig(coalesce=True)))
    yield made
    executor.go()
    made.shutdown(WAIT)


def _request(name: str | None = None, *, tokens: int = 20, **more: Any) -> Request:
    params = more.pop("params", None) or SamplingParams(max_tokens=tokens)
    return Request(name, prompt_token_ids=more.pop("prompt", [3, 5]), params=params, **more)


def _coalesced(engine: AsyncEngine) -> int:
    return int(engine.stats()["requests_coalesced_total"])


def test_one_computes_and_all_get_the_whole_answer(engine: AsyncEngine, executor: Steps) -> None:
    clients = [Client() for _ in range(5)]
    engine.submit(_request(), clients[0])
    for _ in range(4):
        executor.may.release()
        assert executor.entered.acquire(timeout=WAIT)
    for client in clients[1:]:
        engine.submit(_request(), client)  # in the middle of the first one's answer
    executor.go()
    answers = [client.wait() for client in clients]
    assert {tuple(answer.token_ids) for answer in answers} == {tuple(executor.greedy([3, 5], 20))}
    assert {answer.finish_reason for answer in answers} == {FinishReason.LENGTH}
    assert len({answer.request_id for answer in answers}) == 5
    assert (executor.sequences, _coalesced(engine)) == (1, 4)
    assert clients[1].outputs < clients[0].outputs, "what was said before came at once"
    assert engine.core.pool.num_used == 0


@pytest.mark.parametrize(
    "more",
    [
        {"prompt": [3, 6]},
        {"tokens": 19},
        {"cache_salt": "b"},
        {"priority": 1},
        {"stream": False},
        {"stream_interval": 2},
        {"speculate": False},
        {"timeout": 60.0},
        {"params": SamplingParams(max_tokens=20, temperature=0.9)},
        {"params": SamplingParams(max_tokens=20, n=2)},
        {"params": SamplingParams(max_tokens=20, logprobs=1)},
        {"params": SamplingParams(max_tokens=20, repetition_penalty=1.1)},
        {"params": SamplingParams(max_tokens=20, stop_token_ids=(9,))},
    ],
)
def test_what_differs_in_anything_runs_itself(engine: AsyncEngine, executor: Steps, more: dict[str, Any]) -> None:
    clients = [Client(), Client()]
    engine.submit_all([(_request(), clients[0]), (_request(**more), clients[1])])
    executor.go()
    for client in clients:
        client.wait()
    assert _coalesced(engine) == 0


def test_a_seed_decides_nothing_of_a_greedy_answer(engine: AsyncEngine, executor: Steps) -> None:
    clients = [Client(), Client()]
    seeded = SamplingParams(max_tokens=20, temperature=0.0, seed=7)
    engine.submit_all([(_request(), clients[0]), (_request(params=seeded), clients[1])])
    executor.go()
    assert clients[0].wait().token_ids == clients[1].wait().token_ids
    assert _coalesced(engine) == 1


@pytest.mark.parametrize("leaver", [0, 1])
def test_whoever_leaves_takes_nothing_from_those_who_stay(engine: AsyncEngine, executor: Steps, leaver: int) -> None:
    clients = [Client(), Client()]
    engine.submit_all([(_request("a"), clients[0]), (_request("b"), clients[1])])
    for _ in range(3):
        executor.may.release()
        assert executor.entered.acquire(timeout=WAIT)
    assert engine.cancel("ab"[leaver])
    executor.go()
    gone, stays = clients[leaver].wait(), clients[1 - leaver].wait()
    assert gone.finish_reason is FinishReason.CANCELLED
    assert len(gone.token_ids) < 20
    assert stays.token_ids == executor.greedy([3, 5], 20)
    assert stays.finish_reason is FinishReason.LENGTH


def test_when_all_have_left_the_run_ends(engine: AsyncEngine, executor: Steps) -> None:
    clients = [Client(), Client()]
    engine.submit_all([(_request("a"), clients[0]), (_request("b"), clients[1])])
    engine.cancel("a")
    engine.cancel("b")
    executor.go()
    assert [client.wait().finish_reason for client in clients] == [FinishReason.CANCELLED] * 2
    assert not engine.core.has_unfinished()
    again = Client()
    engine.submit(_request("c"), again)
    assert again.wait().token_ids == executor.greedy([3, 5], 20)
    assert engine.core.pool.num_used == 0


@pytest.mark.parametrize("leaver", [0, 1])
def test_a_client_that_has_vanished_is_dropped_alone(engine: AsyncEngine, executor: Steps, leaver: int) -> None:
    stays = Client()

    def vanished(output: RequestOutput) -> None:
        raise ConnectionResetError

    callbacks: list[Any] = [stays, stays]
    callbacks[leaver] = vanished
    engine.submit_all([(_request("a"), callbacks[0]), (_request("b"), callbacks[1])])
    executor.go()
    assert stays.wait().token_ids == executor.greedy([3, 5], 20)


def test_a_fault_reaches_all_who_listen(engine: AsyncEngine, executor: Steps, monkeypatch: pytest.MonkeyPatch) -> None:
    clients = [Client(), Client()]

    def fails(batch: Any) -> Any:
        raise RuntimeError("kernel failed")

    monkeypatch.setattr(executor, "execute", fails)
    engine.submit_all([(_request(), clients[0]), (_request(), clients[1])])
    for client in clients:
        error = client.wait().error
        assert error is not None
        assert error["code"] == "TF-RUN-059"


def test_off_unless_a_server_is_told_so() -> None:
    executor = Steps()
    engine = AsyncEngine(EngineCore(executor))
    clients = [Client(), Client()]
    engine.submit_all([(_request(), clients[0]), (_request(), clients[1])])
    executor.go()
    for client in clients:
        client.wait()
    assert executor.sequences == 2
    assert engine.shutdown(WAIT)


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["go on", "cancel", "vanish"])), min_size=1, max_size=12))
def test_everybody_who_stays_has_the_answer_of_a_run_alone(asked: list[tuple[int, str]]) -> None:
    executor = SimulatedExecutor()
    engine = AsyncEngine(EngineCore(executor, config=EngineConfig(coalesce=True)))
    waiting: list[tuple[int, Client]] = []
    for number, (prompt, what) in enumerate(asked):
        client = Client()
        if what == "vanish":
            engine.submit(_request(f"r{number}", prompt=[prompt + 1]), lambda output: 1 // 0)
            continue
        engine.submit(_request(f"r{number}", prompt=[prompt + 1]), client)
        if what == "cancel":
            engine.cancel(f"r{number}")
            client.done.wait(WAIT)
            assert client.result.finish_reason in (FinishReason.CANCELLED, FinishReason.LENGTH)
        else:
            waiting.append((prompt, client))
    for prompt, client in waiting:
        assert client.wait().token_ids == executor.greedy([prompt + 1], 20)
    assert engine.shutdown(WAIT)
    assert engine.core.pool.num_used == 0
