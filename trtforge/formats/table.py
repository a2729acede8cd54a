"""The format table: which quantization formats and KV-cache modes exist, and what each one needs.

Policy: facts are rows of ``formats.yaml`` (validated when loaded), never ``if`` chains over names. An
unknown name is refused with the nearest known ones; a mode that no engine here can read is refused
with the reason, before anything is loaded or calibrated. Importing this module costs no torch.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import Field, field_validator, model_validator

from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.ground.rows import Row, read_table
from trtforge.ground.versions import WHOLE

#: the name of the row that changes nothing
UNQUANTIZED = "none"
_TABLE = Path(__file__).with_name("formats.yaml")

#: formats of the tensor cores; bf16 runs at the rate of fp16
ComputeFormat = Literal["fp32", "fp16", "fp8", "fp4", "int8"]


class Representation(Row):
    """How one operand (weights or activations) is stored: element type, block length, kinds of scales."""

    bits: int
    dtype: str
    block: int | Literal["group"] | None
    scale: str


class ModelOptConfig(Row):
    """Where a range of ModelOpt versions keeps the configuration: a constant or a preset file.

    ``method``: the calibration algorithm in the place of the configuration's own.
    """

    versions: str
    config: str | None = None
    preset: str | None = None
    method: str | None = None

    @field_validator("versions")
    @classmethod
    def _is_specifier(cls, value: str) -> str:
        SpecifierSet(value)
        return value

    @model_validator(mode="after")
    def _one_place(self) -> ModelOptConfig:
        if (self.config is None) == (self.preset is None):
            raise ValueError("name config or preset")
        return self


class TensorRule(Row):
    """One tensor of an exported linear: safetensors dtype (or ``any``) and shape over N, K and G."""

    dtype: str
    shape: tuple[str, ...]
    optional: bool = False

    def expected_shape(self, rows: int, columns: int, group: int | None) -> tuple[int, ...]:
        """The shape for a linear of [rows, columns]; a last block may be a partial one."""
        sizes = {"N": rows, "K": columns, "G": group or 1}
        shape = []
        for term in self.shape:
            numerator, _, denominator = term.partition("/")
            divisor = sizes.get(denominator) or int(denominator or 1)
            shape.append(-(-sizes[numerator] // divisor))
        return tuple(shape)


class CpuSupport(Row):
    """``exact``: computed as defined. ``emulated``: computed in float32 by this package, and labelled so."""

    quantize: Literal["exact", "emulated"]
    evaluate: Literal["exact", "emulated"]
    packed: bool = False


class Counted(Row):
    """What the planner counts of a weight format: ``block`` 0 is one scale a tensor, -1 one a row."""

    bits: int
    block: int = 0
    scale_bits: int = 0
    compute: ComputeFormat
    tensor_scales: int = 0
    fp8_attention: bool = False
    input_factors: bool = False
    known_as: tuple[str, ...] = ()


class FormatRow(Row):
    """One quantization format; see the head of ``formats.yaml`` for the fields."""

    name: str
    title: str
    summary: str
    weight: Representation | None
    activation: Representation | None
    modelopt: tuple[ModelOptConfig, ...]
    algorithm: str | None
    stored_as: str | None = None
    group_sizes: tuple[int, ...]
    default_group_size: int | None
    needs_calibration: bool
    tensors: dict[str, TensorRule]
    cpu: CpuSupport
    speedup_at_64: float | None = None
    native: tuple[str, ...]
    measured: str | None = None
    not_on: dict[str, str] = Field(default_factory=dict)
    planner: Counted | None
    sources: tuple[str, ...]

    @property
    def layout(self) -> str:
        """The row whose module reads and writes this format's tensors: its own, or that which it is stored as."""
        return self.stored_as or self.name

    @property
    def weight_only(self) -> bool:
        """Weights are quantized and inputs are not."""
        return self.weight is not None and self.activation is None

    @property
    def four_bits_for_wide_inputs(self) -> bool:
        """Weights of 4 bits for inputs that are not rounded: they save bandwidth, not arithmetic."""
        return self.weight_only and self.weight is not None and self.weight.bits == 4

    @property
    def rows_a_byte(self) -> int:
        """Rows of a linear that lie in one row of stored bytes: a cut between them would part a byte."""
        terms = [term for rule in self.tensors.values() for term in rule.shape if term.startswith("N/")]
        return max((int(term.removeprefix("N/")) for term in terms), default=1)

    @model_validator(mode="after")
    def _consistent(self) -> FormatRow:
        if self.weight is not None and not (self.modelopt and self.sources and self.algorithm and self.tensors):
            raise ValueError(f"{self.name}: a quantizing format names its ModelOpt configuration, tensors and sources")
        if (self.default_group_size is None) != (not self.group_sizes):
            raise ValueError(f"{self.name}: group_sizes and default_group_size come together")
        if self.default_group_size is not None and self.default_group_size not in self.group_sizes:
            raise ValueError(f"{self.name}: the default group size is not among the allowed ones")
        return self


