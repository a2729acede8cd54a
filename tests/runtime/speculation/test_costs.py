"""Costs from measured points, followed by moving averages, and measured on an executor without harm to its pool."""

import itertools
import math
import time

import numpy as np
import pytest

from runtime.blocks import BlockPool
from runtime.engine import EngineCore
from runtime.executors.base import ExecutorLimits
from runtime.request import Request
from runtime.sampling import SamplingParams
from runtime.speculation.costs import StepCosts, curve
from runtime.speculation.measuring import clock_of, measure
from runtime.speculation.speculator import Speculator
from tests.runtime.speculation.drafters import AlwaysPolicy, ToldDrafter
from tests.runtime.speculation.test_simulated import oracle_of
from tests.support.simulation import SimulatedExecutor
from trtforge.drafting.record import DynamicTree, NGramSizes, SpeculationRecord

POINTS = {1: 8.0, 2: 9.0, 4: 11.0, 8: 19.0}


def costs(**options) -> StepCosts:
    return StepCosts(
        {n: 1e-3 * v for n, v in POINTS.items()},
        {1: 8e-3, 2: 9.5e-3, 4: 12e-3},
        {1: 1e-3, 4: 2.5e-3},
        most_tokens=64,
        **options,
    )


def test_points_are_joined_by_lines_and_go_on_as_they_rise():
    values = curve(POINTS, 10)
    assert values[[1, 3, 6, 8]].tolist() == pytest.approx([8, 10, 15, 19])
    assert values[10] == pytest.approx(23)


def test_a_size_that_is_quicker_than_a_smaller_one_stays_so():
    """Kernels of a CPU: two rows take longer than four."""
    values = curve({1: 30.8, 2: 32.4, 4: 25.4, 8: 32.0}, 12)
    assert values[[1, 2, 4]].tolist() == pytest.approx([30.8, 32.4, 25.4])
    assert values[3] == pytest.approx(28.9) and values[12] > values[8]
    assert (np.diff(curve({1: 5.0, 8: 4.0}, 64)) <= 0).all()


def test_a_jump_between_two_sizes_stays_one():
    values = curve({3: 6.0, 4: 6.7, 5: 9.8, 6: 10.1}, 6)
    assert values[5] - values[4] == pytest.approx(3.1)


def test_requests_beside_each_other_cost_more_than_the_tokens_of_one():
    known = costs()
    assert known.step(4, 1) == pytest.approx(11e-3)
    assert known.step(4, 4) == pytest.approx(12e-3)  # as measured
    assert known.step(8, 4) == pytest.approx(20e-3)  # eight tokens, and what four contexts add
    assert known.verify(4, 8, 4).tolist() == pytest.approx([12e-3, 14e-3, 16e-3, 18e-3, 20e-3])


@pytest.mark.parametrize("tokens", [1, 2, 7, 31, 64, 65, 200])
@pytest.mark.parametrize("requests", [1, 4, 99])
def test_one_size_alone_costs_what_it_does_among_others(tokens, requests):
    known = costs()
    for _ in range(20):
        known.observe("verify", 7, 1, 20e-3)
    assert known.step(tokens, requests) == pytest.approx(known.verify(1, 250, requests)[tokens - 1], rel=1e-12)


def test_a_draft_costs_a_pass_a_token():
    known = costs()
    assert known.draft(3, 1) == pytest.approx(3e-3)
    assert known.draft(2, 4) == pytest.approx(5e-3)
    assert known.draft(0, 4) == known.draft(2, 0) == 0.0
    lengths = np.array([0, 2, 2, 2, 2.5])
    assert known.drafts_by_requests(lengths).tolist() == pytest.approx([0, 2e-3, 3e-3, 4e-3, 6.25e-3])
    assert StepCosts({1: 1.0}, most_tokens=4).draft(3, 1) == 0.0


@pytest.mark.parametrize("tree", [False, True])
def test_a_draft_for_nobody_costs_nothing(tree):
    known = costs()
    found = known.drafts_by_requests(np.full(4, 2), tree=tree).tolist()
    assert found == pytest.approx([known.draft(2, requests, tree) for requests in range(4)])
    assert found[0] == 0 < found[1]


def test_a_slower_machine_scales_everything():
    known = costs()
    for _ in range(100):
        known.observe("verify", 4, 1, 22e-3)
    assert known.step(4, 1) == pytest.approx(22e-3, rel=0.02)
    assert known.step(8, 1) / known.step(1, 1) == pytest.approx(19 / 8, rel=0.01)
    assert known.draft(2, 1) == pytest.approx(4e-3, rel=0.2)


