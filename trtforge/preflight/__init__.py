"""Faults found before anything is loaded: seconds instead of a failed build.

Runs in under two seconds and never imports torch. The model, the format table and a layout's parameters are handed in
by the command line or the pipeline, which know where they come from.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from triton_repo.parameters import Parameter
from trtforge.formats.table import FormatRow, KvMode
from trtforge.models.record import Model
from trtforge.preflight.engine import Finding, Report, Rule, all_rules, make_facts, refusal
from trtforge.preflight.run import run_rules
from trtforge.preflight.sources import Locate
from trtforge.preflight.surroundings import Surroundings, look
from trtforge.recipe.load import LoadedRecipe

__all__ = ["Finding", "Report", "Rule", "Surroundings", "all_rules", "check", "check_report", "look", "refusal"]


def check_report(
    loaded: LoadedRecipe,
    *,
    model: Model | None = None,
    formats: Mapping[str, FormatRow] | None = None,
    kv_modes: Mapping[str, KvMode] | None = None,
    machine: Surroundings | bool = True,
    store: Path | None = None,
    locate: Locate | None = None,
    parameters: Mapping[str, Parameter] | None = None,
    made: Callable[[], Collection[str]] | None = None,
) -> Report:
    """Apply every rule; ``machine=True`` asks this machine, ``False`` leaves machine rules out.

    ``locate`` says where the folders of model, draft and adapters lie, ``parameters`` what the recipe's Triton layout
    takes; without them the rules over them are skipped. ``made`` tells which stages the store has the results of; it is
    asked when that decides.

    Raises:
        ForgeError: TF-RCP-014 when the recipe waives a code that does not exist, or without a justification.
    """
    if machine is True:
        from trtforge.examination.building import missing_to_build

        here = look(store or Path.cwd())
        lacks = missing_to_build(loaded.recipe.build.target, here.gpus, loaded.recipe.stack)
        found: Surroundings | None = replace(here, lacks=lacks)
    else:
        found = machine if isinstance(machine, Surroundings) else None
    facts = make_facts(
        loaded,
        model=model,
        formats=formats or {},
        kv_modes=kv_modes or {},
        machine=found,
        locate=locate,
        parameters=parameters,
    )
    return run_rules(replace(facts, made=made))


def check(
    loaded: LoadedRecipe,
    machine: Surroundings | bool = True,
    *,
    model: Model | None = None,
    formats: Mapping[str, FormatRow] | None = None,
    kv_modes: Mapping[str, KvMode] | None = None,
    store: Path | None = None,
    locate: Locate | None = None,
    parameters: Mapping[str, Parameter] | None = None,
    made: Callable[[], Collection[str]] | None = None,
) -> list[Finding]:
    """The findings of :func:`check_report`, blocking ones first."""
    report = check_report(
        loaded,
        model=model,
        formats=formats,
        kv_modes=kv_modes,
        machine=machine,
        store=store,
        locate=locate,
        parameters=parameters,
        made=made,
    )
    return list(report.findings)
