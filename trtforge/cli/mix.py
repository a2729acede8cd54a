"""``trtforge quantize mix``: formats by linear for so many bits a weight, as a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtforge.cli import common
from trtforge.cli.common import RecipeArgument, SetOption, StoreOption

if TYPE_CHECKING:
    from trtforge.ground.console import Console
    from trtforge.pipeline.stages.mixing import MixingOptions
    from trtforge.recipe.load import LoadedRecipe


@common.forge_command
def mix(
    console: Console,
    recipe: RecipeArgument,
    bits: Annotated[float, typer.Option("--bits", metavar="BITS", help="Most stored bits a weight, scales included.")],
    formats: Annotated[
        str | None,
        typer.Option(
            "--formats",
            metavar="NAME[:GROUP],…",
            help="Candidates; none is the model's own type. Default: NVFP4 and FP8.",
            show_default=False,
        ),
    ] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(
            "--include", metavar="PATTERN", help="Linears that are searched; default all.", show_default=False
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude", metavar="PATTERN", help="Linears that keep the first of the formats.", show_default=False
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(min=2, help="Tokens that every group is measured on.")] = 1024,
    overrides: SetOption = None,
    store: StoreOption = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the recipe with these formats.", show_default=False),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the existing file of -o.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Measure again even when it is cached.")] = False,
) -> None:
    """Choose a format for each linear: the least divergence within so many bits a weight."""
    from trtforge.cli.advise import write_changed
    from trtforge.cli.run import run_loaded
    from trtforge.formats.mixing import named_format
    from trtforge.pipeline.catalogue import default_stages
    from trtforge.pipeline.matrix import Variant
    from trtforge.pipeline.stages.mixing import MixingStage
    from trtforge.pipeline.stages.sensitivity import shown
    from trtforge.preflight.remedies import line
    from trtforge.recipe.load import load_recipe

    common.refuse_chosen_formats(overrides or (), "quantize mix")
    loaded = load_recipe(recipe, overrides or ())
    options = _options(loaded, bits, formats, include, exclude, tokens)
    # the recipe's own formats are what is chosen here
    row, group = named_format(options.formats[0])
    loaded = load_recipe(recipe, [*(overrides or ()), *Variant(row.name, group).overrides])
    stage = MixingStage(options)
    stages = [*default_stages(), stage]
    forced = [stage.name] if force else []
    opened = common.open_store(store)
    result = run_loaded(console, loaded, opened, stages=stages, until=stage.name, force=forced, only_needed=True)
    made = result.artifact(stage.name)
    found = made.summary
    rows = [["mixed", f"{found['bits']:.2f}", shown(found["kl"])]]
    rows += [
        [text, "-" if one["bits"] is None else f"{one['bits']:.2f}", shown(one["kl"])]
        for text, one in found["uniform"].items()
    ]
    console.table(f"All {len(found['groups'])} groups quantized", ["format", "bits a weight", "KL, nats"], rows)
    console.print(str(made.path / "report.html"))
    changes = {f"quantize.{key}": value for key, value in found["quantize"].items()}
    for key, value in changes.items():
        console.print(line(key, value))
    if output is not None:
        head = [
            "Written by `trtforge quantize mix`.",
            f"{found['bits']:.2f} bits a weight of the quantized linears ({bits:g} asked), scales included.",
            f"KL divergence from the unquantized model over {found['positions']:,} positions {shown(found['kl'])}.",
        ]
        write_changed(output, loaded, changes, head, overwrite=overwrite)
    counts = {text: sum(group["format"] == text for group in found["groups"]) for text in options.formats}
    chosen = ", ".join(f"{text} for {count} groups" for text, count in counts.items() if count)
    written = "" if output is None else f"; written to {output}"
    console.value(f"{loaded.recipe.name}: {chosen}, {found['bits']:.2f} bits a weight{written}")


def _options(
    loaded: LoadedRecipe,
    bits: float,
    formats: str | None,
    include: Sequence[str] | None,
    exclude: Sequence[str] | None,
    tokens: int,
) -> MixingOptions:
    """What is asked, or TF-CLI-065, and TF-QNT-017 for formats that the recipe's target does not mix."""
    from trtforge.formats.mixing import format_text, load_mixing, mixable, mixable_on, sized_format
    from trtforge.formats.table import UNQUANTIZED
    from trtforge.ground.errors import ForgeError
    from trtforge.pipeline.stages.mixing import MixingOptions

    usual = ",".join(load_mixing().usual)
    names = [part.strip() for part in (formats or usual).split(",") if part.strip()]
    texts = list(dict.fromkeys(format_text(*sized_format(name)) for name in names if name != UNQUANTIZED))
    whole = [*texts, UNQUANTIZED] if UNQUANTIZED in names else texts
    if len(whole) < 2 or not texts:
        raise ForgeError(
            "TF-CLI-065",
            "there is nothing to choose from: name two formats or more",
            asked=f"--formats {formats}",
            why="Every linear gets one of the candidates.",
            remedies=[f"--formats {usual}", f"--formats {usual},{UNQUANTIZED}"],
        )
    if not 0 < bits < 16:
        raise ForgeError(
            "TF-CLI-065",
            f"{bits:g} bits a weight are none that formats can have",
            asked=f"--bits {bits:g}",
            why="Unquantized weights have 16 bits, and the smallest formats a little over 4.",
            remedies=["--bits 5.4", "--bits 6"],
        )
    rows = [sized_format(text)[0].name for text in texts]
    asked = f"--formats {','.join(whole)}"
    if len(texts) > 1:  # one beside none is one format, and linears that are excluded
        mixable(rows, asked)
        mixable_on(loaded.recipe.build.target, rows, asked)
    found: Any = {"include": tuple(include)} if include else {}
    return MixingOptions(bits, tuple(whole), exclude=tuple(exclude or ()), tokens=tokens, **found)
