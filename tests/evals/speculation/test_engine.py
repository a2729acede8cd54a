"""The measures over real engine cores that speculate: a tiny vocabulary whose whole distribution is tested."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from evals.speculation.asking import EngineAsking
from evals.speculation.distribution import chi_square, distribution_gate, fit, make_bins
from evals.speculation.equality import Numerics, answer_both, compare_answers, equality_gate, greedy
from runtime.engine import EngineCore
from runtime.executors.base import ExecutorLimits
from runtime.offline import Engine
from runtime.sampling.params import SamplingParams
from runtime.speculation.draft import Drafter
from runtime.speculation.fixed_policy import FixedPolicy
from runtime.speculation.ngram import NgramDrafter
from runtime.speculation.speculator import Speculator
from tests.evals.speculation.toy import toy_logits
from tests.runtime.speculation.drafters import ToldDrafter
from tests.support.simulation import SimulatedExecutor
from trtforge.ground.errors import ForgeError

VOCAB = 3
LIMITS = ExecutorLimits(16, 128, 64, 63)
PROMPTS = ([0, 1, 2, 0, 1], [2, 2], [1, 0, 0, 1, 0, 0, 1])


def told(right: float, executor: SimulatedExecutor) -> ToldDrafter:
    def oracle(context: list[int], count: int) -> list[int]:
        return np.argsort(-executor.reference(context), kind="stable")[:count].tolist()

    return ToldDrafter(oracle, VOCAB, right=right)


def engine_of(model: float | None, *, nodes: int | None = None, depth: int = 4) -> Engine:
    """An engine that drafts by n-grams, or by a model whose tokens are right that often; ``nodes``: of its trees."""
    executor = SimulatedExecutor(num_blocks=256, vocab_size=VOCAB, limits=LIMITS)
    free: Drafter | None = NgramDrafter(8, 1) if model is None else None
    policy = FixedPolicy(depth, tree=nodes is not None)
    drafter = None if model is None else told(model, executor)
    speculator = Speculator(policy, depth, lookup=free, model=drafter, tree_nodes=nodes or 0)
    return Engine(EngineCore(executor, speculator=speculator))


WAYS: dict[str, Callable[[], Engine]] = {
    "ngram": lambda: engine_of(None),
    "chain": lambda: engine_of(0.7),
    "tree": lambda: engine_of(0.7, nodes=7, depth=3),
}


def test_an_engine_without_drafts_is_refused() -> None:
    with pytest.raises(ForgeError) as caught:
        EngineAsking(Engine(EngineCore(SimulatedExecutor())))
    assert caught.value.code == "TF-EVL-011"


@pytest.mark.parametrize("way", WAYS)
def test_greedy_answers_are_the_same_and_rounds_add_up(way: str) -> None:
    asking = EngineAsking(WAYS[way]())
    base, speculated = answer_both(asking, PROMPTS, greedy(24))
    found = compare_answers(
        ["a 1", "a 2", "a 3"], PROMPTS, base, speculated, asking.logits, Numerics("float32", repeats_exactly=True), str
    )
    assert equality_gate(found, 0).passed, equality_gate(found, 0).detail
    assert found.tokens == 72 and found.drafted > found.accepted > 0
    for reply in speculated:
        assert 1 + sum(one.tokens for one in reply.rounds) == len(reply.token_ids) == 24 and reply.cut
        for one in reply.rounds[:-1]:
            assert one.tokens == one.accepted + 1
    assert all(one.drafted == 0 and one.tokens == 1 for reply in base for one in reply.rounds)


@pytest.mark.parametrize("way", WAYS)
def test_the_whole_distribution_of_a_tiny_vocabulary_is_the_models(way: str) -> None:
    """Every answer of three tokens has its bin, and many seeds are drawn."""
    asking = EngineAsking(WAYS[way]())
    fits = [fit(asking, str(prompt), prompt, draws=800, together=16, length=3) for prompt in PROMPTS]
    assert distribution_gate(fits, 1e-4).passed, distribution_gate(fits, 1e-4).detail
    assert all(one.same == one.draws == 800 for one in fits)
    assert sum(one.bins for one in fits) > 30 and sum(one.drafted for one in fits) > 500


def test_a_wrong_acceptance_rule_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The classical mistake: a draft's token is taken whenever a number says that it is likely enough, and what is
    drawn otherwise is not corrected by what was taken."""
    from runtime.sampling.sampler import Sampler

    engine = engine_of(1.0)
    asking = EngineAsking(engine)
    real = Sampler.sample
    rng = np.random.default_rng(3)

    def greedy_now_and_then(self: Any, logits: Any, states: Sequence[Any], rows: Any = None) -> Any:
        sampled = real(self, logits, states, rows)
        for at, state in enumerate(states):
            if len(state.generated) and rng.random() < 0.15:
                sampled.tokens[at] = int(np.asarray(logits[at if rows is None else rows[at]]).argmax())
        return sampled

    monkeypatch.setattr(Sampler, "sample", greedy_now_and_then)
    fits = [fit(asking, str(prompt), prompt, draws=800, together=16, length=3) for prompt in PROMPTS]
    assert not distribution_gate(fits, 1e-4).passed


def test_the_bases_logits_are_those_that_it_draws_from() -> None:
    """Expectations against an engine without any speculation: the method itself is right."""
    executor = SimulatedExecutor(num_blocks=256, vocab_size=VOCAB, limits=LIMITS)
    plain = Engine(EngineCore(executor))
    prompt = PROMPTS[0]

    def probabilities(beginning: tuple[int, ...]) -> Any:
        weights = np.exp(executor.reference([*prompt, *beginning]).astype(np.float64))
        return weights / weights.sum()

    bins = make_bins(probabilities, 2000, 2)
    draws = []
    for first in range(0, 2000, 16):
        params = SamplingParams(max_tokens=2, temperature=1.0, seed=first, n=16)
        draws += [tuple(one.token_ids) for one in plain.generate([prompt], params)[0].completions]
    assert chi_square(bins.count(draws), bins.expected)[1] > 1e-4
    assert {len(draw) for draw in draws} == {2}


def test_the_policy_is_the_engines_again_afterwards() -> None:
    engine = engine_of(None)
    asking = EngineAsking(engine)
    assert engine.core.speculator is not None
    before = engine.core.speculator.policy
    with asking.policy(FixedPolicy(5)):
        assert engine.core.speculator.policy is not before
    assert engine.core.speculator.policy is before
    assert asking.explain() == before.explain()


def test_toy_words_are_all_possible() -> None:
    """The toy of the other tests leaves no token without a chance."""
    for context in itertools.product(range(3), repeat=2):
        row = toy_logits(context)
        assert np.ptp(row) < 4