def test_one_size_that_is_dearer_than_measured_gets_a_correction_of_its_own():
    known = costs()
    for _ in range(400):
        known.observe("verify", 1, 1, 8e-3)
        known.observe("verify", 8, 1, 30e-3)
    assert known.step(8, 1) / known.step(1, 1) == pytest.approx(30 / 8, rel=0.15)


def test_a_size_tells_of_those_near_it():
    """Small steps were measured too dear and large ones right: the scale of the small ones is not put on the large."""
    known = StepCosts({1: 8e-3, 4: 10e-3, 24: 55e-3, 32: 70e-3}, most_tokens=64)
    for turn in range(300):
        known.observe("verify", 4, 1, 7e-3)
        if turn % 10 == 0:
            known.observe("verify", 22 + turn // 10 % 5, 1, 1e-3 * (55 + 1.875 * (turn // 10 % 5 - 2)))
    assert known.step(4, 1) == pytest.approx(7e-3, rel=0.05)
    assert known.step(24, 1) == pytest.approx(55e-3, rel=0.12)
    assert known.step(27, 1) == pytest.approx(60.6e-3, rel=0.15)


def test_an_accident_moves_little():
    known = costs()
    for _ in range(50):
        known.observe("verify", 4, 1, 11e-3)
    known.observe("verify", 4, 1, 5.0)
    assert known.step(4, 1) < 13e-3


@pytest.mark.parametrize(("part", "tokens", "requests", "seconds"), [
    ("verify", 0, 1, 1.0), ("verify", 4, 0, 1.0), ("verify", 4, 1, 0.0), ("draft", 0, 1, 1.0), ("else", 4, 1, 1.0),
])  # fmt: skip
def test_what_makes_no_sense_is_not_taken_in(part, tokens, requests, seconds):
    known = costs()
    before = known.explain()
    known.observe(part, tokens, requests, seconds)
    assert known.explain() == before


def test_python_beside_the_executors_is_counted_by_kind_of_step():
    known = costs()
    for _ in range(60):
        known.observe("host", 0, 4, 1e-3)
        known.observe("host", 6, 4, 3e-3)
    assert known.host(False, 4) == pytest.approx(1e-3)
    assert known.host(True, 5) == pytest.approx(3e-3)
    assert known.host(True, 1) == 0.0
    assert known.explain()["host_ms"] == {"drafting, 4 requests and more": 3.0, "plain, 4 requests and more": 1.0}


def test_a_drafts_python_is_learned_from_the_first_times():
    known = costs()
    for _ in range(30):
        known.observe("draft", 4, 1, 8e-3)
    assert known.draft(4, 1) == pytest.approx(8e-3, rel=0.05)


def record(tree: DynamicTree | None = None) -> SpeculationRecord:
    method = {"method": "eagle3", "taps": (1,), "tree": tree} if tree else {"method": "ngram"}
    return SpeculationRecord(max_draft_len=4, ngram=NGramSizes(8, 2), **method)


def measured(pool: BlockPool, executor: SimulatedExecutor, **options) -> StepCosts:
    return measure(executor, pool, record(), **options)


def simulated(**limits) -> SimulatedExecutor:
    given = {"max_batch_size": 4, "max_num_tokens": 32, "max_seq_len": 64, "max_input_len": 63, **limits}
    return SimulatedExecutor(num_blocks=80, limits=ExecutorLimits(**given))


def test_measuring_leaves_pool_and_prefix_cache_as_they_were():
    executor = simulated()
    pool = BlockPool(executor.num_blocks)
    held = pool.allocate(3)
    pool.publish(held[0], b"d" * 16)
    pool.release(held[:1])
    written: set[int] = set()
    executor.writable = lambda block: written.add(block) or block not in held
    known = measured(pool, executor, seconds=0.2)
    assert (pool.num_used, pool.num_cached) == (2, 1)
    assert written and held[0] not in written and pool.lookup([b"d" * 16]) == held[:1]
    assert set(known.measured["verify"]) >= {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 20}
    assert set(known.measured["requests"]) == {1, 2, 4}
    assert known.measured["draft"] == {} and not known.drafts
    assert all(value > 0 for part in known.measured.values() for value in part.values())


@pytest.mark.parametrize("limits", [
    {"max_seq_len": 8, "max_input_len": 7}, {"max_num_tokens": 4}, {"max_batch_size": 1},
])  # fmt: skip
def test_measuring_keeps_to_small_limits(limits):
    """The simulated executor refuses any batch beyond them."""
    executor = simulated(**limits)
    known = measured(BlockPool(executor.num_blocks), executor, seconds=0.05)
    assert max(known.measured["verify"]) <= min(limits.get("max_num_tokens", 20), limits.get("max_seq_len", 64))
    assert math.isfinite(known.step(4096, 4))


def test_few_free_blocks_are_enough():
    executor = simulated()
    pool = BlockPool(executor.num_blocks)
    pool.allocate(executor.num_blocks - 2)
    known = measured(pool, executor, seconds=0.05)
    assert pool.num_free == 2
    assert set(known.measured["requests"]) == {1}


def test_a_draft_executor_is_fed_back_states():
    import torch

    calls = []

    class Head:
        hidden_size, tap_width = 6, 18

        def execute(self, batch, *, taps=None, feedback=None):
            assert taps is None and feedback.shape == (batch.num_tokens, 6)
            calls.append(batch.num_requests)
            return torch.zeros(batch.num_tokens, 5), feedback

    executor = simulated()
    known = measured(BlockPool(executor.num_blocks), executor, draft=Head(), seconds=0.05)
    assert set(known.measured["draft"]) == set(calls) == {1, 2, 4}


def test_large_steps_are_dropped_when_time_is_short():
    class Slow(SimulatedExecutor):
        def execute(self, batch):
            time.sleep(0.004 * batch.num_tokens)
            return super().execute(batch)

    executor = Slow(limits=ExecutorLimits(4, 32, 64, 63))
    before = time.perf_counter()
    known = measured(BlockPool(executor.num_blocks), executor, seconds=0.1)
    assert time.perf_counter() - before < 3.0
    assert known.step(20, 1) > known.step(10, 1) > known.step(1, 1) > 3e-3


def test_steps_are_timed_by_the_clock_that_is_given():
    """Others on a machine that is busy hold the processor: a CPU's steps count by the thread's own time."""
    assert clock_of("cpu") is time.thread_time
    assert clock_of("cuda:0") is time.perf_counter
    ticks = itertools.count()
    executor = simulated()
    known = measured(BlockPool(executor.num_blocks), executor, seconds=0.05, tick=lambda: float(next(ticks)))
    assert {value for part in known.measured.values() for value in part.values()} == {1.0}


def test_the_policy_is_told_times_by_the_same_clock():
    told: list[tuple[str, float]] = []

    class Told(AlwaysPolicy):
        def timed(self, part, tokens, requests, seconds):
            told.append((part, seconds))

    ticks = itertools.count()
    executor = simulated()
    oracle = oracle_of(executor)
    model = ToldDrafter(oracle, executor.vocab_size, block_size=executor.block_size)
    speculator = Speculator(Told(2), 2, model=model, tick=lambda: float(next(ticks)))
    core = EngineCore(executor, speculator=speculator)
    core.add_request(Request("a", prompt_token_ids=[5, 6, 7], params=SamplingParams(max_tokens=8, ignore_eos=True)))
    while core.has_unfinished():
        core.step()
    by_part = {part: {seconds for name, seconds in told if name == part} for part in ("verify", "draft", "host")}
    # one tick each; a whole step of two ticks more, and two more where it drafted
    assert by_part["verify"] == by_part["draft"] == {1.0}
    assert by_part["host"] <= {2.0, 3.0} and by_part["host"]
    told.clear()
    model.ordinary = False  # a prompt's rows are no draft's
    core.add_request(Request("b", prompt_token_ids=[5, 6, 7], params=SamplingParams(max_tokens=8, ignore_eos=True)))
    while core.has_unfinished():
        core.step()
    assert {part for part, _ in told} == {"verify", "host", "catch_up"}
    known = costs()
    before = known.explain()
    known.observe("catch_up", 3, 1, 1.0)
    assert known.explain() == before


def test_kernels_that_are_compiled_once_make_no_size_dear():
    """The first step of each number of rows takes twice as long; sizes around a measured one must not lift it."""
    costs = StepCosts({1: 20e-3, 4: 20e-3, 8: 24e-3, 16: 32e-3}, {1: 20e-3, 4: 20e-3}, most_tokens=64)
    before = costs.step(8, 4) / costs.step(4, 4)
    for tokens in (5, 6, 7, 9, 10, 11, 12):
        costs.observe("verify", tokens, 4, 2 * costs.step(tokens, 4))
        for _ in range(10):
            costs.observe("verify", 4, 4, 20e-3)
    assert costs.step(8, 4) / costs.step(4, 4) == pytest.approx(before, rel=0.05)
