"""mixing: which format each group of linears gets, for the least divergence within so many bits a weight.

The stage of ``trtforge quantize mix``; no run of a recipe has it. Every candidate is measured as
:mod:`trtforge.pipeline.stages.sensitivity` measures one format, then the choice is solved, calibrated as the recipe
will be, and measured as a whole beside each candidate alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trtforge.formats.mixing import named_format
from trtforge.formats.table import UNQUANTIZED
from trtforge.models.shape import matches
from trtforge.pipeline.stage import Stage, StageContext
from trtforge.pipeline.stages.common import rounded, write_json
from trtforge.pipeline.stages.sensitivity import Measuring, measured_identity, shown
from trtforge.store.artifact import StageResult

if TYPE_CHECKING:
    from pathlib import Path

    from evals.report import Report
    from evals.statistics import Interval
    from quantize.assignment import Choice
    from quantize.sensitivity import LinearGroup
    from trtforge.recipe.schema import Recipe

FILE = "mixing.json"


@dataclass(frozen=True)
class MixingOptions:
    """What is searched.

    Attributes:
        bits: most stored bits a weight of the linears that the recipe quantizes.
        formats: candidates as a recipe writes them, ``none`` for the model's own type.
        include, exclude: patterns of the linears that are searched, and of those that keep the first format.
        tokens: every group is measured on, in every candidate.
    """

    bits: float
    formats: tuple[str, ...]
    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()
    tokens: int = 1024

    def searches(self, group: LinearGroup) -> bool:
        """Whether a group may get another format than the first; a pattern that takes in a part takes in all of it."""

        def named(patterns: tuple[str, ...]) -> bool:
            return any(matches(module, pattern) for module in group.modules for pattern in patterns)

        return named(self.include) and not named(self.exclude)


class MixingStage(Stage):
    """``mixing.json`` and the report beside it."""

    name = "mixing"
    needs = ("intake",)
    code_version = "1"
    tools = ("nvidia-modelopt", "torch", "transformers", "tokenizers", "numpy", "scipy")
    reuses_samples = True

    def __init__(self, options: MixingOptions) -> None:
        self._options = options

    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        asked = self._options
        formats = {text: measured_identity(uniform(recipe, text), recipe_dir) for text in self._quantizing()}
        options = vars(asked) | {"formats": list(asked.formats)}
        return {"options": options | {"include": list(asked.include), "exclude": list(asked.exclude)}, "each": formats}

    def _quantizing(self) -> list[str]:
        return [text for text in self._options.formats if text != UNQUANTIZED]

    def run(self, context: StageContext) -> StageResult:
        from evals.report import write_report
        from quantize.assignment import assign_formats

        found: dict[str, list[Choice]] = {}
        groups: list[LinearGroup] = []
        together: dict[str, Interval] = {}
        for text in self._quantizing():
            context.progress.note(f"candidate {text}")
            groups, choices, together[text] = self._measured(context, text)
            for name, choice in choices.items():
                found.setdefault(name, []).append(choice)
        self._add_unquantized(groups, found)
        weights = sum(group.weights for group in groups)
        chosen = assign_formats(found, weights, self._options.bits)
        changes = recipe_changes(context.recipe, groups, {name: choice.format for name, choice in chosen.items()})
        made, positions = self._whole(context, changes, groups, chosen)
        document = rounded(self._document(groups, found, chosen, changes, made, together, positions))
        write_json(context.out / FILE, document)
        write_report(_report(context.recipe.name, document), context.out)
        return StageResult(summary=document)

    def _measured(self, context: StageContext, text: str) -> tuple[list[LinearGroup], dict[str, Choice], Interval]:
        """One candidate: the groups, each one's choice of it, and all of them together."""
        from quantize.assignment import Choice
        from quantize.sensitivity import stored_bytes

        recipe = uniform(context.recipe, text)
        measure, plan, headers, groups = Measuring.of_recipe(replace(context, recipe=recipe), self._options.tokens)
        searched = [group for group in groups if self._options.searches(group) or text == self._options.formats[0]]
        kl = measure.each(searched)
        choices = {
            group.name: Choice(
                text, 8 * sum(stored_bytes(plan, headers, module) for module in group.modules), kl[group.name].value
            )
            for group in searched
        }
        return groups, choices, measure.together(groups)

    def _add_unquantized(self, groups: list[LinearGroup], found: dict[str, list[Choice]]) -> None:
        from quantize.assignment import Choice

        if UNQUANTIZED not in self._options.formats:
            return
        for group in groups:
            if self._options.searches(group):
                quantized = found[group.name][0]
                found[group.name].append(Choice(UNQUANTIZED, quantized.bits + 8 * group.saved, 0.0))

    def _whole(
        self, context: StageContext, changes: Mapping[str, Any], groups: list[LinearGroup], chosen: Mapping[str, Choice]
    ) -> tuple[Interval, int]:
        """What the chosen recipe diverges, calibrated as one, and over how many positions."""
        context.progress.note("the chosen formats together")
        quantize = context.recipe.quantize.model_copy(update=changes)
        recipe = context.recipe.model_copy(update={"quantize": quantize})
        measure, *_ = Measuring.of_recipe(replace(context, recipe=recipe), self._options.tokens)
        left = [group for group in groups if chosen[group.name].format != UNQUANTIZED]
        return measure.together(left), measure.positions

    def _document(
        self,
        groups: list[LinearGroup],
        found: Mapping[str, list[Choice]],
        chosen: Mapping[str, Choice],
        changes: Mapping[str, Any],
        made: Interval,
        together: Mapping[str, Interval],
        positions: int,
    ) -> dict[str, Any]:
        from quantize.assignment import effective_bits

        weights = sum(group.weights for group in groups)
        sizes = {text: sum(c.bits for own in found.values() for c in own if c.format == text) for text in together}
        whole = {text for text in together if all(any(c.format == text for c in own) for own in found.values())}
        return {
            "asked_bits": self._options.bits,
            "bits": effective_bits(sum(choice.bits for choice in chosen.values()), weights),
            "weights": weights,
            "positions": positions,
            "kl": made.to_json(),
            "sum_of_groups": sum(choice.divergence for choice in chosen.values()),
            "uniform": {
                text: {"kl": kl.to_json(), "bits": effective_bits(sizes[text], weights) if text in whole else None}
                for text, kl in together.items()
            },
            "groups": [
                {
                    "name": group.name,
                    "modules": list(group.modules),
                    "weights": group.weights,
                    "format": chosen[group.name].format,
                    "choices": {c.format: {"bits": c.bits, "kl": c.divergence} for c in found[group.name]},
                }
                for group in groups
            ],
            "quantize": dict(changes),
        }


