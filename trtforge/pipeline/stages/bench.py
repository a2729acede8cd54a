"""bench: throughput and latency, in-process and against the live server, over a concurrency sweep.

All figures are measured: they live in ``bench.json`` and in the manifest's ``measurements``, outside the
content hash, so that a second measurement does not make another bundle.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtforge.ground.hashing import hash_json
from trtforge.machine.processor import cores
from trtforge.machine.record import machine_facts
from trtforge.pipeline.stage import Stage, StageContext
from trtforge.pipeline.stages import serving
from trtforge.pipeline.stages.common import execution_facts, plain, rounded, write_json
from trtforge.pipeline.stages.engine_process import engine_of
from trtforge.recipe.schema import Bench, Recipe
from trtforge.store.artifact import StageResult

if TYPE_CHECKING:
    from evals.speed.load import Drafts
    from evals.speed.sweep import Sweep
    from runtime.offline import Engine
    from trtforge.ground.progress import Progress

BENCH_FILE = "bench.json"


class BenchStage(Stage):
    """Gates: no failed request, and the recipe's SLO at the lowest concurrency."""

    name = "bench"
    # after smoke: a server that answers wrongly is not worth timing
    needs = ("build", "repository", "smoke")
    code_version = "3"
    tools = serving.TOOLS

    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        from evals.speed.prompts import load_prompts

        return {
            **plain(recipe.bench),
            "prompts_sha256": hash_json(load_prompts(recipe.bench.prompts, recipe_dir)),
        }

    def host_facts(self) -> dict[str, Any]:
        return {**execution_facts(), "cpus": cores()}

    def run(self, context: StageContext) -> StageResult:
        from evals.speed.prompts import load_prompts
        from evals.speed.sweep import slo_gates

        asked = context.recipe.bench
        prompts = load_prompts(asked.prompts, context.recipe_dir)
        levels = sorted(set(asked.concurrency))
        context.progress.start("loading the engine")
        with engine_of(context.inputs["build"].path, context.progress) as ask:
            inside: Sweep = ask(sweep_in_process, prompts, asked)
        with serving.live_server(context, context.out / serving.LOG_FILE) as server:
            outside = sweep_server(server.grpc_url, context.recipe.name, asked, prompts, context.progress)
        figures = rounded({"machine": machine_facts(), "sweeps": [inside.to_json(), outside.to_json()]}, 6)
        write_json(context.out / BENCH_FILE, figures)
        return StageResult(
            summary={"concurrency": levels, "targets": ["in-process", "server"]},
            measurements=figures,
            gates=slo_gates(outside, asked.slo),
            measured=(BENCH_FILE, serving.LOG_FILE),
        )


def sweep_server(url: str, model: str, asked: Bench, prompts: Sequence[str], progress: Progress) -> Sweep:
    """The sweep by perf_analyzer over a model of a server that runs."""
    from evals.speed import perf_analyzer
    from evals.speed.sweep import Sweep

    levels = perf_analyzer.measure(
        grpc_url=url,
        model=model,
        prompts=prompts,
        concurrency=sorted(set(asked.concurrency)),
        requests_per_level=asked.requests_per_level,
        max_tokens=asked.max_tokens,
        slo=asked.slo,
        progress=progress,
    )
    return Sweep("server", tuple(levels))


def sweep_in_process(engine: Engine, progress: Progress, prompts: Sequence[str], asked: Bench) -> Sweep:
    """The sweep over the engine behind its stepping thread, in the process that holds it."""
    from evals.speed.load import run_levels
    from evals.speed.sweep import Sweep

    target = InProcess(engine)
    try:
        target.warm_up(prompts[0], asked.max_tokens)
        levels = run_levels(target, prompts, asked, progress)
    finally:
        target.close()
    return Sweep("in-process", levels)


class InProcess:
    """The engine behind its stepping thread, as the load generator drives it."""

    def __init__(self, engine: Engine) -> None:
        from runtime.serving import AsyncEngine

        self._engine = AsyncEngine(engine.core)

    def submit(
        self,
        prompt: str,
        max_tokens: int,
        on_tokens: Callable[[int], None],
        on_done: Callable[[str | None, Drafts], None],
    ) -> None:
        """Queue a greedy request of exactly ``max_tokens`` tokens."""
        from runtime.request import Request, RequestOutput
        from runtime.sampling.params import SamplingParams

        def receive(output: RequestOutput) -> None:
            count = sum(len(sample.token_ids) for sample in output.samples)
            if count:
                on_tokens(count)
            if output.finished:
                drafts = None
                if self._engine.speculates and output.samples:
                    drafts = output.samples[0].num_draft_tokens, output.samples[0].num_accepted_tokens
                on_done(None if output.error is None else str(output.error.get("message")), drafts)

        params = SamplingParams(max_tokens=max_tokens, min_tokens=max_tokens, temperature=0.0)
        self._engine.submit(Request(prompt=prompt, params=params, stream=True), receive)

    def warm_up(self, prompt: str, max_tokens: int) -> None:
        """One request that nobody times: first-touch costs belong to no level."""
        done = threading.Event()
        self.submit(prompt, max_tokens, lambda count: None, lambda error, drafts: done.set())
        done.wait(120)

    def close(self) -> None:
        """End the stepping thread; the engine is closed with it."""
        self._engine.shutdown(5.0)
