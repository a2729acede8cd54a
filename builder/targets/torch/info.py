"""What an engine of the ``torch`` target holds and what a processor executes of it, natively or emulated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.targets.description import Description, Table, limit_rows, missing_files
from builder.targets.pool import pool_text, report_rows
from builder.targets.record import changed
from builder.targets.torch.kernels import choose, rows_of
from trtforge.ground.units import format_size
from trtforge.machine.processor import processor
from trtforge.targets.torch import Choice

__all__ = ["describe", "engine_info", "report_rows"]

#: parts of engine.json that nobody reads at a glance
_LEFT_OUT = ("sha256", "kernel_choices", "linears")


def engine_info(artifact: Path, engine: dict[str, Any], capability: str | None = None) -> dict[str, Any]:
    """engine.json without hashes and rows, with ``linears`` decided anew for a processor.

    Args:
        capability: processor level to answer for; default: this machine's.

    Returns:
        also ``machine``, the capability, ``missing``, files that are gone, and ``execution``: for each (stored,
        executed, kernel, native, rounds) the number of linears and of weights.

    Raises:
        ForgeError: ``TF-BLD-020`` no kernel row for a linear.
    """
    capability = capability or processor().capability
    try:
        linears, execution = _execution(engine, capability)
    except LookupError as error:
        raise changed(artifact, f"has no row for one of its linears: {error}") from error
    kept = {key: value for key, value in engine.items() if key not in _LEFT_OUT}
    return {
        **kept,
        "machine": capability,
        "linears": linears,
        "execution": execution,
        "missing": missing_files(artifact, engine.get("sha256", ())),
    }


def _execution(engine: dict[str, Any], capability: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    rows = rows_of([Choice.model_validate(row) for row in engine["kernel_choices"]])
    linears: list[dict[str, Any]] = []
    groups: dict[tuple[str, str, str, bool, str], tuple[int, int]] = {}
    for linear in engine["linears"]:
        shape = (linear["shape"][0], linear["shape"][1])
        row = choose(linear["stored"], capability, shape, linear["group_size"], rows)
        # engines from before the key rounded the inputs of every format that has a word for it
        executed = row.executed_of(linear.get("rounds_input", True))
        decided = {"executed": executed, "kernel": row.kernel, "native": row.native, "rounds": row.rounds}
        linears.append({key: linear[key] for key in ("name", "shape", "stored", "group_size")} | decided)
        key = (linear["stored"], executed, row.kernel, row.native, row.rounds or "")
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


def describe(document: dict[str, Any]) -> Description:
    """The engine, and its linears by what they are stored and executed as."""
    plan = document.get("memory_plan", {})
    bytes_of = {name: value for name, value in plan.items() if isinstance(value, int) and name.endswith("bytes")}
    execution = document["execution"]
    about = [
        *limit_rows(document),
        ["KV pool", pool_text(document["kv_cache"])],
        *([f"memory: {name}", format_size(value)] for name, value in bytes_of.items()),
    ]
    groups = [
        [
            row["stored"],
            row["executed"],
            row["kernel"],
            _native(row),
            f"rounded {row['rounds']}" if row["rounds"] else "kept",
            row["linears"],
            f"{row['weights']:,}",
        ]
        for row in execution
    ]
    linears = [
        [row["name"], "x".join(map(str, row["shape"])), row["stored"], row["executed"], row["kernel"], _native(row)]
        for row in document["linears"]
    ]
    native = sum(row["linears"] for row in execution if row["native"])
    columns = ["stored", "executed", "kernel", "", "stored weights", "linears", "weights"]
    return Description(
        f"{document['name']}: target {document['target']}, {document['quant_format']}, on {document['machine']}",
        Table("Engine", ["what", "value"], about),
        (Table("Linears by execution", columns, groups),),
        (Table("Linears", ["name", "shape", "stored", "executed", "kernel", ""], linears),),
        (f"{native} of {sum(row['linears'] for row in execution)} linears run natively",),
    )


def _native(row: Mapping[str, Any]) -> str:
    return "native" if row["native"] else "emulated"
