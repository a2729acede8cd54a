"""The policy against always drafting one length and against never drafting, over landscapes of costs and acceptance."""

from collections.abc import Callable, Sequence

import pytest

from runtime.speculation.draft import Candidate
from runtime.speculation.figures import HELP
from runtime.speculation.fixed_policy import FixedPolicy
from runtime.speculation.ngram import NgramDrafter
from runtime.speculation.policy import AdaptivePolicy, open_policy
from runtime.speculation.speculator import Speculator
from tests.runtime.speculation.policy_simulation import (
    BFLOAT16,
    BLOCKS,
    DEAR_HEAD,
    FLAT,
    FP8,
    HEAD,
    INT4,
    STEEP,
    Outcome,
    Stream,
    World,
    run,
)
from trtforge.drafting.record import DraftPolicy, DynamicTree, NGramSizes, SpeculationRecord

LONGEST = 8
CONCURRENCY = (1, 2, 4, 8, 16)
#: share of the better of off and the best fixed length that is held, and that while nothing is known yet
BAR, COLD = 0.97, 0.94

Truth = Callable[[str, int, int], Sequence[float]]


def always(first: float, later: float | None = None) -> Truth:
    values = [first] + [first if later is None else later] * (LONGEST - 1)
    return lambda source, kind, step: values


CLASSES = {
    "open": always(0.15, 0.2),
    "chat": always(0.51, 0.42),
    "code": always(0.72, 0.68),
    "copy": always(0.93, 0.95),
}
COSTS = {"bfloat16": BFLOAT16, "fp8": FP8, "int4": INT4, "flat": FLAT, "steep": STEEP}


def best_rate(world: World, concurrency: int, steps: int, **options) -> float:
    """Tokens a second of off or of the best fixed length."""
    rates = [run(world, None, concurrency=concurrency, steps=steps, **options).rate]
    for length in range(1, LONGEST + 1):
        rates.append(run(world, FixedPolicy(length), concurrency=concurrency, steps=steps, **options).rate)
    return max(rates)


def adaptive(world: World, concurrency: int, steps: int, **options) -> tuple[AdaptivePolicy, Outcome]:
    policy = AdaptivePolicy(LONGEST, world.costs())
    return policy, run(world, policy, concurrency=concurrency, steps=steps, **options)


@pytest.mark.parametrize("concurrency", CONCURRENCY)
@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("costs", COSTS)
def test_with_a_head_it_is_as_good_as_the_best_fixed_length(costs, kind, concurrency):
    world = World(COSTS[costs], CLASSES[kind], head=HEAD)
    reference = best_rate(world, concurrency, steps=8)  # the same in every step
    policy, outcome = adaptive(world, concurrency, steps=250)
    assert outcome.rate >= COLD * reference, policy.explain()
    assert run(world, policy, concurrency=concurrency, steps=300).rate >= BAR * reference, policy.explain()


@pytest.mark.parametrize("concurrency", (1, 4, 16))
@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("costs", ("bfloat16", "int4", "flat"))
def test_with_n_grams_it_is_as_good_as_the_best_fixed_length(costs, kind, concurrency):
    world = World(COSTS[costs], CLASSES[kind], available={"ngram/2": 0.3, "ngram/8-15": 0.3})
    reference = best_rate(world, concurrency, steps=240)
    policy, outcome = adaptive(world, concurrency, steps=240)
    assert outcome.rate >= COLD * reference, policy.explain()
    assert run(world, policy, concurrency=concurrency, steps=240).rate >= BAR * reference, policy.explain()


@pytest.mark.parametrize("concurrency", CONCURRENCY)
@pytest.mark.parametrize("costs", COSTS)
def test_n_grams_of_two_worths_are_told_apart(costs, concurrency):
    """Short matches are mostly wrong, long ones right: one fixed length serves both badly."""
    truth = {"ngram/2": [0.2] * LONGEST, "ngram/16+": [0.97] * LONGEST}
    world = World(COSTS[costs], lambda source, kind, step: truth[source], {"ngram/2": 0.5, "ngram/16+": 0.3})
    _, outcome = adaptive(world, concurrency, steps=240)
    assert outcome.rate >= BAR * best_rate(world, concurrency, steps=240)


