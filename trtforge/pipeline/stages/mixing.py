"""mixing: which format each group of linears gets, for the least divergence within so many bits a weight.

The stage of ``trtforge quantize mix``; no run of a recipe has it. Every candidate is measured as
:mod:`trtforge.pipeline.stages.sensitivity` measures one format, then the choice is solved, calibrated as the recipe
will be, and measured as a whole beside each candidate alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from trtforge.formats.mixing import named_format
from trtforge.formats.table import UNQUANTIZED
from trtforge.ground.errors import ForgeError
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
        formats = {
            text: measured_identity(uniform(recipe, text), recipe_dir) for text in asked.formats if text != UNQUANTIZED
        }
        options = vars(asked) | {"formats": list(asked.formats)}
        return {"options": options | {"include": list(asked.include), "exclude": list(asked.exclude)}, "each": formats}

    def run(self, context: StageContext) -> StageResult:
        from evals.report import write_report

        search = _Search(context, self._options)
        chosen = search.run()
        groups = search.groups
        changes = recipe_changes(context.recipe, groups, {name: choice.format for name, choice in chosen.items()})
        made, positions = self._whole(context, changes, groups, chosen)
        document = rounded(self._document(search, chosen, changes, made, positions))
        write_json(context.out / FILE, document)
        write_report(_report(context.recipe.name, document), context.out)
        return StageResult(summary=document)

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
        search: _Search,
        chosen: Mapping[str, Choice],
        changes: Mapping[str, Any],
        made: Interval,
        positions: int,
    ) -> dict[str, Any]:
        from quantize.assignment import effective_bits

        weights = search.weights
        whole = {text: effective_bits(sum(search.bits[text].values()), weights) for text in search.together}
        return {
            "asked_bits": self._options.bits,
            "bits": effective_bits(sum(choice.bits for choice in chosen.values()), weights),
            "weights": weights,
            "positions": positions,
            "kl": made.to_json(),
            "sum_of_groups": sum(choice.divergence for choice in chosen.values()),
            "uniform": {text: {"kl": kl.to_json(), "bits": whole[text]} for text, kl in search.together.items()},
            "groups": [
                {
                    "name": group.name,
                    "modules": list(group.modules),
                    "weights": group.weights,
                    "format": chosen[group.name].format,
                    "choices": {
                        text: {"bits": search.bits[text][group.name], "kl": search.divergence(text, group.name)}
                        for text in search.choices[group.name]
                    },
                }
                for group in search.groups
            ],
            "quantize": dict(changes),
        }


class _Search:
    """Which choice is the best, measuring no more than that takes.

    The narrowest format is measured in every group that has a choice. Others count as diverging nothing until a
    solution takes them: what it takes is measured, and solved again. A solution of which everything is measured is the
    best of all, since what was not measured can only diverge more than was counted.

    Attributes:
        choices: the formats that each group may get.
        bits: format → group → bits of its tensors.
        together: format → all groups in it.
    """

    def __init__(self, context: StageContext, options: MixingOptions) -> None:
        from quantize.sensitivity import planned_groups, stored_bytes

        self._context, self._options = context, options
        self._loaded: tuple[str, Measuring] | None = None
        self._measured: dict[tuple[str, str], float] = {}
        self.groups: list[LinearGroup] = []
        self.bits: dict[str, dict[str, int]] = {}
        self.together: dict[str, Interval] = {}
        for text in options.formats:
            if text == UNQUANTIZED:
                narrow = self.bits[options.formats[0]]
                self.bits[text] = {group.name: narrow[group.name] + 8 * group.saved for group in self.groups}
                continue
            source = context.inputs["intake"].path
            plan, headers, groups = planned_groups(source, uniform(context.recipe, text).quantize)
            self.groups = self.groups or groups
            self.bits[text] = {
                group.name: 8 * sum(stored_bytes(plan, headers, module) for module in group.modules) for group in groups
            }
        _require_matches(options, self.groups)
        first = options.formats[:1]
        self.choices = {group.name: options.formats if options.searches(group) else first for group in self.groups}
        self.weights = sum(group.weights for group in self.groups)

    def run(self) -> dict[str, Choice]:
        """The best choice of every group."""
        self._solved()  # bits that no choice has are refused before anything is measured
        quantizing = [text for text in self._options.formats if text != UNQUANTIZED]
        self._measure(min(quantizing, key=lambda text: sum(self.bits[text].values())), {*self.choices})
        while True:
            chosen = self._solved()
            wanted: dict[str, set[str]] = {}
            for name, choice in chosen.items():
                if len(self.choices[name]) > 1 and self.divergence(choice.format, name) is None:
                    wanted.setdefault(choice.format, set()).add(name)
            if not wanted:
                break
            # what is loaded comes first: every other format is calibrated anew
            loaded = self._loaded[0] if self._loaded is not None else ""
            text = loaded if loaded in wanted else next(iter(wanted))
            self._measure(text, wanted[text])
        for text in quantizing:
            if text not in self.together:
                self._measure(text, set())
        return chosen

    def divergence(self, text: str, name: str) -> float | None:
        """Of a group alone in a format; None: not measured."""
        return 0.0 if text == UNQUANTIZED else self._measured.get((text, name))

    def _solved(self) -> dict[str, Choice]:
        from quantize.assignment import Choice, assign_formats

        return assign_formats(
            {
                name: [Choice(text, self.bits[text][name], self.divergence(text, name) or 0.0) for text in texts]
                for name, texts in self.choices.items()
            },
            self.weights,
            self._options.bits,
        )

    def _measure(self, text: str, names: set[str]) -> None:
        """Groups that have a choice alone in a format, and all of them together when it is met first."""
        if self._loaded is None or self._loaded[0] != text:
            self._loaded = None  # its two models go before the next ones come
            self._context.progress.note(f"candidate {text}")
            recipe = uniform(self._context.recipe, text)
            measure, *_ = Measuring.of_recipe(replace(self._context, recipe=recipe), self._options.tokens)
            self._loaded = text, measure
        measure = self._loaded[1]
        searched = [group for group in self.groups if group.name in names and len(self.choices[group.name]) > 1]
        if searched:
            self._measured |= {(text, name): kl.value for name, kl in measure.each(searched).items()}
        if text not in self.together:
            self.together[text] = measure.together(self.groups)


def _require_matches(options: MixingOptions, groups: Sequence[LinearGroup]) -> None:
    """Refuse a pattern that names nothing: a misspelt one would leave its linears in another format than was asked."""
    modules = [module for group in groups for module in group.modules]
    for option, patterns in (("--include", options.include), ("--exclude", options.exclude)):
        for pattern in patterns:
            if not any(matches(module, pattern) for module in modules):
                raise ForgeError(
                    "TF-QNT-045",
                    f"{option} {pattern} names no linear that the recipe quantizes",
                    asked=f"{option} {pattern}",
                    numbers={"linears": len(modules), "example": modules[0]},
                    why="A misspelt name would leave linears in another format than was asked for.",
                    remedies=[f"{option} with a kind such as o_proj, or a path such as model.layers.0.*"],
                )


def uniform(recipe: Recipe, text: str) -> Recipe:
    """The recipe with one format for every linear that it quantizes; keys and values stay as they are."""
    row, group = named_format(text)
    changes: dict[str, Any] = {"format": row.name, "group_size": group, "mixed": {}, "kv_cache": "none"}
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


def _alone(choice: Mapping[str, float | None] | None) -> str:
    return "-" if choice is None or choice["kl"] is None else f"{choice['kl']:.3g}"
