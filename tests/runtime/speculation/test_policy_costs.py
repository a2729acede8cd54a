"""What the policy itself and the drafter's own doubts cost: worlds with Python's time, and chains cut short."""

from collections.abc import Sequence

import pytest

from runtime.speculation.acceptance import Acceptance
from runtime.speculation.draft import Candidate, Choice
from runtime.speculation.planning import Step
from runtime.speculation.policy import AdaptivePolicy
from tests.runtime.speculation.policy_simulation import STEEP, Stream, World, run
from tests.runtime.speculation.test_policy import BAR, CONCURRENCY, always, best_rate

#: a model of 135 million weights in bfloat16 on one core: bound by memory up to six tokens
ONE_CORE = {1: 22.0, 4: 22.2, 6: 22.8, 8: 27.3, 12: 31.3, 16: 35.7, 24: 46.5, 32: 58.8, 64: 100.0, 144: 205.0}
HEAD = {1: 2.0, 4: 2.3, 8: 2.6, 16: 3.3}
LONGEST = 8


@pytest.mark.parametrize("concurrency", CONCURRENCY)
@pytest.mark.parametrize(("first", "later"), [(0.36, 0.4), (0.45, 0.5), (0.52, 0.55), (0.7, 0.7)])
def test_a_drafter_that_ends_chains_in_doubt_is_not_asked_for_more_than_it_gives(first, later, concurrency):
    """Chains that are cut where they are likely wrong leave the right ones: they are not what is asked for."""
    world = World(ONE_CORE, always(first, later), head=HEAD, doubt=0.6, host=(1.0, 1.8))
    reference = best_rate(world, concurrency, steps=120)
    policy = AdaptivePolicy(LONGEST, world.costs())
    run(world, policy, concurrency=concurrency, steps=250)
    assert run(world, policy, concurrency=concurrency, steps=300).rate >= BAR * reference, policy.explain()


def test_what_was_asked_for_and_not_made_counts_as_not_kept():
    acceptance, stream = Acceptance(3), Stream(0, 100)
    for number in range(400):
        # half the chains end behind their first token, which is right; the others are right to their end
        made = 3 if number % 2 else 1
        acceptance.record(stream, "eagle3", made, made, asked=3)
    rates, made = acceptance.rates("eagle3"), acceptance.made("eagle3")
    assert rates.tolist() == pytest.approx([0.995, 0.5, 0.99], abs=0.03)
    assert made.tolist() == pytest.approx([1.0, 0.5, 0.5], abs=0.03)
    # two tokens asked for count, one and a half are verified
    step = Step(
        [[Candidate(stream, "eagle3", 3)]],
        2,
        1,
        0,
        costs=World(STEEP, always(0.5), head=HEAD).costs(),
        acceptance=acceptance,
    )
    plan = step.best(1e-6)
    assert plan.counts.tolist() == [2] and plan.tokens == pytest.approx(1 + 0.995 + 0.5, abs=0.08)
    assert plan.seconds == pytest.approx(1e-3 * (31.0 - 7.0 + 2 * 2.0), abs=5e-3)


class Counting(AdaptivePolicy):
    """Counts how often it plans."""

    plans = 0

    def _rate(self, step: Step, prefill_tokens: int) -> float:
        self.plans += 1
        return super()._rate(step, prefill_tokens)


def _without_drafts() -> tuple[Counting, list[Stream]]:
    """A policy that has found that nothing pays, and its four sequences."""
    world = World(STEEP, always(0.1), head=HEAD)
    policy = Counting(LONGEST, world.costs())
    run(world, policy, concurrency=4, steps=400)
    policy.plans = 0
    return policy, [Stream(0, 100) for _ in range(4)]


def _asked(policy: AdaptivePolicy, groups: Sequence[Sequence[Candidate]], **options: int) -> list[Choice]:
    return policy.choose(groups, running=len(groups), **{"prefill_tokens": 0, **options})


