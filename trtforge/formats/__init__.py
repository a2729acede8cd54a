"""Quantization formats: a row of ``formats.yaml`` and a module of its name each (:mod:`trtforge.formats.base`)."""

from __future__ import annotations

import functools
import importlib

from trtforge.formats.base import Format
from trtforge.formats.table import UNQUANTIZED, format_row, formats_by_algorithm, load_formats


@functools.cache
def formats() -> tuple[Format, ...]:
    """Every format with a layout of its own, in the table's order."""
    rows = (row for row in load_formats().formats if row.stored_as is None)
    return tuple(importlib.import_module(f"{__name__}.{row.name}").Method(row) for row in rows)


def format_named(name: str) -> Format:
    """The format of a layout's name; a name that is none is a fault of the caller."""
    return next(format for format in formats() if format.name == name)


@functools.cache
def format_of_row(name: str) -> Format:
    """A row's format, with the row's own tensors: the module of its layout."""
    row = format_row(name)
    return type(format_named(row.layout))(row)


def format_of_algorithm(algorithm: str | None) -> Format | None:
    """The format that ModelOpt's ``quant_algo`` writes, the unquantized one for None; None: there is none."""
    row = format_row(UNQUANTIZED) if algorithm is None else formats_by_algorithm().get(algorithm)
    return None if row is None else format_of_row(row.name)


@functools.cache
def format_of_kind(kind: str) -> Format | None:
    """The format that an executor describes as ``kind``; None for weights that are not quantized."""
    return next((format for format in formats() if format.kind == kind), None)
