"""The runtime over a real (tiny) engine: what the simulated executor proves, once more on real kernels."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from runtime.determinism import first_divergence
from runtime.engine import EngineConfig, EngineCore
from runtime.executors.base import ExecutorLimits
from runtime.executors.torch_executor import TorchExecutor
from runtime.offline import Engine
from runtime.request import GenerationResult, Request, RequestOutput
from runtime.sampling import SamplingParams
from runtime.serving import AsyncEngine
from runtime.tokenizer import EngineTokenizer

TEXT = "The import statement finds a module, loads it and binds a name in the local namespace. "
PROMPTS = [TEXT[:n] for n in (5, 11, 23, 40, 61, 87)] + [TEXT * 3, "def f(x):\n    return x"]
GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)

pytestmark = pytest.mark.slow


def load(
    directory: Path,
    *,
    num_blocks: int | None = None,
    limits: ExecutorLimits | None = None,
    config: EngineConfig | None = None,
) -> Engine:
    executor = TorchExecutor(directory, num_blocks=num_blocks)
    return Engine(EngineCore(executor, EngineTokenizer.load(directory), limits=limits, config=config))


@pytest.fixture(scope="module")
def engine(tiny_engine: Path) -> Engine:
    return load(tiny_engine)


@pytest.fixture(scope="module")
def alone(engine: Engine) -> list[list[int]]:
    """Every prompt by itself."""
    return [engine.generate([prompt], GREEDY)[0].token_ids for prompt in PROMPTS]


def assert_same(engine: Engine, outputs: Sequence[Sequence[int]], expected: Sequence[Sequence[int]]) -> None:
    """Equal up to near ties."""
    assert engine.tokenizer is not None
    for prompt, got, want in zip(PROMPTS, outputs, expected, strict=True):
        ids = engine.tokenizer.encode(prompt)
        divergence = first_divergence(want, got, lambda out, ids=ids: engine.logits([*ids, *out])[-1])
        assert divergence is None or divergence.near_tie, divergence


def test_greedy_is_the_same_in_a_batch(engine: Engine, alone: list[list[int]]) -> None:
    results = engine.generate(PROMPTS, GREEDY)
    assert_same(engine, [r.token_ids for r in results], alone)
    assert engine.core.pool.num_used == 0
    for prompt, result in zip(PROMPTS, results, strict=True):
        assert engine.tokenizer is not None
        assert result.text == engine.tokenizer.decode(result.token_ids), prompt


def test_chunked_prefill_changes_nothing(tiny_engine: Path, engine: Engine, alone: list[list[int]]) -> None:
    small = load(tiny_engine, limits=ExecutorLimits(4, 7, 1024, 1023))
    assert_same(engine, [r.token_ids for r in small.generate(PROMPTS, GREEDY)], alone)


def test_preemption_changes_nothing(tiny_engine: Path, engine: Engine, alone: list[list[int]]) -> None:
    assert engine.tokenizer is not None
    longest = max(len(engine.tokenizer.encode(p)) for p in PROMPTS) + GREEDY.max_tokens
    size = engine.executor.block_size
    for prefix_cache in (True, False):
        tight = load(tiny_engine, num_blocks=-(-longest // size) + 4, config=EngineConfig(prefix_cache=prefix_cache))
        results = tight.generate(PROMPTS, GREEDY)
        assert tight.stats()["num_preemptions_total"] > 0
        assert_same(engine, [r.token_ids for r in results], alone)
        assert tight.core.pool.num_used == 0


def test_prefix_cache_changes_nothing(engine: Engine, alone: list[list[int]]) -> None:
    results = [engine.generate([prompt], GREEDY)[0] for prompt in PROMPTS]
    assert sum(r.num_cached_tokens for r in results) > 0
    assert_same(engine, [r.token_ids for r in results], alone)


def test_samples_copy_on_write(engine: Engine) -> None:
    prompt = PROMPTS[3]
    many = SamplingParams(max_tokens=20, n=4, seed=5, temperature=1.0, ignore_eos=True)
    first = engine.generate([prompt], many)[0]
    outputs = [c.token_ids for c in first.completions]
    assert len({tuple(o) for o in outputs}) > 1
    # each sample again, inside another batch: its random numbers depend on (seed, sample, step) only
    again = engine.generate([PROMPTS[6], prompt], [GREEDY, many])[1]
    if engine.executor.describe().get("row_invariant", True):
        assert [c.token_ids for c in again.completions] == outputs
    assert engine.core.pool.num_used == 0


def test_teacher_forced_logits_agree_with_decoding(tiny_engine: Path, engine: Engine, alone: list[list[int]]) -> None:
    assert engine.tokenizer is not None
    ids = engine.tokenizer.encode(PROMPTS[4])
    logits = engine.logits(ids + alone[4])
    follow = logits[len(ids) - 1 : -1].argmax(-1).tolist()
    assert_same(engine, [*alone[:4], follow, *alone[5:]], alone)
    small = load(tiny_engine, limits=ExecutorLimits(4, 5, 1024, 1023))
    np.testing.assert_allclose(small.logits(ids), engine.logits(ids), atol=0.05 * np.abs(logits).max())


def test_threads_get_what_offline_gives(tiny_engine: Path, engine: Engine, alone: list[list[int]]) -> None:
    server = AsyncEngine.load(tiny_engine)
    assert server.limits == engine.core.limits and server.eos_token_ids == engine.executor.eos_token_ids
    results = [GenerationResult() for _ in PROMPTS]
    done = [threading.Event() for _ in PROMPTS]
    for i, prompt in enumerate(PROMPTS):

        def take(output: RequestOutput, i: int = i) -> None:
            results[i].add(output)
            if output.finished:
                done[i].set()

        server.submit(Request(prompt=prompt, params=GREEDY), take)
    assert all(event.wait(60) for event in done)
    assert server.shutdown(30)
    assert_same(engine, [r.token_ids for r in results], alone)
