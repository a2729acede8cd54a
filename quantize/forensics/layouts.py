"""How tools store a quantized linear: rows of ``layouts.yaml``, and of the format table for ModelOpt's own formats.

Shapes are terms over what is known of a linear (:class:`Sizes`); a group that does not divide its columns has no
shape, and is the caller's to report.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Annotated, Literal

from trtforge.formats.table import UNQUANTIZED, FormatRow, TensorRule, format_row, formats_by_algorithm, load_formats
from trtforge.ground.rows import Row, read_table
from trtforge.ground.versions import WHOLE

Kind = Literal["weight", "scale", "global", "divisor", "input", "factor", "exponent", "zero", "index", "size", "bias"]
#: kinds whose values multiply or divide: finite and positive
FACTORS = frozenset({"scale", "global", "divisor", "input", "factor"})
#: what each part of ModelOpt's formats is; a part that is not named multiplies
_MODELOPT_KINDS: Mapping[str, Kind] = {
    "weight": "weight",
    "weight_scale": "scale",
    "weight_scale_2": "global",
    "input_scale": "input",
    "pre_quant_scale": "factor",
}


class Part(Row):
    """One tensor of a linear. ``when``: only where the scheme is so (else the part must not be there)."""

    dtypes: tuple[str, ...] = ()
    shape: tuple[str | int, ...] | Literal["scalar", "strategy"] | None = None
    kind: Kind
    optional: bool = False
    when: Literal["asymmetric", "ordered", "static", "inputs"] | None = None
    rule: TensorRule | None = None


class Layout(Row):
    """One row. ``two_level``: scales of blocks under one scale a tensor."""

    name: str
    algorithms: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    trtllm: tuple[str, ...] = ()
    weight: str
    two_level: bool = False
    group: int | None = None
    parts: dict[str, Part]
    source: str

    @property
    def weight_part(self) -> Part:
        return self.parts[self.weight]


class _Table(Row):
    version: Annotated[Literal[1], WHOLE]
    layouts: tuple[Layout, ...]
    unlisted: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Sizes:
    """What the shapes are made of: rows N, columns K, group G, weights P a stored element, block R x C, experts E."""

    rows: int
    columns: int
    group: int | None
    packed: Fraction = Fraction(1)
    block: tuple[int, int] | None = None
    experts: int = 1

    def _value(self, symbol: str) -> Fraction:
        block = self.block or (1, 1)
        known: dict[str, int | Fraction] = {
            "N": self.rows,
            "K": self.columns,
            "G": self.group or self.columns or 1,
            "P": self.packed,
            "R": block[0],
            "C": block[1],
            "E": self.experts,
        }
        return Fraction(known[symbol]) if symbol in known else Fraction(symbol)

    def term(self, term: str | int) -> int | None:
        """The length that a term says; None where a division leaves a rest."""
        text = str(term)
        for sign in "/^":
            if sign in text:
                above, _, below = text.partition(sign)
                quotient = self._value(above) / self._value(below)
                if sign == "^":
                    return ceil(quotient)
                return int(quotient) if quotient.denominator == 1 else None
        return int(self._value(text))


@functools.cache
def load_layouts() -> _Table:
    """The validated table (cached)."""
    return read_table(Path(__file__).with_name("layouts.yaml"), _Table)


def layout_named(name: str) -> Layout:
    """The row of that name."""
    return next(row for row in load_layouts().layouts if row.name == name)


def unlisted(tool: str) -> tuple[str, ...]:
    """Patterns of the modules that a tool leaves unquantized without naming them."""
    return load_layouts().unlisted.get(tool, ())


def own_format(algorithm: str | None) -> FormatRow | None:
    """The format that is offered here under a ``quant_algo``, the unquantized one for None; None: there is none."""
    return format_row(UNQUANTIZED) if algorithm is None else formats_by_algorithm().get(algorithm)


@functools.cache
def modelopt_layout(algorithm: str) -> Layout | None:
    """How ModelOpt stores the linears of a ``quant_algo``; None for one that no row knows."""
    own = own_format(algorithm)
    if own is not None:
        return _of_format(own)
    return next((row for row in load_layouts().layouts if algorithm in row.algorithms), None)


@functools.cache
def known_algorithms() -> tuple[str, ...]:
    """Every ``quant_algo`` of ModelOpt that has a layout."""
    others = {name for row in load_layouts().layouts for name in row.algorithms}
    return tuple(sorted(formats_by_algorithm().keys() | others))


def trtllm_layout(algorithm: str) -> Layout | None:
    """How a TensorRT-LLM checkpoint stores the linears of a ``quant_algo``; None for one without a row."""
    return next((row for row in load_layouts().layouts if algorithm in row.trtllm), None)


def compressed_layout(form: str) -> Layout | None:
    """How compressed-tensors stores the linears of a ``format``."""
    return next((row for row in load_layouts().layouts if form in row.formats), None)


def _of_format(row: FormatRow) -> Layout:
    parts = {
        leaf: Part(
            dtypes=() if rule.dtype == "any" else (rule.dtype,),
            shape=rule.shape,
            kind=_kind_of(leaf, rule),
            optional=rule.optional,
            rule=rule,
        )
        for leaf, rule in row.tensors.items()
    }
    two_level = "weight_scale_2" in parts
    return Layout(
        name=row.name,
        algorithms=(row.algorithm or "",),
        weight="weight",
        two_level=two_level,
        group=row.default_group_size,
        parts=parts,
        source=row.sources[0],
    )


def _kind_of(leaf: str, rule: TensorRule) -> Kind:
    if leaf == "weight_scale" and rule.dtype in ("U8", "F8_E8M0"):
        return "exponent"
    return _MODELOPT_KINDS.get(leaf, "scale")


@functools.cache
def weight_parts() -> frozenset[str]:
    """Every part that holds the weight in some layout."""
    return frozenset({"weight", *(row.weight for row in load_layouts().layouts)})


@functools.cache
def all_parts() -> frozenset[str]:
    """Every part that some layout stores beside a weight."""
    own = {leaf for row in load_formats().formats for leaf in row.tensors}
    found = own | {leaf for row in load_layouts().layouts for leaf in row.parts if row.parts[leaf].kind != "bias"}
    return frozenset(found - {"weight"})
