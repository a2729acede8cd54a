"""Bookkeeping of a step with 32 running requests, without a model.

Runs the engine core on an executor that only hands back ready logits, and prints what one step costs
outside the executor, by part: scheduling, assembling the arrays, sampling [32, V] rows, and accepting tokens
(text, stop conditions, outputs). The budget of 1 ms covers everything but the sampler's pass over
32 x V logits, which is the same arithmetic in any engine and is shown by itself.

    python benchmarks/scheduler.py [--requests 32] [--vocab 49152] [--steps 300] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from runtime.engine import EngineCore
from runtime.executors.base import ExecutorLimits, StepBatch
from runtime.request import Request
from runtime.sampling import SamplingParams, sampler


class ReadyLogits:
    """Executor whose logits lie ready: costs nothing but a slice."""

    eos_token_ids: tuple[int, ...] = ()
    block_size = 32

    def __init__(self, requests: int, vocab_size: int, context: int) -> None:
        self.vocab_size = vocab_size
        self.num_blocks = requests * (-(-context // self.block_size) + 1)
        self.limits = ExecutorLimits(requests, max(2048, requests), context, context - 1)
        logits = np.random.default_rng(0).standard_normal((requests, vocab_size), dtype=np.float32)
        self._logits = sampler.as_tensor(logits)

    def execute(self, batch: StepBatch) -> Any:
        return self._logits[: len(batch.logit_indices)]

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        return None

    def move_rows(self, *arrays: Any) -> None:
        return None

    def close(self) -> None:
        return None

    def describe(self) -> dict[str, Any]:
        return {}


class Timer:
    """Sums the processor time inside wrapped functions, step by step: others on the machine do not count."""

    def __init__(self) -> None:
        self.now: dict[str, float] = {}
        self.steps: list[dict[str, float]] = []

    def wrap(self, owner: Any, name: str, part: str) -> None:
        function: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.now[part] = self.now.get(part, 0.0) + time.thread_time() - start

        setattr(owner, name, timed)

    def step(self, function: Callable[[], Any]) -> None:
        self.now = {}
        start = time.thread_time()
        function()
        self.now["step"] = time.thread_time() - start
        self.steps.append(self.now)


def tokenizer() -> Any:
    """A byte-level tokenizer whose every token is a letter: detokenization costs what it costs for real."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from runtime.tokenizer import EngineTokenizer

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {f"{a}{b}": i * len(letters) + j for i, a in enumerate(letters) for j, b in enumerate(letters)}
    vocabulary |= {a: len(vocabulary) + i for i, a in enumerate(letters)}
    made = Tokenizer(models.BPE(vocabulary, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return EngineTokenizer(made)


def measure(kind: str, params: SamplingParams, requests: int, vocab: int, steps: int) -> dict[str, Any]:
    """Median and 95th percentile per part, in milliseconds."""
    core = EngineCore(ReadyLogits(requests, vocab, context=steps + 200), tokenizer())
    for i in range(requests):
        prompt = np.random.default_rng(i).integers(0, vocab, 100)
        core.add_request(Request(prompt_token_ids=prompt.tolist(), params=params))
    while any(s.outstanding > 1 for s in core.scheduler.running) or len(core.scheduler.waiting):
        core.step()
    timer = Timer()
    timer.wrap(core.scheduler, "schedule", "schedule")
    timer.wrap(core.scheduler, "assemble", "assemble")
    timer.wrap(core.scheduler, "commit", "commit")
    timer.wrap(core._sampler, "sample", "sample")
    for _ in range(20):
        core.step()
    for _ in range(steps):
        timer.step(core.step)
    assert len(core.scheduler.running) == requests
    for entry in timer.steps:
        entry["accept"] = entry["step"] - sum(entry[p] for p in ("schedule", "assemble", "commit", "sample"))
        entry["bookkeeping"] = entry["step"] - entry["sample"]
    parts = ("schedule", "assemble", "commit", "accept", "bookkeeping", "sample", "step")
    figures: dict[str, Any] = {"kind": kind, "requests": requests, "vocab": vocab, "steps": steps}
    for part in parts:
        values = sorted(entry[part] * 1e3 for entry in timer.steps)
        figures[part] = {"median_ms": statistics.median(values), "p95_ms": values[int(len(values) * 0.95)]}
    return figures


def main() -> int:
    """Print the table; exit 1 when the median bookkeeping is over 1 ms."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--vocab", type=int, default=49152)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    tokens = arguments.steps + 100
    kinds = {
        "greedy": SamplingParams(max_tokens=tokens),
        "greedy, min_tokens": SamplingParams(max_tokens=tokens, min_tokens=tokens),
        "greedy, stop words": SamplingParams(max_tokens=tokens, stop=("\n\nUser:", "END")),
        "temperature": SamplingParams(max_tokens=tokens, temperature=0.8, seed=1),
        "top-k 40, top-p 0.95": SamplingParams(max_tokens=tokens, top_k=40, top_p=0.95, seed=1),
        "penalties, logprobs": SamplingParams(max_tokens=tokens, repetition_penalty=1.1, logprobs=1),
    }
    results = []
    for kind, params in kinds.items():
        steps = arguments.steps if params.greedy and params.logprobs is None else max(20, arguments.steps // 10)
        results.append(measure(kind, params, arguments.requests, arguments.vocab, steps))
    if arguments.json:
        print(json.dumps(results, indent=2))
    else:
        print(f"{arguments.requests} running requests, vocabulary {arguments.vocab}; median (p95) ms a step")
        parts = ("schedule", "assemble", "commit", "accept", "bookkeeping", "sample")
        print(f"{'':22}" + "".join(f"{part:>18}" for part in parts))
        for result in results:
            cells = (f"{result[p]['median_ms']:.3f} ({result[p]['p95_ms']:.3f})" for p in parts)
            print(f"{result['kind']:22}" + "".join(f"{cell:>18}" for cell in cells))
    return int(any(result["bookkeeping"]["median_ms"] > 1.0 for result in results))


if __name__ == "__main__":
    raise SystemExit(main())
