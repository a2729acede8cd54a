"""``trtforge plan``: memory, capacity, parallelism, speed and cost of a recipe on GPUs that nobody has rented yet."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtforge.cli import common
from trtforge.cli.common import RecipeArgument, SetOption

if TYPE_CHECKING:
    from builder.planner.facts import KnownModel
    from builder.planner.report import Plan
    from builder.planner.types import ParallelPlan, Workload
    from trtforge.console import Console
    from trtforge.recipe.load import LoadedRecipe

GOALS = ("throughput", "latency", "fit")


@common.forge_command
def plan(
    console: Console,
    recipe: RecipeArgument,
    gpu: Annotated[str, typer.Option(metavar="NAME", help="A GPU of the hardware table, for example h200.")],
    count: Annotated[int, typer.Option(metavar="N", help="GPUs that the deployment has.")] = 1,
    goal: Annotated[str, typer.Option(help="throughput, latency or fit: what the split is chosen for.")] = "throughput",
    network: Annotated[str, typer.Option(help="The link between nodes, for example ib-ndr.")] = "ib-ndr",
    isl: Annotated[int | None, typer.Option(help="Prompt tokens of every request.", show_default=False)] = None,
    osl: Annotated[int | None, typer.Option(help="Answer tokens of every request.", show_default=False)] = None,
    lengths: Annotated[
        str | None,
        typer.Option(
            metavar="ISL+OSL:WEIGHT,…", help="A histogram, for example 512+128:3,4096+512:1.", show_default=False
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="One request a line: isl and osl.", show_default=False)
    ] = None,
    shared_prefix: Annotated[int, typer.Option(help="Tokens that every prompt begins with.")] = 0,
    rate: Annotated[float | None, typer.Option(help="Requests a second; sizes the fleet.", show_default=False)] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="config.json of a model that is not here.", show_default=False),
    ] = None,
    beside: Annotated[
        list[Path] | None,
        typer.Option(
            "--with", metavar="RECIPE", help="Another recipe on the same GPU; repeatable.", show_default=False
        ),
    ] = None,
    measured: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Device memory of the built engine: the gate of 5 %.", show_default=False),
    ] = None,
    chart: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the memory chart as SVG.", show_default=False)
    ] = None,
    price: Annotated[
        float | None,
        typer.Option(metavar="DOLLARS", help="Of one GPU-hour; else costs are GPU-hours.", show_default=False),
    ] = None,
    utilization: Annotated[float, typer.Option(help="Share of the time in which the load is there.")] = 1.0,
    acceptance: Annotated[
        float | None, typer.Option(help="Measured acceptance of one draft token.", show_default=False)
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Measured over planned times by class of op.", show_default=False),
    ] = None,
    graph: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Take the ops from a written graph.", show_default=False)
    ] = None,
    search: Annotated[
        bool, typer.Option("--search", help="Search precision, split, batch, KV cache and drafts under bench.slo.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the recommended recipe.", show_default=False),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    overrides: SetOption = None,
) -> None:
    """Plan a recipe on GPUs: does it fit, how many requests, which split, how fast, at what cost; exit 1 if not."""
    from builder.planner.chart import write_svg
    from builder.planner.facts import collect
    from builder.planner.hardware import gpu as gpu_row
    from builder.planner.report import build_plan
    from trtforge.cli.plan_search import searched, speed_options
    from trtforge.errors import ExitCode
    from trtforge.recipe.load import load_recipe

    card = gpu_row(gpu)
    common.one_of(goal, GOALS, option="--goal", code="TF-CLI-011")
    load = _workload(isl, osl, lengths, trace, shared_prefix, rate)
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
    known = _known(loaded, loaded.recipe.model.source, config)
    facts = collect(
        loaded.recipe,
        known,
        card,
        count,
        workload=load,
        goal=goal,  # type: ignore[arg-type]  # checked above
        network=network,
        parallel=_written_split(loaded),
        draft=_draft(loaded),
        options={**options, **({"itl": slo.itl_p99} if slo and slo.itl_p99 else {})},
    )
    made = build_plan(facts)
    best = None
    if search or output is not None:
        made, best = searched(made, loaded, known, output, overwrite=overwrite)
    shared = _share(loaded, made, beside or []) if beside else None
    gate = _gate(made, measured) if measured else None
    if chart is not None:
        write_svg(facts.memory, chart, f"{loaded.recipe.name} on {card.title}")
    document = {"recipe": str(recipe), "name": loaded.recipe.name, **made.to_json()}
    console.result({**document, "shared_gpu": shared, "gate": gate, "chart": str(chart) if chart else None})
    _show(console, made, shared, gate)
    missed, verdict = made.missed, "fits" if made.fits else "does not fit"
    for reason in missed:
        console.print(f"missed: {reason}")
    but = ", but does not serve the load" if missed else ""
    console.value(f"{loaded.recipe.name}: {verdict} {facts.count} x {card.name} as {facts.parallel}{but}")
    if best is not None:
        console.value(f"recommended: {best}")
    elif missed or not made.fits:
        raise common.Failed(ExitCode.GATE_FAILED)


def _show(console: Console, made: Plan, shared: list[dict[str, Any]] | None, gate: dict[str, Any] | None) -> None:
    for section in made.sections:
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
    if shared is not None:
        rows = [(row["name"], row["fixed"], row["pool"], row["setting"]) for row in shared]
        console.table("One GPU for several models", ["recipe", "beside the pool, B", "pool, B", "set"], rows)
    if gate is not None:
        console.print(f"measured {gate['measured']:,} B against {gate['planned']:,} B: {gate['difference']:+.1%}")


def _workload(
    isl: int | None, osl: int | None, lengths: str | None, trace: Path | None, shared_prefix: int, rate: float | None
) -> Workload | None:
    """The load that the options describe; None when they describe none."""
    from builder.planner import workload
    from trtforge.errors import ForgeError

    one_length = isl is not None or osl is not None
    sources = {"--isl": one_length, "--lengths": lengths is not None, "--trace": trace is not None}
    given = [name for name, present in sources.items() if present]
    if len(given) > 1:
        raise ForgeError(
            "TF-CLI-012",
            f"{' and '.join(given)} exclude each other",
            asked=" ".join(given),
            why="Lengths come from one place.",
            remedies=[f"only {name}" for name in given],
        )
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


def _written_split(loaded: LoadedRecipe) -> ParallelPlan | None:
    """The recipe's split when it writes one; None leaves the choice to the goal."""
    from builder.planner.types import ParallelPlan

    if "parallel" not in loaded.written.get("build", {}):
        return None
    parallel = loaded.recipe.build.parallel
    return ParallelPlan(parallel.tp, parallel.pp, parallel.ep)


