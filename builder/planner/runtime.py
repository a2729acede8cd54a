"""Memory of the runtime that no shape decides: CUDA context, workspaces, graphs, NCCL; ranges with sources."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pydantic import Field, model_validator

from builder.planner.types import ParallelPlan, Term
from trtforge.ground.rows import Row, read_yaml
from trtforge.tables import Source

_TABLE = Path(__file__).with_name("runtime.yaml")


class RuntimeItem(Row):
    """One kind of memory: MiB at the least, as counted, and at the most."""

    name: str
    title: str
    low: int = Field(ge=0)
    typical: int = Field(ge=0)
    high: int = Field(ge=0)
    why: str
    sources: tuple[Source, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _ordered(self) -> RuntimeItem:
        if not self.low <= self.typical <= self.high:
            raise ValueError(f"{self.name}: low, typical and high are out of order")
        return self

    def term(self) -> Term:
        """The summand of a memory plan."""
        mib = 2**20
        formula = f"{self.typical} MiB, between {self.low} and {self.high}: {self.why}"
        return Term(
            self.title, "runtime", self.typical * mib, formula, self.low * mib, self.high * mib, self.sources[0].url
        )


@cache
def runtime_items() -> dict[str, RuntimeItem]:
    """The table by name (cached)."""
    rows = read_yaml(_TABLE)["items"]
    return {row["name"]: RuntimeItem.model_validate(row) for row in rows}


def runtime_terms(parallel: ParallelPlan) -> list[Term]:
    """What a rank of this split needs beside weights, activations and KV."""
    items = runtime_items()
    chosen = ["cuda_context", "workspace", "cuda_graphs"]
    if parallel.gpus == 2:
        chosen.append("nccl_pair")
    elif parallel.gpus > 2:
        chosen.append("nccl_group")
    if parallel.ep > 1:
        chosen.append("nccl_alltoall")
    return [items[name].term() for name in chosen]
