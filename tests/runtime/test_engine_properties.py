"""Any sequence of add, step, abort and passing time: nothing leaks, everybody ends once, tokens are right.

The simulated executor reads its context through the block table, so a wrong block, a missed copy or a stale
prefix shows as a wrong token; it also refuses writes into shared or cached blocks and broken batches.
"""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from runtime.engine import EngineConfig, EngineCore
from runtime.executors.base import ExecutorLimits
from runtime.request import FinishReason, GenerationResult, Request, RequestOutput
from runtime.sampling import SamplingParams
from runtime.sampling.sampler import sample
from runtime.sampling.state import SamplingState
from tests.support.simulation import SimulatedExecutor

EOS = (3,)


def oracle(executor: SimulatedExecutor, prompt: list[int], params: SamplingParams, index: int, room: int) -> list[int]:
    """What one sample must generate, computed without pool, scheduler or batch."""
    state = SamplingState(
        params,
        seed=params.seed or 0,
        sample=index,
        prompt=np.asarray(prompt, dtype=np.int64),
        end_ids=frozenset(EOS),
    )
    tokens: list[int] = []
    while len(tokens) < min(params.max_tokens, room):
        token = sample(executor.reference(prompt + tokens)[None], [state]).tokens[0]
        state.observe(token)
        tokens.append(token)
        if token in EOS:
            break
    return tokens


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(8, 20),
        max_batch=st.integers(1, 5),
        max_tokens=st.integers(1, 24),
        prefix_cache=st.booleans(),
        max_prefill=st.sampled_from([None, 3]),
    )
    def start(
        self, num_blocks: int, max_batch: int, max_tokens: int, prefix_cache: bool, max_prefill: int | None
    ) -> None:
        limits = ExecutorLimits(max_batch, max_tokens, max_seq_len=32, max_input_len=28)
        self.executor = SimulatedExecutor(
            num_blocks=num_blocks, block_size=4, vocab_size=40, limits=limits, eos_token_ids=EOS
        )
        self.now = 0.0
        self.core = EngineCore(
            self.executor,
            config=EngineConfig(prefix_cache=prefix_cache, aging_seconds=5.0, max_prefill_tokens=max_prefill),
            clock=lambda: self.now,
        )
        pool = self.core.pool
        self.executor.writable = lambda b: pool.references(b) == 1 and pool.digest(b) is None
        self.requests: dict[str, Request] = {}
        self.results: dict[str, GenerationResult] = {}
        self.ended: dict[str, int] = {}
        self.width = min(max_batch, max_tokens)

    def take(self, outputs: list[RequestOutput]) -> None:
        for output in outputs:
            assert output.error is None, output.error
            assert output.request_id not in self.ended, "news after the end"
            self.results.setdefault(output.request_id, GenerationResult()).add(output)
            if output.finished:
                self.ended[output.request_id] = 1

    @rule(
        # few distinct beginnings, so that prefixes are shared
        head=st.sampled_from([[], [5] * 4, [5] * 8, [7, 8, 9, 10, 11]]),
        tail=st.lists(st.integers(4, 9), min_size=1, max_size=12),
        max_tokens=st.integers(1, 12),
        priority=st.integers(0, 2),
        n=st.integers(1, 3),
        seed=st.sampled_from([None, 1, 2]),
        timeout=st.sampled_from([None, None, 3.0]),
        stream=st.booleans(),
    )
    def add(
        self,
        head: list[int],
        tail: list[int],
        max_tokens: int,
        priority: int,
        n: int,
        seed: int | None,
        timeout: float | None,
        stream: bool,
    ) -> None:
        params = SamplingParams(max_tokens=max_tokens, n=min(n, self.width), seed=seed, top_k=0 if seed is None else 8)
        request = Request(
            prompt_token_ids=head + tail, params=params, priority=priority, timeout=timeout, stream=stream
        )
        self.requests[self.core.add_request(request)] = request

    @rule()
    def step(self) -> None:
        self.take(self.core.step())

    @rule(times=st.integers(2, 6))
    def steps(self, times: int) -> None:
        for _ in range(times):
            self.take(self.core.step())

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if self.requests:
            request_id = data.draw(st.sampled_from(sorted(self.requests)))
            output = self.core.abort(request_id)
            assert (output is None) == (request_id in self.ended)
            if output is not None:
                self.take([output])

    @rule(seconds=st.sampled_from([0.5, 2.0, 30.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def books(self) -> None:
        if hasattr(self, "core"):
            self.core.pool.check()
            assert len(self.core.scheduler.running) <= self.width

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        for _ in range(3000):
            if not self.core.has_unfinished():
                break
            self.take(self.core.step())
        assert not self.core.has_unfinished(), "the engine hangs"
        assert set(self.ended) == set(self.requests)
        pool, scheduler = self.core.pool, self.core.scheduler
        assert pool.num_used == 0 and not scheduler.running and len(scheduler.waiting) == 0
        assert (scheduler.table.block_table == -1).all() and scheduler._rows_reserved == 0
        for request_id, request in self.requests.items():
            self.check(request, self.results[request_id])

    def check(self, request: Request, result: GenerationResult) -> None:
        prompt = list(request.prompt_token_ids or ())
        cut = any(c.finish_reason in (FinishReason.CANCELLED, FinishReason.TIMEOUT) for c in result.completions)
        assert cut or len(result.completions) == request.params.n
        for completion in result.completions:
            expected = oracle(self.executor, prompt, request.params, completion.index, 32 - len(prompt))
            if completion.finish_reason in (FinishReason.CANCELLED, FinishReason.TIMEOUT):
                assert completion.token_ids == expected[: len(completion.token_ids)]
            else:
                assert completion.token_ids == expected
                ended = bool(expected) and expected[-1] in EOS
                assert completion.finish_reason is (FinishReason.STOP if ended else FinishReason.LENGTH)


TestEngine = pytest.mark.slow(EngineMachine.TestCase)
TestEngine.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