@pytest.mark.parametrize("concurrency", (1, 4, 16))
def test_n_grams_on_top_of_a_head(concurrency):
    truth = {"ngram/2": [0.3] * LONGEST, "ngram/16+": [0.96] * LONGEST, "eagle3": [0.6, *[0.5] * (LONGEST - 1)]}
    world = World(BFLOAT16, lambda source, kind, step: truth[source], {"ngram/2": 0.4, "ngram/16+": 0.3}, head=HEAD)
    policy, outcome = adaptive(world, concurrency, steps=300)
    assert outcome.rate >= BAR * best_rate(world, concurrency, steps=300), policy.explain()


@pytest.mark.parametrize("concurrency", CONCURRENCY)
@pytest.mark.parametrize("costs", ("bfloat16", "int4"))
def test_requests_of_different_kinds_in_one_batch(costs, concurrency):
    """Every other stream is copied from its prompt, the rest cannot be foreseen."""
    world = World(
        COSTS[costs], lambda source, kind, step: [0.9 if kind else 0.1] * LONGEST, head=HEAD, kinds=2, answer=300
    )
    _, outcome = adaptive(world, concurrency, steps=400)
    assert outcome.rate >= BAR * best_rate(world, concurrency, steps=400)


def test_kinds_in_one_batch_are_served_better_than_by_any_fixed_length():
    world = World(BFLOAT16, lambda source, kind, step: [0.9 if kind else 0.1] * LONGEST, head=HEAD, kinds=2, answer=300)
    _, outcome = adaptive(world, 8, steps=400)
    assert outcome.rate >= 1.05 * best_rate(world, 8, steps=400)


@pytest.mark.parametrize("concurrency", (1, 4, 16))
@pytest.mark.parametrize("order", ("falls", "rises"))
@pytest.mark.parametrize("costs", ("bfloat16", "int4"))
def test_an_abrupt_change_of_acceptance_is_followed(costs, order, concurrency):
    """600 steps of one kind, then 600 of the other: each part is held against the best of that part."""
    before, after = (0.85, 0.1) if order == "falls" else (0.1, 0.85)
    world = World(COSTS[costs], lambda source, kind, step: [before if step < 600 else after] * LONGEST, head=HEAD)
    parts = [World(COSTS[costs], always(value), head=HEAD) for value in (before, after)]
    best = [best_rate(part, concurrency, steps=8) for part in parts]
    policy = AdaptivePolicy(LONGEST, world.costs())
    whole = run(world, policy, concurrency=concurrency, steps=1200)
    first = run(world, AdaptivePolicy(LONGEST, world.costs()), concurrency=concurrency, steps=600)
    assert first.rate >= BAR * best[0]
    late = (whole.tokens - first.tokens) / (whole.seconds - first.seconds)
    assert late >= 0.9 * best[1], policy.explain()


@pytest.mark.parametrize("concurrency", (1, 8))
@pytest.mark.parametrize("kind", ("open", "copy"))
def test_times_that_scatter_do_not_lead_astray(kind, concurrency):
    world = World(BFLOAT16, CLASSES[kind], head=HEAD, noise=0.15)
    still = World(BFLOAT16, CLASSES[kind], head=HEAD)
    _, outcome = adaptive(world, concurrency, steps=600)
    # what was chosen is judged by the true times: the scatter itself cancels out over the steps
    assert outcome.rate >= 0.96 * best_rate(still, concurrency, steps=8)


def test_a_machine_that_becomes_slower_changes_no_choice():
    """Everything takes three times as long from some step on: the same lengths stay the best."""
    world = World(BFLOAT16, CLASSES["code"], head=HEAD)
    slow = World({n: 3 * v for n, v in BFLOAT16.items()}, CLASSES["code"], head={n: 3 * v for n, v in HEAD.items()})
    policy = AdaptivePolicy(LONGEST, world.costs())
    run(world, policy, concurrency=1, steps=200)
    outcome = run(slow, policy, concurrency=1, steps=300)
    assert policy.costs.scale == pytest.approx(1.0986, abs=0.1)
    assert outcome.rate >= BAR * best_rate(slow, 1, steps=8)


