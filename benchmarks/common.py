"""What the generation benchmarks share: contenders, rounds, statistics, and how engines are found.

Rounds alternate between the contenders, so that a slow moment of the machine hits all of them; medians
and quartile spread are reported, and ratios are medians of the rounds' own ratios. Absolute figures
belong to one machine in one minute; only the ratios mean anything elsewhere.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parents[1]
WORKER = Path(__file__).with_name("openvino_worker.py")


class Contender(Protocol):
    """Something that generates tokens greedily, without stopping at end-of-sequence."""

    name: str

    def single(self, prompt: list[int], new_tokens: int) -> float:
        """Seconds for one prompt."""

    def batch(self, prompts: list[list[int]], lengths: list[int]) -> float:
        """Seconds until every request has its own number of tokens."""


class Forge:
    """An engine directory in this process."""

    def __init__(self, name: str, engine_dir: Path, threads: int) -> None:
        from runtime.offline import Engine

        self.name = name
        begin = time.perf_counter()
        self.engine = Engine.load(engine_dir, threads=threads)
        self.load_seconds = time.perf_counter() - begin
        #: seconds inside the executor, all calls
        self.executor_seconds = 0.0
        self._wrap()

    def _wrap(self) -> None:
        executor: Any = self.engine.executor
        execute = executor.execute

        def timed(batch: Any) -> Any:
            begin = time.perf_counter()
            try:
                return execute(batch)
            finally:
                self.executor_seconds += time.perf_counter() - begin

        executor.execute = timed

    def _generate(self, prompts: list[list[int]], lengths: list[int]) -> float:
        from runtime.sampling.params import SamplingParams

        params = [SamplingParams(max_tokens=n, temperature=0.0, ignore_eos=True) for n in lengths]
        # another first token each time: a prefix found in the cache would not be computed
        self._round = getattr(self, "_round", 0) + 1
        fresh = [[(p[0] + self._round) % self.engine.executor.vocab_size, *p[1:]] for p in prompts]
        begin = time.perf_counter()
        results = self.engine.generate(fresh, params)
        seconds = time.perf_counter() - begin
        made = [len(result.token_ids) for result in results]
        if made != lengths:
            raise RuntimeError(f"{self.name} made {made} tokens instead of {lengths}")
        return seconds

    def single(self, prompt: list[int], new_tokens: int) -> float:
        return self._generate([prompt], [new_tokens])

    def batch(self, prompts: list[list[int]], lengths: list[int]) -> float:
        return self._generate(prompts, lengths)

    def profile(self, run: Callable[[], float]) -> dict[str, float]:
        """Shares of a run by part: the program's steps, what else the executor does, and everything around it."""
        from runtime.executors.base import StepProfile

        executor: Any = self.engine.executor
        executor.profile, before = StepProfile(), self.executor_seconds
        total = run()
        parts, executor.profile = executor.profile, None
        inside = self.executor_seconds - before
        seconds = dict(parts.seconds)
        seconds["executor, other"] = inside - sum(seconds.values())
        seconds["scheduler, sampling, text"] = total - inside
        shares = {name: value / total for name, value in sorted(seconds.items(), key=lambda item: -item[1])}
        return shares | {"ms a step": total / max(parts.steps, 1) * 1e3}


class HuggingFace:
    """``transformers`` generate; the batch is one padded static batch, as a server without a scheduler runs it."""

    def __init__(self, name: str, checkpoint: Path, dtype: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        logging.set_verbosity_error()
        self.name = name
        self.model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=getattr(torch, dtype)).eval()
        self.model.generation_config.eos_token_id = None
        self.model.generation_config.pad_token_id = 0

    def _generate(self, prompts: list[list[int]], new_tokens: int) -> float:
        import torch

        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        begin = time.perf_counter()
        with torch.inference_mode():
            out = self.model.generate(
                ids, attention_mask=mask, max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False
            )
        seconds = time.perf_counter() - begin
        if out.shape[1] != width + new_tokens:
            raise RuntimeError(f"{self.name} made {out.shape[1] - width} tokens instead of {new_tokens}")
        return seconds

    def single(self, prompt: list[int], new_tokens: int) -> float:
        return self._generate([prompt], new_tokens)

    def batch(self, prompts: list[list[int]], lengths: list[int]) -> float:
        return self._generate(prompts, max(lengths))


