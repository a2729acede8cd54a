"""Engines opened with what their record says drafts for them, held against themselves without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from runtime.determinism import first_divergence
from runtime.engine import EngineConfig
from runtime.offline import Engine
from runtime.request import GenerationResult
from runtime.sampling import SamplingParams
from runtime.serving import AsyncEngine
from runtime.speculation.fixed_policy import FixedPolicy
from runtime.speculation.policy import AdaptivePolicy
from tests.runtime import draft_support
from tests.runtime.executor_support import tiny_engine
from trtforge.ground.errors import ForgeError

pytestmark = pytest.mark.slow

PROMPTS = [[int(t) for t in np.random.default_rng(i).integers(5, 290, 5 + 7 * i)] for i in range(7)]
VARIANTS = [
    SamplingParams(max_tokens=40, ignore_eos=True),
    SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.8, seed=2, n=2),
    SamplingParams(max_tokens=30, ignore_eos=True, logprobs=1, repetition_penalty=1.2),
]
PARAMS = [VARIANTS[i % len(VARIANTS)] for i in range(len(PROMPTS))]
KINDS: dict[str, dict[str, Any]] = {
    "chain": {},
    "with n-grams": {"ngram_on_top": True, "ngram": {"max_matching_ngram_size": 4, "min_matching_ngram_size": 1}},
    "dynamic": {"dynamic_tree": {"depth": 3, "top_k": 2, "total": 6}, "max_draft_len": 3},
    "static": {"choices": [[0], [1], [0, 0], [0, 1], [0, 0, 0]], "max_draft_len": 3},
}


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("eagle")
    spec = draft_support.specs()[0]
    target = draft_support.write_target(root / "target", spec)
    head = draft_support.write_head(root / "head", target, spec)
    built = {}
    for kind, keys in KINDS.items():
        folder = root / kind
        folder.mkdir()
        built[kind] = draft_support.build(folder, target, head, draft_support.speculation(**keys))
    return built


@pytest.mark.parametrize("kind", KINDS)
def test_trees_are_what_may_part_at_a_near_tie(engines: dict[str, Path], kind: str) -> None:
    with Engine.load(engines[kind]) as engine:
        chains = engine.core.speculator is not None and not engine.core.speculator.tree_nodes
        assert chains is (kind in ("chain", "with n-grams"))
        assert engine.repeats_exactly is (chains and engine.executor.describe()["row_invariant"])
    with Engine.load(engines[kind], config=EngineConfig(speculation=False)) as engine:
        assert engine.repeats_exactly is engine.executor.describe()["row_invariant"]


def told(result: GenerationResult) -> list[Any]:
    return [(c.index, c.token_ids, c.logprobs, c.cumulative_logprob, c.finish_reason) for c in result.completions]


@pytest.mark.parametrize("num_blocks", [None, 14])
@pytest.mark.parametrize("kind", KINDS)
def test_answers_are_those_without(engines: dict[str, Path], kind: str, num_blocks: int | None) -> None:
    """A head of random weights is hardly ever right: n-grams are, and every draft is refused or kept by the target."""
    plain = Engine.load(engines[kind], config=EngineConfig(speculation=False))
    assert plain.core.speculator is None
    want = plain.generate(PROMPTS, PARAMS)
    with Engine.load(engines[kind], num_blocks=num_blocks) as engine:
        speculator = engine.core.speculator
        assert speculator is not None
        assert isinstance(speculator.policy, AdaptivePolicy)
        tree = kind in ("dynamic", "static")
        speculator.policy = FixedPolicy(speculator.max_draft_len, tree=tree)
        got = engine.generate(PROMPTS, PARAMS)
        figures = engine.stats()["speculation"]
        assert figures["num_drafts"] > 100 and figures["draft_seconds"] > 0 and figures["verify_seconds"] > 0
        assert ("eagle3" in figures["sources"]) and (len(figures["sources"]) > 1) == (kind == "with n-grams")
        assert num_blocks is None or engine.stats()["num_preemptions_total"] > 0
        assert engine.core.pool.num_used == 0
    for prompt, mine, other in zip(PROMPTS, got, want, strict=True):
        if not tree:
            assert told(mine) == told(other)
            continue
        for a, b in zip(mine.completions, other.completions, strict=True):
            divergence = first_divergence(
                b.token_ids, a.token_ids, lambda out, prompt=prompt: plain.logits([*prompt, *out])[-1]
            )
            assert divergence is None or divergence.near_tie, divergence


@pytest.mark.parametrize("fmt", ["fp8", "nvfp4", "int4_awq"])
def test_a_quantized_target_answers_alike_with_its_head(tmp_path: Path, fmt: str) -> None:
    spec = replace(draft_support.specs()[0], target_width=64)
    with patch.object(draft_support.checkpoints, "WIDTH", 64):
        target = draft_support.write_target(tmp_path / "target", spec, fmt, "bfloat16")
        head = draft_support.write_head(tmp_path / "head", target, spec)
        keys = {**KINDS["with n-grams"]}
        engine_dir = draft_support.build(tmp_path, target, head, draft_support.speculation(**keys), dtype="bfloat16")
    plain = Engine.load(engine_dir, config=EngineConfig(speculation=False))
    assert plain.executor.describe()["row_invariant"]
    want = plain.generate(PROMPTS, PARAMS)
    with Engine.load(engine_dir, config=EngineConfig(fixed_draft_len=4)) as engine:
        got = engine.generate(PROMPTS, PARAMS)
        assert len(engine.stats()["speculation"]["sources"]) > 1
    assert [told(mine) for mine in got] == [told(other) for other in want]


def test_the_policy_of_the_record_serves(engines: dict[str, Path]) -> None:
    plain = Engine.load(engines["with n-grams"], config=EngineConfig(speculation=False))
    want = plain.generate(PROMPTS, PARAMS)
    engine = Engine.load(engines["with n-grams"])
    assert engine.core.speculator is not None
    assert [told(r) for r in engine.generate(PROMPTS, PARAMS)] == [told(r) for r in want]
    told_of = engine.core.speculator.describe()
    assert len(told_of["drafters"]) == 2 and told_of["policy"]["choices"]
    assert AsyncEngine.load(engines["chain"]).shutdown()


def test_a_fixed_length_is_always_drafted(engines: dict[str, Path]) -> None:
    engine = Engine.load(engines["chain"], config=EngineConfig(fixed_draft_len=2))
    [result] = engine.generate([PROMPTS[0]], VARIANTS[0])
    figures = engine.stats()["speculation"]
    [source] = figures["sources"].values()
    # the last draft is cut: one token is left to be written, and its bonus
    assert source["drafts_per_pos"][0] - source["drafts_per_pos"][1] <= 1 and len(source["drafts_per_pos"]) == 2
    assert result.completions[0].num_draft_tokens == figures["num_draft_tokens"]


@pytest.mark.parametrize("length", [0, -1, 5, True, 2.0])
def test_a_fixed_length_that_the_engine_cannot_draft_is_refused(engines: dict[str, Path], length: Any) -> None:
    with pytest.raises(ForgeError, match="cannot draft") as refused:
        Engine.load(engines["chain"], config=EngineConfig(fixed_draft_len=length))
    assert refused.value.code == "TF-RUN-123" and refused.value.numbers == {"max_draft_len": 4}


def test_an_engine_without_a_drafter_has_no_speculator_and_refuses_a_length(tmp_path: Path) -> None:
    directory = tiny_engine(tmp_path)[0]
    engine = Engine.load(directory)
    assert engine.core.speculator is None and "speculation" not in engine.stats()
    with pytest.raises(ForgeError) as refused:
        Engine.load(directory, config=EngineConfig(fixed_draft_len=2))
    assert refused.value.code == "TF-RUN-123" and refused.value.numbers == {"max_draft_len": 0}
