"""What ``trtforge plan`` needs for speed, cost and the search: options to facts, checks of recommended recipes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtforge.cli import common
from trtforge.ground.errors import ForgeError
from trtforge.models.record import Model

if TYPE_CHECKING:
    from builder.planner.facts import KnownModel
    from builder.planner.report import Plan
    from builder.planner.search import Point
    from builder.planner.types import Facts
    from trtforge.recipe.load import LoadedRecipe


def speed_options(
    gpu: str,
    *,
    price: float | None,
    utilization: float,
    acceptance: float | None,
    calibration: Path | None,
    graph: Path | None,
) -> dict[str, Any]:
    """The options of :attr:`builder.planner.types.Facts.options` that speed, speculation and cost read.

    Raises:
        ForgeError: ``TF-PLN-050`` an acceptance, ``TF-PLN-055`` a price or utilization outside its range;
            ``TF-PLN-052``, ``TF-PLN-053`` the calibration; ``TF-PLN-054`` the graph.
    """
    from builder.planner.cost import cost_per_million
    from builder.planner.speculation import expected_tokens

    expected_tokens(0.0 if acceptance is None else acceptance, 1)
    cost_per_million(1, price or 0.0, 1.0, utilization)
    found: dict[str, Any] = {"price": price, "utilization": utilization, "acceptance": acceptance}
    if calibration is not None:
        from builder.planner.calibration import read_calibration

        found["calibration"] = read_calibration(calibration, gpu)
    if graph is not None:
        from builder.planner.speed.graph_ops import ops_of_graph

        found["raw_ops"] = ops_of_graph(graph)
    return found


def searched(
    made: Plan, loaded: LoadedRecipe, known: KnownModel, output: Path | None, *, overwrite: bool
) -> tuple[Plan, str]:
    """The plan with the search's section, and its line for ``--quiet``; writes the recommended recipe when asked.

    Raises:
        ForgeError: ``TF-PLN-056`` … ``TF-PLN-059`` as the search says; ``TF-RCP-015`` the file exists.
    """
    from builder.planner.search.choose import describe
    from builder.planner.search.recipe import recipe_text
    from builder.planner.sections import search as section
    from trtforge.formats.table import load_formats
    from trtforge.recipe.starter import write_new
    from trtforge.tables.features import feature_table

    facts, table = made.facts, load_formats()
    formats = {
        row.name: tuple(sorted(row.group_sizes, key=lambda size: size != row.default_group_size))
        for row in table.formats
        if row.weight is not None and loaded.recipe.build.target not in row.not_on
    }
    kv_formats = [row.name for row in table.kv_modes if row.supported and row.dtype is not None]
    row = feature_table().method(loaded.recipe.build.target, "ngram")
    ngram = row is not None and row.support == "yes"
    check = _Check(loaded, facts, known, output)
    look = partial(section.search, facts, known.groups, formats=formats, kv_formats=kv_formats, ngram=ngram)
    result = None
    # where every plan has a warning, one with what all have is better than none, and one with any after that
    for accept in (lambda: check, check.without_shared, check.errors_only):
        try:
            result = look(accept=accept())
            break
        except ForgeError as error:
            if error.code != "TF-PLN-058" or not check.warns:
                raise
    assert result is not None
    best = result.choice.best
    verdict = describe(best)
    if output is not None:
        text = recipe_text(check.recipe(best), best, facts.gpu, facts.count, facts.workload)
        write_new(output, text, overwrite=overwrite)
        verdict += f"; written to {output}"
    return replace(made, sections=(*made.sections, section.section(facts, result))), verdict


class _Check:
    """Whether the recipe of a point passes preflight, without warnings that the recipe as written has not.

    Rules about this machine are left out: the plan is for another one. Where no recipe is to be written, what stands
    against the recipe as written (a model that no recipe could have, a tokenizer that is not here) keeps no plan out.
    """

    def __init__(self, loaded: LoadedRecipe, facts: Facts, known: KnownModel, output: Path | None) -> None:
        self.loaded, self.facts, self.known = loaded, facts, known
        self.output = output or loaded.directory / "recommended.yaml"
        self.warns = True
        self.shared: set[str] | None = None
        try:
            self.model, self.checks = self._model(), True
        except ForgeError:
            if output is not None:
                raise
            self.model, self.checks = None, False
        before = self._findings(loaded) if self.checks else ()
        self.known_findings = {finding.code for finding in before if output is None or not finding.blocks}

    def without_shared(self) -> _Check:
        """The same check, with the warnings let pass that every plan so far had."""
        self.known_findings |= self.shared or set()
        return self

    def errors_only(self) -> _Check:
        """The same check, with warnings let pass."""
        self.warns = False
        return self

    def _findings(self, loaded: LoadedRecipe) -> Sequence[Any]:
        return common.preflight(loaded, model=self.model, machine=False).findings

    def _model(self) -> Model | None:
        try:
            return model_to_check(self.loaded, self.facts.model)
        except ForgeError as error:
            error.remedies.append("search without -o: the figures need no checkpoint, and no recipe is written")
            raise

    def recipe(self, point: Point) -> dict[str, Any]:
        """The recipe of a point, for the folder that it is written to."""
        from builder.planner.search.points import pool_of
        from builder.planner.search.recipe import recommended, relocated

        facts = self.facts
        pool = pool_of(facts, self.known.groups, point) if facts.beside.reserved else None
        data = recommended(self.loaded.written, point, facts.gpu, facts.serving, facts.workload, pool_bytes=pool)
        return relocated(data, self.loaded, self.output.parent)

    def __call__(self, point: Point) -> Sequence[str]:
        if not self.checks:
            return ()
        from trtforge.recipe.load import recipe_from_mapping

        loaded = recipe_from_mapping(self.recipe(point), self.output.parent, label=str(self.output))
        found = [
            finding
            for finding in self._findings(loaded)
            if (finding.blocks or self.warns) and finding.code not in self.known_findings
        ]
        warnings = {finding.code for finding in found if not finding.blocks}
        self.shared = warnings if self.shared is None else self.shared & warnings
        return [f"{finding.code}: {finding.message}" for finding in found]


def model_to_check(loaded: LoadedRecipe, planned: Model) -> Model | None:
    """Intake's record where the weights are here; else what the planner's sizes say.

    Raises:
        ForgeError: whatever intake refuses of a source that is here, or of the planned model's class.
    """
    from quantize.intake.model_config import require_architecture

    try:
        record = common.inspect_model(loaded)
    except ForgeError as error:
        if error.code != "TF-SRC-028":
            raise
        record = None  # a config.json without weights
    if record is None:
        # the recipe could be written, but the chain would refuse its checkpoint once it is here
        require_architecture({"architectures": [planned.architecture]})
    return record or _shape(planned)


def _shape(model: Model) -> Model | None:
    """A model that is known by its config.json alone, as preflight's rules may judge it; None where they do not apply.

    The rules know the linears of a dense decoder. End tokens are checked once the checkpoint is here: config.json
    alone may leave them to generation_config.json, and a rule refuses a model that has none.
    """
    if model.moe is not None or model.mla is not None:
        return None
    return replace(model, eos_token_ids=model.eos_token_ids or (0,))
