"""Python beside the executors in a step that speculates: 16 requests, 4 draft tokens each, without a model.

Runs the engine core on an executor that only hands back ready logits and a drafter whose drafts lie ready, and prints
what one step costs outside of both, by part, in processor time. The policy plans every step, and is overruled.
EagleAccept and the look at its rows (is the largest logit a number?) pass over the logits, which is the same arithmetic
in any engine, and are shown by themselves.

    python benchmarks/speculation_host.py [--requests 16] [--vocab 49152] [--drafts 4] [--tree] [--steps 200] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.scheduler import ReadyLogits, Timer, tokenizer
from runtime.engine import EngineCore
from runtime.executors.base import ExecutorLimits, StepBatch
from runtime.request import Request
from runtime.sampling import SamplingParams
from runtime.sampling.sampler import as_tensor
from runtime.scheduler.sequence import Sequence as TokenSequence
from runtime.speculation import verification
from runtime.speculation.costs import StepCosts
from runtime.speculation.draft import Ask, Candidate, Choice, Computed, Draft, TapReader
from runtime.speculation.fixed_policy import FixedPolicy
from runtime.speculation.policy import AdaptivePolicy
from runtime.speculation.speculator import Speculator
from trtforge.drafting.record import DynamicTree

BUDGET_MS = 1.5


class ReadyRows(ReadyLogits):
    """As many rows of logits as a step verifies, each with a likeliest token that the drafts know."""

    def __init__(self, requests: int, vocab_size: int, context: int, rows: int) -> None:
        super().__init__(requests, vocab_size, context)
        self.limits = ExecutorLimits(requests, max(2048, rows), context, context - 1)
        self.best = 7
        logits = np.random.default_rng(0).standard_normal((rows, vocab_size), dtype=np.float32)
        logits[:, self.best] = 20.0
        self._logits = as_tensor(logits)

    def execute(self, batch: StepBatch) -> Any:
        return self._logits[: len(batch.logit_indices)]


class ReadyDrafts:
    """Drafts of which ``right`` tokens are accepted, and the last child of a tree's nodes is the right one."""

    name = "ready"

    def __init__(self, count: int, right: int, best: int, *, tree: bool) -> None:
        tokens = np.full(count, best + 1, dtype=np.int64)
        parents = None
        if tree:
            parents = np.array([node // 2 for node in range(count)], dtype=np.int32)
            way = 0
            while 2 * way + 1 < count and right:
                tokens[2 * way + 1] = best
                way, right = 2 * way + 2, right - 1
        else:
            tokens[:right] = best
        self._draft = Draft(tokens, self.name, parents)

    def ready(self, sequence: TokenSequence) -> bool:
        return True

    def propose(self, asks: Sequence[Ask]) -> list[Draft | None]:
        return [self._draft.cut(ask.count) for ask in asks]

    def observe(self, computed: Sequence[Computed], taps: TapReader | None) -> None:
        return None

    def fork(self, parent: TokenSequence, children: Sequence[TokenSequence]) -> None:
        return None

    def leave(self, sequence: TokenSequence) -> None:
        return None

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        return None

    def describe(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        return None


class Overruled(AdaptivePolicy):
    """Plans and learns as ever; then as much is drafted as is asked for, so that every step does the same."""

    def __init__(self, drafts: int, requests: int, *, tree: bool) -> None:
        # milliseconds of a step that is bound by memory: drafts pay, so that every step is planned
        verify = {tokens: 20.0 + 0.02 * tokens for tokens in (1, 6, 8, 16, 32, 64, 128)}
        costs = StepCosts(
            {tokens: 1e-3 * value for tokens, value in verify.items()},
            draft={1: 2e-3, requests: 3e-3},
            most_tokens=requests * (drafts + 1),
        )
        # a top-k tree that has so many nodes
        shape = DynamicTree(depth=4, top_k=4, total=drafts) if tree else None
        super().__init__(drafts, costs, tree=shape)
        self._fixed = FixedPolicy(drafts, tree=tree)

    def choose(self, candidates: Sequence[Sequence[Candidate]], *, running: int, prefill_tokens: int) -> list[Choice]:
        super().choose(candidates, running=running, prefill_tokens=prefill_tokens)
        return self._fixed.choose(candidates, running=running, prefill_tokens=prefill_tokens)

    def timed(self, part: str, tokens: int, requests: int, seconds: float) -> None:
        """Taken in, but as long as was said: what executes here computes nothing."""
        super().timed(part, tokens, requests, {"verify": self.costs.step(max(tokens, 1), requests)}.get(part, 2e-3))


def measure(
    kind: str, params: SamplingParams, requests: int, vocab: int, drafts: int, steps: int, tree: bool
) -> dict[str, Any]:
    """Median and 95th percentile per part, in milliseconds."""
    context = 200 + (steps + 40) * (drafts + 1)
    executor = ReadyRows(requests, vocab, context, requests * (drafts + 1))
    drafter = ReadyDrafts(drafts, drafts // 2, executor.best, tree=tree)
    speculator = Speculator(
        Overruled(drafts, requests, tree=tree), drafts, model=drafter, tree_nodes=drafts if tree else 0
    )
    core = EngineCore(executor, tokenizer(), speculator=speculator)
    for i in range(requests):
        prompt = np.random.default_rng(i).integers(0, vocab, 100)
        core.add_request(Request(prompt_token_ids=prompt.tolist(), params=params))
    while any(s.outstanding > 1 for s in core.scheduler.running) or len(core.scheduler.waiting):
        core.step()
    timer = Timer()
    timer.wrap(executor, "execute", "execute")
    timer.wrap(core.scheduler, "schedule", "schedule")
    timer.wrap(speculator, "draft", "draft")
    timer.wrap(core.scheduler, "assemble", "assemble")
    timer.wrap(core._sampler, "sample", "sampler")
    timer.wrap(speculator, "settle", "settle")
    inner = SimpleNamespace(eagle_accept=verification.accept_op(), finite=verification.finite_rows)
    timer.wrap(inner, "eagle_accept", "eagle_accept")
    timer.wrap(inner, "finite", "finite")
    for _ in range(20):
        core.step()
    before = speculator.figures.snapshot()
    with (
        patch.object(verification, "accept_op", lambda: inner.eagle_accept),
        patch.object(verification, "finite_rows", inner.finite),
    ):
        for _ in range(steps):
            timer.step(core.step)
    after = speculator.figures.snapshot()
    assert len(core.scheduler.running) == requests
    parts = ("schedule", "draft", "assemble", "settle", "eagle_accept", "finite", "sampler", "execute", "step")
    for entry in timer.steps:
        for part in parts:
            entry.setdefault(part, 0.0)
        entry["python"] = entry["step"] - sum(entry[p] for p in ("execute", "eagle_accept", "finite", "sampler"))
        entry["take"] = entry["python"] - sum(entry[p] for p in ("schedule", "draft", "assemble", "settle"))
    figures: dict[str, Any] = {"kind": kind, "requests": requests, "vocab": vocab, "drafts": drafts, "tree": tree}
    verified = after["num_drafts"] - before["num_drafts"]
    figures["tokens_a_round"] = 1 + (after["num_accepted_tokens"] - before["num_accepted_tokens"]) / verified
    for part in (*parts, "take", "python"):
        values = sorted(entry[part] * 1e3 for entry in timer.steps)
        figures[part] = {"median_ms": statistics.median(values), "p95_ms": values[int(len(values) * 0.95)]}
    return figures


def main() -> int:
    """Print the table; exit 1 when the median of Python's part is over the budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--drafts", type=int, default=4)
    parser.add_argument("--tree", action="store_true")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    most = (arguments.steps + 40) * (arguments.drafts + 1)
    kinds = {
        "greedy": SamplingParams(max_tokens=most, ignore_eos=True),
        "greedy, stop words": SamplingParams(max_tokens=most, ignore_eos=True, stop=("\n\nUser:", "END")),
    }
    results = []
    for kind, params in kinds.items():
        results.append(
            measure(
                kind, params, arguments.requests, arguments.vocab, arguments.drafts, arguments.steps, arguments.tree
            )
        )
    if arguments.json:
        print(json.dumps(results, indent=2))
    else:
        parts = ("schedule", "draft", "assemble", "take", "settle", "python", "eagle_accept", "finite")
        print(
            f"{arguments.requests} requests, {arguments.drafts} drafts each{' as a tree' * arguments.tree}, vocabulary "
            f"{arguments.vocab}; median (p95) ms a step"
        )
        print(f"{'':22}" + "".join(f"{part:>18}" for part in parts))
        for entry in results:
            cells = (f"{entry[p]['median_ms']:.3f} ({entry[p]['p95_ms']:.3f})" for p in parts)
            print(f"{entry['kind']:22}" + "".join(f"{cell:>18}" for cell in cells))
    worst = max(entry["python"]["median_ms"] for entry in results)
    return 0 if worst <= BUDGET_MS else 1


if __name__ == "__main__":
    raise SystemExit(main())
