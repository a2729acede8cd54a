"""What the planner's parts hand to each other: the model, its precision, how it is split, and the load.

Everything is frozen and JSON-able through :func:`dataclasses.asdict`. Shape letters as everywhere: T tokens in
a step, B requests, V vocabulary, D width, H heads, K kv heads, E head size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from trtforge.formats.table import ComputeFormat
from trtforge.ground.errors import ExitCode, ForgeError
from trtforge.models.kv_window import KvWindows
from trtforge.models.record import Model

Goal = Literal["latency", "throughput", "fit"]


@dataclass(frozen=True)
class WeightFormat:
    """How a quantized linear is stored: ``bits`` a value, and a scale of ``scale_bits`` for ``block`` values.

    ``block`` 0 means one scale a tensor, -1 one a row. ``compute`` is the format the tensor cores run in on a GPU
    that has it (:meth:`builder.planner.hardware.Gpu.flops`); weight-only formats compute in fp16.
    """

    name: str
    bits: int
    block: int
    scale_bits: int
    compute: ComputeFormat
    tensor_scales: int = 0
    input_factors: bool = False


@dataclass(frozen=True)
class Precision:
    """Formats of the linears, of everything else (``base``) and of the KV cache; keys of ``builder.planner.precision``.

    ``exclude`` holds patterns of linears that keep ``base``, as the recipe's ``quantize.exclude``; ``mixed`` other
    formats with their group sizes and the patterns of their linears, as ``quantize.mixed``.
    """

    weights: str = "bfloat16"
    base: str = "bfloat16"
    kv: str = "bfloat16"
    group_size: int | None = None
    exclude: tuple[str, ...] = ("lm_head",)
    mixed: tuple[tuple[str, int | None, tuple[str, ...]], ...] = ()


@dataclass(frozen=True)
class ParallelPlan:
    """How one replica is split, as TensorRT-LLM counts: ``tp`` x ``pp`` GPUs; ``ep`` divides ``tp``.

    In a layer of experts the tp group holds ``ep`` groups of experts, each split ``tp / ep`` ways along the
    experts' width (moe_tp x moe_ep = tp). Source: https://nvidia.github.io/TensorRT-LLM/advanced/expert-parallelism.html
    """

    tp: int = 1
    pp: int = 1
    ep: int = 1

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.pp

    def __str__(self) -> str:
        return f"tp{self.tp} pp{self.pp}" + (f" ep{self.ep}" if self.ep > 1 else "")


@dataclass(frozen=True)
class Term:
    """One summand of a memory plan.

    ``bytes`` is what the plan counts; ``low`` and ``high`` bound it where it is an estimate (equal otherwise).
    ``formula`` is the arithmetic with its numbers filled in; ``kind`` groups terms in charts.
    """

    name: str
    kind: Literal["weights", "draft", "activations", "kv", "runtime", "others"]
    bytes: int
    formula: str
    low: int
    high: int
    source: str | None = None


@dataclass(frozen=True)
class KvPool:
    """The paged pool of one rank: ``blocks`` of ``block_size`` tokens, ``bytes_per_block`` each (draft included).

    A block of the pool holds ``block_size`` tokens of one request in every layer of the rank; the pool's tokens are
    the replica's, because every rank holds its heads and layers of the same tokens.
    """

    bytes: int
    block_size: int
    bytes_per_token: int
    bytes_per_block: int
    blocks: int
    sized_by: str

    @property
    def tokens(self) -> int:
        """Tokens that fit."""
        return self.blocks * self.block_size


@dataclass(frozen=True)
class MemoryPlan:
    """Memory of the GPU of one rank (a pipeline stage; its tensor-parallel ranks are alike)."""

    stage: int
    terms: tuple[Term, ...]
    pool: KvPool
    capacity: int

    @property
    def total(self) -> int:
        """Sum of all terms, the pool included."""
        return sum(term.bytes for term in self.terms)

    @property
    def bounds(self) -> tuple[int, int]:
        """The smallest and the largest sum; a pool that is a share of what is free is large where the rest is not."""
        pools = [term for term in self.terms if term.kind == "kv"]
        rest = [term for term in self.terms if term.kind != "kv"]
        low = sum(term.low for term in rest) + sum(term.high for term in pools)
        return low, sum(term.high for term in rest) + sum(term.low for term in pools)

    @property
    def free(self) -> int:
        """What stays free; negative when it does not fit."""
        return self.capacity - self.total

    @property
    def fits(self) -> bool:
        """Whether the plan's total lies inside the GPU's visible memory."""
        return self.free >= 0

    def of(self, kind: str) -> int:
        """Bytes of all terms of one kind."""
        return sum(term.bytes for term in self.terms if term.kind == kind)


def holds(plans: Sequence[MemoryPlan]) -> bool:
    """Whether every stage fits its GPU with a pool of at least one block."""
    return all(plan.fits and plan.pool.blocks > 0 for plan in plans)


@dataclass(frozen=True)
class Length:
    """Requests with ``isl`` prompt tokens and ``osl`` answer tokens; ``share`` is their weight."""

    isl: int
    osl: int
    share: float = 1.0


@dataclass(frozen=True)
class Workload:
    """The load: lengths with shares that sum to 1, the part of every prompt that is common, and the arrival rate.

    ``kind`` says where it comes from: ``fixed``, ``histogram`` or ``trace``. Build one with
    ``builder.planner.workload``.
    """

    kind: Literal["fixed", "histogram", "trace"]
    lengths: tuple[Length, ...]
    shared_prefix: int = 0
    rate: float | None = None
    source: str | None = None
    #: what a capacity was asked before, by block, window and shared tokens: a trace has very many lengths
    demands: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def table(self) -> npt.NDArray[np.float64]:
        """[3, N]: prompt tokens, answer tokens and share of every length."""
        rows = [(item.isl, item.osl, item.share) for item in self.lengths]
        return np.asarray(rows, dtype=np.float64).T

    @cached_property
    def mean_isl(self) -> float:
        """Average prompt length in tokens."""
        return float(np.dot(self.table[0], self.table[2]))

    @cached_property
    def mean_osl(self) -> float:
        """Average answer length in tokens."""
        return float(np.dot(self.table[1], self.table[2]))

    @cached_property
    def longest(self) -> int:
        """Tokens of the longest request."""
        return max(item.isl + item.osl for item in self.lengths)


@dataclass(frozen=True)
class Table:
    """A table for people: a title, column heads, rows of text or numbers."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Section:
    """One part of the report. ``data`` is what ``--json`` prints; ``headline`` one sentence; ``notes`` more of them.

    A section that has nothing to say for a recipe returns None instead of a Section.
    """

    name: str
    title: str
    headline: str
    data: Mapping[str, Any]
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Serving:
    """What the engine is built for: the recipe's limits and KV settings, and the speculation's extra tokens.

    ``pool_bytes`` (absolute, a GPU) wins over ``free_fraction`` (of what weights and workspace leave). ``windows``
    says what the layers' caches keep of a request; without it every layer keeps the whole context. ``draft_kv`` is the
    format of a draft's keys and values; None: the target's.
    """

    max_batch_size: int
    max_num_tokens: int
    max_seq_len: int
    block_size: int = 32
    pool_bytes: int | None = None
    free_fraction: float = 0.9
    draft_tokens: int = 0
    windows: KvWindows | None = None
    draft_kv: str | None = None


