"""What an engine of the ``torch`` target holds and what a processor executes of it, natively or emulated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builder.targets.record import changed
from builder.targets.torch.kernels import choose, rows_of
from trtforge.machine.processor import processor

#: parts of engine.json that nobody reads at a glance
_LEFT_OUT = ("sha256", "kernel_choices", "linears")


def engine_info(artifact: Path, engine: dict[str, Any], capability: str | None = None) -> dict[str, Any]:
    """engine.json without hashes and rows, with ``linears`` decided anew for a processor.

    Args:
        capability: processor level to answer for; default: this machine's.

    Returns:
        also ``machine``, the capability, and ``execution``: for each (stored, executed, kernel, native, rounds) the
        number of linears and of weights.

    Raises:
        ForgeError: ``TF-BLD-020`` kernel rows or linears that cannot be read.
    """
    capability = capability or processor().capability
    try:
        linears, execution = _execution(engine, capability)
    except (TypeError, KeyError, LookupError) as error:
        raise changed(artifact, f"has kernel_choices or linears that cannot be read: {error}") from error
    kept = {key: value for key, value in engine.items() if key not in _LEFT_OUT}
    return {**kept, "machine": capability, "linears": linears, "execution": execution}


def _execution(engine: dict[str, Any], capability: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    rows = rows_of(engine["kernel_choices"])
    linears: list[dict[str, Any]] = []
    groups: dict[tuple[str, str, str, bool, str], tuple[int, int]] = {}
    for linear in engine["linears"]:
        shape = (int(linear["shape"][0]), int(linear["shape"][1]))
        row = choose(linear["stored"], capability, shape, linear["group_size"], rows)
        decided = {"executed": row.executed, "kernel": row.kernel, "native": row.native, "rounds": row.rounds}
        linears.append({key: linear[key] for key in ("name", "shape", "stored", "group_size")} | decided)
        key = (linear["stored"], row.executed, row.kernel, row.native, row.rounds or "")
        count, weights = groups.get(key, (0, 0))
        groups[key] = (count + 1, weights + shape[0] * shape[1])
    execution = [
        {
            "stored": stored,
            "executed": executed,
            "kernel": kernel,
            "native": native,
            "rounds": rounds or None,
            "linears": count,
            "weights": weights,
        }
        for (stored, executed, kernel, native, rounds), (count, weights) in sorted(groups.items())
    ]
    return linears, execution