class KvMode(Row):
    """One KV-cache mode. ``scales``: none, calibrated (stored) or constant (pinned to one, nothing stored)."""

    name: str
    title: str
    dtype: str | None
    pool: str | None
    bits: float | None
    scheme: str | None
    algorithm: str | None
    scales: Literal["none", "calibrated", "constant"]
    modelopt: tuple[ModelOptConfig, ...]
    supported: bool
    why: str | None
    sources: tuple[str, ...]

    @model_validator(mode="after")
    def _refusals_have_reasons(self) -> KvMode:
        if self.supported != (self.why is None):
            raise ValueError(f"{self.name}: exactly the unsupported modes say why")
        return self


class RefusedFormat(Row):
    """A way to quantize that is asked for by its name and not offered: who does not take it, and what is instead."""

    name: str
    title: str
    who: str
    why: str
    instead: tuple[str, ...]
    sources: tuple[str, ...]


class Scope(Row):
    """Which linears a format is for: patterns of those that it is not for."""

    name: str
    title: str
    exclude: tuple[str, ...]
    sources: tuple[str, ...]


class FirstChoice(Row):
    """What is offered where another format or cache does not fit."""

    weights: str
    kv_cache: str


class FormatTable(Row):
    version: Annotated[Literal[1], WHOLE]
    first_choice: FirstChoice
    removed: dict[str, tuple[str, ...]]
    rounded_inputs: dict[ComputeFormat, float]
    formats: tuple[FormatRow, ...] = Field(min_length=1)
    scopes: tuple[Scope, ...] = Field(min_length=1)
    refused: tuple[RefusedFormat, ...]
    counted: dict[str, Counted]
    kv_modes: tuple[KvMode, ...] = Field(min_length=1)
    counted_kv: dict[str, float]

    @model_validator(mode="after")
    def _unique(self) -> FormatTable:
        formats = [*(row.name for row in self.formats), *(row.name for row in self.refused)]
        for names in (formats, [row.name for row in self.kv_modes]):
            if len(set(names)) != len(names):
                raise ValueError(f"a name appears twice in {names}")
        layouts = {row.name for row in self.formats if row.stored_as is None}
        strangers = [row.name for row in self.formats if row.layout not in layouts]
        if strangers:
            raise ValueError(f"{strangers} are stored as a format that has no layout of its own")
        return self


@functools.cache
def load_formats() -> FormatTable:
    """The validated table (cached)."""
    return read_table(_TABLE, FormatTable)


def scope_exclude(name: str) -> tuple[str, ...]:
    """The patterns of linears that a scope leaves unquantized; a name that is no row is a fault of the caller."""
    return next(row.exclude for row in load_formats().scopes if row.name == name)


@functools.cache
def refused_formats() -> Mapping[str, RefusedFormat]:
    """The ways to quantize that are known by these names and not offered."""
    return {row.name: row for row in load_formats().refused}


def first_choice() -> str:
    """The weight format that is offered where another does not fit."""
    return load_formats().first_choice.weights


def fp8_attention(name: str) -> bool:
    """Whether TensorRT-LLM computes context attention in FP8 beside weights of a format, or of none."""
    row = counted_formats().get(name)
    return row is not None and row.fp8_attention


