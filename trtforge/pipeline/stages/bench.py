"""bench: throughput and latency, in-process and against the live server, closed loop and by arrivals.

All figures are measured: they live in ``bench.json`` and in the manifest's ``measurements``, outside the
content hash, so that a second measurement does not make another bundle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtforge.ground.errors import ForgeError
from trtforge.ground.hashing import hash_json
from trtforge.machine.processor import cores
from trtforge.machine.record import machine_facts, this_machine
from trtforge.pipeline.stage import Stage, StageContext
from trtforge.pipeline.stages import serving
from trtforge.pipeline.stages.common import execution_facts, plain, rounded, write_json
from trtforge.pipeline.stages.engine_process import engine_of
from trtforge.recipe.schema import Bench, Recipe
from trtforge.store.artifact import StageResult

if TYPE_CHECKING:
    from evals.speed.open_sweep import OpenSweep
    from evals.speed.outcome import Outcome
    from evals.speed.schedule import Due, Traced
    from evals.speed.sweep import Sweep
    from runtime.offline import Engine
    from trtforge.ground.progress import Progress

BENCH_FILE = "bench.json"


class BenchStage(Stage):
    """Gates: no failed request, the recipe's SLO at the lowest concurrency, and the least good rate of arrivals."""

    name = "bench"
    # after smoke: a server that answers wrongly is not worth timing
    needs = ("build", "repository", "smoke")
    code_version = "4"
    tools = serving.TOOLS

    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        from evals.speed.prompts import load_prompts
        from evals.speed.schedule import load_trace

        trace = recipe.bench.trace
        return {
            **plain(recipe.bench),
            "prompts_sha256": hash_json(load_prompts(recipe.bench.prompts, recipe_dir)),
            **({} if trace is None else {"trace_sha256": hash_json(vars(load_trace(trace, recipe_dir)))}),
        }

    def host_facts(self) -> dict[str, Any]:
        return {**execution_facts(), "cpus": cores()}

    def run(self, context: StageContext) -> StageResult:
        from evals.speed.outcome import Outcome
        from evals.speed.prompts import load_prompts

        asked, engine_dir = context.recipe.bench, context.inputs["build"].path
        prompts = load_prompts(asked.prompts, context.recipe_dir)
        load = load_of(asked, prompts, context.recipe_dir, engine_dir)
        context.progress.start("loading the engine")
        with engine_of(engine_dir, context.progress) as ask:
            inside: Measured = ask(measure_in_process, load)
        with serving.live_server(context, context.out / serving.LOG_FILE) as server:
            outside = measure_server(server.grpc_url, context.recipe.name, load, context.progress)
        outcome = outcome_of([inside, outside], load)
        figures = rounded({"machine": machine_facts(), **outcome.to_json()}, 6)
        write_json(context.out / BENCH_FILE, figures)
        # what was written is what is judged and shown
        outcome = Outcome.of_json(figures)
        return StageResult(
            summary={"concurrency": sorted(set(asked.concurrency)), "targets": ["in-process", "server"]},
            measurements=figures,
            gates=outcome.gates(),
            measured=(BENCH_FILE, serving.LOG_FILE),
        )


@dataclass(frozen=True)
class Load:
    """What is sent: the section's keys, the prompts, and the trace with prompts of its lengths."""

    asked: Bench
    prompts: Sequence[str]
    traced: Traced | None = None
    replayed: Sequence[Due] | None = None


@dataclass(frozen=True)
class Measured:
    """One target: closed loop, and open loop where it was asked for."""

    closed: Sweep
    opened: OpenSweep | None


def load_of(asked: Bench, prompts: Sequence[str], folder: Path, engine_dir: Path | None) -> Load:
    """The load of a section.

    Args:
        folder: the trace is a file below it.
        engine_dir: its tokenizer makes prompts of a trace's lengths.

    Raises:
        ForgeError: TF-BEN-007 of the trace; TF-BEN-010 there is a trace and no engine.
    """
    if asked.trace is None:
        return Load(asked, prompts)
    from evals.speed.schedule import load_trace, traced_due
    from trtforge.pipeline.stages.engine_tokenizer import tokenizer_in

    if engine_dir is None:
        raise ForgeError(
            "TF-BEN-010",
            "a trace is replayed with prompts of its lengths, and no tokenizer is at hand",
            asked=f"bench.trace.file: {asked.trace.file}",
            why="Tokens are counted by the tokenizer of a bundle's engine; an address alone has none.",
            remedies=["trtforge bench BUNDLE --url HOST:PORT --model NAME", "bench.arrivals needs no tokenizer"],
        )
    traced, tokenizer = load_trace(asked.trace, folder), tokenizer_in(engine_dir)
    return Load(asked, prompts, traced, traced_due(traced, prompts, tokenizer.encode, tokenizer.decode))


def outcome_of(measured: Sequence[Measured], load: Load) -> Outcome:
    """Everything measured, with what later runs are compared by."""
    from evals.speed.outcome import Outcome, identity_of

    machine = {**machine_facts(), "gpus": [gpu.name for gpu in this_machine().gpus]}
    opened = tuple(one.opened for one in measured if one.opened is not None)
    identity = identity_of(load.asked, load.prompts, load.traced, machine)
    return Outcome(tuple(one.closed for one in measured), opened, identity, load.asked.slo)


def measure_server(url: str, model: str, load: Load, progress: Progress) -> Measured:
    """A model of a server that runs: the closed loop by perf_analyzer, then requests that arrive by themselves."""
    from evals.speed.open_sweep import measure_open
    from evals.speed.served_target import ServedTarget

    closed = sweep_server(url, model, load.asked, load.prompts, progress)
    if not _arrives(load):
        return Measured(closed, None)
    target = ServedTarget(url, model)
    try:
        target.warm_up(load.prompts[0], load.asked.max_tokens)
        opened = measure_open(
            "server", target, load.asked, load.prompts, load.replayed, progress, start=_half_of(closed)
        )
    finally:
        target.close()
    return Measured(closed, opened)


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


def measure_in_process(engine: Engine, progress: Progress, load: Load) -> Measured:
    """The same over the engine behind its stepping thread, in the process that holds it."""
    from evals.speed.in_process import InProcess
    from evals.speed.load import run_levels
    from evals.speed.open_sweep import measure_open
    from evals.speed.sweep import Sweep

    target = InProcess(engine)
    try:
        target.warm_up(load.prompts[0], load.asked.max_tokens)
        closed = Sweep("in-process", run_levels(target, load.prompts, load.asked, progress))
        opened = None
        if _arrives(load):
            opened = measure_open(
                "in-process", target, load.asked, load.prompts, load.replayed, progress, start=_half_of(closed)
            )
    finally:
        target.close()
    return Measured(closed, opened)


def _arrives(load: Load) -> bool:
    return load.asked.arrivals is not None or load.replayed is not None


def _half_of(closed: Sweep) -> float | None:
    """Where a search begins: half the requests a second that the closed loop reached; None: it reached none."""
    best = max((level.requests_per_second for level in closed.levels), default=0.0)
    return best / 2 or None