def test_costs_that_were_measured_wrongly_are_put_right():
    """At load eight tokens looked as dear as two steps; they cost 1.4 of one."""
    world = World(BFLOAT16, CLASSES["copy"], head=HEAD)
    wrong = World({**BFLOAT16, 6: 17.0, 8: 18.0, 12: 22.0, 16: 26.0}, CLASSES["copy"], head=HEAD)
    policy = AdaptivePolicy(LONGEST, wrong.costs())
    run(world, policy, concurrency=1, steps=1500)
    outcome = run(world, policy, concurrency=1, steps=200)
    assert outcome.rate >= 0.9 * best_rate(world, 1, steps=8)


def test_a_draft_fills_up_to_a_size_that_is_quicker():
    """One and two rows take longer than four here: three draft tokens are better than one, even if they are worse."""
    world = World({1: 30.8, 2: 32.4, 3: 25.5, 4: 25.4, 5: 29.0, 8: 36.0, 16: 50.0}, always(0.4, 0.2), head={1: 1.0})
    policy, outcome = adaptive(world, 1, steps=300)
    assert outcome.rate >= BAR * best_rate(world, 1, steps=8)
    assert policy.explain()["choices"]["1"]["eagle3"]["draft_tokens"] in (2, 3)


def test_int4s_jump_is_not_crossed_by_halves():
    """Four tokens cost 6.7 ms, five 9.8: with middling acceptance a step stays under the jump or goes well over it."""
    world = World(INT4, CLASSES["code"], head={1: 0.3})
    policy, outcome = adaptive(world, 1, steps=400)
    assert outcome.rate >= BAR * best_rate(world, 1, steps=8)
    assert policy.explain()["choices"]["1"]["eagle3"]["draft_tokens"] != 4


@pytest.mark.parametrize("concurrency", CONCURRENCY)
@pytest.mark.parametrize("kind", CLASSES)
def test_blocks_of_rows_are_filled(kind, concurrency):
    """What a token costs is an average over the jumps: it must not keep drafts back that fill a block up."""
    world = World(BLOCKS, CLASSES[kind], head={1: 1.7, 4: 1.2, 16: 3.5}, beside=0.4, host=(1.5, 2.8))
    reference = best_rate(world, concurrency, steps=8)
    policy, outcome = adaptive(world, concurrency, steps=250)
    assert outcome.rate >= COLD * reference, policy.explain()
    assert run(world, policy, concurrency=concurrency, steps=300).rate >= BAR * reference, policy.explain()


def test_a_block_is_filled_by_drafts_of_middling_worth():
    """Sixteen requests whose second row of each is nearly free, up to the jump behind it."""
    world = World(BLOCKS, always(0.39, 0.25), head={1: 1.7, 4: 1.2, 16: 3.5}, beside=0.4, host=(1.5, 2.8))
    policy = AdaptivePolicy(LONGEST, world.costs())
    run(world, policy, concurrency=16, steps=200)
    outcome = run(world, policy, concurrency=16, steps=300)
    assert outcome.rate >= 0.985 * best_rate(world, 16, steps=8), policy.explain()
    assert outcome.drafting > 280


@pytest.mark.parametrize("concurrency", CONCURRENCY)
def test_probes_while_off_cost_less_than_three_per_cent(concurrency):
    world = World(STEEP, CLASSES["chat"], head=DEAR_HEAD)
    policy, outcome = adaptive(world, concurrency, steps=1500)
    off = run(world, None, concurrency=concurrency, steps=50).rate
    assert 0.97 * off <= outcome.rate <= off
    assert policy.explain()["probes"] >= 3


