"""The sampler against naive per-row arithmetic, its distribution, and its independence of the batch."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from runtime.sampling import SamplingParams
from runtime.sampling import sampler as module
from runtime.sampling.random import mix64, uniform
from runtime.sampling.sampler import sample
from runtime.sampling.state import SamplingState

V = 50


def state(prompt: tuple[int, ...] = (1, 2), generated: tuple[int, ...] = (), seed: int = 1, **values: object):
    made = SamplingState(
        SamplingParams(**values),
        seed=seed,
        sample=0,
        prompt=np.array(prompt, dtype=np.int64),
        end_ids=frozenset({0}),
    )
    for token in generated:
        made.observe(token)
    return made


def rows(count: int, seed: int = 0, scale: float = 3.0, width: int = V) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((count, width)) * scale).astype(np.float32)


def test_greedy_is_argmax_for_arrays_and_tensors() -> None:
    logits = rows(4)
    expected = logits.argmax(-1).tolist()
    states = [state() for _ in range(4)]
    assert sample(logits, states).tokens == expected
    assert sample(torch.from_numpy(logits), states).tokens == expected
    logits.flags.writeable = False
    assert sample(logits, states).tokens == expected


def test_no_rows() -> None:
    assert sample(np.zeros((0, V), np.float32), []).tokens == []
    with pytest.raises(ValueError, match="2 rows of logits for 1"):
        sample(rows(2), [state()])


def naive(logits: np.ndarray, s: SamplingState) -> np.ndarray:
    """Probabilities [V] by the written order of processing, in float64."""
    p, x = s.params, logits.astype(np.float64).copy()
    prompt, generated = set(s.prompt.tolist()), s.generated
    for token in range(len(x)):
        if token in prompt or token in generated:
            x[token] = x[token] / p.repetition_penalty if x[token] > 0 else x[token] * p.repetition_penalty
        count = generated.count(token)
        x[token] -= p.frequency_penalty * count + p.presence_penalty * (count > 0)
    for token in s.banned():
        x[token] = -np.inf
    if s.greedy:
        return np.eye(len(x))[int(x.argmax())]
    weight = np.exp((x - x.max()) / s.temperature)
    weight[weight < p.min_p] = 0
    order = np.argsort(-weight, kind="stable")
    if p.top_k:
        weight[order[p.top_k :]] = 0
    if p.top_p < 1:
        before = np.cumsum(weight[order]) - weight[order]
        weight[order[before >= p.top_p * weight.sum()]] = 0
    return weight / weight.sum()


@given(
    seed=st.integers(0, 2**32),
    temperature=st.sampled_from([None, 0.0, 0.5, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 2, 5, 60]),
    top_p=st.sampled_from([1.0, 0.9, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    repetition=st.sampled_from([1.0, 1.3, 0.8]),
    presence=st.sampled_from([0.0, 0.7, -0.7]),
    frequency=st.sampled_from([0.0, 0.4]),
    generated=st.lists(st.integers(0, V - 1), max_size=6),
    min_tokens=st.sampled_from([0, 3]),
    levels=st.sampled_from([(4,), (64, 1024), (3, 9), ()]),
    wide=st.booleans(),
)
@settings(max_examples=150, deadline=None)
def test_matches_naive_arithmetic(
    seed: int,
    temperature: float | None,
    top_k: int,
    top_p: float,
    min_p: float,
    repetition: float,
    presence: float,
    frequency: float,
    generated: list[int],
    min_tokens: int,
    levels: tuple[int, ...],
    wide: bool,
) -> None:
    logits = rows(1, seed)
    s = state(
        generated=tuple(generated),
        seed=seed,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repetition_penalty=repetition,
        presence_penalty=presence,
        frequency_penalty=frequency,
        min_tokens=min_tokens,
        bad_token_sequences=((7,), (8, 9)),
        logprobs=V,
        logprobs_mode="processed",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CANDIDATES", levels)
        patch.setattr(module, "CHUNK", 7 if wide else 256)  # 7: rows of 50 are searched in two levels
        result = sample(logits, [s])
    expected = naive(logits[0], s)
    token = result.tokens[0]
    assert expected[token] > 0
    logprobs = result.logprobs[0]
    if not s.greedy:
        got = np.zeros(V)
        for t, value in logprobs.top:
            got[t] = np.exp(value)
        np.testing.assert_allclose(got, expected, atol=2e-6)
        assert np.exp(logprobs.logprob) == pytest.approx(expected[token], abs=2e-6)
        # the choice is the inverse distribution function, in vocabulary order or by likelihood
        order = np.argsort(-expected, kind="stable") if s.truncated else np.arange(V)
        cumulated = np.cumsum(expected[order])
        at = int(np.flatnonzero(order == token)[0])
        assert cumulated[at] - expected[token] - 1e-5 <= s.uniform() <= cumulated[at] + 1e-5
    else:
        assert token == int(expected.argmax())


@pytest.mark.parametrize("width", [3000, 49152])
def test_row_does_not_depend_on_its_neighbours(width: int) -> None:
    logits = rows(6, seed=5, width=width)
    kinds = [
        {},
        {"temperature": 0.8},
        {"top_p": 0.7},
        {"top_k": 30, "repetition_penalty": 1.2},
        {"min_p": 0.01, "logprobs": 2},
        {"top_p": 0.999, "temperature": 3.0},
    ]
    states = [state(seed=i, **kind) for i, kind in enumerate(kinds)]
    together = sample(logits, states)
    for i, s in enumerate(states):
        alone = sample(logits[i : i + 1], [s])
        assert alone.tokens[0] == together.tokens[i]
        assert alone.logprobs.get(0) == together.logprobs.get(i)


@pytest.mark.parametrize(
    "kind",
    [
        {"logprobs": 2},
        {"logprobs": 0, "logprobs_mode": "processed", "temperature": 0.7},
        {"logprobs": 1, "logprobs_mode": "processed", "temperature": 2.5, "top_p": 0.9},
        {"logprobs": 1, "logprobs_mode": "processed", "temperature": 4.0, "top_p": 0.97, "min_p": 1e-6},
    ],
)
def test_threads_do_not_split_the_sums_of_a_row_that_is_alone(kind: dict[str, object]) -> None:
    """torch shares a reduction to one number out among its threads, and one to several by row."""
    logits = rows(24, seed=6, width=49_157)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        states = [state(seed=i, **kind) for i in range(len(logits))]
        together = sample(logits, states)
        alone = [sample(logits[i : i + 1], [s]) for i, s in enumerate(states)]
    finally:
        torch.set_num_threads(threads)
    assert [one.tokens[0] for one in alone] == together.tokens
    assert [one.logprobs[0] for one in alone] == [together.logprobs[i] for i in range(len(logits))]


def test_a_greedy_row_that_a_ban_hits_keeps_its_own_logits_among_sampled_ones() -> None:
    """The banned row is found last, and then every row is processed: none may take another's logits."""
    logits = rows(3, seed=4)
    likeliest = int(logits[1].argmax())
    states = [state(temperature=0.9), state(bad_token_sequences=((likeliest,),), seed=2), state(top_k=3, seed=3)]
    assert states[1].direct and states[1].vetoes(likeliest)
    alone = [sample(logits[i : i + 1], [s]).tokens[0] for i, s in enumerate(states)]
    assert sample(logits, states).tokens == alone
    assert alone[1] == int(np.argsort(logits[1])[-2])