def quantizing_formats() -> tuple[str, ...]:
    """The formats that change weights, in the table's order."""
    return tuple(row.name for row in load_formats().formats if row.weight is not None)


def one_of(names: Sequence[str]) -> str:
    """``a, b or c``."""
    return " or ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


@functools.cache
def linear_parts() -> frozenset[str]:
    """What formats store beside a linear's weight: the last parts of the tensors' names."""
    return frozenset(leaf for row in load_formats().formats for leaf in row.tensors) - {"weight"}


#: the last parts of the names of an attention's KV scales
KV_LEAVES = ("k_scale", "v_scale")


@functools.cache
def formats_by_algorithm() -> Mapping[str, FormatRow]:
    """ModelOpt's ``quant_algo`` -> the format that it writes: the first of those that write the same."""
    found: dict[str, FormatRow] = {}
    for row in load_formats().formats:
        if row.algorithm is not None:
            found.setdefault(row.algorithm, row)
    return found


@functools.cache
def counted_formats() -> Mapping[str, Counted]:
    """What the planner counts of each weight format, the widest first."""
    table = load_formats()
    own = {row.name: row.planner for row in table.formats if row.planner is not None}
    return dict(sorted({**own, **table.counted}.items(), key=lambda item: -item[1].bits))


def counted_as(name: str) -> str | None:
    """The planner's format of what another tool calls ``name``."""
    return next((own for own, row in counted_formats().items() if name in row.known_as), None)


@functools.cache
def kv_modes_by(field: Literal["algorithm", "scheme"]) -> Mapping[str, KvMode]:
    """ModelOpt's name of a KV cache's algorithm, or config.json's of its scheme -> the first mode that it is."""
    found: dict[str, KvMode] = {}
    for row in load_formats().kv_modes:
        key = getattr(row, field)
        if key is not None:
            found.setdefault(key, row)
    return found


@functools.cache
def carried_kv() -> Mapping[str, KvMode]:
    """ModelOpt's name of a KV cache's algorithm -> the first mode of it that the chain carries to an engine."""
    return {name: row for name, row in kv_modes_by("algorithm").items() if row.supported}


def holds_e4m3(mode: str) -> bool:
    """Whether the KV pool of a mode holds E4M3: TensorRT-LLM's attention in FP8 reads no other."""
    return any(row.name == mode and row.dtype == "float8_e4m3fn" for row in load_formats().kv_modes)


def pool_format(mode: str) -> str | None:
    """The element type of the KV pool in a mode: None for the model's own, a name that is no mode as it is."""
    row = next((row for row in load_formats().kv_modes if row.name == mode), None)
    return mode if row is None else row.pool


@functools.cache
def kv_element_bits() -> Mapping[str, float]:
    """Bits of one stored key or value element by type of the pool, block scales included; the widest first."""
    table = load_formats()
    own = {row.pool: row.bits for row in table.kv_modes if row.pool is not None and row.bits is not None}
    return dict(sorted({**own, **table.counted_kv}.items(), key=lambda item: -item[1]))


def format_row(name: str) -> FormatRow:
    """The row of a format.

    Raises:
        ForgeError: ``TF-QNT-001`` with the nearest known names, ``TF-QNT-009`` known and refused.
    """
    rows = {row.name: row for row in load_formats().formats}
    refused = refused_formats().get(name)
    if refused is not None:
        raise ForgeError(
            "TF-QNT-009",
            f"{refused.title} is not offered: {refused.who} does not take it",
            asked=f"quantize.format: {name}",
            why=refused.why,
            remedies=[f"quantize.format: {other}" for other in refused.instead],
        )
    if name not in rows:
        raise _unknown("TF-QNT-001", "quantization format", "quantize.format", name, list(rows))
    return rows[name]


