"""Mixed precision: which linears must have one format, and which formats a target holds in one engine.

The facts are rows of ``mixing.yaml``; what a recipe asks in ``quantize.mixed`` is resolved here, for preflight and for
the quantizer alike.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from trtforge.formats.table import FormatRow, format_row, load_formats, resolve_group_size
from trtforge.ground.errors import ForgeError
from trtforge.ground.rows import Row, read_table
from trtforge.ground.versions import WHOLE
from trtforge.models.shape import matches

#: the algorithm of a checkpoint whose linears have several formats
MIXED = "MIXED_PRECISION"
_TABLE = Path(__file__).with_name("mixing.yaml")


class Product(Row):
    """Linears that are multiplied as one; group 1 of ``pattern`` is the same for all of them."""

    what: str
    pattern: str
    sources: tuple[str, ...]


class TargetMixing(Row):
    """The formats that a target holds side by side; ``why`` there are none."""

    formats: tuple[str, ...]
    why: str | None = None
    sources: tuple[str, ...]

    @model_validator(mode="after")
    def _says_why(self) -> TargetMixing:
        if (self.why is None) is not bool(self.formats):
            raise ValueError("exactly the targets without mixed formats say why")
        return self


class MixingTable(Row):
    """The whole of ``mixing.yaml``."""

    version: Annotated[Literal[1], WHOLE]
    products: tuple[Product, ...] = Field(min_length=1)
    one_pass: tuple[str, ...] = Field(min_length=2)
    experts: tuple[str, ...] = Field(min_length=1)
    usual: tuple[str, ...] = Field(min_length=2)
    targets: dict[str, TargetMixing]

    @model_validator(mode="after")
    def _known(self) -> MixingTable:
        known = {row.name for row in load_formats().formats}
        named = {name for target in self.targets.values() for name in target.formats}
        if strangers := {*self.one_pass, *self.experts, *named} - known:
            raise ValueError(f"{sorted(strangers)} are no rows of the format table")
        if unmixed := {*named, *self.usual} - set(self.one_pass):
            raise ValueError(f"{sorted(unmixed)} are not calibrated in one pass")
        return self


@functools.cache
def load_mixing() -> MixingTable:
    """The validated table (cached)."""
    return read_table(_TABLE, MixingTable)


@functools.cache
def _patterns() -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(row.pattern), row.what) for row in load_mixing().products)


def product_of(module: str) -> tuple[str, str] | None:
    """``(key, what)`` of the product that a linear is part of, equal for all its parts; None for one by itself."""
    for place, (pattern, what) in enumerate(_patterns()):
        found = pattern.match(module)
        if found is not None:
            return f"{place}:{found[1]}", what
    return None


def named_format(text: str) -> tuple[FormatRow, int | None]:
    """``int4_wo:64`` as its row and group size; None where no group is named.

    Raises:
        ForgeError: ``TF-QNT-001``, ``TF-QNT-009`` as :func:`trtforge.formats.table.format_row`; ``TF-QNT-050`` a group
            size that is no number.
    """
    name, colon, group = text.partition(":")
    row = format_row(name)
    if colon and not re.fullmatch(r"[1-9][0-9]{0,8}", group):
        raise ForgeError(
            "TF-QNT-050",
            f"{text} names no group size behind its colon",
            asked=text,
            why="A format is written by its name, or by its name, a colon and the values that share a scale.",
            remedies=[f"{name}:{size}" for size in row.group_sizes] or [name],
        )
    return row, int(group) if colon else None


def sized_format(text: str) -> tuple[FormatRow, int | None]:
    """As :func:`named_format`, with the format's default group size; ``TF-QNT-004`` one that it does not have."""
    row, group = named_format(text)
    return row, resolve_group_size(row, group)


def format_text(row: FormatRow, group: int | None) -> str:
    """How a recipe writes a format: its name, with the group size where that is not the default."""
    return row.name if group == row.default_group_size else f"{row.name}:{group}"


def mixable(names: Iterable[str], asked: str) -> None:
    """Refuse formats that one pass does not calibrate.

    Args:
        names: formats of the weights of one checkpoint.
        asked: how the recipe or the command says them.

    Raises:
        ForgeError: ``TF-QNT-017``.
    """
    known = load_mixing().one_pass
    searched = [name for name in dict.fromkeys(names) if name not in known]
    if searched:
        raise ForgeError(
            "TF-QNT-017",
            f"{', '.join(searched)} cannot be mixed with other formats",
            asked=asked,
            numbers={"can be mixed": list(known)},
            why="ModelOpt calibrates a model by one algorithm. Formats of maxima share one pass; a search for factors "
            "or a compensation of errors would change the other formats' linears too.",
            remedies=[f"mix {' and '.join(load_mixing().usual)}", f"quantize.format: {searched[0]} without mixed"],
        )


def not_mixed_on(target: str, names: Iterable[str]) -> tuple[list[str], str]:
    """The formats that a target does not hold beside others, and why."""
    own = load_mixing().targets[target]
    others = [name for name in dict.fromkeys(names) if name not in own.formats]
    why = own.why or f"{target} is known to hold these side by side: {', '.join(own.formats)}."
    return others, why


def mixable_on(target: str, names: Iterable[str], asked: str) -> None:
    """Refuse formats that a target does not hold in one engine; raises ``TF-QNT-017``."""
    others, why = not_mixed_on(target, names)
    if others:
        works = load_mixing().targets
        raise ForgeError(
            "TF-QNT-017",
            f"{target} does not hold {', '.join(others)} beside other formats",
            asked=f"{asked}, build.target: {target}",
            why=why,
            remedies=[f"build.target: {name}" for name, row in works.items() if not set(others) - set(row.formats)],
        )


def assign(
    mixed: Mapping[str, Sequence[str]], linears: Iterable[str], unquantized: Sequence[str]
) -> tuple[dict[str, str], list[str]]:
    """Which linears get another format than the recipe's own, and the patterns that fit none.

    Args:
        mixed: format → patterns of linears, by the rule of ``quantize.exclude``.
        linears: names of all linears.
        unquantized: patterns of those that are left out; they win.

    Raises:
        ForgeError: ``TF-QNT-019`` patterns of two formats take in one linear.
    """
    free = [name for name in linears if not any(matches(name, pattern) for pattern in unquantized)]
    found: dict[str, str] = {}
    idle = []
    for text, patterns in mixed.items():
        for pattern in patterns:
            fitting = [name for name in free if matches(name, pattern)]
            if not fitting:
                idle.append(pattern)
            for name in fitting:
                other = found.setdefault(name, text)
                if other != text:
                    raise _in_two(name, other, text, mixed)
    return found, idle


def _in_two(name: str, first: str, second: str, mixed: Mapping[str, Sequence[str]]) -> ForgeError:
    both = {text: [p for p in mixed[text] if matches(name, p)] for text in (first, second)}
    return ForgeError(
        "TF-QNT-019",
        f"{name} is to be {first} and {second}",
        asked="quantize.mixed: " + ", ".join(f"{text}: {patterns}" for text, patterns in both.items()),
        why="A linear has one format.",
        remedies=[f"quantize.mixed.{text}: patterns that do not take it in" for text in (second, first)],
    )


def torn_products(formats: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Products whose linears have several formats: what it is and where → format by linear.

    Args:
        formats: of every linear, the unquantized ones included.
    """
    parts: dict[str, dict[str, str]] = {}
    for name, text in formats.items():
        if (product := product_of(name)) is not None:
            key, what = product
            parts.setdefault(f"{what} of {key.partition(':')[2]}", {})[name] = text
    return {where: own for where, own in parts.items() if len(set(own.values())) > 1}
