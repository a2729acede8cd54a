"""What advice chooses from: each format with each group it may have and each KV cache, with the planner's figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from builder.planner.advice.losses import Figure, expected_loss
from builder.planner.capacity import Capacity, capacity
from builder.planner.memory import plan_memory
from builder.planner.precision import weight_format
from builder.planner.speed.facts import engine_of, load_of
from builder.planner.speed.roofline import Engine
from builder.planner.speed.serving import TYPICAL, steady_state
from builder.planner.types import Facts, MemoryPlan, Precision, holds
from builder.planner.weights import TensorGroup, in_precision
from trtforge.formats.table import UNQUANTIZED, FormatRow, KvMode, load_formats
from trtforge.tables import Architecture


@dataclass(frozen=True)
class Candidate:
    """One way to quantize the plan's model.

    Attributes:
        facts: of the plan, in the recipe's precision; its split and its load hold for every candidate.
        groups: the model's tensors as they are stored.
        group: block length; None where the format has none of its own.
    """

    facts: Facts
    groups: Sequence[TensorGroup]
    row: FormatRow
    kv: KvMode
    group: int | None

    @property
    def bits(self) -> int:
        """Bits of a weight."""
        return weight_format(self.facts.precision.base).bits if self.row.weight is None else self.row.weight.bits

    @property
    def name(self) -> str:
        """The candidate in words: format, group and KV cache."""
        group = f" in groups of {self.group}" if self.group and len(self.row.group_sizes) > 1 else ""
        return f"{self.row.name}{group}, KV cache {self.kv.name}"

    @property
    def precision(self) -> Precision:
        """As the planner counts it."""
        base = self.facts.precision.base
        weights = base if self.row.weight is None else self.row.name
        return replace(self.facts.precision, weights=weights, kv=self.kv.pool or base, group_size=self.group, mixed=())

    @cached_property
    def memory(self) -> tuple[MemoryPlan, ...]:
        """Of each pipeline stage."""
        facts, precision = self.facts, self.precision
        weights = in_precision(self.groups, precision)
        return plan_memory(facts.model, weights, precision, facts.parallel, facts.serving, facts.gpu, facts.beside)

    @cached_property
    def requests(self) -> Capacity:
        """What the pool holds."""
        return capacity(self.facts.model, self.memory, self.facts.workload, self.facts.serving)

    @property
    def fits(self) -> bool:
        """Whether every stage holds the model and a request of the load's longest."""
        return holds(self.memory) and self.requests.longest >= 1

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights on the fullest GPU."""
        return max(plan.of("weights") for plan in self.memory)

    @property
    def lacks(self) -> int:
        """Bytes beyond the memory of the fullest GPU, without any pool; not above 0 where it fits."""
        return max(plan.total - plan.of("kv") - plan.capacity for plan in self.memory)

    @cached_property
    def engine(self) -> Engine:
        """One replica, for its times."""
        return engine_of(self.facts, precision=self.precision)

    @cached_property
    def seconds(self) -> float:
        """Typical seconds that a replica works for one mean request, with max_batch_size of them in flight.

        The pool does not limit it: what fits is judged apart, so that memory changes no figure of speed.
        """
        facts, serving = self.facts, self.facts.serving
        batches = [float(serving.max_batch_size)]
        served = steady_state(self.engine, load_of(facts), batches, max_num_tokens=serving.max_num_tokens)
        return 1 / float(served.requests[TYPICAL, 0])

    @property
    def loss(self) -> Figure | None:
        """What was measured of its element types."""
        return expected_loss(self.row, self.facts.model.parameters)

    def changes(self) -> dict[str, Any]:
        """Keys of the recipe's section ``quantize`` with their values; None: the key goes."""
        return {
            "format": self.row.name,
            "kv_cache": self.kv.name,
            "group_size": self.group if len(self.row.group_sizes) > 1 else None,
            "mixed": None,
        }

    def to_json(self) -> dict[str, Any]:
        """The candidate with its figures."""
        loss = self.loss
        return {
            "format": self.row.name,
            "kv_cache": self.kv.name,
            "group_size": self.group,
            "bits": self.bits,
            "fits": self.fits,
            "weight_bytes_per_gpu": self.weight_bytes,
            "requests": self.requests.guaranteed if self.fits else 0,
            "seconds_per_request": self.seconds,
            "expected_loss": None if loss is None else loss.model_dump(),
            "speedup_at_64": self.row.speedup_at_64,
        }


def candidates(facts: Facts, groups: Sequence[TensorGroup]) -> Iterator[Candidate]:
    """Every format of the table with its groups, preferred first, and a KV cache of each type that the chain carries.

    Of the modes that store the same it is the recipe's own, else the first of the table.
    """
    table, own = load_formats(), facts.recipe.quantize.kv_cache
    caches: dict[str | None, KvMode] = {}
    for mode in sorted(table.kv_modes, key=lambda mode: mode.name != own):
        if mode.supported:
            caches.setdefault(mode.pool, mode)
    for row in table.formats:
        sizes: list[int | None] = [*sorted(row.group_sizes, key=lambda size: size != row.default_group_size)]
        for group in sizes or [None]:
            for kv in caches.values():
                yield Candidate(facts, groups, row, kv, group)


def unsupported(candidate: Candidate, arch: Architecture, target: str) -> str | None:
    """Why the GPU's architecture does not run a candidate as it is meant; None: it does."""
    row, kv = candidate.row, candidate.kv
    support = arch.support(row.name, target)
    if support is None and arch.name in row.native:
        support = "yes"
    if row.name != UNQUANTIZED and support != "yes":
        stated = {"no": "none", "weight-only": "only one that widens the inputs", None: "none that is known"}
        return f"kernel on {arch.name} ({arch.title}): {stated.get(support, str(support))}"
    cache = arch.kv_cache.get(kv.name, "no")
    if kv.pool is not None and cache != "yes":
        return f"KV cache {kv.name} on {arch.name} ({arch.title}): {cache}"
    return None
