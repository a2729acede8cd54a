import pytest
import torch

from evals import gates, generation, parity
from evals.samples import Samples
from evals.statistics import Interval
from trtforge.ground.errors import GateFailed
from trtforge.recipe.schema_evals import Generation


def test_gate_compares_the_worse_bound():
    interval = Interval(value=0.04, low=0.02, high=0.06)
    missed = gates.at_most("perplexity_increase", interval, 0.05)
    assert not missed.passed
    span = {"low": 0.02, "high": 0.06, "bound": 0.06}
    assert missed.figures() == {"measured": 0.04, **span, "limit": 0.05}
    assert gates.at_most("perplexity_increase", interval, 0.06).passed


def test_missed_gates_raise_with_every_figure():
    missed = gates.at_least("agreement", 0.9, 0.99)
    with pytest.raises(GateFailed) as caught:
        gates.require([missed, gates.at_least("other", 1.0, 0.5)])
    assert caught.value.code == "TF-EVL-010"
    assert caught.value.numbers == {"agreement": {"measured": 0.9, "limit": 0.99}}
    assert caught.value.exit_code == 1


def test_loops_and_emptiness_are_degenerate_and_prose_is_not():
    assert generation.inspect_answer("p", [5, 6] * 20, "ab" * 20).problems == ("repeats itself",)
    assert "empty" in generation.inspect_answer("p", [1], "  \n").problems
    assert generation.inspect_answer("p", [1, 2, 3], "a�b").problems == ("does not decode",)
    assert generation.inspect_answer("p", list(range(40)), "fine").problems == ()


def test_a_candidate_that_loops_where_the_baseline_does_not_fails():
    sane = [generation.inspect_answer("p", list(range(40)), "fine")] * 4
    loops = [generation.inspect_answer("p", [7] * 40, "x" * 40)] * 4
    assert not generation.sanity_gate(generation.compare(sane, loops), 0.5).passed
    found = generation.compare(sane, sane)
    assert generation.sanity_gate(found, 1.0).passed
    assert found.to_json()["mean_common_prefix_tokens"] == 40


def test_a_baseline_that_answers_nothing_sanely_shows_nothing():
    loops = [generation.inspect_answer("p", [7] * 40, "x" * 40)] * 4
    gate = generation.sanity_gate(generation.compare(loops, loops), 0.5)
    assert not gate.passed and "none of 4 prompts sanely" in gate.detail
    assert generation.sanity_gate(generation.compare(loops, loops), 0.0).passed, "asked to let anything pass"


@pytest.mark.parametrize(
    ("lost", "limit", "passed"), [(1, 0.75, True), (2, 0.75, False), (4, 0.0, True), (1, 1.0, False)]
)
def test_the_limit_decides_and_the_detail_names_what_was_lost(lost: int, limit: float, passed: bool):
    sane = [generation.inspect_answer(f"question {i}", list(range(40)), "fine") for i in range(4)]
    bad = [generation.inspect_answer(f"question {i}", [7] * 40, "x " * 40) for i in range(lost)]
    found = generation.compare(sane, [*bad, *sane[lost:]])
    gate = generation.sanity_gate(found, limit)
    assert gate.passed is passed and gate.measured == 1 - lost / 4 and gate.limit == limit
    for i in range(4):
        assert (f"'question {i}' (repeats itself: 'x x" in gate.detail) == (i < lost)
    assert len(gate.detail) < 100 + 120 * lost
    assert [row["prompt"] for row in found.to_json()["lost"]] == [f"question {i}" for i in range(lost)]


def test_the_recipe_offers_as_many_prompts_as_there_are():
    field = Generation.model_json_schema()["properties"]["prompts"]
    assert field["maximum"] == len(generation.PROMPTS)
    assert Generation.model_validate({"gate": None}).gate is None


def _table_model(seed, vocab=11):
    table = torch.randn(vocab, vocab, generator=torch.Generator().manual_seed(seed)) * 4
    return table, lambda ids: table[ids]


def test_parity_of_a_model_with_itself_is_full():
    _, model = _table_model(0)
    result = parity.compare(model, model, [[1, 2, 3], [4, 5]])
    assert result.positions == 5
    assert result.agreement.value == 1.0
    assert result.mean_kl == pytest.approx(0.0, abs=1e-6)
    assert result.max_abs_logit_difference == 0.0