class OpenVino:
    """OpenVINO GenAI's continuous batching, in a process of its own environment."""

    def __init__(self, name: str, python: Path, model: Path, threads: int) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [str(python), str(WORKER), str(model), str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._ask({"do": "hello"})

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                answer: dict[str, Any] = json.loads(line)
                # its idle threads would take time from the contenders after it
                self._process.send_signal(signal.SIGSTOP)
                return answer
        raise RuntimeError(f"{self.name}: the worker ended with code {self._process.wait()}")

    def single(self, prompt: list[int], new_tokens: int) -> float:
        return self.batch([prompt], [new_tokens])

    def batch(self, prompts: list[list[int]], lengths: list[int]) -> float:
        answer = self._ask({"do": "generate", "prompts": prompts, "lengths": lengths})
        if answer["made"] != lengths:
            raise RuntimeError(f"{self.name} made {answer['made']} tokens instead of {lengths}")
        return float(answer["seconds"])

    def close(self) -> None:
        """End the worker."""
        assert self._process.stdin is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.stdin.close()
        self._process.wait(timeout=30)


@dataclass
class Samples:
    """Seconds per round of each contender, and the useful tokens of one round."""

    tokens: int
    seconds: dict[str, list[float]] = field(default_factory=dict)

    def table(self, baseline: str) -> list[dict[str, Any]]:
        """Median tokens/s, quartile spread, and the median ratio to ``baseline``'s rounds."""
        rows = []
        base = self.seconds[baseline]
        for name, seconds in self.seconds.items():
            speeds = sorted(self.tokens / s for s in seconds)
            ratios = [b / s for b, s in zip(base, seconds, strict=True)]
            rows.append(
                {
                    "name": name,
                    "tokens_per_second": statistics.median(speeds),
                    "spread": quartile_spread(speeds),
                    "ratio": statistics.median(ratios),
                    "ratio_range": [min(ratios), max(ratios)],
                    "rounds": len(speeds),
                }
            )
        return rows


def quartile_spread(values: Sequence[float]) -> float:
    """Interquartile range over the median; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle


def run_rounds(contenders: Sequence[Contender], run: Callable[[Contender], float], tokens: int, rounds: int) -> Samples:
    """Each contender once a round, in turning order."""
    samples = Samples(tokens, {c.name: [] for c in contenders})
    for index in range(rounds):
        shift = index % len(contenders)
        for contender in [*contenders[shift:], *contenders[:shift]]:
            seconds = run(contender)
            samples.seconds[contender.name].append(seconds)
            print(
                f"  round {index + 1}: {contender.name}: {tokens / seconds:.1f} tokens/s", file=sys.stderr, flush=True
            )
    return samples


def print_table(title: str, rows: list[dict[str, Any]], baseline: str) -> None:
    """The figures as text."""
    print(f"\n{title}")
    print(f"{'(ratio: to ' + baseline + ')':46}{'tokens/s':>10}{'spread':>9}{'ratio':>9}{'range':>16}")
    for row in rows:
        low, high = row["ratio_range"]
        print(
            f"{row['name']:46}{row['tokens_per_second']:>10.1f}{row['spread']:>9.0%}{row['ratio']:>9.2f}"
            f"{f'{low:.2f}-{high:.2f}':>16}"
        )


def print_profile(name: str, shares: dict[str, float]) -> None:
    """Where a run's time goes."""
    milliseconds = shares["ms a step"]
    print(f"\n{name}: {milliseconds:.1f} ms a step")
    for part, share in shares.items():
        if part != "ms a step" and share >= 0.002:
            print(f"  {part:28}{share:>7.1%}{share * milliseconds:>9.2f} ms")


def token_text(tokenizer_file: Path, count: int) -> list[int]:
    """Tokens of CPython's help topics, ``count`` of them."""
    from pydoc_data.topics import topics

    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    ids: list[int] = []
    for name in sorted(topics):
        ids += tokenizer.encode(topics[name]).ids
        if len(ids) >= count:
            return ids[:count]
    raise ValueError(f"the help topics have {len(ids)} tokens, not {count}")


# -- finding engines -------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options that say where models lie and how long to measure."""
    parser.add_argument("--checkpoint", type=Path, help="unquantized Hugging Face checkpoint")
    parser.add_argument("--engine", type=Path, help="torch engine of that checkpoint")
    parser.add_argument("--engine-int4", type=Path, help="torch engine with INT4 weights")
    parser.add_argument("--engine-fp8", type=Path, help="torch engine with FP8 weights (optional)")
    parser.add_argument("--openvino", type=Path, help="folder that benchmarks.openvino_setup made (optional)")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round")
    parser.add_argument("--float32", action="store_true", help="transformers in float32 as well")
    parser.add_argument("--json", type=Path, help="write the figures there")


def find_models(arguments: argparse.Namespace) -> None:
    """Fill in what was not given: run the shipped recipes up to the engine (cached after the first time)."""
    if arguments.quick:
        arguments.rounds = 1
    recipes = {"engine": "smollm2-135m-bf16", "engine_int4": "smollm2-135m-int4-awq"}
    for option, recipe in recipes.items():
        if getattr(arguments, option) is None:
            found = run_recipe(ROOT / "configs" / f"{recipe}.yaml")
            setattr(arguments, option, found["build"])
            if option == "engine" and arguments.checkpoint is None:
                arguments.checkpoint = found["intake"]
    if arguments.openvino is None and (ROOT / ".trtforge" / "openvino" / "bin").is_dir():
        arguments.openvino = ROOT / ".trtforge" / "openvino"


def run_recipe(recipe: Path) -> dict[str, Path]:
    """Directories of the stages that the engine of a recipe needs, by stage."""
    from trtforge.cli.common import open_store
    from trtforge.pipeline.catalogue import default_pipeline
    from trtforge.recipe.load import load_recipe

    print(f"preparing {recipe.name} (cached after the first time)", file=sys.stderr, flush=True)
    result = default_pipeline(open_store(None)).run(load_recipe(recipe), "build", only_needed=True, capture_output=True)
    return {o.stage: o.artifact.path for o in result.outcomes if o.artifact is not None}


def openvino_contenders(arguments: argparse.Namespace) -> list[OpenVino]:
    """The OpenVINO contenders that the folder holds; says so when there is none."""
    if arguments.openvino is None:
        print("OpenVINO GenAI: not measured (python -m benchmarks.openvino_setup makes its environment)")
        return []
    python = arguments.openvino / "bin" / "python"
    names = {"fp16": "OpenVINO GenAI, 16-bit weights", "int4": "OpenVINO GenAI, INT4 weights"}
    return [
        OpenVino(name, python, arguments.openvino / "models" / key, arguments.threads)
        for key, name in names.items()
        if (arguments.openvino / "models" / key).is_dir()
    ]
