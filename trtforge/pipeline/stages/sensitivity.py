"""sensitivity: what each group of linears costs when it alone is quantized, and which to spare for a bound.

The stage of ``trtforge quantize sensitivity``; no run of a recipe has it. Every window of every group is a sample that
is kept: an interrupted run goes on, another bound measures only what it needs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtforge.pipeline.stage import Stage, StageContext
from trtforge.pipeline.stages.common import corpus_identity, plain, rounded, write_json
from trtforge.pipeline.stages.quantize import QuantizeStage
from trtforge.recipe.schema import Recipe
from trtforge.store.artifact import StageResult

if TYPE_CHECKING:
    from evals.report import Report
    from evals.statistics import Interval
    from evals.windows import Reference
    from quantize.plan import QuantPlan
    from quantize.sensitivity import LinearGroup, PartlyQuantized
    from trtforge.ground.progress import Progress

FILE = "sensitivity.json"
#: groups that are named as the worst
WORST = 10


@dataclass(frozen=True)
class SensitivityOptions:
    """Tokens that every group is measured on, and the divergence that the rest may have; None: nothing is spared."""

    tokens: int = 2048
    max_kl: float | None = None


class SensitivityStage(Stage):
    """``sensitivity.json`` and the report beside it."""

    name = "sensitivity"
    needs = ("intake",)
    code_version = "1"
    tools = ("nvidia-modelopt", "torch", "transformers", "tokenizers", "numpy")
    reuses_samples = True

    def __init__(self, options: SensitivityOptions) -> None:
        self._options = options

    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        return {**measured_identity(recipe, recipe_dir), "tokens": self._options.tokens, "max_kl": self._options.max_kl}

    def run(self, context: StageContext) -> StageResult:
        from evals.report import write_report
        from quantize.sensitivity import least_exclusions

        measure, plan, groups = Measuring.of_recipe(context, self._options.tokens)
        kl = measure.each(groups)
        whole = measure.together(groups)
        spared = None
        if self._options.max_kl is not None:
            context.progress.start(f"sparing groups until the divergence is at most {self._options.max_kl:g}")
            values = {group.name: kl[group.name].value for group in groups}
            spared = least_exclusions(
                groups, values, self._options.max_kl, lambda rest: measure.together(rest).high if rest else 0.0
            )
        document = rounded(_document(self._options, plan.title, groups, kl, whole, measure, spared))
        write_json(context.out / FILE, document)
        write_report(_report(context.recipe.name, document), context.out)
        return StageResult(summary=document)


def measured_identity(recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
    """What decides every sample beside the checkpoint."""
    asked = recipe.evals.perplexity
    section = QuantizeStage().section(recipe, recipe_dir)
    left = ("kv_cache", "kv_row", "one_scale")
    return {
        "quantize": {key: value for key, value in section.items() if key not in left},
        "corpus": corpus_identity(asked.corpus, recipe_dir, "evaluation"),
        "perplexity": plain(asked, exclude={"gate", "corpus", "tokens", "noise_tokens"}),
    }


class _NotesOnly:
    """Progress inside a step that counts something else."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def start(self, description: str, total: float | None = None) -> None:
        self._progress.note(description)

    def advance(self, amount: float = 1.0) -> None:
        return None

    def note(self, text: str) -> None:
        self._progress.note(text)