def test_prompts_that_were_compared_are_not_compared_again(tmp_path):
    _, model = _table_model(0)
    _, noisy = _table_model(1)
    prompts = [[1, 2, 3], [4, 5]]
    folders = {"out": tmp_path / "out", "scratch": tmp_path / "scratch"}

    def killed(ids):
        if ids.tolist() == [4, 5]:
            raise KeyboardInterrupt
        return noisy(ids)

    with pytest.raises(KeyboardInterrupt):
        parity.compare(killed, model, prompts, samples=Samples("positions", {}, **folders))
    asked = []

    def counting(ids):
        asked.append(ids.tolist())
        return noisy(ids)

    found = parity.compare(counting, model, prompts, samples=Samples("positions", {}, **folders))
    assert asked == [[4, 5]] and found == parity.compare(noisy, model, prompts)
    again = Samples("positions", {}, out=tmp_path / "b", scratch=tmp_path / "c", earlier=[tmp_path / "out"])
    assert parity.compare(killed, model, prompts, samples=again) == found


def test_parity_sees_a_wrong_engine_and_forgives_only_near_ties():
    table, model = _table_model(0)
    wrong = table.roll(1, dims=1)
    result = parity.compare(lambda ids: wrong[ids], model, [list(range(11))])
    assert result.raw_agreement.value < 0.5
    tied = table.clone()
    best, second = tied[3].topk(2).indices.tolist()
    reference = tied.clone()
    reference[3, second] = reference[3, best] - 0.01
    flipped = reference.clone()
    flipped[3, second] = reference[3, best] + 0.01
    result = parity.compare(lambda ids: flipped[ids], lambda ids: reference[ids], [list(range(11))])
    assert result.near_tie_flips == 1
    assert result.agreement.value == 1.0
    assert result.raw_agreement.value == pytest.approx(10 / 11)


def _noisy(model, sigma, seed):
    generator = torch.Generator().manual_seed(seed)

    def logits(ids):
        clean = model(ids)
        return clean + sigma * torch.randn(clean.shape, generator=generator)

    return logits


def test_noise_of_the_references_own_size_passes_and_a_systematic_error_does_not():
    table, model = _table_model(0, vocab=64)
    prompts = [torch.randint(0, 64, (200,), generator=torch.Generator().manual_seed(i)).tolist() for i in range(4)]
    floor = _noisy(model, 0.3, 1)
    good = parity.compare(_noisy(model, 0.3, 2), model, prompts, perturbed_logits=floor)
    assert good.agreement.low > 0.99
    assert good.mean_kl <= parity.kl_limit(good.floor_kl)
    assert good.raw_agreement.value < 1.0
    assert good.near_tie_logits == pytest.approx(3 * 0.3 * 2**0.5, rel=0.1) == 3 * good.noise
    scaled = parity.compare(lambda ids: 1.3 * model(ids), model, prompts, perturbed_logits=_noisy(model, 0.3, 1))
    assert scaled.mean_kl > parity.kl_limit(scaled.floor_kl), "a wrong scale keeps every choice and must still be found"
    wrong = table.roll(1, dims=1)
    rolled = parity.compare(lambda ids: wrong[ids], model, prompts, perturbed_logits=_noisy(model, 0.3, 1))
    assert rolled.agreement.low < 0.99


def test_a_far_choice_at_a_near_tie_counts_against_the_engine():
    logits = torch.zeros(1, 9)
    logits[0, :3] = torch.tensor([5.0, 4.99, 1.0])
    engine = logits.clone()
    engine[0, 2] = 9.0
    result = parity.compare(lambda ids: engine.expand(len(ids), -1), lambda ids: logits.expand(len(ids), -1), [[1, 2]])
    assert result.near_tie_share == 1.0
    assert result.agreement.value == 0.0


def test_without_noise_one_rounding_of_the_largest_logit_binds():
    table, model = _table_model(0)
    largest = table.abs().amax(-1).mean()
    for activations, epsilon in (("bfloat16", 2.0**-7), ("float32", 2.0**-23)):
        result = parity.compare(model, model, [list(range(11))], perturbed_logits=model, activations=activations)
        assert result.near_tie_logits == pytest.approx(float(largest) * epsilon / 2, rel=1e-5)
        assert result.noise == 0.0
    assert result.floor_kl == pytest.approx(0.0, abs=1e-6)


def test_prompts_do_not_overlap():
    prompts = parity.slice_prompts(list(range(100)), 4, 20)
    flat = [t for prompt in prompts for t in prompt]
    assert len(flat) == len(set(flat)) == 80
