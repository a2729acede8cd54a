"""``bench --baseline``: an earlier load test, read and held against the new one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import read_json_file
from trtforge.ground.units import parse_fraction

if TYPE_CHECKING:
    from evals.speed.baseline import Comparison
    from evals.speed.outcome import Outcome
    from trtforge.ground.console import Console


@dataclass(frozen=True)
class Baseline:
    """What ``--baseline`` and ``--tolerance`` named."""

    asked: str
    outcome: Outcome
    tolerance: float


def baseline_of(path: Path | None, tolerance: str) -> Baseline | None:
    """The earlier run; None: none was named.

    Raises:
        ForgeError: TF-BEN-027 it is no load test's result; TF-BEN-028 the tolerance is no share.
    """
    try:
        share = parse_fraction(tolerance)
    except ValueError as error:
        raise ForgeError(
            "TF-BEN-028",
            f"--tolerance {tolerance} is no share",
            asked=f"--tolerance {tolerance}",
            why=str(error),
            remedies=["--tolerance 10%"],
        ) from None
    if path is None:
        return None
    from evals.speed.outcome import Outcome

    try:
        return Baseline(str(path), Outcome.of_json(_figures(path)), share)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ForgeError(
            "TF-BEN-027",
            f"{path} holds no load test's result",
            asked=f"--baseline {path}",
            why=f"{type(error).__name__}: {error}",
            remedies=["a bundle, or its evidence/bench.json", "report.json of trtforge bench BUNDLE -o FOLDER"],
        ) from error


def _figures(path: Path) -> Mapping[str, Any]:
    """bench.json's content: of a bundle, an artifact, a report, or what ``--json`` printed."""
    if path.is_dir():
        names = ("evidence/bench.json", "bench.json", "report.json")
        path = next((path / name for name in names if (path / name).is_file()), path / names[0])
    found = read_json_file(path)
    if "sweeps" not in found and isinstance(found.get("data"), dict):
        found = found["data"]
    return dict(found)


def hold(console: Console, earlier: Baseline, figures: Mapping[str, Any]) -> Comparison:
    """The new run's figures against the earlier ones, shown; raises TF-BEN-026 where they are not alike."""
    from evals.speed.baseline import compare_runs
    from evals.speed.outcome import Outcome

    comparison = compare_runs(earlier.outcome, Outcome.of_json(figures), earlier.tolerance, earlier.asked)
    table = comparison.table()
    console.table(f"Against {earlier.asked}", list(table.columns), [list(row) for row in table.rows])
    if comparison.only_one:
        console.print(f"not compared, because one run lacks them: {', '.join(comparison.only_one)}")
    if not comparison.passed:
        console.print(f"worse by more than {comparison.tolerance:.0%}: {'; '.join(comparison.worse)}")
    return comparison
