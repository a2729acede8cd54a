"""The linears of a model by kind, which of them exclude patterns leave, and whether its keys bear eight bits."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from trtforge.models.record import Model, projections
from trtforge.tables.decoders import decoders

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "int8": 1}


@dataclass(frozen=True)
class Linear:
    """A kind of linear layer: module names, [N, K], and along which side tensor parallelism cuts it."""

    kind: str
    names: tuple[str, ...]
    rows: int
    columns: int
    split: str  # "rows" or "columns"


#: a key bias that E4M3 rounds by up to 1 (three mantissa bits: a sixteenth), as much as the other elements are large
LARGE_KEY_BIAS = 16.0


@dataclass(frozen=True)
class OutlierKeys:
    """Why a model's keys do not bear eight bits: the bias that was read, or what is reported of its class."""

    key_bias: float | None
    source: str | None

    def __str__(self) -> str:
        if self.key_bias is None:
            return "models of this class have keys with large biases"
        return f"the biases of the keys reach {self.key_bias:.3g}"


def outlier_keys(model: Model) -> OutlierKeys | None:
    """Whether eight-bit keys would cost the model its quality: by the bias that was read, else by its class."""
    if model.key_bias is not None:
        return OutlierKeys(model.key_bias, None) if model.key_bias >= LARGE_KEY_BIAS else None
    row = decoders().get(model.architecture)
    return OutlierKeys(None, row.outlier_keys[0].url) if row is not None and row.outlier_keys else None


def linears(model: Model) -> list[Linear]:
    """The linears of a decoder, one entry a kind; the head is cut along the vocabulary."""
    result = [
        Linear(
            linear.path.rpartition(".")[2],
            tuple(f"model.layers.{i}.{linear.path}" for i in range(model.layers)),
            linear.rows,
            linear.columns,
            linear.split,
        )
        for linear in projections(model)
    ]
    result.append(Linear("lm_head", ("lm_head",), model.vocab, model.hidden, "rows"))
    return result


def width(linear: Linear, tp: int) -> float:
    """K of a linear on one rank."""
    return linear.columns / tp if linear.split == "columns" else float(linear.columns)


def fits(quantized: Iterable[Linear], tp: int, group: int) -> bool:
    """Whether whole groups fill every rank's K."""
    return all(width(linear, tp) % group == 0 for linear in quantized)


@functools.lru_cache(maxsize=1024)
def _any_form(pattern: str) -> re.Pattern[str]:
    forms = (pattern, f"{pattern}.*", f"*.{pattern}", f"*.{pattern}.*")
    return re.compile("|".join(map(fnmatch.translate, forms)))


def matches(name: str, pattern: str) -> bool:
    """Whether an exclude pattern (a module name, a part of it, or a glob) takes in module ``name``."""
    return _any_form(pattern).match(name) is not None


def quantized_linears(model: Model, exclude: Iterable[str]) -> list[Linear]:
    """The kinds of linears that the exclude list leaves (a kind stays while any of its layers does)."""
    patterns = tuple(exclude)
    return [
        linear
        for linear in linears(model)
        if not all(any(matches(name, pattern) for pattern in patterns) for name in linear.names)
    ]


def linear_parameters(model: Model, exclude: Iterable[str]) -> int:
    """How many weights the quantized linears hold together."""
    return sum(linear.rows * linear.columns * len(linear.names) for linear in quantized_linears(model, exclude))
