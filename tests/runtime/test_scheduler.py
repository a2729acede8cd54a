"""Policies of the scheduler, one test each, on the simulated executor with a hand-driven clock."""

from __future__ import annotations

import numpy as np
import pytest

from runtime.engine import EngineConfig, EngineCore
from runtime.executors.base import ExecutorLimits, StepBatch
from runtime.request import FinishReason, GenerationResult, Request
from runtime.sampling import SamplingParams
from runtime.scheduler.queue import WaitingQueue
from runtime.scheduler.sequence import Sequence
from tests.support.simulation import SimulatedExecutor
from trtforge.ground.errors import ForgeError


class Recording(SimulatedExecutor):
    """Keeps every batch."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options)
        self.batches: list[StepBatch] = []

    def execute(self, batch: StepBatch) -> np.ndarray:
        self.batches.append(batch)
        return super().execute(batch)


class Bench:
    """A core, its clock and its results."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        limits: ExecutorLimits | None = None,
        config: EngineConfig | None = None,
    ) -> None:
        self.executor = Recording(num_blocks=num_blocks, limits=limits or ExecutorLimits(8, 32, 64, 63))
        self.now = 0.0
        self.core = EngineCore(self.executor, config=config, clock=lambda: self.now)
        self.results: dict[str, GenerationResult] = {}
        self.order: list[str] = []

    def add(self, name: str, length: int, max_tokens: int = 4, **fields: object) -> None:
        prompt = [(hash_of(name) + i) % 97 for i in range(length)]
        params = fields.pop("params", None) or SamplingParams(max_tokens=max_tokens)
        self.core.add_request(Request(name, prompt_token_ids=prompt, params=params, **fields))

    def step(self) -> None:
        for output in self.core.step():
            assert output.error is None, output.error
            self.results.setdefault(output.request_id, GenerationResult()).add(output)
            if output.finished:
                self.order.append(output.request_id)

    def finish(self, limit: int = 1000) -> None:
        for _ in range(limit):
            if not self.core.has_unfinished():
                assert self.core.pool.num_used == 0
                return
            self.step()
        raise AssertionError("the engine hangs")

    def running(self) -> list[str]:
        return [s.key for s in self.core.scheduler.running]


def hash_of(name: str) -> int:
    return sum(ord(c) * (i + 1) for i, c in enumerate(name))


def test_long_prompt_is_prefilled_in_chunks_while_others_decode() -> None:
    bench = Bench(limits=ExecutorLimits(4, 8, 64, 63))
    bench.add("short", 3, max_tokens=20)
    bench.step()
    bench.add("long", 30, max_tokens=2)
    bench.step()
    batch = bench.executor.batches[-1]
    assert batch.query_start.tolist() == [0, 1, 8], "one decode token, the rest of the budget prefill"
    assert batch.logit_indices.tolist() == [0], "an unfinished prefill yields no logits"
    for _ in range(4):
        bench.step()
    assert [b.num_tokens for b in bench.executor.batches[1:6]] == [8, 8, 8, 8, 3]
    assert len(bench.results["short"].token_ids) == 6, "a decode token in every step"
    assert len(bench.results["long"].token_ids) == 1
    bench.finish()


def test_steps_without_logits_are_legal() -> None:
    bench = Bench(limits=ExecutorLimits(4, 8, 64, 63))
    bench.add("long", 30)
    bench.step()
    assert bench.executor.batches[0].logit_indices.shape == (0,)
    bench.finish()


def test_prefill_share_of_a_decoding_step_can_be_bounded() -> None:
    bench = Bench(limits=ExecutorLimits(4, 32, 64, 63), config=EngineConfig(max_prefill_tokens=4))
    bench.add("a", 3, max_tokens=20)
    bench.step()
    bench.add("b", 20)
    bench.step()
    assert bench.executor.batches[-1].num_tokens == 5
    bench.finish()


def test_batch_never_exceeds_rows_and_tokens() -> None:
    bench = Bench(limits=ExecutorLimits(3, 16, 64, 63))
    for i in range(9):
        bench.add(f"r{i}", 5 + i)
    bench.finish()
    assert max(b.num_requests for b in bench.executor.batches) == 3
    assert max(b.num_tokens for b in bench.executor.batches) <= 16


