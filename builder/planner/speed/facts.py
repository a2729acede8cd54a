"""The engine, the load and the speculation of a plan's facts: what every section about time starts from.

Options that it reads of :attr:`builder.planner.types.Facts.options`: ``raw_ops`` (the ops of the written graph),
``calibration``, ``acceptance`` (measured, of one draft token).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from builder.planner.capacity import capacity
from builder.planner.speculation import NONE, Speculating, assumed, grown_tree
from builder.planner.speed.roofline import Engine
from builder.planner.speed.serving import Load, Served, steady_state
from builder.planner.types import Facts, ParallelPlan, Precision, holds


def engine_of(facts: Facts, *, precision: Precision | None = None, parallel: ParallelPlan | None = None) -> Engine:
    """One replica of the plan, or the same with another precision or split (the graph's ops are the plan's own)."""
    same = precision is None or precision == facts.precision
    return Engine(
        facts.model,
        precision or facts.precision,
        facts.gpu,
        parallel or facts.parallel,
        network=facts.network,
        raw_ops=facts.options.get("raw_ops") if same else None,
        calibration=facts.options.get("calibration"),
    )


def load_of(facts: Facts) -> Load:
    """The mean request; the common prefix is computed once and then found in the cache, in whole blocks."""
    workload, block = facts.workload, facts.serving.block_size
    return Load(workload.mean_isl, workload.mean_osl, workload.shared_prefix // block * block)


def speculating_of(facts: Facts) -> Speculating:
    """The recipe's speculation with the measured acceptance, or the assumed range."""
    if facts.recipe is None or facts.recipe.speculation.method == "none":
        return NONE
    section = facts.recipe.speculation
    found = assumed(section.method, section.max_draft_len, facts.options.get("acceptance"))
    if section.dynamic_tree is not None:
        grown = section.dynamic_tree
        middle = sum(found.acceptance) / 2
        return replace(found, choices=grown_tree(middle, grown.depth, grown.top_k, grown.total))
    return replace(found, choices=section.choices) if section.choices else found


def draft_engine_of(facts: Facts) -> Engine | None:
    """The draft model on one rank in the base format, when its sizes are known."""
    if facts.beside.draft is None:
        return None
    base = facts.precision.base
    plain = Precision(base, base, facts.precision.kv, exclude=())
    return Engine(facts.beside.draft, plain, facts.gpu, ParallelPlan(), calibration=facts.options.get("calibration"))


def served_at(facts: Facts, load: Load, batches: Any, *, engine: Engine | None = None) -> Served:
    """One replica with the plan's speculation, at each number of ``batches`` requests in flight."""
    return steady_state(
        engine or engine_of(facts),
        load,
        batches,
        max_num_tokens=facts.serving.max_num_tokens,
        speculating=speculating_of(facts),
        draft=draft_engine_of(facts),
    )


def running_of(facts: Facts) -> int:
    """Requests that a replica runs at once: what the pool holds, at most max_batch_size; 1 when it does not fit."""
    if not holds(facts.memory):
        return 1
    return max(capacity(facts.model, facts.memory, facts.workload, facts.serving).running, 1)
