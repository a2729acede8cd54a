"""The tables of feature combinations and of kernel shapes; rows are data, :mod:`trtforge.preflight` reads them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from trtforge.ground.rows import Row, read_table
from trtforge.tables import DAY, LINK, refuse_repeats

_KIND = r"^K\d{1,2}$"


class Need(Row):
    """A feature that works only together with another one on these targets."""

    feature: str
    needs: str
    targets: tuple[str, ...] = Field(min_length=1)
    kind: str = Field(pattern=_KIND)
    why: str
    source: str = Field(pattern=LINK)
    since: str | None = None
    until: str | None = None


class Combination(Row):
    """Features that do not go together on these targets, or of which nobody says so."""

    features: tuple[str, ...] = Field(min_length=2)
    support: Literal["no", "untested", "disputed"]
    targets: tuple[str, ...] = Field(min_length=1)
    kind: str = Field(pattern=_KIND)
    why: str
    source: str = Field(pattern=LINK)
    since: str | None = None
    until: str | None = None


class Method(Row):
    """Whether a target has a speculation method, and whether that takes a draft model or heads."""

    target: str
    method: str
    support: Literal["yes", "no"]
    draft: Literal["required", "none"]
    instead: str | None = None
    architectures: tuple[str, ...] = Field((), description="Models that its drafter is written beside; none: any")
    source: str = Field(pattern=LINK)


class Effect(Row):
    """A recipe key that only some targets, layouts or methods read; an empty list means all."""

    key: str
    targets: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    why: str


class FeatureTable(Row):
    as_of: str = Field(pattern=DAY)
    needs: tuple[Need, ...]
    combinations: tuple[Combination, ...]
    methods: tuple[Method, ...]
    drafting_layouts: dict[str, tuple[str, ...]]
    effects: tuple[Effect, ...]
    refusals: tuple[Effect, ...]
    serving: tuple[Effect, ...]

    @model_validator(mode="after")
    def _unique(self) -> FeatureTable:
        pairs = [(row.target, row.method) for row in self.methods]
        keys = [row.key for row in (*self.effects, *self.refusals, *self.serving)]
        refuse_repeats([*pairs, *keys], "a method of a target or a key of effects, refusals or serving stands twice")
        return self

    def method(self, target: str, method: str) -> Method | None:
        """The row of a target's method, or None when the target has no row for it."""
        return next((row for row in self.methods if (row.target, row.method) == (target, method)), None)

    def methods_of(self, target: str) -> list[Method]:
        return [row for row in self.methods if row.target == target and row.support == "yes"]

    def targets_of(self, method: str) -> list[str]:
        return [row.target for row in self.methods if row.method == method and row.support == "yes"]


class Kernel(Row):
    """The shapes that a format's kernel takes on these targets and architectures."""

    format: str
    targets: tuple[str, ...] = Field(min_length=1)
    architectures: tuple[str, ...] = Field(min_length=1)
    kernel: str
    groups: tuple[int, ...] | None
    k: int = Field(gt=0, description="A rank's input width is a multiple")
    n: int = Field(gt=0, description="A rank's output width is a multiple")
    source: str = Field(pattern=LINK)
    says: str


class AttentionKernel(Row):
    """The head sizes that an attention has kernels for, on these targets and architectures (none named: on all).

    ``attention``: ``decode`` is that of every answer's tokens, ``fp8-context`` context attention in FP8, ``fp8-kv``
    attention over an FP8 KV cache. ``otherwise``: other head sizes are refused (``no``) or computed without a fused
    kernel (``slow``).
    """

    attention: Literal["decode", "fp8-context", "fp8-kv"]
    targets: tuple[str, ...] = Field(min_length=1)
    architectures: tuple[str, ...] = ()
    head_sizes: tuple[int, ...] = Field(min_length=1)
    otherwise: Literal["no", "slow"]
    since: str | None = None
    until: str | None = None
    source: str = Field(pattern=LINK)
    says: str


class KernelTable(Row):
    as_of: str = Field(pattern=DAY)
    rows: tuple[Kernel, ...] = Field(min_length=1)
    attention: tuple[AttentionKernel, ...] = ()

    @model_validator(mode="after")
    def _unique(self) -> KernelTable:
        pairs = [(row.format, target) for row in self.rows for target in row.targets]
        refuse_repeats(pairs, "a format has two rows for one target")
        return self

    def decoding(self, target: str) -> tuple[int, ...]:
        """The head sizes that a target decodes with; empty when nothing is stated."""
        rows = (row for row in self.attention if row.attention == "decode" and target in row.targets)
        return next((row.head_sizes for row in rows), ())

    def row(self, format: str, target: str) -> Kernel | None:
        """The kernel of a format on a target, or None when nothing is known of its shapes."""
        return next((row for row in self.rows if row.format == format and target in row.targets), None)


@cache
def feature_table() -> FeatureTable:
    """Which features go together."""
    return read_table(Path(__file__).with_name("features.yaml"), FeatureTable)


@cache
def kernel_table() -> KernelTable:
    """Which shapes kernels take."""
    return read_table(Path(__file__).with_name("kernels.yaml"), KernelTable)