def test_fewer_tokens_than_rows_bounds_the_running_batch() -> None:
    bench = Bench(limits=ExecutorLimits(8, 2, 64, 63))
    for i in range(5):
        bench.add(f"r{i}", 3)
    bench.finish()
    assert max(b.num_requests for b in bench.executor.batches) == 2


def test_priorities_are_served_first_and_ties_in_order_of_arrival() -> None:
    bench = Bench(limits=ExecutorLimits(1, 32, 64, 63))
    bench.add("running", 3)
    bench.step()
    for name, priority in (("low", 0), ("high-1", 5), ("high-2", 5), ("middle", 2)):
        bench.add(name, 3, priority=priority)
    bench.finish()
    assert bench.order == ["running", "high-1", "high-2", "middle", "low"]


def test_no_starvation_under_a_stream_of_urgent_requests() -> None:
    bench = Bench(limits=ExecutorLimits(2, 32, 64, 63), config=EngineConfig(aging_seconds=1.0))
    bench.add("patient", 3, priority=0)
    for i in range(200):
        # two urgent ones at any time: they alone could fill the engine for ever
        bench.add(f"urgent-{i}", 3, max_tokens=2, priority=5)
        bench.now += 0.1
        bench.step()
        if "patient" in bench.order:
            break
    assert bench.order.index("patient") < 110
    bench.finish()


def test_no_starvation_of_a_large_request_by_small_ones() -> None:
    bench = Bench(num_blocks=12, limits=ExecutorLimits(4, 32, 64, 40))
    for i in range(3):
        bench.add(f"first-{i}", 8, max_tokens=4)
    bench.step()
    bench.add("large", 38, max_tokens=2)
    for i in range(40):
        bench.add(f"small-{i}", 4, max_tokens=2)
        bench.step()
    bench.finish()
    assert bench.order.index("large") == 3, "nobody who came later overtakes it"


def test_preempts_the_lowest_and_latest_and_tokens_stay_the_same() -> None:
    bench = Bench(num_blocks=8, limits=ExecutorLimits(4, 32, 24, 23))
    bench.add("old", 8, max_tokens=14, priority=1)
    bench.add("new", 8, max_tokens=14, priority=1)
    bench.add("unimportant", 4, max_tokens=14, priority=0)
    preempted = []
    while bench.core.has_unfinished():
        before = set(bench.running())
        bench.step()
        preempted += sorted(before - set(bench.running()) - set(bench.order))
    assert preempted[0] == "unimportant" and "old" not in preempted
    assert bench.order[0] == "old"
    for name in ("old", "new", "unimportant"):
        prompt = [(hash_of(name) + i) % 97 for i in range(4 if name == "unimportant" else 8)]
        assert bench.results[name].token_ids == bench.executor.greedy(prompt, 14)
    assert bench.core.stats()["num_preemptions_total"] == len(preempted)


def test_prefix_is_reused_and_counted() -> None:
    bench = Bench()
    prompt = list(range(20))
    for name in ("first", "second"):
        bench.core.add_request(Request(name, prompt_token_ids=prompt, params=SamplingParams(max_tokens=3)))
        bench.finish()
    assert bench.results["first"].num_cached_tokens == 0
    # 20 tokens are 5 full blocks; the last one is computed again because its last token's logits are wanted
    assert bench.results["second"].num_cached_tokens == 16
    assert bench.results["first"].token_ids == bench.results["second"].token_ids
    assert bench.core.stats()["prefix_cache_hits_total"] == 16


def test_generated_tokens_are_reusable_too() -> None:
    bench = Bench()
    prompt = list(range(10))
    bench.core.add_request(Request("turn-1", prompt_token_ids=prompt, params=SamplingParams(max_tokens=8)))
    bench.finish()
    longer = prompt + bench.results["turn-1"].token_ids + [1, 2, 3]
    bench.core.add_request(Request("turn-2", prompt_token_ids=longer, params=SamplingParams(max_tokens=2)))
    bench.finish()
    assert bench.results["turn-2"].num_cached_tokens == 16
    assert bench.results["turn-2"].token_ids == bench.executor.greedy(longer, 2)


