"""The planner's times for the configurations of aiconfigurator's fixture, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from builder.planner.hardware import gpu
from builder.planner.model import from_config
from builder.planner.speed.roofline import Engine
from builder.planner.speed.serving import Load, decode_time, prefill_time, steady_state
from builder.planner.types import ParallelPlan, Precision

_GPUS = {"a100_sxm": "a100-80gb", "h100_sxm": "h100", "h200_sxm": "h200", "b200_sxm": "b200", "l40s": "l40s"}


@dataclass(frozen=True)
class Figure:
    """Theirs, and ours as slow, typical, fast."""

    theirs: float
    ours: tuple[float, float, float]

    @property
    def ratio(self) -> float:
        """Ours (typical) over theirs."""
        return self.ours[1] / self.theirs

    def inside(self) -> bool:
        """Whether theirs lies in our range."""
        return min(self.ours) <= self.theirs <= max(self.ours)


@dataclass(frozen=True)
class Row:
    """One configuration; seconds, and output tokens a second of the replica."""

    model: str
    gpu: str
    split: str
    precision: str
    load: str
    prefill: Figure
    decode: Figure
    output: Figure
    engine: Engine


def engine_of(document: dict[str, Any], row: dict[str, Any]) -> Engine:
    """The planner's engine of a row."""
    given = row["arguments"]
    model = from_config(document["models"][row["model"]], row["model"])
    kv, weights = given["kvcache_quant_mode"], given["gemm_quant_mode"]
    parallel = ParallelPlan(given["tp_size"], given["pp_size"], given["moe_ep_size"] or 1)
    return Engine(model, Precision(weights, "bfloat16", kv), gpu(_GPUS[row["system"]]), parallel)


def compared(document: dict[str, Any]) -> Iterator[Row]:
    """Every configuration of the fixture."""
    for row in document["rows"]:
        given = row["arguments"]
        engine = engine_of(document, row)
        isl, osl, batch = given["isl"], given["osl"], given["batch_size"]
        # their batch is one of as many micro-batches as there are pipeline stages
        running = batch * engine.parallel.pp
        served = steady_state(engine, Load(isl, osl), [running], max_num_tokens=document["prompt_budget"] + batch)
        yield Row(
            row["model"].rpartition("/")[2],
            engine.gpu.name,
            str(engine.parallel),
            f"{given['gemm_quant_mode']}, KV {given['kvcache_quant_mode']}",
            f"{isl}/{osl}, {batch}",
            Figure(row["prefill"], _three(prefill_time(engine, isl))),
            Figure(row["decode"], _three(decode_time(engine, batch, isl + osl / 2))),
            Figure(row["output"], _three(served.output[:, 0])),
            engine,
        )


def _three(values: Any) -> tuple[float, float, float]:
    slow, typical, fast = (float(value) for value in values)
    return slow, typical, fast
