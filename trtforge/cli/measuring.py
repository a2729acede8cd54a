"""Measures a bundle under load: in this process, on a server started for it, or on one that runs already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtforge.ground.progress import Progress

if TYPE_CHECKING:
    from evals.speed.sweep import Sweep
    from trtforge.recipe.schema import Bench


@dataclass(frozen=True)
class LiveServer:
    """A server that runs already: its gRPC address and the model's name there."""

    grpc_url: str
    model: str


def measure_in_process(engine_dir: Path, asked: Bench, prompts: Sequence[str], progress: Progress) -> Sweep:
    """The sweep over the engine's own stepping thread, without a server."""
    from trtforge.pipeline.stages.bench import sweep_in_process
    from trtforge.pipeline.stages.engine_process import engine_of

    progress.start("loading the engine")
    with engine_of(engine_dir, progress) as ask:
        sweep: Sweep = ask(sweep_in_process, prompts, asked)
    return sweep


def measure_server(
    bundle: Path | None, live: LiveServer | None, asked: Bench, prompts: Sequence[str], progress: Progress, log: Path
) -> Sweep:
    """The sweep by perf_analyzer: on ``live``, or on a server over the bundle's repository."""
    from trtforge.pipeline.stages.bench import sweep_server

    if live is not None:
        return sweep_server(live.grpc_url, live.model, asked, prompts, progress)
    from launcher.local import TritonServer
    from launcher.serve import find_repository

    assert bundle is not None
    repository, model = find_repository(bundle)
    progress.start("starting the Triton server")
    with TritonServer(repository, log_path=log) as server:
        return sweep_server(server.grpc_url, model, asked, prompts, progress)


def bench_report(name: str, sweeps: Sequence[Sweep], gates: Sequence[Any]) -> Any:
    """A report of its own: a table a target, and the throughput–latency plot with the knee marked."""
    from evals.report import Report, Section
    from evals.speed.sweep import sweep_plot, sweep_table

    passed = all(gate.passed for gate in gates)
    text = "One table a target, in this order: " + ", ".join(sweep.target for sweep in sweeps) + "."
    section = Section("Speed", text, tuple(sweep_table(sweep) for sweep in sweeps), (sweep_plot(sweeps),))
    data = {"sweeps": [sweep.to_json() for sweep in sweeps], "gates": [asdict(gate) for gate in gates]}
    verdict = f"{sum(gate.passed for gate in gates)} of {len(gates)} gates passed"
    return Report(f"{name}: load test", verdict, passed, [section], data)