def kv_mode(name: str) -> KvMode:
    """The row of a KV-cache mode that the chain can carry to an engine.

    Raises:
        ForgeError: ``TF-QNT-002`` unknown, ``TF-QNT-003`` known but unreadable downstream.
    """
    rows = {row.name: row for row in load_formats().kv_modes}
    if name not in rows:
        raise _unknown("TF-QNT-002", "KV-cache mode", "quantize.kv_cache", name, list(rows))
    row = rows[name]
    if not row.supported:
        usable = [other.name for other in rows.values() if other.supported]
        raise ForgeError(
            "TF-QNT-003",
            f"KV-cache mode {name} cannot be served",
            asked=f"quantize.kv_cache: {name}",
            numbers={"usable": usable},
            why=row.why,
            remedies=[f"quantize.kv_cache: {other}" for other in (load_formats().first_choice.kv_cache, UNQUANTIZED)],
        )
    return row


def _unknown(code: str, what: str, key: str, name: str, known: Sequence[str]) -> ForgeError:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    return ForgeError(
        code,
        f"Unknown {what} {name!r}",
        asked=f"{key}: {name}",
        numbers={"known": list(known)},
        why="The name is no row of the format table.",
        remedies=[f"{key}: {other}" for other in (near or known)],
    )


def modelopt_config(row: FormatRow | KvMode, installed: str) -> ModelOptConfig:
    """Where ModelOpt ``installed`` keeps this row's configuration.

    Raises:
        EnvironmentLacks: ``TF-QNT-010`` when no range holds the version.
    """
    for entry in row.modelopt:
        if SpecifierSet(entry.versions, prereleases=True).contains(Version(installed)):
            return entry
    ranges = [entry.versions for entry in row.modelopt]
    raise EnvironmentLacks(
        "TF-QNT-010",
        f"ModelOpt {installed} has no configuration for {row.name}",
        asked=row.name,
        numbers={"installed": installed, "needed": ranges},
        why="The format table knows no configuration name for this version.",
        remedies=[f"pip install 'nvidia-modelopt{ranges[-1]}'" if ranges else "choose another format"],
    )


def resolve_group_size(row: FormatRow, asked: int | None) -> int | None:
    """The group size that a recipe gets: what it asked for, or the format's default; ``None`` without groups.

    Raises:
        ForgeError: ``TF-QNT-004`` when the format takes no group size, or not this one.
    """
    if asked is None:
        return row.default_group_size
    if asked in row.group_sizes:
        return asked
    choices = [f"quantize.group_size: {size}" for size in row.group_sizes]
    raise ForgeError(
        "TF-QNT-004",
        f"Format {row.name} takes no group size of {asked}",
        asked=f"quantize.group_size: {asked}",
        numbers={"group_size": asked, "allowed": list(row.group_sizes)},
        why="The format has one scale a tensor." if not row.group_sizes else "Kernels exist for the listed sizes only.",
        remedies=[*choices, "quantize.group_size: null"],
    )


def check_group_size(row: FormatRow, group: int | None, columns: dict[str, int]) -> None:
    """Refuse a group that leaves a partial block in any quantized linear.

    Args:
        row: the format.
        group: the resolved group size.
        columns: K (input width) of every linear that will be quantized, by module name.

    Raises:
        ForgeError: ``TF-K4-001`` with every offending width and the sizes that work.
    """
    if group is None:
        return
    offenders = {name: k for name, k in columns.items() if k % group}
    if not offenders:
        return
    works = [size for size in row.group_sizes if all(k % size == 0 for k in columns.values())]
    remedies = [f"quantize.group_size: {size}" for size in sorted(works, reverse=True)]
    if not remedies:
        remedies = [f"quantize.format: {first_choice()} (one scale a tensor, no groups)"]
        remedies.append(f"quantize.exclude: add {sorted(offenders)[0]} and its like")
    widths = sorted(set(offenders.values()))
    raise ForgeError(
        "TF-K4-001",
        f"A group of {group} does not divide the input width of {len(offenders)} linears",
        asked=f"quantize.format: {row.name}, quantize.group_size: {group}",
        numbers={
            "group_size": group,
            "widths": widths,
            "remainders": {str(k): k % group for k in widths},
            "linears": sorted(offenders)[:8],
            "works": works,
        },
        why="Every row of a weight is cut into whole groups; a partial group has no scale and fails at export.",
        remedies=remedies,
    )
