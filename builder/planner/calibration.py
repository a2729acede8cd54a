"""Measured over planned time, by class of op: what turns a plan's range into a narrow one.

A calibration is a JSON file: ``{"version": 1, "gpu": "h200", "source": "how it was measured", "ratios":
{"linear_fp16": {"ratio": 1.08, "low": 0.99, "high": 1.21, "samples": 12}}}``. ``ratio`` is the median of
measured time over the plan's typical one, ``low`` and ``high`` the span that was seen. Classes without a
ratio keep their range. A calibration of another GPU is refused: the ratios are that GPU's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from builder.planner.speed.cost import CLASSES
from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import read_json_file
from trtforge.ground.versions import is_version

VERSION = 1


@dataclass(frozen=True)
class Ratio:
    """Measured over planned: median, smallest and largest of ``samples`` measurements."""

    ratio: float
    low: float
    high: float
    samples: int = 1


@dataclass(frozen=True)
class Calibration:
    """Ratios by class of op (see :data:`builder.planner.speed.cost.OpClass`) on one GPU."""

    gpu: str
    source: str
    ratios: Mapping[str, Ratio] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The object that the file holds."""
        return {
            "version": VERSION,
            "gpu": self.gpu,
            "source": self.source,
            "ratios": {
                name: {"ratio": row.ratio, "low": row.low, "high": row.high, "samples": row.samples}
                for name, row in sorted(self.ratios.items())
            },
        }


def calibrate(gpu: str, source: str, samples: Iterable[tuple[str, float, float]]) -> Calibration:
    """A calibration from measurements: ``(class of op, planned seconds, measured seconds)`` each."""
    found: dict[str, list[float]] = {}
    for op_class, planned, measured in samples:
        found.setdefault(op_class, []).append(measured / planned)
    return Calibration(
        gpu,
        source,
        {name: Ratio(median(values), min(values), max(values), len(values)) for name, values in found.items()},
    )


def read_calibration(path: Path, gpu: str) -> Calibration:
    """The calibration in ``path``, made on ``gpu`` (the table's name; the file may have an alias of it).

    Raises:
        ForgeError: ``TF-PLN-052`` the file cannot be read or is no calibration, ``TF-PLN-053`` it is of
            another GPU.
    """
    try:
        raw = read_json_file(Path(path))
        if not isinstance(raw, dict) or not is_version(raw.get("version"), VERSION):
            raise ValueError(f"it is no JSON object with version {VERSION}")
        ratios = {name: _ratio(name, row) for name, row in dict(raw["ratios"]).items()}
        unknown = sorted(set(ratios) - set(CLASSES))
        if unknown:
            raise ValueError(f"{unknown[0]} is no class of op; known: {', '.join(CLASSES)}")
        found = Calibration(_canonical(str(raw["gpu"])), str(raw["source"]), ratios)
    except KeyError as error:
        raise _unreadable(path, f"the key {error} is missing") from error
    except (OSError, ValueError, TypeError) as error:
        raise _unreadable(path, str(error)) from error
    if found.gpu != gpu:
        raise ForgeError(
            "TF-PLN-053",
            f"{path} was measured on {found.gpu}, the plan is for {gpu}",
            asked=f"--calibration {path}",
            numbers={"measured_on": found.gpu, "planned_for": gpu},
            why="How far kernels stay behind the peak differs from GPU to GPU.",
            remedies=[f"--gpu {found.gpu}", f"measure on {gpu}", "leave --calibration out: the plan shows ranges"],
        )
    return found


def _canonical(name: str) -> str:
    """The hardware table's own name of a GPU; a name that it does not know stays, and matches no plan."""
    from builder.planner.hardware import gpu as row_of

    try:
        return row_of(name).name
    except ForgeError:
        return name


def _ratio(name: str, row: Any) -> Ratio:
    ratio = float(row["ratio"])
    found = Ratio(ratio, float(row.get("low", ratio)), float(row.get("high", ratio)), int(row.get("samples", 1)))
    if not all(math.isfinite(value) and value > 0 for value in (found.low, found.ratio, found.high)):
        raise ValueError(f"{name}: ratios are positive numbers")
    if not found.low <= found.ratio <= found.high:
        raise ValueError(f"{name}: low {found.low:g}, ratio {found.ratio:g} and high {found.high:g} are out of order")
    return found


def _unreadable(path: Path, reason: str) -> ForgeError:
    return ForgeError(
        "TF-PLN-052",
        f"{path} is no calibration: {reason}",
        asked=f"--calibration {path}",
        why="A calibration is a JSON file with version, gpu, source and ratios by class of op.",
        remedies=["docs/planner.md shows the format", "leave --calibration out: the plan shows ranges"],
    )
