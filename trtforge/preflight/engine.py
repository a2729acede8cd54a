"""The preflight engine: rules over a recipe, the model's headers, the tables and the machine.

Policy: a rule is a pure function that yields violations; its code, severity and source are declared beside it and
never reused, its docstring is the reason. A rule whose facts are missing is skipped and named as skipped, never passed
in silence. A finding may be waived in the recipe by its code with a justification, unless what it
refuses cannot happen at all (something that this version does not have).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from triton_repo.parameters import Parameter
from trtforge.formats.table import FormatRow, KvMode
from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.models.record import Model
from trtforge.preflight.remedies import Remedy, applied, as_remedy, texts
from trtforge.preflight.sources import Locate, Located, SourceFiles
from trtforge.preflight.surroundings import Surroundings
from trtforge.recipe.load import LoadedRecipe, recipe_from_mapping
from trtforge.recipe.schema import Recipe
from trtforge.rules import rule as rule_engine
from trtforge.rules.registry import Registry
from trtforge.rules.rule import Breach, Severity, reason
from trtforge.rules.waivers import justification
from trtforge.tables import Architecture, ArchitectureTable, StackTable
from trtforge.tables.features import FeatureTable, KernelTable
from trtforge.targets import Target

Need = Literal["model", "format", "machine", "files", "draft", "adapters", "parameters", "build.architectures"]


@dataclass(frozen=True)
class Facts:
    """What rules may look at. What may be unknown is None or empty, and a rule says what it needs.

    ``source``, ``draft`` and ``adapters`` say where the folders lie that the recipe names; ``written`` is what
    its files and overrides said, without defaults; ``parameters`` are the rows of the recipe's Triton layout by name;
    ``made`` tells which stages the store has the results of already.
    """

    recipe: Recipe
    directory: Path
    stacks: StackTable
    architectures: ArchitectureTable
    features: FeatureTable
    kernels: KernelTable
    model: Model | None = None
    formats: Mapping[str, FormatRow] = field(default_factory=dict)
    kv_modes: Mapping[str, KvMode] = field(default_factory=dict)
    machine: Surroundings | None = None
    source: Located | None = None
    draft: Located | None = None
    adapters: Mapping[str, Located] | None = None
    parameters: Mapping[str, Parameter] | None = None
    written: Mapping[str, Any] = field(default_factory=dict)
    locate: Locate | None = None
    folders: dict[Path, SourceFiles] = field(default_factory=dict)
    made: Callable[[], Collection[str]] | None = None

    def changed(self, changes: Mapping[str, Any]) -> Facts:
        """The facts of the recipe after ``changes`` (see :mod:`~trtforge.preflight.remedies`).

        What a change makes unknown (another layout's parameters) becomes unknown. Raises TF-RCP-… for a recipe that
        cannot be.
        """
        loaded = recipe_from_mapping(applied(self.written, changes), self.directory)
        recipe, before = loaded.recipe, self.recipe
        draft, adapters = _located(recipe, self.directory, self.locate)
        same_layout = recipe.triton.layout == before.triton.layout
        return replace(
            self,
            recipe=recipe,
            written=loaded.written,
            draft=self.draft if recipe.speculation.draft == before.speculation.draft else draft,
            adapters=self.adapters if recipe.build.trtllm.lora == before.build.trtllm.lora else adapters,
            parameters=self.parameters if same_layout else None,
            made=None,
        )

    def _files(self, place: Located | None) -> SourceFiles | None:
        """The folder at ``place``, opened once for all facts that are made from these."""
        if place is None or place.folder is None:
            return None
        return self.folders.setdefault(place.folder, SourceFiles(place.folder))

    def is_written(self, path: Sequence[str]) -> bool:
        """Whether the recipe's files or overrides give the key at ``path``."""
        place: Any = self.written
        for part in path:
            if not isinstance(place, Mapping) or part not in place:
                return False
            place = place[part]
        return True

    @property
    def target(self) -> Target:
        """The target that the recipe names."""
        return self.recipe.target

    def asked(self, *keys: str) -> str:
        """``KEY: VALUE`` of recipe keys as the recipe has them: what a violation is about."""
        return ", ".join(f"{key}: {_shown(self.recipe, key)}" for key in keys)

    @cached_property
    def beside(self) -> SourceFiles:
        """The recipe's own folder, opened once for all facts that are made from these."""
        return self.folders.setdefault(self.directory, SourceFiles(self.directory))

    @cached_property
    def files(self) -> SourceFiles | None:
        """The model's folder; None when it is not here or the source is no folder."""
        return self._files(self.source)

    @cached_property
    def draft_files(self) -> SourceFiles | None:
        """The folder of the draft model or the heads; None when there is none here."""
        return self._files(self.draft)

    @cached_property
    def adapter_files(self) -> Mapping[str, SourceFiles]:
        """The adapters' folders that are here, by name."""
        found = {name: self._files(place) for name, place in (self.adapters or {}).items()}
        return {name: files for name, files in found.items() if files is not None}

    @property
    def target_architectures(self) -> tuple[str, ...]:
        """The architectures that the engine is for: the recipe's, else those of the GPUs here."""
        return self.recipe.build.architectures or (self.machine.architectures if self.machine is not None else ())

    @property
    def target_rows(self) -> list[Architecture]:
        """The table's rows of :attr:`target_architectures`."""
        rows = (self.architectures.row(name) for name in self.target_architectures)
        return [row for row in rows if row is not None]

    @property
    def format(self) -> FormatRow | None:
        """The format table's row for ``quantize.format``, or None."""
        return self.formats.get(self.recipe.quantize.format)

    def require_model(self) -> Model:
        """The model's shape, for rules that declared the need."""
        assert self.model is not None
        return self.model

    def require_machine(self) -> Surroundings:
        """The machine, for rules that declared the need."""
        assert self.machine is not None
        return self.machine


def _shown(place: Any, key: str) -> Any:
    """The value at a dotted key, as a message shows it."""
    for part in key.split("."):
        place = place[part] if isinstance(place, Mapping) else getattr(place, part)
    return list(place) if isinstance(place, tuple) else place


@dataclass(frozen=True)
class Violation(Breach):
    """One thing that is wrong: what was asked, the numbers, and what would work."""

    asked: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    remedies: Sequence[str | Remedy] = ()

    @cached_property
    def ways(self) -> tuple[Remedy, ...]:
        """The remedies as changes of the recipe."""
        return tuple(map(as_remedy, self.remedies))

    @property
    def ways_out(self) -> str:
        return "; ".join(texts(self.ways))


Check = Callable[[Facts], Iterable[Violation]]


@dataclass(frozen=True)
class Rule(rule_engine.Rule[Facts, Violation]):
    """A rule on a recipe: the facts without which it is skipped, and whether it is about this machine alone."""

    needs: tuple[Need, ...] = field(default=(), kw_only=True)
    machine_lacks: bool = field(default=False, kw_only=True)

    @property
    def kind(self) -> str:
        """``K4`` of ``TF-K4-001``."""
        return self.code.split("-")[1]


@dataclass(frozen=True)
class Finding(rule_engine.Finding[Violation]):
    """What a rule says of a recipe; remedies that change the recipe are tried by :mod:`trtforge.preflight.trials`."""

    rule: Rule

    @property
    def asked(self) -> str:
        return self.breach.asked

    @property
    def numbers(self) -> Mapping[str, Any]:
        return self.breach.numbers

    @property
    def ways(self) -> tuple[Remedy, ...]:
        return self.breach.ways

    @property
    def remedies(self) -> tuple[str, ...]:
        """What would work, as texts."""
        return texts(self.ways)

    @property
    def kind(self) -> str:
        return self.rule.kind

    @property
    def needs_model(self) -> bool:
        """Whether it could not be found before the model was here."""
        return "model" in self.rule.needs

    @property
    def machine_lacks(self) -> bool:
        return self.rule.machine_lacks

    @property
    def stops_build(self) -> bool:
        """Whether this machine lacks what the build needs: no fault of the recipe, but a run here cannot end."""
        return self.machine_lacks and self.waived is None

    def with_ways(self, ways: Iterable[Remedy]) -> Finding:
        """The finding with other remedies."""
        return replace(self, breach=replace(self.breach, remedies=tuple(ways)))

    def to_json(self) -> dict[str, Any]:
        """The finding as one JSON-able object."""
        return {
            "code": self.code,
            "severity": self.severity,
            "title": self.title,
            "message": self.message,
            "asked": self.asked,
            "numbers": dict(self.numbers),
            "why": self.why,
            "remedies": list(self.remedies),
            "ways": [way.to_json() for way in self.ways],
            "source": self.source,
            "waived": self.waived,
            "waivable": self.waivable,
        }


@dataclass(frozen=True)
class Report:
    """What preflight found, and which rules it could not apply.

    ``together``: changes that clear all that a recipe can change, where one remedy is not enough. ``withdrawn``: code
    and text of the remedies that did not stand their trial.
    """

    findings: tuple[Finding, ...]
    skipped: Mapping[str, str]
    rules: int
    together: Remedy | None = None
    withdrawn: tuple[tuple[str, str], ...] = ()

    @property
    def blocked(self) -> bool:
        """Whether any finding stops the recipe."""
        return any(finding.blocks for finding in self.findings)

    @property
    def lacks(self) -> tuple[Finding, ...]:
        """What keeps this machine from building, unless it was waived."""
        return tuple(finding for finding in self.findings if finding.stops_build)

    @property
    def unapplied(self) -> dict[str, list[str]]:
        """The skipped rules' codes by the reason."""
        return {
            reason: [code for code, text in self.skipped.items() if text == reason]
            for reason in sorted(set(self.skipped.values()))
        }

    def to_json(self) -> dict[str, Any]:
        """The report as one JSON-able object."""
        return {
            "passed": not self.blocked,
            "builds_here": not self.blocked and not self.lacks,
            "rules": self.rules,
            "findings": [finding.to_json() for finding in self.findings],
            "together": self.together.to_json() if self.together is not None else None,
            "skipped": dict(self.skipped),
        }


def _order(code: str) -> tuple[int, int]:
    _, kind, number = code.split("-")
    return int(kind[1:]), int(number)


RULES: Registry[Rule] = Registry("trtforge.preflight.rules", codes=r"TF-K\d+-\d{3}", order=_order)


def rule(
    code: str,
    title: str,
    source: str | None = None,
    *,
    severity: Severity = "error",
    needs: tuple[Need, ...] = (),
    waivable: bool = True,
    machine_lacks: bool = False,
) -> Callable[[Check], Check]:
    """Register a check under its code; its docstring says why a breach cannot work.

    ``machine_lacks``: what it finds only keeps this machine from building.
    """

    def register(check: Check) -> Check:
        why = reason(check)
        RULES.declare(
            Rule(code, severity, title, why, source, waivable, check=check, needs=needs, machine_lacks=machine_lacks)
        )
        return check

    return register


def all_rules() -> Mapping[str, Rule]:
    """Every rule by code."""
    return RULES.rules


def apply_rules(facts: Facts) -> Report:
    """One pass over every rule whose facts are known, its remedies as the rules give them."""
    rules = all_rules()
    present: dict[Need, bool] = {
        "model": facts.model is not None,
        "format": bool(facts.formats),
        "machine": facts.machine is not None,
        "files": facts.source is not None and not facts.source.absent,
        "draft": facts.recipe.speculation.draft is None or (facts.draft is not None and not facts.draft.absent),
        "adapters": _adapters_known(facts),
        "parameters": not facts.recipe.triton.parameters or facts.parameters is not None,
        "build.architectures": not facts.target.needs_gpu or bool(facts.target_architectures),
    }
    findings: list[Finding] = []
    skipped: dict[str, str] = {}
    for code, item in rules.items():
        missing = [need for need in item.needs if not present[need]]
        if missing:
            skipped[code] = f"not known: {', '.join(missing)}"
            continue
        waived = justification(facts.recipe.waive, item)
        findings += [Finding(item, violation, waived) for violation in item.check(facts)]
    findings.sort(key=lambda finding: (not finding.blocks, finding.severity != "error"))
    return Report(tuple(findings), skipped, len(rules))


def _adapters_known(facts: Facts) -> bool:
    lora = facts.recipe.build.trtllm.lora
    if lora is None or not lora.adapters:
        return True
    return facts.adapters is not None and not all(place.absent for place in facts.adapters.values())


def refusal(report: Report, recipe_name: str) -> ForgeError:
    """The blocking findings as one error: bad input, which a caller must tell apart from a missed gate.

    Without a blocking finding: what the machine lacks, as an environment's error.
    """
    blocking = [finding for finding in report.findings if finding.blocks] or list(report.lacks)
    first = blocking[0]
    if len(blocking) == 1:
        message, asked, numbers = first.message, first.asked, dict(first.numbers)
    else:
        message = f"preflight refuses {recipe_name} for {len(blocking)} reasons; the first: {first.message}"
        asked = "; ".join(dict.fromkeys(finding.asked for finding in blocking))
        numbers = {finding.code: {"message": finding.message, **finding.numbers} for finding in blocking}
    return (EnvironmentLacks if first.machine_lacks else ForgeError)(
        first.code,
        message,
        asked=asked,
        numbers=numbers,
        why=" ".join(dict.fromkeys(finding.why for finding in blocking)),
        remedies=list(
            dict.fromkeys(
                [
                    *([f"{report.together} (together)"] if report.together is not None else []),
                    *(remedy for finding in blocking for remedy in finding.remedies),
                ]
            )
        ),
    )


def make_facts(
    loaded: LoadedRecipe,
    *,
    model: Model | None,
    formats: Mapping[str, FormatRow],
    kv_modes: Mapping[str, KvMode],
    machine: Surroundings | None,
    locate: Locate | None,
    parameters: Mapping[str, Parameter] | None,
) -> Facts:
    """Facts of a loaded recipe with the shipped tables."""
    from trtforge.tables import architecture_table, stack_table
    from trtforge.tables.features import feature_table, kernel_table

    recipe, directory = loaded.recipe, loaded.directory
    draft, adapters = _located(recipe, directory, locate)
    return Facts(
        recipe,
        directory,
        stack_table(),
        architecture_table(),
        feature_table(),
        kernel_table(),
        model,
        formats,
        kv_modes,
        machine,
        source=locate(recipe.model.source, directory) if locate else None,
        draft=draft,
        adapters=adapters,
        parameters=parameters,
        written=loaded.written,
        locate=locate,
    )


def _located(
    recipe: Recipe, directory: Path, locate: Locate | None
) -> tuple[Located | None, dict[str, Located] | None]:
    """Where the draft and the adapters lie."""
    if locate is None:
        return None, None
    lora, draft = recipe.build.trtllm.lora, recipe.speculation.draft
    adapters = {name: locate(source, directory) for name, source in lora.adapters.items()} if lora is not None else None
    return (locate(draft, directory) if draft else None), adapters