@dataclass(frozen=True)
class Beside:
    """What the GPUs hold beside the model.

    ``draft`` is a draft model of speculative decoding, split and cached like the target on the last stage, ``weights``
    its groups as they are served; ``reserved`` are bytes of each GPU that other models hold.
    """

    draft: Model | None = None
    weights: Sequence[Any] = ()
    reserved: int = 0


ALONE = Beside()


@dataclass(frozen=True)
class Facts:
    """Everything a section may read. ``memory`` has one plan a pipeline stage, in order.

    ``weights`` are the model's tensor groups (``builder.planner.weights``), per layer and whole, before any split.
    ``count`` GPUs hold ``replicas`` copies of ``parallel``; ``splits`` are all of ``builder.planner.parallelism`` and
    ``chosen`` says why this one. ``recipe`` is the recipe (``trtforge.recipe.schema.Recipe``). ``notes`` are facts
    that the plan had to assume.
    """

    model: Model
    weights: Sequence[Any]
    precision: Precision
    gpu: Any
    count: int
    parallel: ParallelPlan
    serving: Serving
    workload: Workload
    goal: Goal = "throughput"
    network: str = "ib-ndr"
    beside: Beside = ALONE
    memory: tuple[MemoryPlan, ...] = ()
    splits: Sequence[Any] = ()
    chosen: str = ""
    recipe: Any = None
    notes: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def replicas(self) -> int:
        """Copies of the model that the GPUs hold."""
        return self.count // self.parallel.gpus


def bad_input(code: str, message: str, *, asked: str, why: str, remedies: Sequence[str], **numbers: Any) -> ForgeError:
    """A refusal of the planner (exit code 2)."""
    return ForgeError(code, message, asked=asked, numbers=numbers, why=why, remedies=remedies)


def not_enough(code: str, message: str, *, asked: str, why: str, remedies: Sequence[str], **numbers: Any) -> ForgeError:
    """What was asked is sound, but no plan holds it or meets it (exit code 1, as a plan that does not fit)."""
    return ForgeError(
        code, message, asked=asked, numbers=numbers, why=why, remedies=remedies, exit_code=ExitCode.GATE_FAILED
    )
