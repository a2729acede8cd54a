"""``trtforge bench``: the load test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtforge.cli import common
from trtforge.cli.common import SetOption, StoreOption
from trtforge.ground.errors import ExitCode, ForgeError

if TYPE_CHECKING:
    from evals.speed.baseline import Comparison
    from trtforge.cli.baseline import Baseline
    from trtforge.ground.console import Console
    from trtforge.pipeline.result import RunResult
    from trtforge.recipe.schema import Bench

TargetArgument = Annotated[
    str | None,
    typer.Argument(metavar="[BUNDLE|RECIPE]", help="A bundle to load, or a recipe whose bench stage is run anew."),
]


@common.forge_command
def bench(
    console: Console,
    target: TargetArgument = None,
    url: Annotated[
        str | None, typer.Option("--url", metavar="HOST:PORT", help="gRPC address of a server that runs already.")
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="The model's name there (with --url).")] = None,
    concurrency: Annotated[str | None, typer.Option(metavar="N,N…", help="Requests in flight, level by level.")] = None,
    prompts: Annotated[
        str | None, typer.Option(help="builtin:mixed, short, chat, code, copy or open, or file:PATH.")
    ] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="Requests at each level.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens an answer.")] = None,
    ttft_p99: Annotated[str | None, typer.Option(metavar="TIME", help="SLO: time to the first token.")] = None,
    itl_p99: Annotated[str | None, typer.Option(metavar="TIME", help="SLO: time between tokens.")] = None,
    min_goodput: Annotated[
        float | None, typer.Option(metavar="N", help="SLO: least requests a second of which 99 % meet the limits.")
    ] = None,
    rate: Annotated[
        str | None,
        typer.Option(metavar="N,N…|auto", help="Requests a second that arrive by themselves, rate by rate."),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Requests that arrive as a file says: isl, osl, timestamp (ms).")
    ] = None,
    baseline: Annotated[
        Path | None,
        typer.Option(metavar="FILE|BUNDLE", help="An earlier result; exit 1 where this is slower beyond the spread."),
    ] = None,
    tolerance: Annotated[
        str, typer.Option(metavar="SHARE", help="How much slower than --baseline is no regression, beyond the spread.")
    ] = "10%",
    in_process: Annotated[
        bool, typer.Option("--in-process/--no-in-process", help="Measure the engine in this process.")
    ] = True,
    server: Annotated[bool, typer.Option("--server/--no-server", help="Measure behind Triton.")] = True,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="DIR", help="Write report.json, .md and .html there.")
    ] = None,
    verified: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Check a bundle's hashes and stamps first.")
    ] = True,
    overrides: SetOption = None,
    store: StoreOption = None,
) -> None:
    """Measure throughput and latency by concurrency and by arrivals; exit 1 when the SLO is missed."""
    from trtforge.recipe.shipped import names_recipe

    options: dict[str, Any] = {
        "bench.concurrency": None if concurrency is None else parse_levels(concurrency),
        "bench.prompts": prompts,
        "bench.requests_per_level": requests,
        "bench.max_tokens": max_tokens,
        "bench.slo.ttft_p99": ttft_p99,
        "bench.slo.itl_p99": itl_p99,
        "bench.slo.min_goodput": min_goodput,
        "bench.arrivals.rate": None if rate is None else parse_rates(rate),
        "bench.trace.file": None if trace is None else _beside_here(trace),
    }
    from trtforge.cli.baseline import baseline_of

    earlier = baseline_of(baseline, tolerance)
    if target is not None and names_recipe(target):
        if trace is not None:
            raise ForgeError(
                "TF-BEN-023",
                "--trace is of a bundle or a running server",
                asked=f"--trace {trace}",
                why="A recipe's trace is part of it, so that the same run can be had again.",
                remedies=["bench.trace.file: file:PATH in the recipe, beside which the file lies"],
            )
        _bench_recipe(console, target, options, overrides or [], store, earlier)
        return
    if target is not None:
        common.refuse_unusable({"target": Path(target)})
    _bench_bundle(console, target, url, model, options, overrides or [], in_process, server, output, verified, earlier)


def parse_levels(text: str) -> list[int]:
    """``"1,4,16"`` as numbers; raises TF-BEN-020."""

    try:
        levels = [int(part) for part in text.split(",")]
    except ValueError:
        levels = []
    if not levels or min(levels) < 1:
        raise ForgeError(
            "TF-BEN-020",
            f"--concurrency {text} is no list of whole numbers from 1",
            asked=f"--concurrency {text}",
            remedies=["--concurrency 1,4,16"],
        )
    return levels


def parse_rates(text: str) -> list[float] | str:
    """``"2,5,10"`` as numbers, ``auto`` as it is; raises TF-BEN-024."""
    if text == "auto":
        return text
    try:
        rates = [float(part) for part in text.split(",")]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate < float("inf") for rate in rates):
        raise ForgeError(
            "TF-BEN-024",
            f"--rate {text} is no list of numbers over 0",
            asked=f"--rate {text}",
            remedies=["--rate 2,5,10", "--rate auto"],
        )
    return rates


def _beside_here(trace: Path) -> str:
    """The trace as a recipe here would name it; raises TF-BEN-025 for one elsewhere."""
    try:
        return f"file:{trace.resolve().relative_to(Path.cwd().resolve())}"
    except ValueError:
        raise ForgeError(
            "TF-BEN-025",
            f"{trace} lies outside this folder",
            asked=f"--trace {trace}",
            why="Files of a load test lie below the folder in which it is run.",
            remedies=["run trtforge bench in the trace's folder"],
        ) from None


def _bench_recipe(
    console: Console,
    recipe: str,
    options: dict[str, Any],
    overrides: list[str],
    store: Path | None,
    earlier: Baseline | None,
) -> None:
    from trtforge.cli.baseline import hold
    from trtforge.cli.run import run_loaded
    from trtforge.cli.stages import recipe_for

    loaded = recipe_for(recipe, options, overrides)
    held: list[Comparison] = []

    def judge(result: RunResult) -> dict[str, Any]:
        if earlier is None:
            return {}
        found = next(item.artifact for item in result.outcomes if item.stage == "bench" and item.artifact is not None)
        held.append(hold(console, earlier, found.manifest["measurements"]))
        return {"baseline": held[0].to_json()}

    run_loaded(console, loaded, common.open_store(store), until="bench", force=["bench"], only_needed=True, judge=judge)
    if held and not held[0].passed:
        raise common.Failed(ExitCode.GATE_FAILED)


def settings(bundle: Path | None, options: dict[str, Any], overrides: list[str]) -> tuple[Bench, str]:
    """The bench section and the deployment's name: the bundle's own recipe with the options laid upon it."""
    from trtforge.recipe.load import load_recipe, recipe_from_mapping

    given = [f"{key}={json.dumps(value)}" for key, value in options.items() if value is not None]
    recipe = None if bundle is None else bundle / "recipe.yaml"
    if recipe is not None and recipe.is_file():
        loaded = load_recipe(recipe, [*given, *overrides])
    else:
        data = {"name": bundle.resolve().name if bundle else "server", "model": {"source": "unknown"}}
        loaded = recipe_from_mapping(data, Path.cwd(), [*given, *overrides])
    return loaded.recipe.bench, loaded.recipe.name


def _bench_bundle(
    console: Console,
    target: str | None,
    url: str | None,
    model: str | None,
    options: dict[str, Any],
    overrides: list[str],
    in_process: bool,
    server: bool,
    output: Path | None,
    verified: bool,
    earlier: Baseline | None,
) -> None:
    from evals.report import write_report
    from evals.speed.prompts import load_prompts
    from trtforge.cli.baseline import hold
    from trtforge.cli.bundle import require_sound
    from trtforge.cli.measuring import LiveServer, bench_report, measure_in_process, measure_server
    from trtforge.cli.summary import show_arrivals, show_gates, show_sweeps
    from trtforge.pipeline.stages.bench import load_of, outcome_of

    bundle = Path(target) if target is not None else None
    if (url is None) != (model is None) or (bundle is None and url is None):
        raise ForgeError(
            "TF-BEN-021",
            "there is nothing to measure",
            asked=f"bundle {target}, --url {url}, --model {model}",
            why="Either a bundle or recipe is given, or a running server by its address and model.",
            remedies=["trtforge bench BUNDLE", "trtforge bench --url localhost:8001 --model NAME"],
        )
    if verified and bundle is not None and (bundle / "repository").is_dir():
        require_sound(console, bundle)  # an engine directory alone has no manifest
    asked, name = settings(bundle, options, overrides)
    # a file: spec on the command line is relative to where the command is given
    prompts = load_prompts(asked.prompts, Path.cwd() if options.get("bench.prompts") else bundle or Path.cwd())
    folder = Path.cwd() if options.get("bench.trace.file") else bundle or Path.cwd()
    load = load_of(asked, prompts, folder, None if bundle is None else engine_of(bundle))
    common.make_folder(output)
    measured = []
    with console.progress("bench") as progress:
        if in_process and bundle is not None and url is None:
            measured.append(measure_in_process(engine_of(bundle), load, progress))
        if server or url is not None:
            live = LiveServer(url, model) if url is not None and model is not None else None
            log = common.server_log(f"bench-{name}-triton") if output is None else output / "tritonserver.log"
            measured.append(measure_server(bundle, live, load, progress, log))
    outcome = outcome_of(measured, load)
    gates = outcome.gates()
    comparison = None if earlier is None else hold(console, earlier, outcome.to_json())
    report = bench_report(name, outcome, gates, comparison)
    written: list[str] = []
    if output is not None:
        with common.writing(output):
            written = [str(path) for path in write_report(report, output)]
    console.result({"name": name, **report.data, "passed": report.passed, "written": written})
    show_sweeps(console, [sweep.to_json() for sweep in outcome.sweeps])
    show_arrivals(console, outcome)
    show_gates(console, [("bench", gate.name, gate.passed, gate.detail) for gate in gates])
    for path in written:
        console.print(path)
    console.value(report.verdict)
    if not report.passed or (comparison is not None and not comparison.passed):
        raise common.Failed(ExitCode.GATE_FAILED)


def engine_of(bundle: Path) -> Path:
    """The engine directory of a bundle, or the engine directory itself; raises TF-BEN-022."""

    for candidate in (bundle / "engine", bundle):
        if (candidate / "engine.json").is_file():
            return candidate
    raise ForgeError(
        "TF-BEN-022",
        f"{bundle} holds no engine",
        asked=str(bundle),
        why="A bundle has engine/engine.json.",
        remedies=["trtforge run RECIPE makes a bundle and prints its path"],
    )
