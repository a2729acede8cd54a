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
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict

from trtforge.formats.table import FormatRow, TensorRule, load_formats

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


class Part(BaseModel):
    """One tensor of a linear. ``when``: only where the scheme is so (else the part must not be there)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dtypes: tuple[str, ...] = ()
    shape: tuple[str | int, ...] | Literal["scalar", "strategy"] | None = None
    kind: Kind
    optional: bool = False
    when: Literal["asymmetric", "ordered", "static", "inputs"] | None = None
    rule: TensorRule | None = None


class Layout(BaseModel):
    """One row. ``two_level``: scales of blocks under one scale a tensor."""

    model_config = ConfigDict(extra="forbid", frozen=True)

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


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1]
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
    return _Table.model_validate(yaml.safe_load(Path(__file__).with_name("layouts.yaml").read_text(encoding="utf-8")))


def layout_named(name: str) -> Layout:
    """The row of that name."""
    return next(row for row in load_layouts().layouts if row.name == name)


def unlisted(tool: str) -> tuple[str, ...]:
    """Patterns of the modules that a tool leaves unquantized without naming them."""
    return load_layouts().unlisted.get(tool, ())


@functools.cache
def modelopt_layout(algorithm: str) -> Layout | None:
    """How ModelOpt stores the linears of a ``quant_algo``; None for one that no row knows."""
    own = next((row for row in load_formats().formats if row.algorithm == algorithm), None)
    if own is not None:
        return _of_format(own)
    return next((row for row in load_layouts().layouts if algorithm in row.algorithms), None)


@functools.cache
def known_algorithms() -> tuple[str, ...]:
    """Every ``quant_algo`` of ModelOpt that has a layout."""
    own = {row.algorithm for row in load_formats().formats if row.algorithm is not None}
    return tuple(sorted(own | {name for row in load_layouts().layouts for name in row.algorithms}))


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


def all_parts() -> frozenset[str]:
    """Every part that some layout stores beside a weight."""
    own = {leaf for row in load_formats().formats for leaf in row.tensors}
    found = own | {leaf for row in load_layouts().layouts for leaf in row.parts if row.parts[leaf].kind != "bias"}
    return frozenset(found - {"weight"})
