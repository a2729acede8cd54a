"""Drafts over real kernels: the tokens, texts and log-probabilities of the same engine without drafts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from runtime.determinism import first_divergence
from runtime.engine import EngineConfig, EngineCore
from runtime.executors.base import ExecutorLimits
from runtime.executors.torch_executor import TorchExecutor
from runtime.offline import Engine
from runtime.request import GenerationResult, Request
from runtime.sampling import GuidedDecoding, SamplingParams
from runtime.speculation.ngram import NgramDrafter
from runtime.speculation.speculator import Speculator
from runtime.tokenizer import EngineTokenizer
from tests.runtime.executor_support import blocks_of, make_batch, tiny_engine
from tests.runtime.speculation.drafters import AlwaysPolicy, Oracle, ToldDrafter

pytestmark = pytest.mark.slow

TEXT = "The import statement finds a module, loads it and binds a name in the local namespace. "
PROMPTS = [TEXT[:n] for n in (5, 11, 23, 40)] + [TEXT, "def f(x):\n    return x"]
VARIANTS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8, "seed": 3},
    {"temperature": 1.5, "seed": 4, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
    {"logprobs": 2},
    {"logprobs": 3, "logprobs_mode": "processed", "temperature": 0.9, "seed": 5},
    {"stop": ("e", "ab"), "include_stop": True},
    {"bad_words": ("a", "th"), "min_tokens": 4},
    {"bad_token_sequences": ((40,), (41, 42)), "logit_bias": ((40, 5.0), (60, 3.0))},
    {"guided": GuidedDecoding(regex="[a-z ]{3,30}")},
    {"guided": GuidedDecoding(choice=("yes", "no, never", "perhaps so"))},
    {"temperature": 1.0, "seed": 9, "n": 3, "logprobs": 0},
]
SETS = [SamplingParams(**{"max_tokens": 20, "ignore_eos": "guided" not in v, **v}) for v in VARIANTS]
BATCH = [(prompt, params) for prompt in PROMPTS for params in SETS][:: len(PROMPTS) - 1]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_engine(tmp_path_factory.mktemp("masked"), graph={"tree_mask": True})[0]


def oracle_of(prompts: Sequence[list[int]], results: Sequence[GenerationResult]) -> Oracle:
    """What follows a context in the answers that begin so; filled up with other tokens."""
    whole = [np.array([*ids, *c.token_ids]) for ids, r in zip(prompts, results, strict=True) for c in r.completions]

    def oracle(context: list[int], count: int) -> list[int]:
        n = len(context)
        found = [int(w[n]) for w in whole if len(w) > n and (w[:n] == context).all()]
        return list(dict.fromkeys([*found, *range(50, 50 + count)]))[:count]

    return oracle


class Answers:
    """What the engine says without drafts."""

    def __init__(self, directory: Path) -> None:
        self.engine = Engine(EngineCore(TorchExecutor(directory), EngineTokenizer.load(directory)))
        assert self.engine.tokenizer is not None
        self.ids = [self.engine.tokenizer.encode(prompt) for prompt, _ in BATCH]
        self.results = self.engine.generate([p for p, _ in BATCH], [s for _, s in BATCH])
        self.oracle = oracle_of(self.ids, self.results)


@pytest.fixture(scope="module")
def answers(directory: Path) -> Answers:
    return Answers(directory)


def told(result: GenerationResult) -> list[Any]:
    return [
        (c.index, c.token_ids, c.text, c.logprobs, c.cumulative_logprob, c.finish_reason, c.stop_reason)
        for c in result.completions
    ]


def speculating(
    directory: Path, speculator: Speculator, *, num_blocks: int | None = None, limits: ExecutorLimits | None = None
) -> Engine:
    executor = TorchExecutor(directory, num_blocks=num_blocks)
    core = EngineCore(
        executor, EngineTokenizer.load(directory), limits=limits, config=EngineConfig(), speculator=speculator
    )
    return Engine(core)


@settings(max_examples=8, deadline=None)
@given(
    count=st.integers(1, 8),
    right=st.sampled_from([0.0, 0.6, 1.0]),
    refuse=st.sampled_from([0.0, 0.3]),
    tight=st.booleans(),
    max_tokens=st.sampled_from([9, 24, 128]),
    lookup=st.booleans(),
    seed=st.integers(0, 99),
)
def test_chains_change_nothing(
    directory: Path,
    answers: Answers,
    count: int,
    right: float,
    refuse: float,
    tight: bool,
    max_tokens: int,
    lookup: bool,
    seed: int,
) -> None:
    model = ToldDrafter(answers.oracle, 512, right=right, refuse=refuse, block_size=16, seed=seed)
    ngram = NgramDrafter(8, 1) if lookup else None
    speculator = Speculator(AlwaysPolicy(count), count, lookup=ngram, model=model)
    limits = ExecutorLimits(8, max_tokens, 256, 255)
    engine = speculating(directory, speculator, num_blocks=8 if tight else None, limits=limits)
    assert engine.executor.row_invariant
    results = engine.generate([p for p, _ in BATCH], [s for _, s in BATCH])
    for got, want in zip(results, answers.results, strict=True):
        assert told(got) == told(want)
    assert engine.core.pool.num_used == 0
    figures = engine.stats()["speculation"]
    assert figures["num_drafts"] > 0 and (right < 1 or figures["num_accepted_tokens"] > 0)
    assert set(model.copied), "samples that split off were drafted for, so blocks were copied"


def test_a_pool_that_preempts_changes_nothing(directory: Path) -> None:
    params = SamplingParams(max_tokens=70, ignore_eos=True, logprobs=1)
    plain = Engine(EngineCore(TorchExecutor(directory), EngineTokenizer.load(directory)))
    want = plain.generate(PROMPTS, params)
    assert plain.tokenizer is not None
    oracle = oracle_of([plain.tokenizer.encode(p) for p in PROMPTS], want)
    model = ToldDrafter(oracle, 512, right=0.9, block_size=16)
    engine = speculating(directory, Speculator(AlwaysPolicy(6), 6, model=model), num_blocks=13)
    results = engine.generate(PROMPTS, params)
    assert [told(r) for r in results] == [told(r) for r in want]
    assert engine.stats()["num_preemptions_total"] > 0
    assert engine.stats()["speculation"]["num_accepted_tokens"] > 100


@pytest.mark.parametrize(("nodes", "right", "tight"), [(6, 1.0, False), (12, 0.8, True), (20, 0.5, False)])
def test_trees_change_nothing_but_near_ties(
    directory: Path, answers: Answers, nodes: int, right: float, tight: bool
) -> None:
    """A tree's node sees its keys in other places of a sum than a chain's would: the last bits may differ."""
    model = ToldDrafter(answers.oracle, 512, right=right, block_size=16, top_k=3)
    speculator = Speculator(AlwaysPolicy(4, tree=True), 4, model=model, tree_nodes=nodes)
    engine = speculating(directory, speculator, num_blocks=14 if tight else None)
    results = engine.generate([p for p, _ in BATCH], [s for _, s in BATCH])
    assert any(tree for *_, tree in speculator.policy.records)
    parted = 0
    for ids, got, want in zip(answers.ids, results, answers.results, strict=True):
        for mine, other in zip(got.completions, want.completions, strict=True):
            if mine.token_ids != other.token_ids:
                parted += 1
                divergence = first_divergence(
                    other.token_ids, mine.token_ids, lambda out, ids=ids: answers.engine.logits([*ids, *out])[-1]
                )
                assert divergence is not None and divergence.near_tie, divergence
                continue
            assert (mine.text, mine.finish_reason) == (other.text, other.finish_reason)
            for a, b in zip(mine.logprobs, other.logprobs, strict=True):
                assert a.logprob == pytest.approx(b.logprob, abs=1e-4)
    assert parted <= 1
    assert engine.core.pool.num_used == 0


def test_rows_that_a_tree_left_apart_are_moved_together(directory: Path) -> None:
    """The executor's pools after a tree's path was accepted hold what a chain of it would have written."""
    chain, tree = (TorchExecutor(directory) for _ in range(2))
    prompt, way = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14], [20, 21, 22, 23]
    blocks = blocks_of(0)
    chain.execute(make_batch([(prompt, 0, blocks)]))
    tree.execute(make_batch([(prompt, 0, blocks)]))
    chain.execute(make_batch([(way, 10, blocks)]))
    # nodes: root 20; 21 and two siblings below it; 22 behind 21; 23 behind 22
    nodes, parents = [20, 90, 21, 91, 92, 22, 23], [-1, 0, 0, 0, 1, 2, 5]
    seen = np.zeros((7, 7), dtype=np.uint8)
    for node, parent in enumerate(parents):
        seen[node] = seen[parent] if node else 0
        seen[node, node] = 1
    batch = make_batch([(nodes, 10, blocks)])
    positions = 10 + seen.sum(axis=1, dtype=np.int64) - 1
    tree.execute(dataclasses.replace(batch, tree_mask=seen, positions=positions))
    table = np.array([blocks], dtype=np.int32)
    path = np.array([[0, 2, 5, 6]], dtype=np.int32)
    tree.move_rows(table, np.array([10], dtype=np.int32), path, np.array([4], dtype=np.int32))
    next_one = make_batch([([30], 14, blocks)])
    assert np.allclose(tree.execute(next_one), chain.execute(next_one), atol=1e-4)
    for name, pool in chain._pools.items():
        rows = pool[blocks[0], :, :, :14].float()
        assert np.allclose(rows, tree._pools[name][blocks[0], :, :, :14].float(), atol=1e-2), name


def test_a_request_may_go_without_drafts(directory: Path) -> None:
    ngram = NgramDrafter(4, 1)
    engine = speculating(directory, Speculator(AlwaysPolicy(4), 4, lookup=ngram))
    outputs: dict[str, GenerationResult] = {}
    for name, allowed in (("with", True), ("without", False)):
        params = SamplingParams(max_tokens=40, ignore_eos=True)
        engine.core.add_request(Request(name, prompt=TEXT * 2, params=params, speculate=allowed))
    while engine.core.has_unfinished():
        for output in engine.core.step():
            outputs.setdefault(output.request_id, GenerationResult()).add(output)
    assert outputs["with"].token_ids == outputs["without"].token_ids
    assert outputs["with"].completions[0].num_draft_tokens > 0
    assert outputs["without"].completions[0].num_draft_tokens == 0
