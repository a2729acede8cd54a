"""The drafter that an engine's record asks for, over the executor of its draft."""

from __future__ import annotations

from runtime.executors.base import DraftExecutor, Executor
from runtime.speculation.draft import ModelDrafter
from runtime.speculation.draft_model import DraftModelDrafter
from runtime.speculation.eagle import EagleDrafter
from runtime.speculation.trees import TreeDrafting
from trtforge.drafting.record import DynamicTree, SpeculationRecord, StaticTree


def open_model_drafter(
    record: SpeculationRecord, executor: DraftExecutor | Executor, *, vocab_size: int
) -> ModelDrafter:
    """What drafts with weights.

    Args:
        executor: of the draft's engine, with the target's number of blocks; closed with the drafter.
        vocab_size: the target's.

    Raises:
        ForgeError: ``TF-OPS-006`` the record's choices are no tree, or one past the limits.
    """
    if record.method == "eagle3":
        assert isinstance(executor, DraftExecutor)
        return EagleDrafter(executor, tree=_tree(record))
    assert isinstance(executor, Executor)
    return DraftModelDrafter(executor, vocab_size=vocab_size)


def _tree(record: SpeculationRecord) -> TreeDrafting | None:
    tree = record.tree
    if isinstance(tree, StaticTree):
        return TreeDrafting.fixed(tree.choices)
    if isinstance(tree, DynamicTree):
        return TreeDrafting.dynamic(tree.depth, tree.top_k, tree.total + 1)
    return None
