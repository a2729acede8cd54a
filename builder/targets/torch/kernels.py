"""The torch target's kernel table: stored representation x processor → kernel.

Policy: which kernel runs is data (``kernels.yaml``), never an ``if``. The plan made at build
time is for the machine that builds; the serving machine picks again from the rows that the engine
carries, so an engine moves between processors without a rebuild.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trtforge.ground.rows import read_yaml
from trtforge.machine.processor import CPU_CAPABILITIES
from trtforge.targets.torch import Choice

CAPABILITIES = (*(name for name, _ in CPU_CAPABILITIES), "cuda", "cuda_fp8")


@dataclass(frozen=True)
class Kernel:
    """One kernel: memory for a weight, and the operators that it calls."""

    name: str
    bytes_per_weight: float
    operators: tuple[str, ...]


@functools.cache
def table() -> tuple[dict[str, Kernel], tuple[Choice, ...]]:
    """Kernels by name, and the rows in order."""
    raw = read_yaml(Path(__file__).with_name("kernels.yaml"))
    kernels = {
        name: Kernel(name, float(row["bytes_per_weight"]), tuple(row["operators"]))
        for name, row in raw["kernels"].items()
    }
    return kernels, tuple(Choice.model_validate(row) for row in raw["choices"])


def rows_of(carried: Sequence[Choice]) -> Sequence[Choice]:
    """The rows that an engine carries, or today's where those name a kernel that no executor has any more."""
    return carried if all(row.kernel in table()[0] for row in carried) else table()[1]


def choose(
    stored: str,
    capability: str,
    shape: tuple[int, int],
    group: int | None,
    rows: Sequence[Choice] | None = None,
) -> Choice:
    """The first row that fits; ``rows`` default to the table (an engine brings its own)."""
    for row in table()[1] if rows is None else rows:
        if row.fits(stored, capability, shape, group):
            return row
    raise LookupError(f"no kernel for {stored} on {capability}")


def weight_bytes(choice: Choice, shape: tuple[int, int], group: int | None) -> int:
    """Bytes that a linear [N, K] occupies as executed: its weights, and block scales kept beside them."""
    kernels = table()[0]
    elements = shape[0] * shape[1]
    total = kernels[choice.kernel].bytes_per_weight * elements
    if choice.kernel == "host_int4" and group:
        total += 4 * elements // group  # a float32 scale
    return int(total)