def test_rows_may_be_picked_in_any_order_and_more_than_once() -> None:
    logits = rows(4, seed=5)
    states = [state(temperature=0.9, seed=seed) for seed in range(3)] + [state()]
    picked = [2, 0, 2, 3]
    alone = [sample(logits[row : row + 1], [s]).tokens[0] for row, s in zip(picked, states, strict=True)]
    before = logits.copy()
    assert module.Sampler().sample(logits, states, picked).tokens == alone
    assert module.Sampler().sample(logits, [state()] * 4, [0, 1, 2, 3]).tokens == logits.argmax(-1).tolist()
    assert (logits == before).all()


def test_tied_logits_give_the_same_choice_in_any_batch() -> None:
    # bfloat16 models tie often; the order of tied candidates must not depend on the batch
    logits = np.round(rows(8, seed=2, width=4096) * 2) / 2
    states = [state(seed=i, top_p=0.9) for i in range(8)]
    together = sample(logits, states).tokens
    assert together == [sample(logits[i : i + 1], [states[i]]).tokens[0] for i in range(8)]


def test_distribution_is_right() -> None:
    logits = rows(1, seed=3, scale=1.5)[:, :8].repeat(1, 0)
    counts = np.zeros(8)
    trials = 4000
    batch = np.repeat(logits, 100, axis=0)
    for start in range(0, trials, 100):
        states = [state(prompt=(1,), seed=start + i, temperature=1.0) for i in range(100)]
        for token in sample(batch, states).tokens:
            counts[token] += 1
    expected = np.exp(logits[0]) / np.exp(logits[0]).sum()
    chi = ((counts - trials * expected) ** 2 / (trials * expected)).sum()
    assert chi < 24.3, "chi square, 7 degrees of freedom, p = 0.001"


def test_uniform_is_uniform_and_depends_on_every_argument() -> None:
    values = np.array([uniform(seed, 0, step) for seed in range(40) for step in range(50)])
    assert values.min() >= 0 and values.max() < 1
    assert np.histogram(values, 10, (0, 1))[0].min() > 140
    assert len({uniform(1, 0, 0), uniform(2, 0, 0), uniform(1, 1, 0), uniform(1, 0, 1), uniform(2**64 - 1, 0, 0)}) == 5
    assert len({mix64(i) for i in range(1000)}) == 1000


