"""Accepted length, its positions and intervals; speed in pairs; the gates on both."""

from __future__ import annotations

import numpy as np
import pytest

from evals.speculation.acceptance import Position, acceptance_gate, count
from evals.speculation.asking import Reply, Round
from evals.speculation.speed import measure_speed, overall, speed_gate
from evals.statistics import geometric_mean, ratio_interval
from tests.evals.speculation.toy import ToyAsking, right


def reply(*rounds: tuple[int, int, int], cut: bool = False) -> Reply:
    return Reply((0,) * (1 + sum(one[0] for one in rounds)), tuple(Round(*one) for one in rounds), cut)


def test_lengths_count_the_bonus_and_steps_without_a_draft_stand_aside() -> None:
    found = count("chat", 0.0, [reply((3, 3, 2), (1, 0, 0), (1, 3, 0)), reply((4, 3, 3), (1, 1, 0))])
    assert (found.steps, found.verifications, found.drafted, found.accepted) == (5, 4, 10, 5)
    assert found.accepted_length is not None and found.accepted_length.value == pytest.approx(9 / 4)
    assert found.tokens_per_step is not None and found.tokens_per_step.value == pytest.approx(10 / 5)
    assert found.positions == (Position(4, 2), Position(3, 2), Position(3, 1))


def test_a_last_round_that_max_tokens_cut_is_left_out() -> None:
    whole, cut = reply((3, 3, 2), (1, 3, 2)), reply((3, 3, 2), (1, 3, 2), cut=True)
    assert count("chat", 0.0, [whole]).verifications == 2
    assert count("chat", 0.0, [cut]).verifications == 1


def test_a_trees_nodes_are_no_positions() -> None:
    found = count("chat", 0.0, [reply((3, 7, 2), (1, 7, 0), (2, 1, 1))], depth=3)
    assert found.positions == (Position(3, 2), Position(2, 1), Position(2, 0))


def test_without_drafts_there_is_no_length() -> None:
    found = count("open", 0.0, [reply((1, 0, 0))])
    assert found.accepted_length is None and found.positions == ()
    assert found.tokens_per_step is not None and found.tokens_per_step.value == 1
    gate = acceptance_gate(found, 1.5)
    assert not gate.passed and "nothing was drafted" in gate.detail


def test_the_gate_counts_the_upper_bound() -> None:
    found = count("all", 0.0, [reply((3, 3, 2)), reply((2, 3, 1)), reply((1, 3, 0))])
    assert found.accepted_length is not None
    assert found.accepted_length.value == pytest.approx(2)
    assert found.accepted_length.high > 2
    assert acceptance_gate(found, found.accepted_length.high).passed
    gate = acceptance_gate(found, found.accepted_length.high + 0.01)
    assert not gate.passed and gate.measured == pytest.approx(2) and gate.bound == found.accepted_length.high


def test_intervals_of_ratios_cover_the_truth() -> None:
    rng = np.random.default_rng(1)
    covered = 0
    for trial in range(300):
        weights = rng.integers(5, 30, size=24)
        values = rng.binomial(weights, 0.6)
        found = ratio_interval(values.tolist(), weights.tolist(), seed=trial, resamples=400)
        assert found.low <= found.value <= found.high
        covered += found.low <= 0.6 <= found.high
    assert covered / 300 > 0.9
    assert geometric_mean([2.0, 0.5]).value == pytest.approx(1.0)


PROMPTS = {"chat": [[0, 1], [1], [2]], "copy": [[0], [1, 1], [2, 0]]}


def test_pairs_alternate_and_are_summed_by_cell() -> None:
    asking = ToyAsking(right, seconds={False: [2.0], True: [1.0]})
    cells = measure_speed(asking, PROMPTS, levels=[1, 2], repeats=2, max_tokens=6)
    assert [(cell.kind, cell.concurrency) for cell in cells] == [("chat", 1), ("chat", 2), ("copy", 1), ("copy", 2)]
    assert [pair.prompts for pair in cells[1].pairs] == [(0, 1), (2, 0)]
    timed = [way for way, prompts in asking.calls if prompts != 3]  # without the warm-up
    assert timed == [False, True, True, False] * 4
    for cell in cells:
        assert cell.speedup.value == pytest.approx(2.0)
        assert cell.on_tokens_per_second == pytest.approx(2 * cell.off_tokens_per_second)
        assert cell.off_tokens_per_second == pytest.approx(6 * cell.concurrency / 2.0)
        assert all(len(answer.token_ids) == 6 for pair in cell.pairs for answer in pair.base)
    assert overall(cells).value == pytest.approx(2.0)
    assert speed_gate(cells, 0.95).passed and not speed_gate(cells, 2.1).passed


def test_noise_alone_does_not_fail_the_gate_and_a_slow_engine_does() -> None:
    noisy = ToyAsking(right, seconds={False: [1.0, 1.1, 0.9, 1.05], True: [1.1, 0.95, 1.0, 1.12]})
    gate = speed_gate(measure_speed(noisy, PROMPTS, levels=[1], repeats=4, max_tokens=4), 0.99)
    assert gate.passed and gate.measured < 0.99 < (gate.bound or 0)
    slow = ToyAsking(right, seconds={False: [1.0, 1.1, 0.9, 1.05], True: [1.3, 1.2, 1.25, 1.35]})
    gate = speed_gate(measure_speed(slow, PROMPTS, levels=[1], repeats=4, max_tokens=4), 0.95)
    assert not gate.passed and "slowest:" in gate.detail
