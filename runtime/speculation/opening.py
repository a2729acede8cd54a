"""Who drafts for an engine, opened from its record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from runtime.blocks import BlockPool
from runtime.errors import bad_draft_len
from runtime.executors.base import Executor
from runtime.executors.engine_dir import EngineInfo
from runtime.speculation.draft import Drafter, ModelDrafter, Policy, TapReader
from runtime.speculation.fixed_policy import FixedPolicy
from runtime.speculation.measuring import clock_of, measure
from runtime.speculation.policy import open_policy
from runtime.speculation.speculator import Speculator


def open_speculator(
    directory: Path,
    info: EngineInfo,
    executor: Executor,
    *,
    device: str = "cpu",
    threads: int | None = None,
    fixed_draft_len: int | None = None,
) -> Speculator | None:
    """The speculator of the engine in ``directory``; None: it was built to draft nothing.

    Args:
        info: what its engine.json says.
        executor: the target's; its pools' block numbers are the draft's too. Steps are measured on it.
        fixed_draft_len: always that many tokens, in a chain, instead of what the engine's policy would choose.

    Raises:
        ForgeError: ``TF-RUN-123`` for a fixed length that the engine cannot draft; what opening the draft raises.
    """
    record = info.speculation
    if record is None:
        if fixed_draft_len is not None:
            raise bad_draft_len(fixed_draft_len, 0)
        return None
    whole = isinstance(fixed_draft_len, int) and not isinstance(fixed_draft_len, bool)
    if fixed_draft_len is not None and not (whole and 0 < fixed_draft_len <= record.max_draft_len):
        raise bad_draft_len(fixed_draft_len, record.max_draft_len)
    lookup: Drafter | None = None
    model: ModelDrafter | None = None
    draft: Any = None
    if record.ngram is not None:
        from runtime.speculation.ngram import NgramDrafter

        lookup = NgramDrafter(record.ngram.max_matching_ngram_size, record.ngram.min_matching_ngram_size)
    if record.draft is not None:
        from runtime.executors.draft_executor import open_draft
        from runtime.speculation.opening_drafts import open_model_drafter

        draft = open_draft(directory, info, device=device, threads=threads, num_blocks=executor.num_blocks)
        model = open_model_drafter(record, draft, vocab_size=executor.vocab_size)
    taps: TapReader | None = getattr(executor, "taps", None)
    policy: Policy
    if fixed_draft_len is not None:
        policy = FixedPolicy(fixed_draft_len)
    else:
        # nobody is served yet: any blocks will do, and what is written into them is never read
        costs = measure(executor, BlockPool(executor.num_blocks), record, draft, tick=clock_of(device))
        policy = open_policy(record, costs)
    return Speculator(
        policy,
        record.max_draft_len,
        lookup=lookup,
        model=model,
        tree_nodes=0 if record.tree is None else record.tree.nodes,
        taps=taps if record.taps else None,
        tick=clock_of(device),
    )