def test_salt_keeps_tenants_apart() -> None:
    bench = Bench()
    for salt in ("a", "b"):
        bench.core.add_request(
            Request(salt, prompt_token_ids=list(range(20)), params=SamplingParams(max_tokens=2), cache_salt=salt)
        )
        bench.finish()
    assert bench.results["b"].num_cached_tokens == 0


def test_samples_share_the_prompt_and_copy_on_write() -> None:
    bench = Bench(num_blocks=16)
    params = SamplingParams(max_tokens=6, n=3, seed=7, temperature=1.0)
    bench.add("many", 10, params=params)
    bench.step()
    assert bench.core.pool.num_used == 3, "three blocks hold the prompt of all three samples"
    bench.step()
    assert bench.executor.copies == 2, "the last writer keeps the half-filled block"
    bench.finish()
    outputs = [tuple(c.token_ids) for c in bench.results["many"].completions]
    assert len(outputs) == 3 and len(set(outputs)) > 1
    assert bench.core.pool.num_used == 0


def test_samples_of_a_prompt_that_ends_on_a_block_need_no_copy() -> None:
    bench = Bench(num_blocks=16)
    bench.add("many", 8, params=SamplingParams(max_tokens=6, n=3, seed=7))
    bench.finish()
    assert bench.executor.copies == 0


def test_deadline_ends_waiting_and_running_requests() -> None:
    bench = Bench(limits=ExecutorLimits(1, 32, 64, 63))
    bench.add("running", 3, max_tokens=40, timeout=5.0)
    bench.add("waiting", 3, max_tokens=40, timeout=2.0)
    bench.step()
    bench.now = 2.0
    bench.step()
    assert bench.results["waiting"].finish_reason is FinishReason.TIMEOUT
    assert bench.results["waiting"].token_ids == []
    bench.now = 5.0
    bench.step()
    running = bench.results["running"]
    assert running.finish_reason is FinishReason.TIMEOUT and len(running.token_ids) == 2
    assert not bench.core.has_unfinished() and bench.core.pool.num_used == 0
    assert bench.core.stats()["request_success_total"]["timeout"] == 2


def test_cancel_in_every_state() -> None:
    bench = Bench(num_blocks=8, limits=ExecutorLimits(2, 8, 24, 23))
    bench.add("prefilling", 20)
    bench.add("waiting", 8)
    bench.step()
    for name in ("waiting", "prefilling"):
        output = bench.core.abort(name)
        assert output is not None and output.finished and output.finish_reason is FinishReason.CANCELLED
        assert bench.core.abort(name) is None, "only once"
    assert bench.core.pool.num_used == 0 and not bench.core.has_unfinished()
    assert bench.core.abort("never seen") is None


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        ("TF-RUN-050", {"prompt_token_ids": []}),
        ("TF-RUN-050", {}),
        ("TF-RUN-050", {"prompt_token_ids": [1], "prompt": "x"}),
        ("TF-RUN-050", {"prompt_token_ids": [1.5]}),
        ("TF-RUN-050", {"prompt_token_ids": [[1]]}),
        ("TF-RUN-050", {"prompt_token_ids": ["x"]}),
        ("TF-RUN-051", {"prompt_token_ids": [1] * 41}),
        ("TF-RUN-052", {"prompt_token_ids": [1] * 30, "params": SamplingParams(max_tokens=20)}),
        ("TF-RUN-054", {"prompt_token_ids": [97]}),
        ("TF-RUN-054", {"prompt_token_ids": [-1]}),
        ("TF-RUN-054", {"prompt_token_ids": [1], "params": SamplingParams(stop_token_ids=(97,), max_tokens=4)}),
        ("TF-RUN-055", {"prompt_token_ids": [1], "params": SamplingParams(n=9, max_tokens=4)}),
        ("TF-RUN-062", {"prompt_token_ids": [1] * 40, "params": SamplingParams(max_tokens=99, min_tokens=30)}),
        ("TF-RUN-063", {"prompt": "text"}),
        ("TF-RUN-063", {"prompt_token_ids": [1], "params": SamplingParams(stop=("x",), max_tokens=4)}),
        ("TF-RUN-064", {"prompt_token_ids": [1], "timeout": 0.0, "params": SamplingParams(max_tokens=4)}),
        ("TF-RUN-064", {"prompt_token_ids": [1], "timeout": float("nan"), "params": SamplingParams(max_tokens=4)}),
        ("TF-RUN-064", {"prompt_token_ids": [1], "priority": 1.5, "params": SamplingParams(max_tokens=4)}),
    ],
)
def test_impossible_requests_are_refused_when_added(code: str, fields: dict[str, object]) -> None:
    bench = Bench(num_blocks=10, limits=ExecutorLimits(8, 32, 64, 40))
    with pytest.raises(ForgeError) as caught:
        bench.core.add_request(Request(**fields))
    assert caught.value.code == code
    assert caught.value.why and caught.value.remedies
    assert not bench.core.has_unfinished()


