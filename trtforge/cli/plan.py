"""``trtforge plan``: memory, capacity, parallelism, speed and cost of a recipe on GPUs that nobody has rented yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtforge.cli import common
from trtforge.cli.common import RecipeArgument, SetOption
from trtforge.cli.plan_options import Answer, Figures, Hardware, Load, Surroundings

if TYPE_CHECKING:
    from builder.planner.facts import KnownModel
    from builder.planner.hardware import Gpu
    from builder.planner.report import Plan
    from builder.planner.types import Goal, Workload
    from trtforge.ground.console import Console
    from trtforge.recipe.load import LoadedRecipe


@dataclass(frozen=True)
class _Asked:
    """What the options ask for, checked before the recipe is read; ``size`` is that of the measured engine."""

    card: Gpu
    goal: Goal
    count: int
    network: str
    workload: Workload | None
    size: int | None

    @classmethod
    def of(cls, hardware: Hardware, load: Load, surroundings: Surroundings) -> _Asked:
        card, goal = hardware.card(), hardware.chosen_goal()
        size = surroundings.measured_bytes()
        return cls(card, goal, hardware.count, hardware.network, load.workload(), size)


@dataclass(frozen=True)
class _Planned:
    """A plan, with the pools of the recipes beside it and the gate against a measured engine, where these are asked."""

    plan: Plan
    shared: list[dict[str, Any]] | None
    gate: dict[str, Any] | None


@common.forge_command
def plan(
    console: Console,
    recipe: RecipeArgument,
    hardware: Hardware,
    load: Load,
    surroundings: Surroundings,
    figures: Figures,
    answer: Answer,
    overrides: SetOption = None,
) -> None:
    """Plan a recipe on GPUs: does it fit, how many requests, which split, how fast, at what cost; exit 1 if not."""
    from builder.planner.chart import write_svg
    from trtforge.cli.plan_model import known_model
    from trtforge.cli.plan_search import searched
    from trtforge.recipe.load import load_recipe

    shown = answer.sections()
    answer.check_files()
    asked = _Asked.of(hardware, load, surroundings)
    loaded = load_recipe(recipe, overrides or ())
    options = figures.options(asked.card.name)
    known = known_model(loaded, loaded.recipe.model.source, surroundings.config)
    planned = _planned(loaded, known, asked, options, surroundings.beside or ())
    made, best = planned.plan, None
    if answer.search or answer.output is not None:
        made, best = searched(made, loaded, known, answer.output, overwrite=answer.overwrite)
    if answer.chart is not None:
        write_svg(made.facts.memory, answer.chart, f"{loaded.recipe.name} on {asked.card.title}")
    document = {"recipe": str(recipe), "name": loaded.recipe.name, **made.to_json()}
    chart = str(answer.chart) if answer.chart else None
    console.result({**document, "shared_gpu": planned.shared, "gate": planned.gate, "chart": chart})
    _show(console, made, shown, planned.shared, planned.gate)
    _conclude(console, loaded.recipe.name, made, best)


def _planned(
    loaded: LoadedRecipe, known: KnownModel, asked: _Asked, options: dict[str, Any], beside: Sequence[Path]
) -> _Planned:
    """The recipe as written, alone or ``beside`` others on its GPUs; ``options`` as of :meth:`Figures.options`."""
    from builder.planner.facts import collect
    from builder.planner.report import build_plan
    from trtforge.cli.plan_model import draft_model, written_split
    from trtforge.cli.plan_share import share

    slo = loaded.recipe.bench.slo
    collected = partial(
        collect,
        loaded.recipe,
        known,
        asked.card,
        asked.count,
        workload=asked.workload,
        goal=asked.goal,
        network=asked.network,
        draft=draft_model(loaded),
        options={**options, **({"itl": slo.itl_p99} if slo and slo.itl_p99 else {})},
    )
    facts = collected(parallel=written_split(loaded))
    shared = None
    if beside:
        shared = share(loaded, facts, beside)
        facts = collected(parallel=facts.parallel, reserved=shared.reserved, pool_bytes=shared.pool)
    made = build_plan(facts)
    return _Planned(made, shared.rows if shared else None, None if asked.size is None else _gate(made, asked.size))


def _conclude(console: Console, name: str, made: Plan, best: str | None) -> None:
    """The verdict in a line, what was missed and what is recommended; exit 1 when nothing serves the load."""
    from trtforge.ground.errors import ExitCode

    missed, facts = made.missed, made.facts
    for reason in missed:
        console.print(f"missed: {reason}")
    if missed and best is None:
        console.print("--search looks for a plan that serves the load")
    but = ", but does not serve the load" if missed else ""
    verdict = "fits" if made.fits else "does not fit"
    console.value(f"{name}: {verdict} {facts.count} x {facts.gpu.name} as {facts.parallel}{but}")
    if best is not None:
        console.value(f"recommended: {best}")
    elif missed or not made.fits:
        raise common.Failed(ExitCode.GATE_FAILED)


def _show(
    console: Console,
    made: Plan,
    shown: frozenset[str],
    shared: list[dict[str, Any]] | None,
    gate: dict[str, Any] | None,
) -> None:
    """The answer, then the sections that were asked for (a search is one that was), then notes."""
    lines, _ = made.answer
    width = max(len(label) for label, _ in lines)
    for label, text in lines:
        console.print(f"{label:<{width}}  {text}")
    console.print()
    left = [section.name for section in made.sections if section.name not in shown and section.name != "search"]
    for section in made.sections:
        if section.name in left:
            continue
        console.heading(section.title)
        console.print(section.headline)
        for note in section.notes:
            console.print(f"  {note}")
        console.print()
        for table in section.tables:
            console.table(table.title, table.columns, table.rows)
            console.print()
    for note in made.facts.notes:
        console.print(f"note: {note}")
    if left:
        console.print(f"how it comes about: --show {','.join(left)}, or --show all")
    if shared is not None:
        rows = [(row["name"], row["parallel"], row["fixed"], row["pool"], row["setting"]) for row in shared]
        columns = ["recipe", "split", "beside the pool, B", "pool, B", "set"]
        console.table("Each GPU for several models", columns, rows)
    if gate is not None:
        console.print(f"measured {gate['measured']:,} B against {gate['planned']:,} B: {gate['difference']:+.1%}")


def _gate(made: Plan, size: int) -> dict[str, Any]:
    """The engine's device memory against the tightest stage."""
    from builder.planner.memory import gate

    result = gate(min(made.facts.memory, key=lambda plan: plan.free), size)
    return {
        "planned": result.planned,
        "measured": result.measured,
        "difference": result.difference,
        "tolerance": result.tolerance,
        "passed": result.passed,
    }
