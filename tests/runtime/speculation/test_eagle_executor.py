"""EAGLE drafts by the real executors: what the engine drafts is what the reference drafts from the same states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runtime.engine import EngineConfig, EngineCore
from runtime.executors.draft_executor import open_draft
from runtime.executors.engine_dir import read_engine
from runtime.executors.torch_executor import TorchExecutor
from runtime.request import GenerationResult, Request
from runtime.sampling import SamplingParams
from runtime.speculation.draft import Ask, Draft
from runtime.speculation.fixed_policy import FixedPolicy
from runtime.speculation.opening_drafts import open_model_drafter
from runtime.speculation.speculator import Speculator
from runtime.speculation.trees import TreeDrafting
from tests.runtime import draft_support as support
from tests.runtime.executor_support import make_batch
from tests.runtime.speculation.truth import tree_of
from tests.trtforge.drafting.checkpoints import Spec

PROMPTS = [[int(t) for t in np.random.default_rng(7).integers(3, support.VOCAB, n)] for n in (40, 21, 33, 5)]
PROMPTS[2][:32] = PROMPTS[0][:32]  # two blocks that can be shared


def run(core: EngineCore, requests: list[Request]) -> list[list[int]]:
    """Token ids of each request's samples, in order."""
    results = {}
    for request in requests:
        results[core.add_request(request)] = GenerationResult()
    while core.has_unfinished():
        for output in core.step():
            assert output.error is None, output.error
            results[output.request_id].add(output)
    return [completion.token_ids for result in results.values() for completion in result.completions]


def requests() -> list[Request]:
    params = {"max_tokens": 24, "ignore_eos": True}
    found = [Request(prompt_token_ids=prompt, params=SamplingParams(**params)) for prompt in PROMPTS]
    return [*found, Request(prompt_token_ids=PROMPTS[1], params=SamplingParams(n=3, temperature=1.0, seed=4, **params))]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    root = tmp_path_factory.mktemp("eagle")
    spec = Spec("speculators", taps=(1, 5, 8), seed=77, norm_output=True)
    target = support.write_target(root / "target", spec)
    head = support.write_head(root / "head", target, spec)
    asked = support.speculation(max_draft_len=None, dynamic_tree={"depth": 3, "top_k": 3, "total": 7})
    return support.build(root, target, head, asked), support.reference_of(head, target)


@pytest.mark.parametrize("tree", [False, True], ids=["chains", "trees"])
def test_the_engine_drafts_what_the_reference_drafts(engine: tuple[Path, Any], tree: bool) -> None:
    directory, reference = engine
    info = read_engine(directory)
    assert info.speculation is not None
    plain = run(EngineCore(TorchExecutor(directory)), requests())
    target = TorchExecutor(directory, num_blocks=12)  # too few for all: some are preempted
    draft = open_draft(directory, info, num_blocks=target.num_blocks)
    drafter = open_model_drafter(info.speculation, draft, vocab_size=target.vocab_size)
    seen: list[tuple[np.ndarray, Draft]] = []
    propose = drafter.propose

    def kept(asks: list[Ask]) -> list[Draft | None]:
        drafts = propose(asks)
        seen.extend(
            (ask.sequence.tokens[: ask.sequence.length].copy(), made)
            for ask, made in zip(asks, drafts, strict=True)
            if made is not None
        )
        return drafts

    drafter.propose = kept
    speculator = Speculator(FixedPolicy(3, tree=tree), 3, model=drafter, taps=target.taps, tree_nodes=7)
    core = EngineCore(target, speculator=speculator, config=EngineConfig(prefix_cache=True))
    assert run(core, requests()) == plain
    assert core.scheduler.preemptions and core.scheduler.prefix_hits
    assert len(seen) > 60
    oracle, equal = TorchExecutor(directory), 0
    for tokens, made in seen[::3]:
        count = len(tokens) - 1
        oracle.execute(make_batch([(tokens[:count].tolist(), 0, list(range(-(-count // support.BLOCK))))], logits=[]))
        taps = oracle.taps(np.arange(count))
        if tree:
            shape = TreeDrafting.dynamic(depth=3, top_k=3, total=8).shape
            wanted = tree_of(reference, tokens, taps, shape, None, 3)
            assert made.parents is not None and wanted.parents is not None
            equal += made.tokens.tolist() == wanted.tokens.tolist() and made.parents.tolist() == wanted.parents.tolist()
        else:
            drafted = reference.draft(torch.from_numpy(tokens[1:]), taps, len(made)).tolist()
            equal += drafted == made.tokens.tolist()
    # a shared block's last row may have been joined with another sequence's next token
    assert equal >= 0.9 * len(seen[::3])
    core.close()
