"""What a served engine shows of its drafts, asked from another thread than the one that steps."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from runtime import serving
from runtime.engine import EngineCore
from runtime.request import Request, RequestOutput
from runtime.sampling import SamplingParams
from runtime.serving import AsyncEngine
from runtime.speculation.speculator import Speculator
from tests.runtime.speculation.drafters import AlwaysPolicy, ToldDrafter
from tests.support.simulation import SimulatedExecutor


class ExplainingPolicy(AlwaysPolicy):
    """Explains what it is told to, or fails as a dict that grows under its reader does."""

    def __init__(self) -> None:
        super().__init__(4)
        self.said: dict[str, Any] | None = {"choices": {"1": {"told": {"draft_tokens": 3, "speedup": 1.5}}}}

    def explain(self) -> dict[str, Any]:
        if self.said is None:
            raise RuntimeError("dictionary changed size during iteration")
        return self.said


@pytest.fixture
def policy() -> ExplainingPolicy:
    return ExplainingPolicy()


@pytest.fixture
def engine(policy: ExplainingPolicy) -> Iterator[AsyncEngine]:
    executor = SimulatedExecutor()

    def oracle(context: list[int], count: int) -> list[int]:
        return [int(t) for t in np.argsort(-executor.reference(context), kind="stable")[:count]]

    speculator = Speculator(policy, 4, lookup=ToldDrafter(oracle, executor.vocab_size))
    running = AsyncEngine(EngineCore(executor, speculator=speculator))
    yield running
    running.shutdown(5)


def answer(engine: AsyncEngine, *, speculate: bool) -> RequestOutput:
    last: list[RequestOutput] = []
    done = threading.Event()

    def receive(output: RequestOutput) -> None:
        last.append(output)
        if output.finished:
            done.set()

    params = SamplingParams(max_tokens=12, ignore_eos=True)
    engine.submit(Request(prompt_token_ids=[5, 6, 7], params=params, stream=False, speculate=speculate), receive)
    assert done.wait(20)
    return last[-1]


def points(engine: AsyncEngine) -> dict[tuple[str, ...], float]:
    return {(name, *labels.values()): value for name, labels, value in engine.points()}


def test_answers_and_points_count_the_same_drafts(engine: AsyncEngine) -> None:
    assert engine.speculates
    drafted, forbidden = answer(engine, speculate=True).samples[0], answer(engine, speculate=False).samples[0]
    assert drafted.token_ids == forbidden.token_ids
    assert (forbidden.num_draft_tokens, forbidden.num_accepted_tokens) == (0, 0)
    assert drafted.num_draft_tokens >= drafted.num_accepted_tokens > 0
    found = points(engine)
    assert found["spec_decode_num_draft_tokens_total", "told"] == drafted.num_draft_tokens
    assert found["spec_decode_num_accepted_tokens_total", "told"] == drafted.num_accepted_tokens
    assert found["spec_decode_num_skipped_total",] > 0


def test_the_policys_choice_is_shown_and_an_explanation_that_fails_is_the_last_one(
    engine: AsyncEngine, policy: ExplainingPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "EXPLAIN_SECONDS", 0.0)
    name = ("spec_decode_choice_draft_len", "told", "1")
    assert points(engine)[name] == 3
    policy.said = None
    assert points(engine)[name] == 3
    policy.said = {"choices": {"1": {"told": {"draft_tokens": 0, "speedup": 1.0}}}}
    assert points(engine)[name] == 0


def test_an_explanation_is_not_asked_for_at_every_look(engine: AsyncEngine, policy: ExplainingPolicy) -> None:
    first = points(engine)
    policy.said = {"choices": {}}
    assert {name for name in points(engine) if "choice" in name[0]} == {name for name in first if "choice" in name[0]}


def test_an_engine_without_drafts_shows_none() -> None:
    plain = AsyncEngine(EngineCore(SimulatedExecutor()))
    assert not plain.speculates
    assert not [name for name in points(plain) if name[0].startswith("spec_decode")]
    plain.shutdown(5)
