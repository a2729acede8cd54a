"""The points of a search and their figures: memory, time, throughput; thousands at once over the batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from builder.planner.calibration import Calibration
from builder.planner.capacity import capacity
from builder.planner.hardware import Gpu
from builder.planner.memory import plan_memory
from builder.planner.parallelism import invalid_reasons
from builder.planner.search.space import Space
from builder.planner.speculation import Speculating
from builder.planner.speed.roofline import Engine
from builder.planner.speed.serving import Load, Served, steady_state
from builder.planner.types import ALONE, Beside, Facts, ParallelPlan, Precision, Serving, Workload, holds
from builder.planner.weights import TensorGroup, in_precision
from trtforge.models.record import Model


@dataclass(frozen=True)
class Point:
    """One combination that fits, with its figures: seconds and tokens a second as (slow, typical, fast).

    ``output``, ``input`` and ``requests`` a second are of all ``replicas``; ``first`` is the time to the first token
    with the wait for the step that runs; ``gap`` the 99th percentile between steps; ``answer`` the time of a whole
    mean answer; ``room`` requests that a replica's pool holds; ``local``: tensor parallelism stays inside the node.
    """

    precision: Precision
    parallel: ParallelPlan
    speculating: Speculating
    batch: int
    max_num_tokens: int
    replicas: int
    gpus: int
    local: bool
    room: int
    first: tuple[float, float, float]
    itl: tuple[float, float, float]
    gap: tuple[float, float, float]
    answer: tuple[float, float, float]
    requests: tuple[float, float, float]
    input: tuple[float, float, float]
    output: tuple[float, float, float]
    input_share: tuple[float, float, float]

    @property
    def output_per_gpu(self) -> float:
        """Typical output tokens a second of one of the deployment's GPUs."""
        return self.output[1] / self.gpus

    def to_json(self) -> dict[str, Any]:
        """The point as one JSON-able object."""
        return {
            "weights": self.precision.weights,
            "kv": self.precision.kv,
            "group_size": self.precision.group_size,
            "tp": self.parallel.tp,
            "pp": self.parallel.pp,
            "ep": self.parallel.ep,
            "replicas": self.replicas,
            "batch": self.batch,
            "max_num_tokens": self.max_num_tokens,
            "speculation": self.speculating.method,
            "draft_length": self.speculating.draft_length,
            "room": self.room,
            "ttft_p99": list(self.first),
            "itl": list(self.itl),
            "itl_p99": list(self.gap),
            "whole_answer": list(self.answer),
            "requests_per_second": list(self.requests),
            "input_tokens_per_second": list(self.input),
            "output_tokens_per_second": list(self.output),
            "output_per_gpu": self.output_per_gpu,
        }


@dataclass(frozen=True)
class Found:
    """All points of a search that fit, and why the others do not.

    ``considered`` = invalid + too large + fitting. ``deficit`` is the smallest number of bytes that any split lacks
    on its fullest GPU (0 when something fits), with the combination that lacks it.
    """

    points: tuple[Point, ...]
    considered: int
    invalid: int
    too_large: int
    deficit: int = 0
    nearest: tuple[Precision, ParallelPlan] | None = None


def evaluate(
    model: Model,
    weights: Sequence[TensorGroup],
    space: Space,
    gpu: Gpu,
    count: int,
    serving: Serving,
    workload: Workload,
    *,
    network: str = "ib-ndr",
    calibration: Calibration | None = None,
    beside: Beside = ALONE,
) -> Found:
    """Every point of the space, for ``count`` GPUs that hold as many replicas as they can.

    Speculation with pipeline stages counts as invalid: TensorRT-LLM does not combine them
    (https://nvidia.github.io/TensorRT-LLM/features/feature-combination-matrix.html).

    Args:
        weights: unquantized groups (:func:`builder.planner.weights.groups_from_facts` or headers).
        serving: block size, lengths and the share of free memory; batch, tokens and draft come from the point.
    """
    shared = workload.shared_prefix // serving.block_size * serving.block_size
    load = Load(workload.mean_isl, workload.mean_osl, shared)
    batches = np.asarray(space.batches, dtype=np.float64)
    points: list[Point] = []
    invalid = too_large = 0
    deficit: tuple[int, Precision, ParallelPlan] | None = None
    inner = len(space.batches) * len(space.speculating) * len(space.step_tokens)
    held = {precision: in_precision(weights, precision) for p in space.precisions for precision in space.grouped(p)}
    for wanted in space.precisions:
        for parallel in space.parallels:
            precision = _valid(model, space.grouped(wanted), parallel, count)
            if precision is None:
                invalid += inner
                continue
            engine = Engine(model, precision, gpu, parallel, network=network, calibration=calibration)
            for speculating in space.speculating:
                if parallel.pp > 1 and speculating.method != "none":
                    invalid += len(space.batches) * len(space.step_tokens)
                    continue
                held_beside = _drafting(beside, speculating)
                drafter = _draft_engine(held_beside.draft, precision, gpu, network, calibration)
                for tokens in space.step_tokens:
                    limits = _serving(serving, space, speculating, tokens)
                    room, lacks = _room(engine, held[precision], workload, space, limits, held_beside)
                    if lacks > 0 and (deficit is None or lacks < deficit[0]):
                        deficit = (lacks, precision, parallel)
                    usable = (batches <= room) & (batches / parallel.pp * speculating.verified_tokens < tokens)
                    too_large += int(np.count_nonzero(~usable))
                    if not usable.any():
                        continue
                    served = steady_state(
                        engine, load, batches[usable], max_num_tokens=tokens, speculating=speculating, draft=drafter
                    )
                    points += _points(served, load, batches[usable], room[usable], engine, speculating, tokens, count)
    nearest = None if deficit is None or points else (deficit[1], deficit[2])
    return Found(tuple(points), space.size, invalid, too_large, 0 if points or deficit is None else deficit[0], nearest)