def test_broken_logits_fail_their_row_only() -> None:
    logits = rows(4)
    logits[1, 3] = np.nan
    logits[2, 3] = np.inf
    tokens = sample(logits, [state(), state(), state(), state(temperature=1.0)]).tokens
    assert tokens[1] == tokens[2] == -1 and tokens[0] >= 0 and tokens[3] >= 0
    assert sample(logits[1:3], [state(temperature=1.0), state(top_p=0.5)]).tokens == [-1, -1]


def test_masked_vocabulary_is_legal_and_everything_banned_is_not() -> None:
    logits = np.full((1, V), -np.inf, np.float32)
    logits[0, 5] = 1.0
    for values in ({}, {"temperature": 1.0}, {"top_p": 0.5}, {"temperature": 1e-30}):
        assert sample(logits, [state(**values)]).tokens == [5]
        assert sample(logits, [state(bad_token_sequences=((5,),), **values)]).tokens == [-1]


def test_tiny_temperature_is_greedy() -> None:
    logits = rows(3)
    tokens = sample(logits, [state(temperature=1e-12, seed=i) for i in range(3)]).tokens
    assert tokens == logits.argmax(-1).tolist()


def test_min_tokens_bans_the_end_and_then_lets_it() -> None:
    logits = rows(1)
    logits[0, 0] = 100.0
    assert sample(logits, [state(min_tokens=2, generated=(5,))]).tokens != [0]
    assert sample(logits, [state(min_tokens=2, generated=(5, 6))]).tokens == [0]


def test_bad_sequence_is_never_completed_but_its_head_is_allowed() -> None:
    logits = rows(1)
    logits[0, 9], logits[0, 4] = 100.0, 50.0
    bad = {"bad_token_sequences": ((8, 9),)}
    assert sample(logits, [state(**bad)]).tokens == [9]
    assert sample(logits, [state(generated=(8,), **bad)]).tokens == [4]


def test_raw_logprobs_are_of_the_models_logits() -> None:
    logits = rows(1)
    s = state(logprobs=3, repetition_penalty=2.0, bad_token_sequences=((int(logits.argmax()),),), temperature=0.5)
    result = sample(logits.copy(), [s])
    reference = torch.log_softmax(torch.from_numpy(logits[0]).double(), -1)
    found = result.logprobs[0]
    assert found.logprob == pytest.approx(float(reference[found.token]))
    assert [t for t, _ in found.top] == torch.topk(reference, 3).indices.tolist()


def test_bad_word_strikes_then_gives_up() -> None:
    logits = rows(1)
    order = np.argsort(-logits[0]).tolist()
    s = SamplingState(
        SamplingParams(bad_words=("x",)),
        seed=0,
        sample=0,
        prompt=np.array([1]),
        end_ids=frozenset(),
        completes_bad_word=lambda t: t in order[:3],
    )
    assert sample(logits.copy(), [s]).tokens == [order[3]]
    s.completes_bad_word = lambda t: True
    assert sample(logits.copy(), [s]).tokens == [-1]


def test_logits_are_left_alone() -> None:
    logits = rows(2)
    before = logits.copy()
    sample(logits, [state(repetition_penalty=2.0, generated=(4,)), state(top_p=0.5, min_tokens=2)])
    np.testing.assert_array_equal(logits, before)


@pytest.mark.parametrize("width", [5, 64, 255, 256, 257, 300, 49152])
def test_argmax_is_the_first_maximum(width: int) -> None:
    x = torch.from_numpy(np.round(rows(16, seed=width, width=width)))
    x[3] = -torch.inf
    x[4, width - 1] = 1e9
    values, indices = module._argmax(x)
    expected = x.numpy().argmax(-1)
    assert indices.tolist() == expected.tolist()
    assert values.tolist() == x.numpy()[np.arange(16), expected].tolist()
    x[5, width // 2] = torch.nan
    assert torch.isnan(module._argmax(x)[0][5])


def test_buffers_are_reused_between_batches_of_any_shape() -> None:
    sampler = module.Sampler()
    for count, width in ((4, 300), (2, 300), (6, 300), (3, 50), (5, 700)):
        logits = rows(count, seed=count, width=width)
        states = [state(seed=i, temperature=0.9, repetition_penalty=1.1 + i, logprobs=1) for i in range(count)]
        again = [state(seed=i, temperature=0.9, repetition_penalty=1.1 + i, logprobs=1) for i in range(count)]
        one, other = sampler.sample(logits, states), sample(logits, again)
        assert one.tokens == other.tokens and one.logprobs == other.logprobs


def test_penalties_take_room_for_what_is_generated_not_for_what_was_asked() -> None:
    tokens = np.random.default_rng(3).integers(0, 400, 1500).tolist()
    made = state(generated=tuple(tokens), max_tokens=2**31 - 1, repetition_penalty=1.2, frequency_penalty=0.5)
    seen, counts = made.seen()
    assert dict(zip(seen.tolist(), counts.tolist(), strict=True)) == {
        token: float(tokens.count(token)) for token in {1, 2, *tokens}
    }
    assert made._seen.nbytes + made._seen_counts.nbytes < 20000
