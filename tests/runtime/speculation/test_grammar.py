"""Drafts of guided requests: what the grammar forbids is never verified, and the policy hears of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.engine import EngineCore
from runtime.executors.torch_executor import TorchExecutor
from runtime.offline import Engine
from runtime.sampling import GuidedDecoding, SamplingParams
from runtime.sampling.guided import GuidedState
from runtime.speculation import verification
from runtime.speculation.draft import Draft
from runtime.speculation.grammar import permitted
from runtime.speculation.speculator import Speculator
from runtime.tokenizer import EngineTokenizer
from tests.runtime.executor_support import tiny_engine
from tests.runtime.speculation.drafters import AlwaysPolicy, ToldDrafter

pytest.importorskip("llguidance")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_engine(tmp_path_factory.mktemp("grammar"), graph={"tree_mask": True})[0]


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> EngineTokenizer:
    return EngineTokenizer.load(directory)


def state(tokenizer: EngineTokenizer, regex: str) -> GuidedState:
    return tokenizer.guided(GuidedDecoding(regex=regex), 512, (2,))


def token(tokenizer: EngineTokenizer, text: str) -> int:
    [number] = tokenizer.encode(text, add_special_tokens=False)
    return number


def test_a_chain_ends_where_the_grammar_does(tokenizer: EngineTokenizer) -> None:
    a, b, z = (token(tokenizer, text) for text in "abz")
    guided = state(tokenizer, "a(b|c)a")
    chain = Draft(np.array([a, b, z, a]), "ngram/2", confidence=np.array([0.9, 0.8, 0.7, 0.6], dtype=np.float32))
    found = permitted(chain, guided)
    assert found is not None and found.tokens.tolist() == [a, b] and found.confidence is not None
    assert permitted(Draft(np.array([z]), "ngram/2"), guided) is None
    whole = Draft(np.array([a, b, a]), "ngram/2")
    assert permitted(whole, guided) is whole
    # asking changed nothing
    assert guided.allowed(512)[a] and not guided.allowed(512)[z] and not guided.failure()


def test_a_tree_keeps_what_stands_on_permitted_ways(tokenizer: EngineTokenizer) -> None:
    a, b, c, z = (token(tokenizer, text) for text in "abcz")
    #        root → a → b → z, a → c → a; root → z → a
    tokens, parents = [a, z, b, c, a, z, a], [0, 0, 1, 1, 2, 3, 4]
    draft = Draft(
        np.array(tokens), "eagle3", np.array(parents, dtype=np.int32), np.linspace(0.9, 0.3, 7, dtype=np.float32)
    )
    found = permitted(draft, state(tokenizer, "a(b|c)a"))
    assert found is not None and found.parents is not None and found.confidence is not None
    assert found.tokens.tolist() == [a, b, c, a] and found.parents.tolist() == [0, 1, 1, 3]
    assert found.confidence.tolist() == draft.confidence[[0, 2, 3, 6]].tolist()
    assert found.levels() == 3
    assert (
        permitted(Draft(np.array([z, z]), "eagle3", np.array([0, 0], dtype=np.int32)), state(tokenizer, "a+")) is None
    )


class Told(AlwaysPolicy):
    """What the policy hears."""

    def __init__(self, count: int, *, tree: bool) -> None:
        super().__init__(count, tree=tree)
        self.heard: list[tuple[int, int, int | None]] = []

    def record(self, sequence: Any, source: str, drafted: int, accepted: int, **options: Any) -> None:
        super().record(sequence, source, drafted, accepted, **options)
        self.heard.append((drafted, accepted, options.get("asked")))


@pytest.mark.parametrize(("source", "tree"), [("text", False), ("model", False), ("model", True)])
def test_forbidden_tokens_are_not_verified(
    directory: Path, tokenizer: EngineTokenizer, source: str, tree: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drafter that says rubbish every third time: it never reaches a step."""
    rubbish = token(tokenizer, "#")
    params = SamplingParams(max_tokens=24, guided=GuidedDecoding(regex="[a-z0-9]{40}"))
    plain = Engine(EngineCore(TorchExecutor(directory), tokenizer))
    [want] = plain.generate(["tell"], params)
    answer = [*tokenizer.encode("tell"), *want.token_ids]

    def oracle(context: list[int], count: int) -> list[int]:
        at = len(context)
        right = answer[at] if at < len(answer) and at % 3 != 1 else rubbish
        return [right, rubbish, *range(100, 98 + count)][:count]

    drafter = ToldDrafter(oracle, 512, name=source, block_size=16 * (source == "model"))
    policy = Told(4, tree=tree)
    made = {"model": drafter} if source == "model" else {"lookup": drafter}
    speculator = Speculator(policy, 4, tree_nodes=8 if tree else 0, **made)
    seen: list[Draft] = []
    branches_of = verification.branches_of

    def spy(samples: Any, rows: Any, drafts: Any) -> Any:
        seen.extend(draft for draft in drafts if draft is not None)
        return branches_of(samples, rows, drafts)

    monkeypatch.setattr(verification, "branches_of", spy)
    engine = Engine(EngineCore(TorchExecutor(directory), tokenizer, speculator=speculator))
    [got] = engine.generate(["tell"], params)
    assert got.token_ids == want.token_ids
    assert seen and not any(rubbish in draft.tokens for draft in seen)
    assert sum(c.num_accepted_tokens for c in got.completions) > 0
    if source == "model":
        # drafts of which nothing was left were counted as failures all the same
        assert (0, 0) in [(drafted, accepted) for drafted, accepted, _ in policy.heard]
        assert all(asked for drafted, _, asked in policy.heard if not drafted)
