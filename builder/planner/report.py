"""The plan as a report of sections. A section module has ``section(facts) -> Section | None`` and is named here.

Order is the order of the report. A section reads only :class:`builder.planner.types.Facts`; it may compute, never
change them.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from builder.planner.capacity import capacity
from builder.planner.types import Facts, Section, holds

SECTIONS: tuple[str, ...] = ("memory", "capacity", "parallelism", "speed", "speculation", "cost", "disaggregation")
#: sections about times and money: what does not fit has neither
IF_IT_FITS = frozenset({"speed", "speculation", "cost", "disaggregation"})


@dataclass(frozen=True)
class Plan:
    """The facts and what the sections made of them."""

    facts: Facts
    sections: tuple[Section, ...] = ()

    @cached_property
    def fits(self) -> bool:
        """Whether every stage holds the model and at least one request of the workload's longest."""
        facts = self.facts
        if not holds(facts.memory):
            return False
        return capacity(facts.model, facts.memory, facts.workload, facts.serving).longest >= 1

    @cached_property
    def answer(self) -> tuple[list[tuple[str, str]], dict[str, Any]]:
        """The lines that stand first, and the same for ``--json``."""
        from builder.planner.answer import answer

        return answer(self.facts, fits=self.fits)

    @cached_property
    def missed(self) -> tuple[str, ...]:
        """What a plan that fits does not serve of the load and the service levels; empty when it serves all."""
        from builder.planner.speed.levels import shortfalls

        return tuple(shortfalls(self.facts)) if self.fits else ()

    def section(self, name: str) -> Section | None:
        """The section called ``name``, or None."""
        return next((item for item in self.sections if item.name == name), None)

    def to_json(self) -> dict[str, Any]:
        """The document that ``--json`` prints."""
        facts = self.facts
        return {
            "model": plain(facts.model),
            "gpu": {"name": facts.gpu.name, "title": facts.gpu.title, "arch": facts.gpu.arch},
            "count": facts.count,
            "replicas": facts.replicas,
            "parallel": plain(facts.parallel),
            "chosen": facts.chosen,
            "goal": facts.goal,
            "network": facts.network,
            "precision": plain(facts.precision),
            "serving": plain(facts.serving),
            "workload": {
                "kind": facts.workload.kind,
                "mean_isl": facts.workload.mean_isl,
                "mean_osl": facts.workload.mean_osl,
                "longest": facts.workload.longest,
                "shared_prefix": facts.workload.shared_prefix,
                "rate": facts.workload.rate,
            },
            "notes": list(facts.notes),
            "answer": self.answer[1],
            "fits": self.fits,
            "missed": list(self.missed),
            "sections": {item.name: {"headline": item.headline, **plain(item.data)} for item in self.sections},
        }


def build_plan(facts: Facts) -> Plan:
    """Run every section over the facts; those about times and money only where the plan fits."""
    plan, made = Plan(facts), []
    for name in SECTIONS:
        if name in IF_IT_FITS and not plan.fits:
            continue
        found = importlib.import_module(f"builder.planner.sections.{name}").section(facts)
        if found is not None:
            made.append(found)
    return dataclasses.replace(plan, sections=tuple(made))


def plain(value: Any) -> Any:
    """``value`` as JSON-able containers."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
