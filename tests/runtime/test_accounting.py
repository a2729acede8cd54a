"""What was computed for nothing, and how long a cancellation took: nothing is lost and nothing counted twice."""

from __future__ import annotations

import random
import threading

import pytest

from runtime.engine import EngineConfig, EngineCore
from runtime.executors.base import ExecutorLimits
from runtime.metrics import Histogram, Metrics, help_of, is_counter
from runtime.request import Request
from runtime.sampling import SamplingParams
from runtime.serving import AsyncEngine
from tests.support.simulation import SimulatedExecutor


def request(name: str, prompt: list[int], tokens: int, samples: int = 1, timeout: float | None = None) -> Request:
    params = SamplingParams(max_tokens=tokens, min_tokens=tokens, temperature=0.0 if samples == 1 else 1.0, n=samples)
    return Request(prompt_token_ids=prompt, params=params, request_id=name, timeout=timeout)


@pytest.mark.parametrize("seed", range(6))
def test_every_computed_token_is_an_answers_or_counted_as_wasted(seed: int) -> None:
    rng = random.Random(seed)
    executor = SimulatedExecutor(num_blocks=11, limits=ExecutorLimits(6, 16, 40, 39))
    core = EngineCore(executor)
    done = 0  # tokens computed for answers that came to their ends
    sent = 0
    for _ in range(4000):
        if sent < 60 and rng.random() < 0.8:
            prompt = [rng.randrange(90)] * 4 + [rng.randrange(90) for _ in range(rng.randrange(1, 12))]
            core.add_request(request(str(sent), prompt, rng.randrange(4, 20)))
            sent += 1
        if core.live_ids() and rng.random() < 0.08:
            core.abort(rng.choice(core.live_ids()))
        for output in core.step():
            if output.finished:
                [sample] = output.samples
                done += output.num_prompt_tokens - output.num_cached_tokens + sample.num_tokens - 1
        if sent == 60 and not core.has_unfinished():
            break
    assert not core.has_unfinished()
    figures = core.stats()
    wasted = figures["wasted_tokens_total"]
    assert figures["num_preemptions_total"] > 0 and wasted["preempted"] > 0 and wasted["cancelled"] > 0
    assert executor.tokens == done + sum(wasted.values())


def test_a_deadline_and_a_failed_step_waste_what_was_computed() -> None:
    clock = [0.0]
    executor = SimulatedExecutor()
    core = EngineCore(executor, clock=lambda: clock[0])
    core.add_request(request("late", [1, 2, 3, 4, 5], 20, timeout=1.0))
    core.step()
    core.step()
    clock[0] = 2.0
    assert [output.finished for output in core.step()] == [True]
    assert core.stats()["wasted_tokens_total"] == {"timeout": 6, "cancelled": 0, "error": 0, "preempted": 0}
    core.add_request(request("unlucky", [7, 8, 9], 20))
    core.step()
    executor.fault = MemoryError("none")
    core.step()
    assert core.stats()["wasted_tokens_total"]["error"] == 3


def test_a_prompt_that_samples_share_is_wasted_once() -> None:
    core = EngineCore(SimulatedExecutor())
    core.add_request(request("many", [1, 2, 3, 4, 5, 6], 20, samples=3))
    core.step()
    core.step()
    core.step()
    core.abort("many")
    assert core.stats()["wasted_tokens_total"]["cancelled"] == 6 + 3 * 2


def test_evicted_prefixes_are_counted() -> None:
    core = EngineCore(SimulatedExecutor(num_blocks=8, limits=ExecutorLimits(2, 32, 24, 23)))
    for number in range(6):
        core.add_request(request(str(number), [number + at for at in range(12)], 2))
        while core.has_unfinished():
            core.step()
    assert core.stats()["prefix_cache_evictions_total"] == core.pool.evictions > 0


def test_a_cancellation_is_timed_from_when_it_was_asked_for() -> None:
    engine = AsyncEngine(EngineCore(SimulatedExecutor()))
    ended, begun = threading.Event(), threading.Event()
    asked = Request(
        prompt_token_ids=[1, 2, 3],
        params=SamplingParams(max_tokens=60, min_tokens=60, temperature=0.0),
        request_id="one",
        stream=True,
    )

    def told(output: object) -> None:
        begun.set()
        if getattr(output, "finished", False):
            ended.set()
        else:
            engine.cancel("one")

    engine.submit(asked, told)
    assert begun.wait(20) and ended.wait(20)
    assert engine.shutdown(20)
    assert engine.stats()["cancellation_seconds"]["count"] == 1
    assert engine.cancel("one") is False
    assert engine.stats()["cancellation_seconds"]["count"] == 1


@pytest.mark.parametrize("coalesce", [False, True])
def test_prompts_that_an_equal_request_answers_are_counted(coalesce: bool) -> None:
    class Held(SimulatedExecutor):
        held = threading.Event()

        def execute(self, batch: object) -> object:
            assert self.held.wait(20)
            return super().execute(batch)

    Held.held = threading.Event()
    engine = AsyncEngine(EngineCore(Held(), config=EngineConfig(coalesce=coalesce)))
    ends = [threading.Event() for _ in range(3)]
    for end in ends:
        params = SamplingParams(max_tokens=4, temperature=0.0)
        engine.submit(
            Request(prompt_token_ids=[1, 2, 3, 4, 5], params=params),
            lambda output, end=end: output.finished and end.set(),
        )
    Held.held.set()
    assert all(end.wait(20) for end in ends)
    assert engine.shutdown(20)
    assert engine.stats()["coalesced_prompt_tokens_total"] == (10 if coalesce else 0)


def test_histograms_as_series_are_those_of_the_exposition() -> None:
    from prometheus_client.parser import text_string_to_metric_families

    metrics = Metrics()
    for value in (0.0005, 0.03, 0.03, 7.0, 1000.0):
        metrics.time_to_first_token_seconds.observe(value)
    metrics.iteration_tokens.observe(3, times=5)
    families = text_string_to_metric_families(metrics.prometheus_text())
    told = {
        (sample.name, sample.labels.get("le")): sample.value
        for family in families
        if family.type == "histogram"
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
    series = {(f"trtforge_{name}", labels.get("le")): value for name, labels, value in metrics.series()}
    assert series == told
    assert series["trtforge_time_to_first_token_seconds_bucket", "+Inf"] == 5
    assert series["trtforge_time_to_first_token_seconds_bucket", "0.04"] == 3
    for name, _, _ in metrics.series():
        assert is_counter(name) and help_of(name)
    assert not is_counter("kv_blocks_total") and not is_counter("max_num_seqs")


def test_a_series_only_grows() -> None:
    histogram = Histogram((1.0, 2.0))
    metrics = Metrics(iteration_tokens=histogram)
    seen: dict[tuple[str, str | None], float] = {}
    for value in (0.5, 3.0, 1.5, 0.1):
        histogram.observe(value)
        for name, labels, figure in metrics.series():
            key = (name, labels.get("le"))
            assert figure >= seen.get(key, 0)
            seen[key] = figure
