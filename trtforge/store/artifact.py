"""What stages hand on: a published directory, what a stage reports beside it, and a gate's verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Artifact:
    """A published stage directory: its content key and where it lies."""

    stage: str
    key: str
    path: Path
    manifest: Mapping[str, Any]

    @property
    def summary(self) -> Mapping[str, Any]:
        """The figures that the stage reported (see :class:`StageResult`)."""
        return self.manifest["summary"]


@dataclass(frozen=True)
class GateResult:
    """One gate's verdict, with the figures that decided it.

    ``bound`` is the end of the measured figure's interval that was held against ``limit``; None where the figure itself
    was (manifests of earlier versions have the bound in ``measured``). A gate that compares two models says both of
    their figures in ``baseline`` and ``candidate``, and the interval of their difference in ``low`` and ``high``.
    """

    name: str
    passed: bool
    measured: float
    limit: float
    detail: str
    bound: float | None = None
    baseline: float | None = None
    candidate: float | None = None
    low: float | None = None
    high: float | None = None

    def figures(self) -> dict[str, float]:
        """The figures as an error's numbers."""
        pair = {"baseline": self.baseline, "candidate": self.candidate}
        span = {"low": self.low, "high": self.high, "bound": self.bound}
        said = {name: value for name, value in (pair | {"measured": self.measured} | span).items() if value is not None}
        return {**said, "limit": self.limit}


@dataclass
class StageResult:
    """What a stage hands back beside the files that it wrote.

    ``summary`` holds deterministic figures: it is part of the artifact's content hash. Figures that vary
    from run to run (times, rates) go to ``measurements``, and files that hold such figures are named by
    the patterns of ``measured`` (``fnmatch`` over posix paths below ``out``). ``stamps`` are what a
    machine must match to use the artifact. ``handed_out``: people work in the artifact's folder, so it shares no file
    that they could write to (see :mod:`trtforge.store.objects`).
    """

    summary: dict[str, Any] = field(default_factory=dict)
    gates: list[GateResult] = field(default_factory=list)
    measurements: dict[str, Any] = field(default_factory=dict)
    measured: tuple[str, ...] = ()
    stamps: dict[str, Any] = field(default_factory=dict)
    handed_out: bool = False