def _known(loaded: LoadedRecipe, source: str, config: Path | None) -> KnownModel:
    """The model's sizes: ``--config``, the folder that the source names, or intake's look at any other source."""
    from builder.planner.facts import model_from_config, model_from_folder, model_from_record
    from quantize.intake import inspect_source, not_here
    from quantize.intake.source import parse_source
    from trtforge.errors import ForgeError

    if config is not None:
        return model_from_config(config, loaded.recipe.name)
    parsed = parse_source(source, loaded.directory)
    if parsed.kind == "directory" and parsed.path is not None:
        return model_from_folder(parsed.path, loaded.recipe.name)
    if parsed.kind == "hf":
        from quantize.intake.hub import cached_snapshot

        folder = cached_snapshot(parsed)
        if folder is not None:
            return model_from_folder(folder, loaded.recipe.name)
    record = inspect_source(source, loaded.directory, allow_remote_code=loaded.recipe.model.allow_remote_code)
    if record is None:
        raise ForgeError(
            "TF-PLN-009",
            f"the sizes of {source} are not on this machine",
            asked=source,
            why=not_here(source, loaded.directory) or "",
            remedies=["--config FILE with the model's config.json", "trtforge run RECIPE --until intake fetches it"],
        )
    return model_from_record(record, loaded.recipe.name)


def _draft(loaded: LoadedRecipe) -> KnownModel | None:
    """The draft's sizes when they are here; the plan says so when they are not."""
    from trtforge.errors import ForgeError

    source = loaded.recipe.speculation.draft
    if source is None:
        return None
    try:
        return _known(loaded, source, None)
    except ForgeError as error:
        if error.code == "TF-PLN-009":
            return None
        raise


def _share(loaded: LoadedRecipe, made: Plan, beside: list[Path]) -> list[dict[str, Any]]:
    """Pools in bytes for recipes that share one GPU."""
    from builder.planner.facts import collect
    from builder.planner.sharing import share_gpu, tenant
    from builder.planner.types import ParallelPlan
    from trtforge.recipe.load import load_recipe

    card = made.facts.gpu
    alone = ParallelPlan(1, 1, 1)
    tenants = []
    for other in [loaded, *(load_recipe(path) for path in beside)]:
        known = _known(other, other.recipe.model.source, None)
        facts = collect(other.recipe, known, card, 1, parallel=alone, draft=_draft(other))
        tenants.append(tenant(other.recipe.name, facts.memory[0]))
    return [
        {
            "name": item.name,
            "fixed": item.fixed,
            "pool": item.pool,
            "setting": f"build.kv_cache.memory: {item.pool // 2**20}MiB",
        }
        for item in share_gpu(tenants, card)
    ]


def _gate(made: Plan, measured: str) -> dict[str, Any]:
    """The engine's device memory against the tightest stage."""
    from builder.planner.memory import gate
    from trtforge.errors import ForgeError
    from trtforge.recipe.units import parse_size

    try:
        size = parse_size(measured)
    except ValueError as error:
        raise ForgeError(
            "TF-CLI-013", str(error), asked=f"--measured {measured}", remedies=["--measured 71.3GiB"]
        ) from error
    result = gate(min(made.facts.memory, key=lambda plan: plan.free), size)
    return {
        "planned": result.planned,
        "measured": result.measured,
        "difference": result.difference,
        "tolerance": result.tolerance,
        "passed": result.passed,
    }
