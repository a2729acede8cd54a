"""What a report is made of; renderers turn it into JSON, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Table:
    """Rows of text under column titles, with a caption of their own where a section has several tables."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""


@dataclass(frozen=True)
class Series:
    """Points of one line; ``labels`` annotate points, ``low`` and ``high`` are interval bounds."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    labels: tuple[str, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    @classmethod
    def of_intervals(cls, name: str, intervals: Mapping[str, Mapping[str, float]], scale: float = 1.0) -> Series:
        """A point for each label's ``value`` with its ``low`` and ``high``, all times ``scale``."""
        value, low, high = (tuple(scale * one[key] for one in intervals.values()) for key in ("value", "low", "high"))
        return cls(name, tuple(map(float, range(len(intervals)))), value, tuple(intervals), low, high)


@dataclass(frozen=True)
class Plot:
    """A plot. ``marks`` are x positions drawn as vertical lines with a caption.

    Kind ``difference``: points with their intervals about a line at zero (no difference), and ``limit``, what a gate
    allows, as another line.
    """

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    kind: Literal["line", "difference"] = "line"
    marks: tuple[tuple[float, str], ...] = ()
    limit: float | None = None


@dataclass(frozen=True)
class Section:
    """A titled part: an explanation, tables and plots."""

    title: str
    text: str = ""
    tables: tuple[Table, ...] = ()
    plots: tuple[Plot, ...] = ()
    preformatted: tuple[str, ...] = ()


@dataclass
class Report:
    """A whole report. ``data`` is the machine-readable figures that ``report.json`` holds.

    ``passed`` is None when no gate was missed but some have no verdict.
    """

    title: str
    verdict: str
    passed: bool | None
    sections: list[Section] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "verdict": self.verdict,
            "passed": self.passed,
            "data": self.data,
            "sections": [asdict(section) for section in self.sections],
        }
