"""K10: a KV pool that was sized for another machine than the one that will serve."""

from __future__ import annotations

from collections.abc import Iterator

from trtforge.ground.units import format_size
from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.rules.memory import GPU_RESERVE_BYTES, request_bytes, weight_bytes
from trtforge.rules.sources import KV_CACHE

#: a pool below this share of what a GPU has left beside the weights was not meant for it
_SMALL = 0.05


@rule("TF-K10-011", "a KV pool that leaves the GPU empty", KV_CACHE, severity="warning", needs=("model",))
def pool_is_for_this_gpu(facts: Facts) -> Iterator[Violation]:
    """The pool bounds how many requests run together: one that was sized for a CPU's memory makes a GPU wait."""
    build = facts.recipe.build
    pool, parallel, batch = build.kv_cache.memory, build.parallel, build.limits.max_batch_size
    if pool is None or not facts.target.needs_gpu or not facts.target.has_pool:
        return
    one, weights = request_bytes(facts), weight_bytes(facts, stored=True) // (parallel.tp * parallel.pp)
    for name, memory in _boards(facts):
        room = memory - weights - GPU_RESERVE_BYTES
        if pool >= _SMALL * room or pool >= batch * one:
            continue
        fitting = min(batch * one, int(0.9 * room))
        yield Violation(
            f"a KV pool of {format_size(pool)} holds {pool // one} requests of max_seq_len, max_batch_size is {batch}, "
            f"and {name} has {format_size(room)} beside the weights",
            f"build.kv_cache.memory: {format_size(pool)}, build.target: {build.target}",
            {"pool": pool, "room": room, "bytes_per_request": one, "max_batch_size": batch},
            ["build.kv_cache: {memory: null, free_fraction: 90%}", f"build.kv_cache.memory: {-(-fitting // 2**20)}MiB"],
        )


def _boards(facts: Facts) -> list[tuple[str, int]]:
    """Name and bytes of the GPUs here, or else of the largest board of each architecture that the recipe names."""
    if facts.machine is not None and facts.machine.gpus:
        smallest = min(facts.machine.gpus, key=lambda gpu: gpu.memory)
        return [(smallest.name, smallest.memory)]
    rows = [facts.architectures.row(name) for name in facts.recipe.build.architectures]
    return [
        (f"the largest board of {row.name}", row.board_gib * 2**30)
        for row in rows
        if row is not None and row.board_gib is not None
    ]