def test_a_dear_head_that_pays_all_the_same_is_found_out():
    world = World(BFLOAT16, CLASSES["copy"], head=DEAR_HEAD)
    policy = AdaptivePolicy(LONGEST, world.costs())
    run(world, policy, concurrency=1, steps=1500)
    assert run(world, policy, concurrency=1, steps=300).rate >= BAR * best_rate(world, 1, steps=8)


def test_a_prompt_in_the_step_does_not_make_drafts_cheap():
    """The prompt's time is spent anyway: a token is drafted where it saves more than it costs itself."""
    world = World(STEEP, CLASSES["chat"], head=HEAD)
    policy = AdaptivePolicy(LONGEST, world.costs())
    run(world, policy, concurrency=4, steps=300)
    group = [[Candidate(Stream(0, 100), "eagle3", LONGEST)] for _ in range(4)]
    for _ in range(5):
        choices = policy.choose(group, running=4, prefill_tokens=96)
    assert sum(choice.count for choice in choices) <= 2  # a probe at most


def record_of(**policy) -> SpeculationRecord:
    return SpeculationRecord("ngram", 4, ngram=NGramSizes(8, 2), policy=DraftPolicy(**policy))


def lengths(policy, running: int, most: int = 8) -> list[int]:
    groups = [[Candidate(Stream(0, 9), "ngram/16+", most, ready=True)] for _ in range(running)]
    return [choice.count for choice in policy.choose(groups, running=running, prefill_tokens=0)]


def test_not_adaptive_drafts_as_far_as_it_may():
    policy = open_policy(record_of(adaptive=False), World(STEEP, CLASSES["open"]).costs())
    assert isinstance(policy, FixedPolicy)
    assert lengths(policy, 3) == [4, 4, 4]
    assert lengths(policy, 2, most=3) == [3, 3]
    both = [Candidate(Stream(0, 9), "eagle3", 8), Candidate(Stream(0, 9), "ngram/2", 3, ready=True)]
    [choice] = policy.choose([both], running=1, prefill_tokens=0)
    assert (choice.candidate.source, choice.count) == ("ngram/2", 3)


@pytest.mark.parametrize("adaptive_too", (True, False))
def test_no_drafts_above_max_concurrency(adaptive_too):
    policy = open_policy(record_of(adaptive=adaptive_too, max_concurrency=2), World(FLAT, CLASSES["copy"]).costs())
    assert all(lengths(policy, 2))
    assert not any(lengths(policy, 3))


@pytest.mark.parametrize("adaptive_too", (True, False))
def test_a_schedule_gives_the_length_up_to_each_batch_and_none_above(adaptive_too):
    schedule = ((2, 4), (4, 2), (8, 1))
    policy = open_policy(
        record_of(adaptive=adaptive_too, draft_len_schedule=schedule), World(STEEP, always(0.1)).costs()
    )
    assert [lengths(policy, running)[0] for running in (1, 2, 3, 4, 5, 8, 9)] == [4, 4, 2, 2, 1, 1, 0]


@pytest.mark.parametrize("adaptive_too", (True, False))
def test_drafting_ends_for_good_below_the_threshold_over_the_window(adaptive_too):
    policy = open_policy(
        record_of(adaptive=adaptive_too, acceptance_rate_threshold=0.5, acceptance_rate_window_size=4),
        World(FLAT, CLASSES["copy"]).costs(),
    )
    stream = Stream(0, 9)

    def verified(accepted: int) -> bool:
        policy.record(stream, "ngram/16+", 4, accepted, tree=False)
        return any(lengths(policy, 1))

    assert [verified(accepted) for accepted in (4, 0, 4)] == [True, True, True]  # the window is not full
    assert [verified(accepted) for accepted in (0, 4, 0)] == [True, True, True]  # the mean is the threshold
    assert verified(1) is False  # 4, 0, 4 and 1 would do; 0, 4, 0, 1 do not
    assert [verified(4) for _ in range(8)] == [False] * 8
    assert policy.explain()["overrides"]["ended"] is True


def test_what_nobody_verified_does_not_end_drafting():
    policy = open_policy(
        record_of(acceptance_rate_threshold=0.9, acceptance_rate_window_size=1), World(FLAT, CLASSES["copy"]).costs()
    )
    policy.learn(Stream(0, 9), "ngram/16+", 4, 0)
    assert all(lengths(policy, 1))


