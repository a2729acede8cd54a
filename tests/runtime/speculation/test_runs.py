"""Tokens that are taken several at a time: what comes of them is what comes of one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from runtime.blocks import PrefixHasher
from runtime.engine import EngineCore
from runtime.executors.base import ExecutorLimits
from runtime.request import FinishReason, GenerationResult, Request
from runtime.sample import Sample
from runtime.sampling import SamplingParams
from runtime.sampling.state import SamplingState
from runtime.sampling.words import StopMatcher
from runtime.scheduler.sequence import Sequence as TokenSequence
from runtime.speculation.draft import Choice, Draft
from runtime.speculation.speculator import Speculator
from runtime.tokenizer import EngineTokenizer
from tests.runtime.speculation.drafters import AlwaysPolicy, ToldDrafter
from tests.support.simulation import SimulatedExecutor
from tests.support.tiny import write_tiny_llama

EOS = 2
TEXT = "one two, Ünïcode öne two 🙂 END of it\n\nUser: and END"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> EngineTokenizer:
    return EngineTokenizer.load(write_tiny_llama(tmp_path_factory.mktemp("tiny") / "model", layers=1))


def sample_of(tokenizer: EngineTokenizer, params: SamplingParams, capacity: int) -> Sample:
    prompt = np.array([1], dtype=np.int64)
    sequence = TokenSequence("r", prompt, capacity=capacity, hasher=PrefixHasher(4))
    state = SamplingState(params, seed=0, sample=0, prompt=prompt, end_ids=frozenset({EOS}))
    stops = StopMatcher(params.stop, include=params.include_stop) if params.stop else None
    return Sample(sequence, state, detokenizer=tokenizer.detokenizer(), stops=stops, bad_words=None)


@given(data=st.data(), include=st.booleans(), capacity=st.integers(2, 90), most=st.integers(1, 80))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_run_is_its_tokens_one_by_one(
    tokenizer: EngineTokenizer, data: st.DataObject, include: bool, capacity: int, most: int
) -> None:
    tokens = tokenizer.encode(TEXT)
    begin = data.draw(st.integers(0, len(tokens) - 1))
    tokens = [*tokens[begin:], *data.draw(st.lists(st.integers(0, 300), max_size=6)), EOS, 7, 8]
    cuts = st.integers(0, len(TEXT) - 1).flatmap(lambda at: st.integers(1, 6).map(lambda size: TEXT[at : at + size]))
    stops = tuple(data.draw(st.lists(cuts, max_size=3)))
    params = SamplingParams(max_tokens=most, stop=stops, include_stop=include, temperature=0.0)
    single, runs = sample_of(tokenizer, params, capacity), sample_of(tokenizer, params, capacity)
    assert runs.sampling.takes_runs
    at = 0
    while single.finish_reason is None and runs.finish_reason is None and at < len(tokens):
        run = tokens[at : at + data.draw(st.integers(1, 7))]
        at += len(run)
        took = 0
        while took < len(run) and single.finish_reason is None:
            single.sequence.append(run[took])
            single.accept(run[took], None)
            took += 1
        count = runs.accept_all(run)
        runs.sequence.extend(run[:count])
        assert count == took
        assert runs.take_output() == single.take_output()
        assert runs.sequence.tokens.tolist() == single.sequence.tokens.tolist()
        assert runs.sequence.length == single.sequence.length
    assert (runs.finish_reason, runs.stop_reason) == (single.finish_reason, single.stop_reason)


class Script(SimulatedExecutor):
    """Makes the likeliest tokens those of a script, by their position behind a prompt of one token."""

    def __init__(self, script: Sequence[int]) -> None:
        limits = ExecutorLimits(8, 128, 256, 255)
        super().__init__(num_blocks=256, block_size=4, vocab_size=512, limits=limits, eos_token_ids=(EOS,))
        self.script = list(script)

    def token(self, position: int) -> int:
        return self.script[position] if position < len(self.script) else EOS

    def execute(self, batch: Any) -> np.ndarray:
        logits = super().execute(batch)
        for row, index in enumerate(batch.logit_indices.tolist()):
            logits[row, self.token(int(batch.positions[index]))] = 50.0
        return logits


def answers(tokenizer: EngineTokenizer, params: SamplingParams, tree: bool | None) -> list[Any]:
    target = Script(tokenizer.encode(TEXT))
    speculator = None
    if tree is not None:

        def oracle(context: list[int], count: int) -> list[int]:
            return [target.token(len(context) - 1), *range(100, 99 + count)][:count]

        model = ToldDrafter(oracle, 512, right=0.8, block_size=4)
        speculator = Speculator(AlwaysPolicy(5, tree=tree), 5, model=model, tree_nodes=11 if tree else 0)
    core = EngineCore(target, tokenizer, speculator=speculator)
    results = {name: GenerationResult() for name in "ab"}
    for name in results:
        core.add_request(Request(name, prompt_token_ids=[1], params=params, stream=name == "a"))
    while core.has_unfinished():
        for output in core.step():
            results[output.request_id].add(output)
    assert core.pool.num_used == 0
    latencies = core.metrics.inter_token_latency_seconds.count
    told = [(r.text, r.token_ids, r.finish_reason, r.completions[0].stop_reason) for r in results.values()]
    return [told, latencies]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_tokens": 9},
        {"stop": ("END",)},
        {"stop": ("END", "\n\nUser:"), "include_stop": True},
        {"stop": ("never", "two, Ü")},
        {"stop": ("END",), "min_tokens": 40},
        {"stop_token_sequences": True},
        {"bad_words": ("öne",)},
        {"logprobs": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("tree", [False, True], ids=["chains", "trees"])
def test_text_and_ends_are_those_without_drafts(
    tokenizer: EngineTokenizer, options: dict[str, Any], tree: bool
) -> None:
    ids = tokenizer.encode(TEXT)
    if options.get("stop_token_sequences"):
        options = {"stop_token_sequences": (tuple(ids[9:12]),)}
    params = SamplingParams(**{"max_tokens": 100, **options})
    want, got = answers(tokenizer, params, None), answers(tokenizer, params, tree)
    assert got == want
    reasons = {reason for _, _, reason, _ in got[0]}
    assert reasons == {FinishReason.LENGTH if "max_tokens" in options else FinishReason.STOP}


class OneTree(ToldDrafter):
    """Five nodes on two levels, the first of which is right."""

    def _tree(self, context: list[int], count: int) -> Draft:
        right = self._oracle(context, 1)[0]
        tokens = np.array([right, right + 1, right, right, right], dtype=np.int64)
        return Draft(tokens, self.name, np.array([0, 0, 2, 2, 2], dtype=np.int32))


class Heard(AlwaysPolicy):
    def __init__(self, count: int, *, tree: bool = False) -> None:
        super().__init__(count, tree=tree)
        self.heard: list[tuple[int, int, int | None]] = []

    def record(self, sequence: Any, source: str, drafted: int, accepted: int, **options: Any) -> None:
        super().record(sequence, source, drafted, accepted, **options)
        self.heard.append((drafted, accepted, options["asked"]))


def test_what_the_policy_hears_of_a_tree_are_levels() -> None:
    """Two levels are drafted and asked for, of whatever number of nodes; where the answer ends, what was accepted."""
    target = SimulatedExecutor(
        num_blocks=64, block_size=4, vocab_size=64, limits=ExecutorLimits(4, 64, 64, 60), eos_token_ids=(EOS,)
    )
    policy = Heard(5, tree=True)
    drafter = OneTree(lambda context, count: target.greedy(context, count)[-1:], 64)
    core = EngineCore(target, speculator=Speculator(policy, 5, model=drafter, tree_nodes=5))
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    core.add_request(Request("r", prompt_token_ids=[5, 6, 7], params=params))
    while core.has_unfinished():
        core.step()
    assert set(policy.heard) <= {(2, 1, 2), (1, 1, None)} and (2, 1, 2) in policy.heard
    assert core.stats()["speculation"]["num_draft_tokens"] == 5 * core.stats()["speculation"]["num_drafts"]


class Kinds(Heard):
    """Trees for the sequences whose first token is odd (``mixed``), or for all of them."""

    def __init__(self, count: int, *, mixed: bool) -> None:
        super().__init__(count, tree=True)
        self.mixed, self.parts = mixed, set[str]()

    def choose(self, candidates: Any, **options: Any) -> list[Choice]:
        chosen = super().choose(candidates, **options)
        if self.mixed:
            chosen = [replace(one, tree=bool(one.candidate.sequence.tokens[0] % 2)) for one in chosen]
        return chosen

    def timed(self, part: str, tokens: int, requests: int, seconds: float) -> None:
        self.parts.add(part)


@pytest.mark.parametrize(("mixed", "parts"), [(False, {"tree"}), (True, set())])
def test_chains_beside_trees_say_nothing_of_what_either_takes(mixed: bool, parts: set[str]) -> None:
    target = SimulatedExecutor(
        num_blocks=64, block_size=4, vocab_size=64, limits=ExecutorLimits(4, 64, 64, 60), eos_token_ids=(EOS,)
    )
    policy = Kinds(5, mixed=mixed)
    drafter = OneTree(lambda context, count: target.greedy(context, count)[-1:], 64)
    core = EngineCore(target, speculator=Speculator(policy, 5, model=drafter, tree_nodes=5))
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    for first in (4, 5):
        core.add_request(Request(str(first), prompt_token_ids=[first, 6, 7], params=params))
    for _ in range(3):
        core.step()
    assert policy.parts & {"draft", "tree"} == parts
    assert core.stats()["speculation"]["num_drafts"] >= 2


def test_asks_of_a_chain_stay_what_was_granted() -> None:
    """A chain that its drafter ended in doubt was asked for in full."""
    target = SimulatedExecutor(
        num_blocks=64, block_size=4, vocab_size=64, limits=ExecutorLimits(4, 64, 64, 60), eos_token_ids=(EOS,)
    )

    class Short(ToldDrafter):
        def _chain(self, context: list[int], count: int) -> Draft:
            return Draft(np.array([(self._oracle(context, 1)[0] + 1) % 64], dtype=np.int64), self.name)

    policy = Heard(4)
    drafter = Short(lambda context, count: target.greedy(context, 1)[-1:], 64)
    core = EngineCore(target, speculator=Speculator(policy, 4, model=drafter))
    core.add_request(Request("r", prompt_token_ids=[5, 6, 7], params=SamplingParams(max_tokens=12, ignore_eos=True)))
    while core.has_unfinished():
        core.step()
    assert policy.heard[0] == (1, 0, 4)
