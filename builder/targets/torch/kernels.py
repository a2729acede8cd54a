"""The torch target's kernel table: stored representation x processor → kernel.

Policy: which kernel runs is data (``kernels.yaml``), never an ``if``. The plan made at build
time is for the machine that builds; the serving machine picks again from the rows that the engine
carries, so an engine moves between processors without a rebuild.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trtforge.ground.rows import read_yaml
from trtforge.machine.processor import CPU_CAPABILITIES

CAPABILITIES = (*(name for name, _ in CPU_CAPABILITIES), "cuda", "cuda_fp8")


@dataclass(frozen=True)
class Kernel:
    """One kernel: memory for a weight, and the operators that it calls."""

    name: str
    bytes_per_weight: float
    operators: tuple[str, ...]


@dataclass(frozen=True)
class Choice:
    """One row of the table; see the head of kernels.yaml for the fields."""

    stored: str
    capability: tuple[str, ...]
    kernel: str
    native: bool
    executed: str
    rounds: str | None = None
    requires: Mapping[str, Any] = field(default_factory=dict)
    measured: str | None = None

    def fits(self, stored: str, capability: str, shape: tuple[int, int], group: int | None) -> bool:
        """Whether the row serves a linear [N, K] stored like that on that processor."""
        machine = capability in self.capability or ("any" in self.capability and not capability.startswith("cuda"))
        multiple = int(self.requires.get("outputs_multiple_of", 1))
        whole = int(self.requires.get("group_multiple_of", 1))
        return self.stored == stored and machine and shape[0] % multiple == 0 and (group or 0) % whole == 0

    def to_json(self) -> dict[str, Any]:
        """The row as engine.json carries it, without empty fields."""
        return {key: value for key, value in asdict(self).items() if value not in (None, {}, ())}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Choice:
        """A row of the YAML file or of engine.json."""
        return cls(**{**row, "capability": tuple(row["capability"])})


@functools.cache
def table() -> tuple[dict[str, Kernel], tuple[Choice, ...]]:
    """Kernels by name, and the rows in order."""
    raw = read_yaml(Path(__file__).with_name("kernels.yaml"))
    kernels = {
        name: Kernel(name, float(row["bytes_per_weight"]), tuple(row["operators"]))
        for name, row in raw["kernels"].items()
    }
    return kernels, tuple(Choice.from_json(row) for row in raw["choices"])


def rows_of(stored: Sequence[Mapping[str, Any]]) -> tuple[Choice, ...]:
    """The rows that an engine carries, or today's where those name a kernel that no executor has any more."""
    if any(row["kernel"] not in table()[0] for row in stored):
        return table()[1]
    return tuple(Choice.from_json(row) for row in stored)


def choose(
    stored: str,
    capability: str,
    shape: tuple[int, int],
    group: int | None,
    rows: tuple[Choice, ...] | None = None,
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
