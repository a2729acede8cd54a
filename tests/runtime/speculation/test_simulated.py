"""Whatever is drafted, an engine says what it says without drafts: over the simulated executor, under any pressure.

The simulated executor reads its context through the block table and the tree mask, so a row that was not moved, a block
that was not copied, or a draft that was believed shows as a wrong token.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from runtime.engine import EngineConfig, EngineCore
from runtime.executors.base import ExecutorLimits
from runtime.request import FinishReason, GenerationResult, Request
from runtime.sampling import SamplingParams
from runtime.speculation.speculator import Speculator
from tests.runtime.speculation.drafters import AlwaysPolicy, ToldDrafter
from tests.support.simulation import SimulatedExecutor

EOS = (3,)
V = 40


def executor(num_blocks: int, limits: ExecutorLimits) -> SimulatedExecutor:
    return SimulatedExecutor(num_blocks=num_blocks, block_size=4, vocab_size=V, limits=limits, eos_token_ids=EOS)


def oracle_of(executor: SimulatedExecutor) -> Any:
    def oracle(context: list[int], count: int) -> list[int]:
        return [int(t) for t in np.argsort(-executor.reference(context), kind="stable")[:count]]

    return oracle


def run(core: EngineCore, requests: list[Request], *, late: int = 0) -> dict[str, GenerationResult]:
    """All requests to their end; the last ``late`` of them arrive one a step."""
    waiting = list(reversed(requests))
    results: dict[str, GenerationResult] = {}
    for _ in range(len(requests) - late):
        core.add_request(waiting.pop())
    for _ in range(4000):
        if waiting:
            core.add_request(waiting.pop())
        for output in core.step():
            results.setdefault(output.request_id, GenerationResult()).add(output)
        core.pool.check()
        if not waiting and not core.has_unfinished():
            return results
    raise AssertionError("the engine hangs")


def told(result: GenerationResult) -> list[Any]:
    return [
        (c.index, c.token_ids, c.logprobs, c.cumulative_logprob, c.finish_reason, c.stop_reason)
        for c in result.completions
    ]


PARAMS = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 14),
    min_tokens=st.just(0),
    temperature=st.sampled_from([None, None, 0.7, 2.0]),
    seed=st.integers(0, 3),
    top_k=st.sampled_from([0, 1, 5]),
    top_p=st.sampled_from([1.0, 0.8]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.4]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 1.0]),
    logit_bias=st.sampled_from([(), ((7, 3.0), (9, -4.0))]),
    bad_token_sequences=st.sampled_from([(), ((5,), (6, 7))]),
    stop_token_ids=st.sampled_from([(), (11, 12)]),
    stop_token_sequences=st.sampled_from([(), ((8, 9), (4,))]),
    ignore_eos=st.booleans(),
    logprobs=st.sampled_from([None, None, 2]),
    logprobs_mode=st.sampled_from(["raw", "processed"]),
    n=st.integers(1, 2),
)
GREEDY = st.builds(SamplingParams, max_tokens=st.integers(1, 14), n=st.integers(1, 2), min_tokens=st.integers(0, 1))
REQUESTS = st.lists(
    st.builds(
        dict,
        # few distinct beginnings, so that prefixes are shared
        prompt_token_ids=st.builds(
            lambda head, tail: head + tail,
            st.sampled_from([[], [5] * 4, [5] * 8, [7, 8, 9, 10, 11]]),
            st.lists(st.integers(4, 9), min_size=1, max_size=9),
        ),
        params=st.one_of(GREEDY, PARAMS),
        priority=st.integers(0, 2),
        stream=st.booleans(),
        speculate=st.sampled_from([True, True, True, False]),
    ),
    min_size=1,
    max_size=7,
)


@settings(max_examples=150, deadline=None)
@given(
    requests=REQUESTS,
    num_blocks=st.integers(8, 24),
    max_batch=st.integers(2, 6),
    max_tokens=st.integers(2, 40),
    prefix_cache=st.booleans(),
    max_prefill=st.sampled_from([None, 3]),
    count=st.integers(1, 9),
    tree=st.booleans(),
    right=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
    refuse=st.sampled_from([0.0, 0.3]),
    both=st.booleans(),
    late=st.integers(0, 3),
    seed=st.integers(0, 1000),
)
def test_answers_are_those_without_drafts(
    requests: list[dict[str, Any]],
    num_blocks: int,
    max_batch: int,
    max_tokens: int,
    prefix_cache: bool,
    max_prefill: int | None,
    count: int,
    tree: bool,
    right: float,
    refuse: float,
    both: bool,
    late: int,
    seed: int,
) -> None:
    limits = ExecutorLimits(max_batch, max_tokens, max_seq_len=32, max_input_len=28)
    config = EngineConfig(prefix_cache=prefix_cache, max_prefill_tokens=max_prefill)
    named = [Request(request_id=f"r{i}", **fields) for i, fields in enumerate(requests)]
    plain = EngineCore(executor(64, ExecutorLimits(8, 64, 32, 28)), config=config)
    expected = run(plain, named)
    target = executor(num_blocks, limits)
    oracle = oracle_of(target)
    model = ToldDrafter(oracle, V, right=right, refuse=refuse, block_size=4, seed=seed)
    lookup = ToldDrafter(oracle, V, right=right, refuse=0.5, name="text", seed=seed + 1) if both else None
    policy = AlwaysPolicy(count, tree=tree)
    speculator = Speculator(policy, 6, lookup=lookup, model=model, tree_nodes=count if tree else 0)
    core = EngineCore(target, config=config, speculator=speculator)
    pool = core.pool
    target.writable = lambda b: pool.references(b) == 1 and pool.digest(b) is None
    results = run(core, named, late=min(late, len(named) - 1))
    assert {name: told(r) for name, r in results.items()} == {name: told(r) for name, r in expected.items()}
    # nothing is left over, anywhere
    assert pool.num_used == 0 and not core.scheduler.running
    assert (core.scheduler.table.block_table == -1).all()
    assert not model.known and policy.left == len(model.left)
    for request in named:
        for completion in results[str(request.request_id)].completions:
            drafted, accepted = completion.num_draft_tokens, completion.num_accepted_tokens
            assert 0 <= accepted <= min(drafted, len(completion.token_ids))
            assert request.speculate or drafted == 0
    figures = core.stats()["speculation"]
    counted = [c for r in results.values() for c in r.completions]
    assert figures["num_draft_tokens"] == sum(c.num_draft_tokens for c in counted)
    assert figures["num_accepted_tokens"] == sum(c.num_accepted_tokens for c in counted)


@pytest.mark.parametrize("tree", [False, True])
def test_right_drafts_save_steps(tree: bool) -> None:
    """A draft of 4 that is always right yields 5 tokens a step."""
    limits = ExecutorLimits(4, 64, 64, 60)
    target = executor(64, limits)
    model = ToldDrafter(oracle_of(target), V, block_size=4)
    speculator = Speculator(AlwaysPolicy(4, tree=tree), 4, model=model, tree_nodes=12 if tree else 0)
    core = EngineCore(target, speculator=speculator)
    params = SamplingParams(max_tokens=30, ignore_eos=True)
    [result] = run(core, [Request("a", prompt_token_ids=[5, 6, 7], params=params)]).values()
    assert result.token_ids == target.greedy([5, 6, 7], 30)[:30] or EOS[0] in result.token_ids
    assert len(result.token_ids) == 30 and result.finish_reason is FinishReason.LENGTH
    steps = core.stats()["iterations_total"]
    assert steps <= 1 + (30 if tree else 6)
    if tree:
        assert target.moves > 0 and steps < 16
    else:
        # the prompt, then five tokens a step
        assert steps == 1 + -(-29 // 5)
        assert result.completions[0].num_draft_tokens == result.completions[0].num_accepted_tokens == 23


@pytest.mark.parametrize("faulty", ["model", "policy", "executor"])
def test_what_fails_beside_the_answers_does_not_reach_them(faulty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Books that cannot be closed and times that are not taken are logged; answers, and failed steps, end as ever."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    limits = ExecutorLimits(4, 64, 64, 60)
    target = executor(64, limits)
    model = ToldDrafter(oracle_of(target), V, block_size=4)
    policy = AlwaysPolicy(4)
    core = EngineCore(target, speculator=Speculator(policy, 4, model=model))
    if faulty == "policy":
        monkeypatch.setattr(policy, "timed", broken)
        monkeypatch.setattr(policy, "leave", broken)
    else:
        monkeypatch.setattr(model, "leave", broken)
    if faulty == "executor":
        monkeypatch.setattr(target, "execute", broken)
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    requests = [Request(name, prompt_token_ids=[5, 6, 7], params=params) for name in "ab"]
    expected = run(EngineCore(executor(64, limits)), requests)["a"].token_ids
    results = run(core, requests)
    for result in results.values():
        assert len(result.completions) == 1
        if faulty == "executor":
            assert result.finish_reason is FinishReason.ERROR
        else:
            assert result.token_ids == expected
    assert core.consecutive_failures == (faulty == "executor")
    assert core.pool.num_used == 0