def uniform(recipe: Recipe, text: str) -> Recipe:
    """The recipe with one format for every linear that it quantizes; keys and values stay as they are."""
    row, group = named_format(text)
    changes = {"format": row.name, "group_size": group, "mixed": {}, "kv_cache": "none"}
    return recipe.model_copy(update={"quantize": recipe.quantize.model_copy(update=changes)})


def recipe_changes(recipe: Recipe, groups: list[LinearGroup], formats: Mapping[str, str]) -> dict[str, Any]:
    """The keys of ``quantize`` that give each group its format; the format of the most weights is the recipe's own."""
    weights: dict[str, int] = {}
    members: dict[str, list[str]] = {}
    for group in groups:
        text = formats[group.name]
        weights[text] = weights.get(text, 0) + group.weights
        members.setdefault(text, []).extend(group.modules)
    own = max((text for text in weights if text != UNQUANTIZED), key=lambda text: weights[text], default=UNQUANTIZED)
    row, size = named_format(own)
    left = members.pop(UNQUANTIZED, [])
    return {
        "format": row.name,
        "group_size": size,
        "mixed": {text: tuple(names) for text, names in members.items() if text != own},
        "exclude": tuple(dict.fromkeys((*recipe.quantize.exclude, *left))),
    }


def _report(name: str, document: Mapping[str, Any]) -> Report:
    from evals.report import Plot, Report, Section, Series, Table

    formats = list(document["uniform"])
    text = (
        f"{document['bits']:.2f} bits a weight of {document['weights']:,}, at most {document['asked_bits']:g}. "
        f"KL divergence from the unquantized model over {document['positions']:,} positions "
        f"{shown(document['kl'])}, 95 % interval."
    )
    whole = {"mixed": document["kl"], **{one: own["kl"] for one, own in document["uniform"].items()}}
    plot = Plot("All linears quantized", "", "KL, nats", (Series.of_intervals("KL", whole),), kind="difference")
    rows = tuple(
        (group["name"], group["format"], *(_alone(group["choices"].get(one)) for one in formats))
        for group in document["groups"]
    )
    columns = ("group", "format", *(f"KL alone in {one}" for one in formats))
    sections = [
        Section("What was chosen", text, (), (plot,)),
        Section("Every group", "", (Table(columns, rows),)),
    ]
    verdict = f"{document['bits']:.2f} bits a weight, KL {document['kl']['value']:.3g}"
    return Report(f"Mixed precision of {name}", verdict, True, sections, dict(document))


def _alone(choice: Mapping[str, float] | None) -> str:
    return "-" if choice is None else f"{choice['kl']:.3g}"
