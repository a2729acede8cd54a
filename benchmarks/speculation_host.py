"""Python beside the executors in a step that speculates: 16 requests, 4 draft tokens each, without a model.

Runs the engine core on executors that only hand back ready logits and states, with an EAGLE head's drafter, and prints
what one step costs outside of both executors, by part, in processor time. The policy plans every step, and is
overruled. The drafter's own part (its rows, its passes' arrays, the drafts) is the column ``head``; ``python`` is
everything else. EagleAccept, the look at its rows (is the largest logit a number?), the best tokens of the head's
logits and EagleTreeBuild pass over logits, which is the same arithmetic in any engine, and are shown by themselves.

    python benchmarks/speculation_host.py [--requests 16] [--vocab 49152] [--drafts 4] [--tree | --dynamic]
        [--steps 200] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.scheduler import ReadyLogits, Timer, tokenizer
from runtime.engine import EngineCore
from runtime.executors.base import ExecutorLimits, StepBatch
from runtime.request import Request
from runtime.sampling import SamplingParams
from runtime.sampling.sampler import as_tensor
from runtime.speculation import verification
from runtime.speculation.costs import StepCosts
from runtime.speculation.draft import Candidate, Choice
from runtime.speculation.eagle import EagleDrafter
from runtime.speculation.fixed_policy import FixedPolicy
from runtime.speculation.ops import host_ops
from runtime.speculation.policy import AdaptivePolicy
from runtime.speculation.speculator import Speculator
from runtime.speculation.trees import TreeDrafting
from trtforge.drafting.record import DynamicTree, StaticTree

if TYPE_CHECKING:
    from plugins.host.library import HostLibrary

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


class ReadyHead:
    """A head whose logits and states lie ready: its likeliest token is right in so many passes of a round.

    Args:
        right: passes of a round, its first one included, whose ``best`` is the likeliest token (of a tree: the second
            likeliest, in every pass); behind them it is none of the likely ones.
    """

    draft_vocab_size, hidden_size, tap_width = 4096, 576, 3 * 576

    def __init__(self, target: ReadyRows, right: int, *, tree: bool) -> None:
        self.num_blocks, self.block_size, self.limits = target.num_blocks, target.block_size, target.limits
        self.targets = np.arange(self.draft_vocab_size, dtype=np.int64)
        generator = np.random.default_rng(1)
        shape = (target.limits.max_num_tokens, self.draft_vocab_size)
        logits = generator.standard_normal(shape, dtype=np.float32)
        logits[:, target.best + 1] = 20.0
        wrong = as_tensor(logits.copy())
        logits[:, target.best] = 19.0 if tree else 21.0
        self._logits = as_tensor(logits), wrong
        self._states = as_tensor(generator.standard_normal((len(logits), self.hidden_size), dtype=np.float32))
        self._taps = as_tensor(generator.standard_normal((len(logits), self.tap_width), dtype=np.float32))
        self._right, self._tree, self._pass = right, tree, 0

    def execute(self, batch: StepBatch, *, taps: Any = None, feedback: Any = None) -> tuple[Any, Any]:
        self._pass = 0 if feedback is None else self._pass + 1
        given = taps if feedback is None else feedback
        assert len(given) == batch.num_tokens
        logits = self._logits[not self._tree and self._pass >= self._right]
        return logits[: len(batch.logit_indices)], self._states[: batch.num_tokens]

    def taps(self, rows: Any) -> Any:
        return self._taps[: len(rows)]

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        return None

    def describe(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        return None


def binary(count: int) -> list[list[int]]:
    """The static tree of so many nodes whose node n stands behind node n // 2, as ranks on the way from the root."""
    ways: list[list[int]] = [[]]
    for node in range(count):
        ways.append([*ways[node // 2], node % 2])
    return ways[1:]


class Overruled(AdaptivePolicy):
    """Plans and learns as ever; then as much is drafted as is asked for, so that every step does the same."""

    def __init__(self, drafts: int, requests: int, *, tree: StaticTree | DynamicTree | None) -> None:
        # milliseconds of a step that is bound by memory: drafts pay, so that every step is planned
        verify = {tokens: 20.0 + 0.02 * tokens for tokens in (1, 6, 8, 16, 32, 64, 128)}
        costs = StepCosts(
            {tokens: 1e-3 * value for tokens, value in verify.items()},
            draft={1: 2e-3, requests: 3e-3},
            most_tokens=requests * (drafts + 1),
        )
        super().__init__(drafts, costs, tree=tree)
        self._fixed = FixedPolicy(drafts, tree=tree is not None)

    def choose(self, candidates: Sequence[Sequence[Candidate]], *, running: int, prefill_tokens: int) -> list[Choice]:
        super().choose(candidates, running=running, prefill_tokens=prefill_tokens)
        return self._fixed.choose(candidates, running=running, prefill_tokens=prefill_tokens)

    def timed(self, part: str, tokens: int, requests: int, seconds: float) -> None:
        """Taken in, but as long as was said: what executes here computes nothing."""
        super().timed(part, tokens, requests, {"verify": self.costs.step(max(tokens, 1), requests)}.get(part, 2e-3))


#: what passes over logits and states, or hands them out
OUTSIDE = ("execute", "eagle_accept", "finite", "sampler", "head_execute", "taps", "best_tokens", "tree_build")
#: the head's drafter, executor and ops included
DRAFTER = ("propose", "observe")
PARTS = ("schedule", "draft", "assemble", "take", "settle", "python", "head", "eagle_accept", "finite", "best_tokens")


@contextmanager
def ops_timed(timer: Timer, library: HostLibrary) -> Iterator[None]:
    """The ops that pass over logits, timed wherever they are called."""
    ops = SimpleNamespace(
        eagle_accept=verification.accept_op(),
        finite=verification.finite_nodes,
        best_tokens=library.argmax_logsumexp,
        tree_build=library.eagle_tree_build,
    )
    for name in vars(ops):
        timer.wrap(ops, name, name)
    with (
        patch.object(verification, "accept_op", lambda: ops.eagle_accept),
        patch.object(verification, "finite_nodes", ops.finite),
        patch.object(library, "argmax_logsumexp", ops.best_tokens),
        patch.object(library, "eagle_tree_build", ops.tree_build),
    ):
        yield


def split(entry: dict[str, float]) -> dict[str, float]:
    """A step's parts, each without what it is not: ``python`` is the step without head, executors and ops."""
    for part in (*OUTSIDE, *DRAFTER, "schedule", "draft", "assemble", "settle"):
        entry.setdefault(part, 0.0)
    within = entry["head_execute"] + entry["taps"] + entry["best_tokens"] + entry["tree_build"]
    drafter = entry["propose"] + entry["observe"]
    entry["head"] = drafter - within
    entry["draft"] -= entry["propose"]
    entry["settle"] -= entry["observe"]
    entry["python"] = entry["step"] - drafter - sum(entry[part] for part in OUTSIDE[:4])
    entry["take"] = entry["python"] - sum(entry[part] for part in ("schedule", "draft", "assemble", "settle"))
    return entry


def measure(
    kind: str, params: SamplingParams, requests: int, vocab: int, drafts: int, steps: int, shape: str
) -> dict[str, Any]:
    """Median and 95th percentile per part, in milliseconds."""
    context = 200 + (steps + 40) * (drafts + 1)
    executor = ReadyRows(requests, vocab, context, requests * (drafts + 1))
    tree: StaticTree | DynamicTree | None = None
    drafting = None
    if shape == "static":
        choices = binary(drafts)
        tree, drafting = StaticTree(tuple(map(tuple, choices))), TreeDrafting.fixed(choices)
    elif shape == "dynamic":
        tree, drafting = DynamicTree(depth=4, top_k=4, total=drafts), TreeDrafting.dynamic(4, 4, drafts + 1)
    head = ReadyHead(executor, drafts // 2, tree=tree is not None)
    drafter = EagleDrafter(head, tree=drafting)
    speculator = Speculator(
        Overruled(drafts, requests, tree=tree), drafts, model=drafter, tree_nodes=drafts if tree else 0, taps=head.taps
    )
    timer = Timer()
    timer.wrap(head, "taps", "taps")
    speculator._taps = head.taps
    core = EngineCore(executor, tokenizer(), speculator=speculator)
    for i in range(requests):
        prompt = np.random.default_rng(i).integers(0, vocab, 100)
        core.add_request(Request(prompt_token_ids=prompt.tolist(), params=params))
    while any(s.outstanding > 1 for s in core.scheduler.running) or len(core.scheduler.waiting):
        core.step()
    timer.wrap(executor, "execute", "execute")
    timer.wrap(core.scheduler, "schedule", "schedule")
    timer.wrap(speculator, "draft", "draft")
    timer.wrap(core.scheduler, "assemble", "assemble")
    timer.wrap(core._sampler, "sample", "sampler")
    timer.wrap(speculator, "settle", "settle")
    timer.wrap(drafter, "propose", "propose")
    timer.wrap(drafter, "observe", "observe")
    timer.wrap(head, "execute", "head_execute")
    for _ in range(20):
        core.step()
    before = speculator.figures.snapshot()
    library = host_ops()
    assert library is not None, "the figures are those of an installation with its host library"
    with ops_timed(timer, library):
        for _ in range(steps):
            timer.step(core.step)
    after = speculator.figures.snapshot()
    assert len(core.scheduler.running) == requests
    verified = after["num_drafts"] - before["num_drafts"]
    assert verified == requests * steps, "every step drafts for everybody"
    entries = [split(entry) for entry in timer.steps]
    figures: dict[str, Any] = {"kind": kind, "requests": requests, "vocab": vocab, "drafts": drafts, "shape": shape}
    figures["tokens_a_round"] = 1 + (after["num_accepted_tokens"] - before["num_accepted_tokens"]) / verified
    for part in entries[0]:
        values = sorted(entry[part] * 1e3 for entry in entries)
        figures[part] = {
            "median_ms": statistics.median(values),
            "mean_ms": statistics.fmean(values),
            "p95_ms": values[int(len(values) * 0.95)],
        }
    return figures


def main() -> int:
    """Print the table; exit 1 when the median of Python's part, or of the head's, is over the budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--drafts", type=int, default=4)
    shapes = parser.add_mutually_exclusive_group()
    shapes.add_argument("--tree", dest="shape", action="store_const", const="static", default="chain")
    shapes.add_argument("--dynamic", dest="shape", action="store_const", const="dynamic")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    requests, drafts, steps, shape = arguments.requests, arguments.drafts, arguments.steps, arguments.shape
    most = (steps + 40) * (drafts + 1)
    kinds = {
        "greedy": SamplingParams(max_tokens=most, ignore_eos=True),
        "greedy, stop words": SamplingParams(max_tokens=most, ignore_eos=True, stop=("\n\nUser:", "END")),
    }
    results = [measure(kind, params, requests, arguments.vocab, drafts, steps, shape) for kind, params in kinds.items()]
    if arguments.json:
        print(json.dumps(results, indent=2))
    else:
        drawn = {"chain": "", "static": " as a static tree", "dynamic": " as a dynamic tree"}[shape]
        print(f"{requests} requests, {drafts} drafts each{drawn}, vocabulary {arguments.vocab}; median (p95) ms a step")
        parts = (*PARTS, *(("tree_build",) if shape != "chain" else ()))
        print(f"{'':20}" + "".join(f"{part:>16}" for part in parts))
        for entry in results:
            cells = (f"{entry[p]['median_ms']:.3f} ({entry[p]['p95_ms']:.3f})" for p in parts)
            print(f"{entry['kind']:20}" + "".join(f"{cell:>16}" for cell in cells))
    worst = max(entry[part]["median_ms"] for entry in results for part in ("python", "head"))
    return 0 if worst <= BUDGET_MS else 1


if __name__ == "__main__":
    raise SystemExit(main())