def test_a_plan_without_drafts_holds_for_some_steps():
    policy, streams = _without_drafts()
    groups = [[Candidate(one, "eagle3", LONGEST)] for one in streams]
    for _ in range(160):
        _asked(policy, groups)
    assert policy.plans <= 30


def test_a_plan_that_drafts_holds_for_five_steps_of_the_same_sequences():
    policy = Counting(LONGEST, World(ONE_CORE, always(0.9), head=HEAD).costs())
    streams = [Stream(0, 100) for _ in range(2)]
    chosen = []
    for most in (8, 8, 1, 8, 8, 8, 8):
        groups = [[Candidate(one, "eagle3", most)] for one in streams]
        chosen.append([choice.count for choice in policy.choose(groups, running=2, prefill_tokens=0)])
    assert policy.plans == 2 and all(any(counts) for counts in chosen)
    assert max(chosen[2]) == 1, "what is left of an answer bounds its draft"
    streams[0] = Stream(0, 100)
    policy.choose([[Candidate(one, "eagle3", 8)] for one in streams], running=2, prefill_tokens=0)
    assert policy.plans == 3


@pytest.mark.parametrize("change", ["a ready draft", "another batch", "a prompt", "another sequence"])
def test_what_is_new_ends_a_plan_that_holds(change):
    policy, streams = _without_drafts()
    groups = [[Candidate(one, "eagle3", LONGEST)] for one in streams]
    while not policy.plans:
        _asked(policy, groups)
    policy.plans = 0
    if change == "a ready draft":
        groups[1] = [Candidate(streams[1], "ngram/16+", LONGEST, ready=True), *groups[1]]
    if change == "another sequence":
        groups[2] = [Candidate(Stream(0, 100), "eagle3", LONGEST)]
    _asked(policy, groups[:3] if change == "another batch" else groups, prefill_tokens=32 * (change == "a prompt"))
    assert policy.plans == 1


@pytest.mark.parametrize("concurrency", (2, 4, 8))
def test_a_size_that_looked_too_dear_at_load_is_tried_again(concurrency):
    """What a step of a drafting batch takes is learned from such steps alone: where they nearly pay they are made."""
    world = World(ONE_CORE, always(0.62, 0.5), head=HEAD, host=(1.0, 1.8))
    dearer = {tokens: value * (1.0 if tokens <= concurrency else 1.12) for tokens, value in ONE_CORE.items()}
    policy = AdaptivePolicy(LONGEST, World(dearer, always(0.62, 0.5), head=HEAD).costs())
    run(world, policy, concurrency=concurrency, steps=1200)
    reference = best_rate(world, concurrency, steps=120)
    assert run(world, policy, concurrency=concurrency, steps=300).rate >= BAR * reference, policy.explain()


@pytest.mark.parametrize("part", ["draft", "catch_up"])
def test_a_probe_pays_for_what_its_drafter_had_to_catch_up_with(part):
    def steps_between_probes(seconds: float) -> int:
        policy, streams = _without_drafts()
        groups = [[Candidate(one, "eagle3", LONGEST)] for one in streams]
        found: list[int] = []
        for step in range(20_000):
            if any(choice.count for choice in _asked(policy, groups)):
                policy.timed(part, 1, 1, seconds)
                found.append(step)
            if len(found) == 3:
                return found[2] - found[1]
        raise AssertionError("the policy stopped probing")

    assert steps_between_probes(0.2) > 2 * steps_between_probes(1e-3)


def test_where_drafts_are_far_from_paying_little_is_spent_on_probes():
    world = World(STEEP, always(0.1), head=HEAD)
    off = run(world, None, concurrency=4, steps=50).rate
    policy = AdaptivePolicy(LONGEST, world.costs())
    run(world, policy, concurrency=4, steps=400)
    before = policy.explain()["probes"]
    outcome = run(world, policy, concurrency=4, steps=1600)
    assert policy.explain()["probes"] > before
    assert outcome.rate >= 0.985 * off
