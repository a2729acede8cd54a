"""What share of peak kernels reach: the efficiency table, with a calibration laid over it where there is one.

Three variants run side by side through every formula, along the first axis: slow, typical and fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from builder.planner.calibration import Calibration
from builder.planner.speed.cost import OpClass
from trtforge.ground.rows import read_yaml

Three = npt.NDArray[Any]
_TABLE = Path(__file__).with_name("efficiency.yaml")
#: architectures whose kernels are those of another row
_SAME = {"sm_86": "sm_80", "sm_103": "sm_100", "sm_121": "sm_120"}


@dataclass(frozen=True)
class Efficiency:
    """Shares of peak [3] and seconds a launch [3] of one class of op; ``scale`` [3] is the calibration."""

    compute: Three
    memory: Three
    launch: Three
    scale: Three
    calibrated: bool = False


@dataclass(frozen=True)
class LinkEfficiency:
    """Share of the one-way bandwidth [3] and seconds a launch [3] of collectives over a kind of link."""

    bandwidth: Three
    launch: Three
    scale: Three


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = read_yaml(_TABLE)
    return table


def efficiency(arch: str, op_class: OpClass, calibration: Calibration | None = None) -> Efficiency:
    """The efficiencies of a class of op on an architecture (``sm_90``).

    A class that an architecture's row does not have takes fp16's linears; the table has a row for every
    architecture of the hardware table.
    """
    rows = _table()["architectures"][_SAME.get(arch, arch)]
    row = _table()["pointwise"] if op_class == "pointwise" else rows.get(op_class, rows["linear_fp16"])
    scale, calibrated = _scale(op_class, calibration)
    parts = [np.asarray(row[name], dtype=np.float64) for name in ("compute", "memory", "launch_us")]
    if calibrated:
        # the ratio is over the typical plan, so the variants are the measured span around it
        parts = [np.full(3, part[1]) for part in parts]
    return Efficiency(parts[0], parts[1], parts[2] * 1e-6, scale, calibrated)


def link_efficiency(link_name: str, calibration: Calibration | None = None) -> LinkEfficiency:
    """The efficiencies of collectives over a link of the hardware table."""
    kind = "nvlink" if link_name.startswith("nvlink") else "pcie" if link_name.startswith("pcie") else "network"
    row = _table()["links"][kind]
    scale, calibrated = _scale("communication", calibration)
    parts = [np.asarray(row[name], dtype=np.float64) for name in ("bandwidth", "launch_us")]
    if calibrated:
        parts = [np.full(3, part[1]) for part in parts]
    return LinkEfficiency(parts[0], parts[1] * 1e-6, scale)


def _scale(op_class: str, calibration: Calibration | None) -> tuple[Three, bool]:
    row = calibration.ratios.get(op_class) if calibration is not None else None
    if row is None:
        return np.ones(3), False
    return np.asarray([row.high, row.ratio, row.low]), True