def test_the_largest_possible_request_runs() -> None:
    bench = Bench(num_blocks=10, limits=ExecutorLimits(8, 32, 64, 63))
    # 41 tokens: the last one is never fed back, so 40 slots are enough
    bench.add("exact", 30, max_tokens=11)
    bench.finish()
    assert len(bench.results["exact"].token_ids) == 11


def test_context_limit_ends_a_request() -> None:
    bench = Bench(limits=ExecutorLimits(8, 32, 24, 23))
    bench.add("long", 20, max_tokens=100)
    bench.finish()
    assert len(bench.results["long"].token_ids) == 4
    assert bench.results["long"].finish_reason is FinishReason.LENGTH


def test_duplicate_ids_and_a_full_queue_are_refused() -> None:
    bench = Bench(config=EngineConfig(max_waiting=1))
    bench.add("a", 3)
    with pytest.raises(ForgeError, match="TF-RUN-053"):
        bench.add("a", 3)
    with pytest.raises(ForgeError, match="TF-RUN-056"):
        bench.add("b", 3)
    bench.finish()
    bench.add("a", 3)
    bench.finish()


def test_own_ids_do_not_collide_with_the_engines_numbers() -> None:
    bench = Bench()
    bench.add("request-0", 3)
    other = bench.core.add_request(Request(prompt_token_ids=[1]))
    assert other != "request-0"


@pytest.mark.parametrize(
    "limits",
    [ExecutorLimits(0, 8, 8, 7), ExecutorLimits(8, 0, 8, 7), ExecutorLimits(8, 8, 1, 1), ExecutorLimits(99, 8, 8, 7)],
)
def test_contradicting_limits_are_refused(limits: ExecutorLimits) -> None:
    with pytest.raises(ForgeError, match="TF-RUN-061"):
        EngineCore(SimulatedExecutor(), limits=limits)


def test_waiting_queue_orders_and_removes() -> None:
    queue = WaitingQueue(10.0)

    def sequence(order: int, priority: int, since: float) -> Sequence:
        made = Sequence(str(order), np.zeros(1, np.int64), capacity=2, hasher=None, priority=priority, order=order)
        made.waiting_since = since
        return made

    first, second, urgent = sequence(1, 0, 0.0), sequence(2, 0, 1.0), sequence(3, 2, 15.0)
    for item in (second, urgent, first):
        queue.add(item)
    assert len(queue) == 3 and set(queue) == {first, second, urgent}
    assert queue.best(15.0) is urgent, "one level by waiting against two by priority"
    queue.remove(urgent)
    urgent = sequence(4, 2, 35.0)
    queue.add(urgent)
    assert queue.best(35.0) is first, "three levels by waiting against two by priority"
    queue.remove(first)
    with pytest.raises(KeyError):
        queue.remove(first)
    queue.remove(urgent)
    assert queue.best(0.0) is second
    queue.remove(second)
    assert queue.best(0.0) is None
