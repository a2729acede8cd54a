"""The search as a section: what was looked at, the front, the recommended plan and why not a better one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from builder.planner.cost import Rates, costs
from builder.planner.search.choose import Choice, Slo, choose, describe
from builder.planner.search.points import Found, Point, evaluate
from builder.planner.search.space import Space, default_space
from builder.planner.sections.cost import money
from builder.planner.sections.speed import ms, short, span
from builder.planner.speed.facts import load_of, speculating_of
from builder.planner.speed.levels import HEADROOM
from builder.planner.speed.roofline import Engine
from builder.planner.speed.step import decode_step, prefill_step
from builder.planner.types import Facts, Section, Table
from builder.planner.weights import TensorGroup
from trtforge.formats.table import load_formats

#: rows of the front that are printed
_ROWS = 24


@dataclass(frozen=True)
class Searched:
    """A search and its choice."""

    space: Space
    found: Found
    choice: Choice
    slo: Slo


def search(
    facts: Facts,
    groups: Sequence[TensorGroup],
    *,
    formats: Mapping[str, Sequence[int]] | None = None,
    kv_formats: Sequence[str] = (load_formats().first_choice.kv_cache,),
    ngram: bool = True,
    accept: Callable[[Point], Sequence[str]] | None = None,
) -> Searched:
    """Search around a plan: the recipe's service levels and the load's rate decide, the goal ranks.

    Args:
        groups: the model's tensors as they are stored, before any precision.
        formats, kv_formats, ngram: what the chain can make and the target has; see
            :func:`builder.planner.search.space.default_space`.
        accept: what stands against a point's recipe.

    Raises:
        ForgeError: ``TF-PLN-056`` nothing meets the service levels; ``TF-PLN-057`` nothing fits;
            ``TF-PLN-058`` no recipe that meets them passes the checks.
    """
    # the pool of a point is a share of what it leaves free: an absolute size was made for one plan
    serving = replace(facts.serving, pool_bytes=None)
    space = default_space(
        facts.model,
        facts.precision,
        facts.gpu,
        facts.count,
        serving,
        formats=formats,
        kv_formats=kv_formats,
        speculating=speculating_of(facts),
        ngram=ngram,
    )
    found = evaluate(
        facts.model,
        groups,
        space,
        facts.gpu,
        facts.count,
        serving,
        facts.workload,
        network=facts.network,
        calibration=facts.options.get("calibration"),
        beside=facts.beside,
    )
    slo = service_levels(facts)
    choice = choose(found, slo, facts.goal, accept=accept, terms=lambda point: step_shares(facts, point, slo))
    return Searched(space, found, choice, slo)


def service_levels(facts: Facts) -> Slo:
    """The recipe's ``bench.slo`` and the load's rate."""
    levels = facts.recipe.bench.slo if facts.recipe is not None else None
    return Slo(
        ttft=levels.ttft_p99 if levels else None,
        itl=levels.itl_p99 if levels else None,
        rate=facts.workload.rate,
        headroom=HEADROOM if facts.workload.rate is not None else 0.0,
    )


def step_shares(facts: Facts, point: Point, slo: Slo) -> dict[str, float]:
    """Shares of the step that a missed service level is about: the prompt's for the first token, else decoding."""
    engine = Engine(facts.model, point.precision, facts.gpu, point.parallel, network=facts.network)
    load = load_of(facts)
    _, name = slo.worst(point)
    step = decode_step(max(point.batch / point.parallel.pp, 1), load.context, point.speculating.verified_tokens)
    if name == "time to the first token":
        step = prefill_step(1, load.new_tokens, load.cached_prefix)
    time = engine.time(step)
    return {key: float(value[1] / time.total[1]) for key, value in time.by_class().items() if value[1] > 0}


def section(facts: Facts, searched: Searched) -> Section:
    """The search section."""
    best, found, choice = searched.choice.best, searched.found, searched.choice
    price, utilization = facts.options.get("price"), facts.options.get("utilization") or 1.0

    def cost(point: Point) -> str:
        rates = Rates(point.gpus, point.input[1], point.output[1], point.input_share[1])
        made = costs(rates, price, utilization)
        return money(made.blended, made.unit)

    headline = (
        f"recommended for {facts.goal}: {describe(best)}, max_num_tokens {best.max_num_tokens}; "
        f"{span(best.output)} output tokens/s, {ms(best.itl)} between tokens (99th percentile {ms(best.gap)})"
    )
    notes = [
        f"{found.considered:,} points: {found.invalid:,} break a rule of arithmetic, {found.too_large:,} do not fit, "
        f"{len(found.points):,} fit, {choice.meeting:,} meet the service levels"
    ]
    if searched.slo != Slo():
        sure = "also at" if choice.certain else "but not at"
        notes.append(f"the service levels are met at typical efficiency, {sure} the slow end of the range")
    if facts.beside.reserved:
        notes.append("every point leaves the other models of the GPU what they are given beside the recipe as it is")
    notes.append("the other sections describe the recipe as it is; plan the written one (-o) to see all of this plan")
    notes += [f"passed over: {reason}" for reason in choice.refused]
    if not best.speculating.measured and best.speculating.method != "none":
        notes.append("its acceptance is assumed at the low end; measure it before relying on it")
    return Section(
        "search",
        "Search",
        headline,
        {
            "considered": found.considered,
            "invalid": found.invalid,
            "too_large": found.too_large,
            "fitting": len(found.points),
            "meeting": choice.meeting,
            "certain": choice.certain,
            "slo": vars(searched.slo),
            "recommended": best.to_json(),
            "front": [point.to_json() for point in choice.front],
            "passed_over": list(choice.refused),
        },
        (_front_table(choice, cost),),
        tuple(notes),
    )


def _front_table(choice: Choice, cost: Callable[[Point], str]) -> Table:
    front = list(choice.front)
    if len(front) > _ROWS:
        step = (len(front) - 1) / (_ROWS - 1)
        front = [front[round(index * step)] for index in range(_ROWS)]
    rows: list[tuple[Any, ...]] = [
        (
            f"{point.precision.weights}, KV {point.precision.kv}",
            str(point.parallel),
            point.replicas,
            point.batch,
            ""
            if point.speculating.method == "none"
            else f"{point.speculating.method} {point.speculating.draft_length}",
            short(point.itl[1] * 1e3),
            short(point.first[1] * 1e3),
            short(point.answer[1]),
            f"{point.output_per_gpu:,.0f}",
            cost(point),
        )
        for point in front
    ]
    columns = (
        "weights",
        "split",
        "replicas",
        "batch",
        "drafts",
        "ms a token",
        "ms to first",
        "s an answer",
        "tokens/s a GPU",
        "million tokens",
    )
    return Table("Front: no other plan is quicker and cheaper (typical)", columns, tuple(rows))
