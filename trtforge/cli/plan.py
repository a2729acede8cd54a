"""``trtforge plan``: memory, capacity, parallelism, speed and cost of a recipe on GPUs that nobody has rented yet."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from trtforge.cli import common
from trtforge.cli.common import RecipeArgument, SetOption
from trtforge.ground.errors import ExitCode, ForgeError

if TYPE_CHECKING:
    from builder.planner.report import Plan
    from builder.planner.types import Goal, Workload
    from trtforge.ground.console import Console

GOALS = ("throughput", "latency", "fit")


@common.forge_command
def plan(
    console: Console,
    recipe: RecipeArgument,
    gpu: Annotated[str, typer.Option(metavar="NAME", help="A GPU of the hardware table, for example h200.")],
    count: Annotated[int, typer.Option(metavar="N", help="GPUs that the deployment has.")] = 1,
    goal: Annotated[str, typer.Option(help="throughput, latency or fit: what the split is chosen for.")] = "throughput",
    network: Annotated[str, typer.Option(help="The link between nodes, for example ib-ndr.")] = "ib-ndr",
    isl: Annotated[int | None, typer.Option(help="Prompt tokens of every request.")] = None,
    osl: Annotated[int | None, typer.Option(help="Answer tokens of every request.")] = None,
    lengths: Annotated[
        str | None, typer.Option(metavar="ISL+OSL:WEIGHT,…", help="A histogram, for example 512+128:3,4096+512:1.")
    ] = None,
    trace: Annotated[Path | None, typer.Option(metavar="FILE", help="One request a line: isl and osl.")] = None,
    shared_prefix: Annotated[int, typer.Option(help="Tokens that every prompt begins with.")] = 0,
    rate: Annotated[float | None, typer.Option(help="Requests a second; sizes the fleet.")] = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="config.json of a model that is not here.")
    ] = None,
    beside: Annotated[
        list[Path] | None, typer.Option("--with", metavar="RECIPE", help="Another recipe on the same GPU; repeatable.")
    ] = None,
    measured: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Device memory of the built engine: the gate of 5 %.")
    ] = None,
    chart: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the memory chart as SVG.")] = None,
    price: Annotated[
        float | None, typer.Option(metavar="DOLLARS", help="Of one GPU-hour; else costs are GPU-hours.")
    ] = None,
    utilization: Annotated[float, typer.Option(help="Share of the time in which the load is there.")] = 1.0,
    acceptance: Annotated[float | None, typer.Option(help="Measured acceptance of one draft token.")] = None,
    calibration: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Measured over planned times by class of op.")
    ] = None,
    graph: Annotated[Path | None, typer.Option(metavar="DIR", help="Take the ops from a written graph.")] = None,
    search: Annotated[
        bool, typer.Option("--search", help="Search precision, split, batch, KV cache and drafts under bench.slo.")
    ] = False,
    show: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,…",
            help="Sections to print: memory, capacity, parallelism, speed, speculation, cost, disaggregation, or all.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the recommended recipe.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the existing file of -o or --chart.")] = False,
    overrides: SetOption = None,
) -> None:
    """Plan a recipe on GPUs: does it fit, how many requests, which split, how fast, at what cost; exit 1 if not."""
    from builder.planner.chart import check_target, write_svg
    from builder.planner.facts import collect
    from builder.planner.hardware import gpu as gpu_row
    from builder.planner.report import build_plan
    from trtforge.cli.plan_model import draft_model, known_model, written_split
    from trtforge.cli.plan_search import searched, speed_options
    from trtforge.cli.plan_share import share
    from trtforge.recipe.load import load_recipe

    card = gpu_row(gpu)
    common.one_of(goal, GOALS, option="--goal", code="TF-CLI-011")
    shown = _sections(show)
    if overwrite and output is None and chart is None:
        raise _needs("--overwrite", "-o FILE", "--chart FILE")
    if chart is not None:
        check_target(chart, overwrite=overwrite)
    if measured is not None and beside:
        raise _excluded("--measured", "--with", why="An engine is measured alone, without its neighbours' memory.")
    size = None if measured is None else _size(measured)
    load = workload_of(isl, osl, lengths, trace, shared_prefix, rate)
    loaded = load_recipe(recipe, overrides or ())
    slo = loaded.recipe.bench.slo
    options = speed_options(
        card.name,
        price=price,
        utilization=utilization,
        acceptance=acceptance,
        calibration=calibration,
        graph=graph,
    )
    known = known_model(loaded, loaded.recipe.model.source, config)
    planned = partial(
        collect,
        loaded.recipe,
        known,
        card,
        count,
        workload=load,
        goal=cast("Goal", goal),
        network=network,
        draft=draft_model(loaded),
        options={**options, **({"itl": slo.itl_p99} if slo and slo.itl_p99 else {})},
    )
    facts = planned(parallel=written_split(loaded))
    shared = None
    if beside:
        shared = share(loaded, facts, beside)
        facts = planned(parallel=facts.parallel, reserved=shared.reserved, pool_bytes=shared.pool)
    made = build_plan(facts)
    best = None
    if search or output is not None:
        made, best = searched(made, loaded, known, output, overwrite=overwrite)
    gate = None if size is None else _gate(made, size)
    if chart is not None:
        write_svg(facts.memory, chart, f"{loaded.recipe.name} on {card.title}")
    document = {"recipe": str(recipe), "name": loaded.recipe.name, **made.to_json()}
    rows = shared.rows if shared else None
    console.result({**document, "shared_gpu": rows, "gate": gate, "chart": str(chart) if chart else None})
    _show(console, made, shown, rows, gate)
    missed, verdict = made.missed, "fits" if made.fits else "does not fit"
    for reason in missed:
        console.print(f"missed: {reason}")
    if missed and best is None:
        console.print("--search looks for a plan that serves the load")
    but = ", but does not serve the load" if missed else ""
    console.value(f"{loaded.recipe.name}: {verdict} {facts.count} x {card.name} as {facts.parallel}{but}")
    if best is not None:
        console.value(f"recommended: {best}")
    elif missed or not made.fits:
        raise common.Failed(ExitCode.GATE_FAILED)


def _sections(show: str | None) -> frozenset[str]:
    """The names of ``--show``; ``all`` stands for every section."""
    from builder.planner.report import SECTIONS

    names = [] if show is None else [name.strip() for name in show.split(",")]
    for name in names:
        common.one_of(name, (*SECTIONS, "all"), option="--show", code="TF-CLI-011")
    return frozenset(SECTIONS) if "all" in names else frozenset(names)


def _show(
    console: Console,
    made: Plan,
    shown: frozenset[str],
    shared: list[dict[str, Any]] | None,
    gate: dict[str, Any] | None,
) -> None:
    """The answer, then the sections that were asked for (a search is one that was), then notes."""
    from trtforge.cli.summary import show_labelled

    show_labelled(console, made.answer[0])
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


def workload_of(
    isl: int | None, osl: int | None, lengths: str | None, trace: Path | None, shared_prefix: int, rate: float | None
) -> Workload | None:
    """The load that the options describe; None when they describe none."""
    from builder.planner import workload

    one_length = isl is not None or osl is not None
    sources = {"--isl": one_length, "--lengths": lengths is not None, "--trace": trace is not None}
    given = [name for name, present in sources.items() if present]
    if len(given) > 1:
        raise _excluded(*given, why="Lengths come from one place.")
    if trace is not None:
        return workload.trace(trace, shared_prefix=shared_prefix, rate=rate)
    if lengths is not None:
        return workload.histogram(workload.parse_lengths(lengths), shared_prefix=shared_prefix, rate=rate)
    if one_length:
        prompt, answer = (1024 if isl is None else isl), (256 if osl is None else osl)
        return workload.fixed(prompt, answer, shared_prefix=shared_prefix, rate=rate)
    if shared_prefix or rate is not None:
        raise ForgeError(
            "TF-CLI-012",
            "--shared-prefix and --rate need the lengths of the requests",
            asked="--shared-prefix" if shared_prefix else "--rate",
            why="How much is shared and how long a request stays follow from the lengths.",
            remedies=["add --isl and --osl", "add --trace FILE"],
        )
    return None


def _excluded(*given: str, why: str) -> Exception:
    return ForgeError(
        "TF-CLI-012",
        f"{' and '.join(given)} exclude each other",
        asked=" ".join(given),
        why=why,
        remedies=[f"only {name}" for name in given],
    )


def _needs(option: str, *others: str) -> Exception:
    return ForgeError(
        "TF-CLI-012",
        f"{option} needs {' or '.join(others)}",
        asked=option,
        why="It says what to do with a file that is written, and none is.",
        remedies=[f"add {other}" for other in others],
    )


def _size(measured: str) -> int:
    """``--measured`` in bytes; an empty or zero size is no measurement."""
    from trtforge.ground.units import parse_size

    try:
        size = int(parse_size(measured))
        if size <= 0:
            raise ValueError(f"{measured!r} is no size over 0")
    except ValueError as error:
        raise ForgeError(
            "TF-CLI-013", str(error), asked=f"--measured {measured!r}", remedies=["--measured 71.3GiB"]
        ) from error
    return size


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
