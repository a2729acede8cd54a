"""The service tax: what of a time behind the server the engine alone does not take, at the same load."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evals.speed.latency import KINDS
from evals.speed.open_sweep import OpenSweep
from evals.speed.sweep import Sweep


def service_tax(closed: Sequence[Sweep], opened: Sequence[OpenSweep]) -> list[dict[str, Any]]:
    """``{load, ttft, tpot, e2e}`` for each load measured on both: (server - in-process) / server of the mean times."""
    rows = []
    for inside, outside in (
        (_closed(closed, "in-process"), _closed(closed, "server")),
        (_open(opened, "in-process"), _open(opened, "server")),
    ):
        for load in [name for name in outside if name in inside]:
            shares = {kind: _share(inside[load], outside[load], kind) for kind in KINDS}
            rows.append({"load": load, **shares})
    return rows


def _share(inside: Mapping[str, Any], outside: Mapping[str, Any], kind: str) -> float | None:
    if kind not in inside or kind not in outside or not outside[kind]["mean"]:
        return None
    return float((outside[kind]["mean"] - inside[kind]["mean"]) / outside[kind]["mean"])


def _closed(sweeps: Sequence[Sweep], target: str) -> dict[str, Mapping[str, Any]]:
    found = [sweep for sweep in sweeps if sweep.target == target]
    return {f"concurrency {level.concurrency}": level.means or {} for sweep in found for level in sweep.levels}


def _open(sweeps: Sequence[OpenSweep], target: str) -> dict[str, Mapping[str, Any]]:
    """A level that was stopped early had another load than a whole one."""
    found = [sweep for sweep in sweeps if sweep.target == target]
    return {level.label: level.means for sweep in found for level in sweep.levels if level.requests == level.planned}
