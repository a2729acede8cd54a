"""Capacity: requests at once, prefix sharing, KV formats, the context ceiling, admission, replicas for a rate."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from builder.planner.capacity import admission, capacity, context_ceiling, kv_trade, prefix_saving
from builder.planner.report import plain
from builder.planner.sizes import size
from builder.planner.speed.levels import fleet_for
from builder.planner.types import Facts, Section, Table
from builder.planner.workload import percentile
from trtforge.models.kv import kv_bytes_per_token


def section(facts: Facts) -> Section:
    """The capacity section."""
    found = capacity(facts.model, facts.memory, facts.workload, facts.serving)
    ceiling = context_ceiling(facts.model, facts.memory, facts.serving)
    settings = admission(facts.model, facts.memory, facts.workload, facts.serving, facts.precision, facts.parallel)
    trade = kv_trade(
        facts.model,
        facts.weights,
        facts.precision,
        facts.parallel,
        facts.serving,
        facts.gpu,
        facts.workload,
        facts.beside,
    )
    load = facts.workload
    per_token = kv_bytes_per_token(facts.model.kv, facts.precision.kv)
    lengths = f"{load.mean_isl:,.0f} + {load.mean_osl:,.0f} tokens on average"
    headline = (
        f"{found.running * facts.replicas:,} requests run at once ({facts.replicas} x {found.running:,}; {lengths}); "
        f"{found.binding} binds"
    )
    notes = [
        f"a replica's pool holds {found.pool_tokens:,} tokens at {per_token:,} B a token: {found.guaranteed:,} "
        f"requests at full length, {found.expected:,} while answers grow, {found.longest:,} of the longest "
        f"({load.longest:,} tokens); 99 % need at most {percentile(load, 0.99):,}",
        f"a single request can have {ceiling:,} tokens of context",
    ]
    if found.pool_tokens < load.longest:
        notes.append(f"the pool holds {found.pool_tokens:,} tokens, the longest request has {load.longest:,}")
    data: dict[str, Any] = {
        "requests": {**asdict(found), "all_replicas": found.running * facts.replicas},
        "kv_bytes_per_token": per_token,
        "context_ceiling": ceiling,
        "percentiles": {str(p): percentile(load, p / 100) for p in (50, 90, 99)},
        "admission": settings.recipe(),
        "kv_formats": plain(trade),
        "lengths": plain(load.lengths[:256]),
    }
    if load.shared_prefix:
        rest = round(load.mean_isl + load.mean_osl) - load.shared_prefix
        saving = prefix_saving(load.shared_prefix, max(rest, 0), max(found.running, 1), per_token)
        data["prefix_cache"] = asdict(saving)
        notes.append(
            f"prefix cache: {load.shared_prefix:,} common tokens stored once save {saving.saved:.1%} "
            f"({size(saving.alone)} to {size(saving.shared)})"
        )
    fleet = fleet_for(facts) if found.running else None
    if fleet:
        data["fleet"] = fleet
        notes.append(fleet["text"])
    tables = [
        Table(
            "KV formats",
            ("format", "bytes a token", "pool tokens", "requests a replica", "kernel on this GPU"),
            tuple((row.kv, row.bytes_per_token, row.pool_tokens, row.requests, row.kernel) for row in trade),
        ),
        Table("Admission settings", ("key", "value"), tuple(settings.recipe().items())),
    ]
    return Section("capacity", "Capacity", headline, data, tuple(tables), tuple(notes))