def test_a_tree_is_taken_where_its_levels_are_worth_its_nodes():
    """Chains fail at once, and a tree's levels hold: the tree is tried, found good and kept."""
    tree = DynamicTree(depth=4, top_k=4, total=16)
    policy = AdaptivePolicy(4, World(FLAT, always(0.3), head=HEAD).costs(), tree=tree)
    stream = Stream(0, 10**6)
    chosen = []
    for _ in range(400):
        [choice] = policy.choose([[Candidate(stream, "eagle3", 4)]], running=1, prefill_tokens=0)
        chosen.append(choice.tree)
        if choice.tree:
            assert choice.count == 16
            policy.record(stream, "eagle3", 16, 3, tree=True)
        elif choice.count:
            policy.record(stream, "eagle3", choice.count, 0, tree=False)
    assert all(chosen[-50:])
    assert policy.explain()["acceptance"]["eagle3/tree"]["acceptance"][0] > 0.9


def test_a_tree_that_is_no_better_than_a_chain_is_left():
    policy = AdaptivePolicy(4, World(STEEP, always(0.6), head=HEAD).costs(), tree=DynamicTree(4, 4, 16))
    stream = Stream(0, 10**6)
    chosen = []
    for step in range(600):
        [choice] = policy.choose([[Candidate(stream, "eagle3", 4)]], running=1, prefill_tokens=0)
        chosen.append(choice.tree)
        if choice.count:
            policy.record(stream, "eagle3", choice.count, step % 2, tree=choice.tree)
    assert sum(chosen[-300:]) <= 3


def test_it_explains_itself():
    world = World(BFLOAT16, CLASSES["code"], head=HEAD)
    policy, _ = adaptive(world, 4, steps=100)
    said = policy.explain()
    assert said["costs"]["measured_at_load_ms"]["verify"]["1"] == pytest.approx(8.2)
    assert said["acceptance"]["eagle3"]["acceptance"][0] == pytest.approx(0.72, abs=0.1)
    choice = said["choices"]["1"]["eagle3"]
    assert choice["draft_tokens"] >= 2 and choice["speedup"] > 1.2
    assert said["mean_length"]["eagle3"] > 0
    assert said["drafting_steps"] <= said["steps"] == 100


def test_what_is_known_of_a_sequence_is_forgotten_with_it():
    policy, _ = adaptive(World(BFLOAT16, CLASSES["chat"], head=HEAD, answer=20), 2, steps=200)
    assert len(policy.acceptance._own) <= 2
    assert len(policy._probed) <= 2


def test_the_metrics_show_what_the_policy_goes_by():
    policy, _ = adaptive(World(BFLOAT16, CLASSES["code"], head=HEAD), 1, steps=120)
    points = {(name, *labels.values()): value for name, labels, value in policy.points()}
    assert points["spec_decode_policy_ended",] == 0.0
    assert 1 <= points["spec_decode_policy_draft_len", "eagle3"] <= LONGEST
    assert points["spec_decode_policy_acceptance", "eagle3", "0"] == pytest.approx(0.72, abs=0.12)
    assert points["spec_decode_policy_verify_seconds", "1"] == pytest.approx(8.2e-3, rel=0.1)
    assert points["spec_decode_policy_draft_seconds", "4"] == pytest.approx(3.2e-3, rel=0.1)
    assert {name for name, *_ in points} <= set(HELP)


def test_figures_ask_whatever_policy_drafts_now():
    speculator = Speculator(AdaptivePolicy(4, World(FLAT, CLASSES["copy"]).costs()), 4, lookup=NgramDrafter())

    figures = speculator.figures

    def names() -> set[str]:
        return {name for name, _, _ in figures.points() if "policy" in name}

    assert "spec_decode_policy_verify_seconds" in names()
    speculator.policy = FixedPolicy(4)
    assert names() == {"spec_decode_policy_ended"}
    del speculator
    assert names() == set()