class Measuring:
    """Divergence from the unquantized model over the same windows, with every sample kept."""

    @classmethod
    def of_recipe(cls, context: StageContext, tokens: int) -> tuple[Measuring, QuantPlan, list[LinearGroup]]:
        """For the formats of the context's recipe, with what it quantizes and its groups."""
        from quantize.plan import read_config
        from quantize.sensitivity import PartlyQuantized, planned_groups

        source, remote = context.inputs["intake"].path, context.recipe.model.allow_remote_code
        # keys and values stay as they are: their cost is the same whichever linears are quantized
        alone = context.recipe.quantize.model_copy(update={"kv_cache": "none"})
        plan, _, groups = planned_groups(source, alone)
        # the model loads while a step of its groups runs: what it says of itself is no step of its own
        told = _NotesOnly(context.progress)
        model = PartlyQuantized(source, read_config(source), plan, alone, context.recipe_dir, told, remote)
        return cls(context, model, tokens), plan, groups

    def __init__(self, context: StageContext, model: PartlyQuantized, tokens: int) -> None:
        from quantize.corpora import load_corpus, load_tokenizer, take_tokens

        self._context, self._model = context, model
        self._identity = {
            "checkpoint": context.inputs["intake"].manifest["content_hash"],
            "section": measured_identity(context.recipe, context.recipe_dir),
        }
        corpus = load_corpus(context.recipe.evals.perplexity.corpus, context.recipe_dir, "evaluation")
        self._tokens = take_tokens(corpus, load_tokenizer(context.inputs["intake"].path), tokens).tolist()
        self._against: Sequence[Reference] = self._windows("unquantized", ()).references

    @property
    def positions(self) -> int:
        """Predicted tokens."""
        return len(self._tokens) - 1

    def each(self, groups: Sequence[LinearGroup]) -> dict[str, Interval]:
        """Every group alone, with the time that is left."""
        progress = self._context.progress
        progress.start(f"{len(groups)} groups of linears, each alone", total=len(groups))
        found, started = {}, time.monotonic()
        for done, group in enumerate(groups, 1):
            found[group.name] = self.together([group])
            progress.advance()
            left = (time.monotonic() - started) / done * (len(groups) - done)
            progress.note(f"{done} of {len(groups)} groups, {group.name} last; about {left:.0f} s left")
        return found

    def together(self, groups: Sequence[LinearGroup]) -> Interval:
        """Groups quantized together, in nats."""
        from evals.statistics import block_mean

        modules = tuple(module for group in groups for module in group.modules)
        name = groups[0].name if len(groups) == 1 else f"{len(groups)} groups"
        measured = self._windows(name, modules)
        assert measured.divergence is not None
        return block_mean(measured.divergence.kl)

    def _windows(self, name: str, modules: tuple[str, ...]) -> Any:
        from evals.samples import Samples
        from evals.windows import TOP, measure_windows
        from trtforge.ground.hashing import hash_json

        context, asked = self._context, self._context.recipe.evals.perplexity
        samples = Samples(
            f"kl-{hash_json(sorted(modules))[:16]}",
            {**self._identity, "modules": sorted(modules), "top": TOP},
            out=context.out,
            scratch=context.scratch,
            earlier=[artifact.path for artifact in context.earlier],
        )
        return measure_windows(
            lambda ids, _: self._model.logits(ids, modules),
            self._tokens,
            window=asked.window,
            stride=asked.stride,
            samples=samples,
            against=self._against if modules else None,
            keep=not modules,
            what=f"divergence of {name}",
        )


def _document(
    options: SensitivityOptions,
    format: str,
    groups: Sequence[LinearGroup],
    kl: Mapping[str, Interval],
    whole: Interval,
    measure: Measuring,
    spared: Sequence[LinearGroup] | None,
) -> dict[str, Any]:
    order = sorted(groups, key=lambda group: (-kl[group.name].value, group.name))
    document: dict[str, Any] = {
        "format": format,
        "positions": measure.positions,
        "groups": [
            {
                "name": group.name,
                "modules": list(group.modules),
                "kl": kl[group.name].to_json(),
                "saved_bytes": group.saved,
            }
            for group in groups
        ],
        "worst": [group.name for group in order[:WORST]],
        "together": whole.to_json(),
        "saved_bytes": sum(group.saved for group in groups),
        "max_kl": options.max_kl,
        "spared": None,
    }
    if spared is not None:
        names = {group.name for group in spared}
        rest = [group for group in groups if group.name not in names]
        document["spared"] = {
            "groups": [group.name for group in spared],
            "modules": [module for group in spared for module in group.modules],
            "bytes": sum(group.saved for group in spared),
            "kl": measure.together(rest).to_json() if rest else None,
        }
    return document


def worst_rows(document: Mapping[str, Any]) -> list[list[str]]:
    """The worst groups: name, divergence with its interval, bytes that quantizing saves."""
    by_name = {group["name"]: group for group in document["groups"]}
    return [[name, shown(by_name[name]["kl"]), f"{by_name[name]['saved_bytes']:,}"] for name in document["worst"]]


def shown(interval: Mapping[str, float]) -> str:
    """A value with its interval."""
    return f"{interval['value']:.3g} [{interval['low']:.3g}, {interval['high']:.3g}]"


def _report(name: str, document: Mapping[str, Any]) -> Report:
    from evals.report import Plot, Report, Section, Series, Table

    by_name = {group["name"]: group for group in document["groups"]}
    worst = [by_name[key] for key in document["worst"]]
    series = Series.of_intervals("KL", {group["name"].removeprefix("model."): group["kl"] for group in worst})
    columns = ("group", "KL, nats", "bytes saved")
    everything = tuple((group["name"], shown(group["kl"]), f"{group['saved_bytes']:,}") for group in document["groups"])
    text = (
        f"Each group of linears alone in {document['format']}, everything else unquantized: KL divergence of the next "
        f"token from the unquantized model over {document['positions']:,} positions, 95 % intervals. All together: "
        f"{shown(document['together'])}."
    )
    plot = Plot("The worst groups, each quantized alone", "", "KL, nats", (series,), kind="difference")
    sections = [
        Section("The worst", text, (Table(columns, tuple(map(tuple, worst_rows(document)))),), (plot,)),
        Section("Every group", "", (Table(columns, everything),)),
    ]
    verdict = f"{len(everything)} groups measured; the worst is {document['worst'][0]}"
    return Report(f"Sensitivity of {name}", verdict, True, sections, dict(document))
