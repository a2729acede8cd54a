"""Other recipes on the GPUs of a plan (``trtforge plan --with``): what each takes, and the plan beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtforge.cli.plan_model import draft_model, known_model, written_split

if TYPE_CHECKING:
    from builder.planner.types import Facts, ParallelPlan
    from trtforge.recipe.load import LoadedRecipe


@dataclass(frozen=True)
class Shared:
    """``rows`` for the report; the plan's own pool and what the others hold, in bytes of each GPU."""

    rows: list[dict[str, Any]]
    pool: int
    reserved: int


def share(loaded: LoadedRecipe, facts: Facts, beside: Sequence[Path]) -> Shared:
    """Pools in bytes for recipes that share each GPU of the plan, every one in its own split.

    A recipe that writes no split takes the plan's where its model allows it, else one GPU.

    Raises:
        ForgeError: ``TF-PLN-012`` they do not fit together; whatever a recipe's own plan refuses.
    """
    from builder.planner.facts import collect
    from builder.planner.sharing import share_gpu, tenant
    from trtforge.recipe.load import load_recipe

    tenants = [tenant(loaded.recipe.name, facts.memory)]
    splits = [facts.parallel]
    for path in beside:
        other = load_recipe(path)
        known = known_model(other, other.recipe.model.source, None)
        split = written_split(other) or _same_split(other, known.facts, facts)
        made = collect(other.recipe, known, facts.gpu, facts.count, parallel=split, draft=draft_model(other))
        tenants.append(tenant(other.recipe.name, made.memory))
        splits.append(split)
    given = share_gpu(tenants, facts.gpu)
    rows = [
        {
            "name": item.name,
            "parallel": str(split),
            "fixed": item.fixed,
            "pool": item.pool,
            "setting": f"build.kv_cache.memory: {item.pool // 2**20}MiB",
        }
        for item, split in zip(given, splits, strict=True)
    ]
    return Shared(rows, given[0].pool, sum(item.fixed + item.pool for item in given[1:]))


def _same_split(other: LoadedRecipe, model: Any, facts: Facts) -> ParallelPlan:
    from builder.planner.facts import served_precision
    from builder.planner.parallelism import invalid_reasons
    from builder.planner.types import ParallelPlan

    precision = served_precision(other.recipe, model)
    reasons = invalid_reasons(model, precision, facts.parallel, facts.count)
    return ParallelPlan() if reasons else facts.parallel
