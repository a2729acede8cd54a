"""Measures a bundle under load: in this process, on a server started for it, or on one that runs already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtforge.ground.progress import Progress
from trtforge.machine.record import machine_facts

if TYPE_CHECKING:
    from evals.speed.baseline import Comparison
    from evals.speed.outcome import Outcome
    from trtforge.pipeline.stages.bench import Load, Measured


@dataclass(frozen=True)
class LiveServer:
    """A server that runs already: its gRPC address and the model's name there."""

    grpc_url: str
    model: str


def measure_in_process(engine_dir: Path, load: Load, progress: Progress) -> Measured:
    """Both loops over the engine's own stepping thread, without a server."""
    from trtforge.pipeline.stages import bench
    from trtforge.pipeline.stages.engine_process import engine_of

    progress.start("loading the engine")
    with engine_of(engine_dir, progress) as ask:
        measured: Measured = ask(bench.measure_in_process, load)
    return measured


def measure_server(bundle: Path | None, live: LiveServer | None, load: Load, progress: Progress, log: Path) -> Measured:
    """Both loops on ``live``, or on a server over the bundle's repository."""
    from trtforge.pipeline.stages import bench

    if live is not None:
        return bench.measure_server(live.grpc_url, live.model, load, progress)
    from launcher.local import TritonServer
    from launcher.serve import find_repository

    assert bundle is not None
    repository, model = find_repository(bundle)
    progress.start("starting the Triton server")
    with TritonServer(repository, log_path=log) as server:
        return bench.measure_server(server.grpc_url, model, load, progress)


def bench_report(name: str, outcome: Outcome, gates: Sequence[Any], comparison: Comparison | None = None) -> Any:
    """A report of its own: a table a target, and the throughput–latency plot with the knee marked."""
    from evals.report import Report

    passed = all(gate.passed for gate in gates)
    text = "One table a target, in this order: " + ", ".join(sweep.target for sweep in outcome.sweeps) + "."
    sections = [outcome.section(text), *([] if comparison is None else [comparison.section()])]
    data = {
        "machine": machine_facts(),
        **outcome.to_json(),
        "gates": [asdict(gate) for gate in gates],
        **({} if comparison is None else {"baseline": comparison.to_json()}),
    }
    verdict = f"{sum(gate.passed for gate in gates)} of {len(gates)} gates passed"
    return Report(f"{name}: load test", verdict, passed, sections, data)