def pool_of(facts: Facts, weights: Sequence[TensorGroup], point: Point) -> int:
    """Bytes of the KV pool of a GPU (the smallest stage's) when a point runs beside the other models of ``facts``.

    Args:
        weights: unquantized groups, as for :func:`evaluate`.
    """
    spoken = point.speculating
    serving = replace(
        facts.serving,
        pool_bytes=None,
        max_batch_size=point.batch,
        max_num_tokens=point.max_num_tokens,
        draft_tokens=spoken.verified_tokens - 1,
    )
    plans = plan_memory(
        facts.model,
        in_precision(weights, point.precision),
        point.precision,
        point.parallel,
        serving,
        facts.gpu,
        _drafting(facts.beside, spoken),
    )
    return min(plan.pool.bytes for plan in plans)


def _drafting(beside: Beside, speculating: Speculating) -> Beside:
    """``beside`` with its draft where the method has one."""
    return beside if speculating.method not in ("none", "ngram") else Beside(reserved=beside.reserved)


def _valid(model: Model, precisions: Sequence[Precision], parallel: ParallelPlan, count: int) -> Precision | None:
    """The first block length that the split allows; a replica need not divide the GPUs, the rest stay idle."""
    whole = count // parallel.gpus * parallel.gpus
    for precision in precisions:
        if whole and not invalid_reasons(model, precision, parallel, whole):
            return precision
    return None


def _serving(serving: Serving, space: Space, speculating: Speculating, tokens: int) -> Serving:
    return replace(
        serving, max_batch_size=max(space.batches), max_num_tokens=tokens, draft_tokens=speculating.verified_tokens - 1
    )


def _room(
    engine: Engine, weights: Sequence[TensorGroup], workload: Workload, space: Space, serving: Serving, beside: Beside
) -> tuple[Any, int]:
    """Requests that a replica's pool holds at every batch, and the bytes that its fullest GPU lacks for one.

    Only the logits grow with the batch, linearly, so two plans give all of them.
    """
    ends, lacks = [], 0
    for batch in (min(space.batches), max(space.batches)):
        served = replace(serving, max_batch_size=batch)
        plans = plan_memory(engine.model, weights, engine.precision, engine.parallel, served, engine.gpu, beside)
        ends.append(capacity(engine.model, plans, workload, served).guaranteed if holds(plans) else 0)
        if batch == min(space.batches) and not ends[0]:
            tokens = workload.longest
            lacks = max(
                plan.total - plan.of("kv") + plan.pool.bytes_per_token * tokens - plan.capacity for plan in plans
            )
    batches = np.asarray(space.batches, dtype=np.float64)
    span = max(batches[-1] - batches[0], 1.0)
    return np.floor(ends[0] + (ends[1] - ends[0]) * (batches - batches[0]) / span), max(lacks, int(not ends[0]))


def _draft_engine(
    draft: Model | None, precision: Precision, gpu: Gpu, network: str, calibration: Calibration | None
) -> Engine | None:
    """The draft runs in the base format on one rank."""
    if draft is None:
        return None
    plain = Precision(precision.base, precision.base, precision.kv, exclude=())
    return Engine(draft, plain, gpu, ParallelPlan(), network=network, calibration=calibration)


def _points(
    served: Served,
    load: Load,
    batches: Any,
    room: Any,
    engine: Engine,
    speculating: Speculating,
    tokens: int,
    count: int,
) -> list[Point]:
    replicas = count // engine.parallel.gpus
    first = served.ttft + served.gap
    answer = first + max(load.osl - 1, 0) * served.itl

    def three(values: Any, index: int, factor: float = 1.0) -> tuple[float, float, float]:
        slow, typical, fast = (float(value) * factor for value in values[:, index])
        return slow, typical, fast

    return [
        Point(
            precision=engine.precision,
            parallel=engine.parallel,
            speculating=speculating,
            batch=int(batch),
            max_num_tokens=tokens,
            replicas=replicas,
            gpus=count,
            local=engine.parallel.tp <= engine.gpu.fast_domain,
            room=int(room[index]),
            first=three(first, index),
            itl=three(served.itl, index),
            gap=three(served.gap, index),
            answer=three(answer, index),
            requests=three(served.requests, index, replicas),
            input=three(served.input, index, replicas),
            output=three(served.output, index, replicas),
            input_share=three(served.input_share, index),
        )
        for index, batch in enumerate(batches)
    ]
