"""What formats were measured to lose (``losses.yaml``): a published figure of the nearest model that is not larger."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import Field

from trtforge.formats.table import FormatRow
from trtforge.ground.rows import Row, read_table

_TABLE = Path(__file__).with_name("losses.yaml")


class Figure(Row):
    """A measured loss: a share of 1 of a metric, of a model with so many parameters."""

    parameters: int = Field(gt=0)
    loss: float = Field(ge=0)
    metric: str
    source: str = Field(pattern=r"^(https://|docs/)\S+$")


class _Loss(Row):
    weights: str
    inputs: str | None
    figures: tuple[Figure, ...] = Field(min_length=1)


class _Losses(Row):
    as_of: str = Field(pattern=r"^\d{4}-\d{2}-\d{2}$")
    rows: tuple[_Loss, ...]


@cache
def _losses() -> _Losses:
    return read_table(_TABLE, _Losses)


def expected_loss(row: FormatRow, parameters: int) -> Figure | None:
    """The figure of the largest measured model that is not larger than ``parameters``, else of the smallest one.

    Larger models lose less, so it errs on the side of caution. Where only rounded inputs were measured, they bound what
    the same weights lose without. None: nothing is published of these element types.
    """
    figures = _figures(row)
    fitting = [figure for figure in figures if figure.parameters <= parameters]
    return fitting[-1] if fitting else figures[0] if figures else None


def next_figure(row: FormatRow, parameters: int) -> Figure | None:
    """The figure of the smallest measured model that is larger than the one of :func:`expected_loss`."""
    known = expected_loss(row, parameters)
    return next((item for item in _figures(row) if known is not None and item.parameters > known.parameters), None)


def _figures(row: FormatRow) -> list[Figure]:
    """What was measured of a format's element types, by the size of the model."""
    if row.weight is None:
        return []
    inputs = row.activation.dtype if row.activation is not None else None
    rows = [item for item in _losses().rows if item.weights == row.weight.dtype]
    exact = [item for item in rows if item.inputs == inputs]
    figures = [figure for item in exact for figure in item.figures]
    if not exact and inputs is None:
        # a bound, and said to be one
        bounds = [figure for item in rows for figure in item.figures]
        figures = [item.model_copy(update={"metric": f"{item.metric} with rounded inputs"}) for item in bounds]
    return sorted(figures, key=lambda item: item.parameters)
