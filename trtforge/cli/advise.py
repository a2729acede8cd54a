"""``trtforge quantize advise``: the format, KV cache and group that a recipe should have on a GPU, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtforge.cli import common
from trtforge.cli.common import RecipeArgument, SetOption
from trtforge.ground.errors import ForgeError

if TYPE_CHECKING:
    from builder.planner.advice.candidates import Candidate
    from builder.planner.hardware import Gpu
    from trtforge.ground.console import Console
    from trtforge.models.record import Model
    from trtforge.recipe.load import LoadedRecipe


@common.forge_command
def advise(
    console: Console,
    recipe: RecipeArgument,
    gpu: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A GPU of the hardware table; default this machine's."),
    ] = None,
    count: Annotated[int, typer.Option(min=1, metavar="N", help="GPUs that the deployment has.")] = 1,
    isl: Annotated[int | None, typer.Option(min=1, help="Prompt tokens of every request.")] = None,
    osl: Annotated[int | None, typer.Option(min=1, help="Answer tokens of every request.")] = None,
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="config.json of a model that is not here."),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the recipe.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the existing file of -o.")] = False,
    overrides: SetOption = None,
) -> None:
    """Advise how to quantize a recipe's model for a GPU, with the numbers that decide it."""
    from builder.planner.advice import advise as decide
    from builder.planner.advice.words import answer, reasoning, to_json
    from builder.planner.facts import collect
    from trtforge.cli.plan import workload_of
    from trtforge.cli.plan_model import draft_model, known_model, written_split
    from trtforge.cli.plan_search import model_to_check
    from trtforge.cli.summary import show_labelled
    from trtforge.recipe.load import load_recipe

    card = _gpu(gpu)
    load = workload_of(isl, osl, None, None, 0, None)
    loaded = load_recipe(recipe, overrides or ())
    known = known_model(loaded, loaded.recipe.model.source, config)
    parallel, draft = written_split(loaded), draft_model(loaded)
    facts = collect(loaded.recipe, known, card, count, workload=load, parallel=parallel, draft=draft)
    model = model_to_check(loaded, facts.model)
    check = Check(loaded, card, model)
    found = decide(facts, known.groups, check, checked=model)
    changes = check.changes(found.best)
    lines = _lines(changes, loaded.written)
    if output is not None:
        write_changed(output, loaded, changes, _head(found), overwrite=overwrite)
    document: dict[str, Any] = {"recipe": str(recipe), "name": loaded.recipe.name, "gpu": card.name, "count": count}
    document |= {"parallel": str(facts.parallel), "notes": list(facts.notes), **to_json(found), "lines": lines}
    console.result({**document, "written": None if output is None else str(output)})
    show_labelled(console, answer(found))
    console.heading("Why")
    show_labelled(console, reasoning(found))
    for note in facts.notes:
        console.print(f"note: {note}")
    if found.ruled_out:
        console.table("Ruled out", ["format", "why"], [list(item) for item in document["ruled_out"].items()])
    console.heading("Lines of the recipe")
    for text in lines or ["as it is"]:
        console.print(text)
    written = "" if output is None else f"; written to {output}"
    console.value(f"{loaded.recipe.name} on {count} x {card.name}: {found.best.name}{written}")


def _gpu(name: str | None) -> Gpu:
    """The GPU that is named, or this machine's first; raises TF-PLN-001, and TF-CLI-061 where there is neither."""
    from builder.planner.hardware import gpu, load_hardware
    from trtforge.machine.gpus import gpus

    if name is not None:
        return gpu(name)
    here = gpus()
    if here.all:
        return gpu(here.all[0].name)
    raise ForgeError(
        "TF-CLI-061",
        "advice needs a GPU, and none is here",
        asked="trtforge quantize advise",
        numbers={"known": [row.name for row in load_hardware().gpus]},
        why=f"What binds, and which formats have kernels, differs from GPU to GPU. {here.lacking}".strip(),
        remedies=[f"--gpu {row.name}" for row in load_hardware().gpus],
    )


class Check:
    """What preflight has against the recipe of a candidate; rules about this machine are left out."""

    def __init__(self, loaded: LoadedRecipe, card: Gpu, model: Model | None) -> None:
        self.loaded, self.card, self.model = loaded, card, model

    def changes(self, candidate: Candidate) -> dict[str, Any]:
        """Dotted keys of the recipe with their values; the architectures are the GPU's, so that its kernels count."""
        from trtforge.preflight.remedies import REMOVED

        changes = {f"quantize.{key}": value for key, value in candidate.changes().items()}
        if self.loaded.recipe.target.needs_gpu:
            changes["build.architectures"] = [self.card.arch]
        return {key: REMOVED if value is None else value for key, value in changes.items()}

    def __call__(self, candidate: Candidate) -> list[str]:
        from trtforge.preflight.remedies import applied
        from trtforge.recipe.load import recipe_from_mapping

        data = applied(self.loaded.written, self.changes(candidate))
        changed = recipe_from_mapping(data, self.loaded.directory, label=self.loaded.recipe.name)
        findings = common.preflight(changed, model=self.model, machine=False).findings
        return [f"{finding.code}: {finding.message}" for finding in findings if finding.blocks]


def _lines(changes: Mapping[str, Any], written: Mapping[str, Any]) -> list[str]:
    """The changes as lines of a recipe, without those that change nothing."""
    from trtforge.preflight.remedies import applied, line

    return [line(key, value) for key, value in changes.items() if applied(written, {key: value}) != written]


def _head(found: Any) -> list[str]:
    from builder.planner.advice.words import answer, reasoning

    return ["Advised by `trtforge quantize advise`.", *(f"{a}: {b}" for a, b in (*answer(found), *reasoning(found)))]


def write_changed(
    output: Path, loaded: LoadedRecipe, changes: Mapping[str, Any], head: Sequence[str], *, overwrite: bool
) -> None:
    """The recipe with changes as a file, ``head`` above it, its paths meant from the new folder.

    Raises:
        ForgeError: TF-RCP-015 the file is there; TF-PLN-059 the recipe reads files beside it.
    """
    from builder.planner.search.recipe import headed, relocated
    from trtforge.preflight.remedies import applied
    from trtforge.recipe.starter import write_new

    data = relocated(applied(loaded.written, changes), loaded, output.parent)
    write_new(output, headed(data, head), overwrite=overwrite)
