"""Parts of the engine core that know nothing of a step: its gauges, and whether its limits agree."""

from __future__ import annotations

from runtime import errors
from runtime.blocks import BlockPool
from runtime.executors.base import Executor, ExecutorLimits
from runtime.scheduler import Scheduler


def gauges(pool: BlockPool, scheduler: Scheduler) -> dict[str, float]:
    """Figures of pool and scheduler, by name without the prefix."""
    return {
        "num_requests_running": len(scheduler.running),
        "num_requests_waiting": len(scheduler.waiting),
        "kv_blocks_total": pool.num_blocks,
        "kv_blocks_used": pool.num_used,
        "kv_blocks_free": pool.num_free,
        "kv_blocks_cached": pool.num_cached,
        "kv_cache_usage_perc": pool.num_used / pool.num_blocks,
        "prefix_cache_queries_total": scheduler.prefix_queries,
        "prefix_cache_hits_total": scheduler.prefix_hits,
        "prefix_cache_evictions_total": pool.evictions,
        "num_preemptions_total": scheduler.preemptions,
        "max_num_seqs": scheduler.config.max_running,
        "max_num_batched_tokens": scheduler.config.max_num_tokens,
    }


def check_limits(limits: ExecutorLimits, executor: Executor) -> None:
    """Refuse limits that no request could run under.

    Raises:
        ForgeError: ``TF-RUN-061``.
    """
    numbers = {
        "max_batch_size": limits.max_batch_size,
        "max_num_tokens": limits.max_num_tokens,
        "max_seq_len": limits.max_seq_len,
        "max_input_len": limits.max_input_len,
        "num_blocks": executor.num_blocks,
        "block_size": executor.block_size,
    }
    for name in ("max_batch_size", "max_num_tokens", "max_input_len", "num_blocks", "block_size"):
        if numbers[name] < 1:
            raise errors.bad_limits(f"{name} is {numbers[name]}; at least 1 is needed", numbers)
    if limits.max_seq_len < 2:
        raise errors.bad_limits("max_seq_len must leave room for a prompt token and an output token", numbers)
    own = executor.limits
    for name in ("max_batch_size", "max_num_tokens", "max_seq_len", "max_input_len"):
        if getattr(limits, name) > getattr(own, name):
            raise errors.bad_limits(f"{name} {numbers[name]} is over the executor's {getattr(own, name)}", numbers)
