"""A recipe held against every rule, its remedies tried."""

from __future__ import annotations

from trtforge.preflight.engine import Facts, Report, all_rules, apply_rules
from trtforge.preflight.trials import judged
from trtforge.rules.waivers import require_known


def run_rules(facts: Facts) -> Report:
    """Apply every rule whose facts are known, and try the remedies; TF-RCP-014 for waivers of unknown codes."""
    require_known(facts.recipe.waive, all_rules())
    return judged(apply_rules(facts), facts, apply_rules)
