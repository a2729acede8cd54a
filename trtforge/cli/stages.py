"""``quantize``, ``eval`` and ``build``: the pipeline up to one stage, from a recipe or from options alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtforge.cli import common
from trtforge.cli.common import SetOption, StoreOption
from trtforge.ground.errors import ExitCode, ForgeError

if TYPE_CHECKING:
    from trtforge.ground.console import Console
    from trtforge.recipe.load import LoadedRecipe
    from trtforge.store.artifact import Artifact
    from trtforge.store.store import Store

InputArgument = Annotated[
    str, typer.Argument(metavar="RECIPE|SOURCE", help="A recipe, or a model source as in model.source.")
]
FormatOption = Annotated[str | None, typer.Option("--format", help="quantize.format")]
KvOption = Annotated[str | None, typer.Option("--kv-cache", help="quantize.kv_cache")]
GroupOption = Annotated[int | None, typer.Option("--group-size", help="quantize.group_size")]
CorpusOption = Annotated[str | None, typer.Option("--corpus", help="The corpus of calibration or evaluation.")]
OutOption = Annotated[Path | None, typer.Option("--output", "-o", metavar="DIR", help="Copy the result there too.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Run the stage even when it is cached.")]


@common.forge_command
def quantize(
    console: Console,
    source: InputArgument,
    format_: FormatOption = None,
    kv_cache: KvOption = None,
    group_size: GroupOption = None,
    corpus: CorpusOption = None,
    samples: Annotated[int | None, typer.Option(help="quantize.calibration.samples")] = None,
    sequence_length: Annotated[int | None, typer.Option(help="quantize.calibration.sequence_length")] = None,
    seed: Annotated[int | None, typer.Option(help="quantize.calibration.seed")] = None,
    overrides: SetOption = None,
    store: StoreOption = None,
    output: OutOption = None,
    force: ForceOption = False,
) -> None:
    """Quantize a checkpoint and audit the result."""
    options = {
        "quantize.format": format_,
        "quantize.kv_cache": kv_cache,
        "quantize.group_size": group_size,
        "quantize.calibration.corpus": corpus,
        "quantize.calibration.samples": samples,
        "quantize.calibration.sequence_length": sequence_length,
        "quantize.calibration.seed": seed,
    }
    _stage(console, source, "quantize", options, overrides or [], store, output, force)


@common.forge_command
def evaluate(
    console: Console,
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[RECIPE|SOURCE]",
            help="A recipe, or a model source as in model.source; none with --server.",
        ),
    ] = None,
    format_: FormatOption = None,
    kv_cache: KvOption = None,
    group_size: GroupOption = None,
    corpus: CorpusOption = None,
    tokens: Annotated[int | None, typer.Option(help="evals.perplexity.tokens")] = None,
    max_increase: Annotated[str | None, typer.Option(help="evals.perplexity.gate.max_increase")] = None,
    overrides: SetOption = None,
    store: StoreOption = None,
    output: OutOption = None,
    force: ForceOption = False,
    server: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Evaluate the live server at this HTTP address (Triton or OpenAI) against --bundle.",
        ),
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(metavar="BUNDLE", help="What the server serves; the result is sealed into it."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The model's name on the server (with --server).")] = None,
    load: Annotated[
        bool | None,
        typer.Option("--bench/--no-bench", help="The load test too (with --server); default yes."),
    ] = None,
) -> None:
    """Measure baseline and candidate on the same tokens and items; exit 1 when a gate is missed."""
    if server is not None or bundle is not None:
        given: dict[str, Any] = {
            "RECIPE|SOURCE": source,
            "--format": format_,
            "--kv-cache": kv_cache,
            "--group-size": group_size,
        }
        given |= {"--corpus": corpus, "--tokens": tokens, "--max-increase": max_increase, "--set": overrides}
        given |= {"--store": store, "--output": output, "--force": force or None}
        _evaluate_server(
            console, server, bundle, model, load is not False, [name for name, value in given.items() if value]
        )
        return
    alone = [name for name, value in {"--model": model, "--bench or --no-bench": load}.items() if value is not None]
    if source is None or alone:
        raise _nothing_to_evaluate(f"{alone[0]} without --server" if alone else "neither a recipe nor a server")
    options = {
        "quantize.format": format_,
        "quantize.kv_cache": kv_cache,
        "quantize.group_size": group_size,
        "evals.perplexity.corpus": corpus,
        "evals.perplexity.tokens": tokens,
        "evals.perplexity.gate.max_increase": max_increase,
    }
    _stage(console, source, "evaluate", options, overrides or [], store, output, force)


def _nothing_to_evaluate(why: str) -> ForgeError:
    return ForgeError(
        "TF-EVL-022",
        "there is nothing to evaluate",
        asked="trtforge eval",
        why=f"This asks for {why}. A recipe is evaluated by itself, a server against the bundle that it serves.",
        remedies=["trtforge eval RECIPE", "trtforge eval --server HOST:PORT --bundle BUNDLE"],
    )


def _evaluate_server(
    console: Console, server: str | None, bundle: Path | None, model: str | None, load: bool, beside: list[str]
) -> None:
    from trtforge.cli.summary import show_gates
    from trtforge.pipeline.server_evaluation import evaluate_live

    if server is None or bundle is None:
        raise _nothing_to_evaluate("a server without a bundle" if bundle is None else "a bundle without a server")
    if beside:
        raise _nothing_to_evaluate(f"a server, and {', '.join(beside)} beside it, which would have no effect")
    with console.progress("eval") as progress:
        result = evaluate_live(bundle, server, progress, model=model, load=load)
    gates, addendum = result.found.gates, result.addendum
    console.result(
        {
            "bundle": str(bundle),
            "server": result.server,
            "verdict": result.verdict,
            "addendum": str(addendum.path),
            "figures": dict(addendum.content["figures"]),
            "gates": list(addendum.content["gates"]),
            "left_out": result.found.left_out,
        }
    )
    show_gates(console, [("server", gate.name, gate.passed, gate.detail) for gate in gates])
    for what, why in result.found.left_out.items():
        console.print(f"left out: {what}: {why}")
    console.print(f"addendum {addendum.path}")
    console.value(f"verdict {result.verdict}")
    if not addendum.passed:
        raise common.Failed(ExitCode.GATE_FAILED)


@common.forge_command
def build(
    console: Console,
    source: InputArgument,
    target: Annotated[str | None, typer.Option(help="build.target")] = None,
    format_: FormatOption = None,
    kv_cache: KvOption = None,
    group_size: GroupOption = None,
    max_batch_size: Annotated[int | None, typer.Option(help="build.limits.max_batch_size")] = None,
    max_num_tokens: Annotated[int | None, typer.Option(help="build.limits.max_num_tokens")] = None,
    max_seq_len: Annotated[int | None, typer.Option(help="build.limits.max_seq_len")] = None,
    max_input_len: Annotated[int | None, typer.Option(help="build.limits.max_input_len")] = None,
    block_size: Annotated[int | None, typer.Option(help="build.kv_cache.block_size")] = None,
    kv_memory: Annotated[str | None, typer.Option(help="build.kv_cache.memory, for example 256MiB")] = None,
    overrides: SetOption = None,
    store: StoreOption = None,
    output: OutOption = None,
    force: ForceOption = False,
) -> None:
    """Build the engine of a checkpoint."""
    options = {
        "build.target": target,
        "quantize.format": format_,
        "quantize.kv_cache": kv_cache,
        "quantize.group_size": group_size,
        "build.limits.max_batch_size": max_batch_size,
        "build.limits.max_num_tokens": max_num_tokens,
        "build.limits.max_seq_len": max_seq_len,
        "build.limits.max_input_len": max_input_len,
        "build.kv_cache.block_size": block_size,
        "build.kv_cache.memory": kv_memory,
    }
    _stage(console, source, "build", options, overrides or [], store, output, force)


def recipe_for(source: str, options: dict[str, Any], overrides: list[str]) -> LoadedRecipe:
    """The recipe that a command works on: the file, or one made in memory, with the options laid upon it."""
    from quantize.intake import inspect_source
    from trtforge.recipe.load import load_recipe, recipe_from_mapping
    from trtforge.recipe.shipped import names_recipe
    from trtforge.recipe.starter import fitting_sections, recipe_name

    # options first: --set is the more explicit of the two; JSON is YAML, so any text survives
    given = [f"{key}={json.dumps(value)}" for key, value in options.items() if value is not None]
    if names_recipe(source):
        return load_recipe(source, [*given, *overrides])
    name = recipe_name(source, str(options.get("quantize.format") or "none"))
    data: dict[str, Any] = {"name": name, "model": {"source": source}}
    found = inspect_source(source, Path.cwd())
    if found is not None:
        data |= fitting_sections(found.model)
    return recipe_from_mapping(data, Path.cwd(), [*given, *overrides])


def _stage(
    console: Console,
    source: str,
    stage: str,
    options: dict[str, Any],
    overrides: list[str],
    store: Path | None,
    output: Path | None,
    force: bool,
) -> None:
    from trtforge.cli.run import run_loaded

    loaded = recipe_for(source, options, overrides)
    if output is not None:
        require_empty(output)
    opened = common.open_store(store)
    result = run_loaded(console, loaded, opened, until=stage, force=[stage] if force else [], only_needed=True)
    if output is not None:
        copy_out(console, opened, result.artifact(stage), output)
        console.value(str(output))


def copy_out(console: Console, store: Store, artifact: Artifact, output: Path) -> None:
    """Copy an artifact with its manifest; one that turns out damaged is taken out of use, and its copy removed."""
    from trtforge.ground.files import remove_tree
    from trtforge.store.export import DamagedArtifact, copy_published
    from trtforge.store.quarantine import quarantine_of

    try:
        copy_published(artifact, output)
    except DamagedArtifact as error:
        remove_tree(output)
        quarantine_of(store, error, say=console.warning)
        raise


def require_empty(output: Path) -> None:
    """Refuse to mix a result with files that are there already; raises TF-CLI-007."""
    from trtforge.ground.files import nearest_existing

    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ForgeError(
            "TF-CLI-007",
            f"{output} is not an empty folder",
            asked=f"--output {output}",
            why="The result would be mixed with what is there.",
            remedies=["name a new folder"],
        )
    above = nearest_existing(output.absolute())
    if not above.is_dir():
        raise ForgeError(
            "TF-CLI-007",
            f"{output} lies below {above.name}, which is a file",
            asked=f"--output {output}",
            why="The folder could not be made when the result is there.",
            remedies=["name a new folder"],
        )
