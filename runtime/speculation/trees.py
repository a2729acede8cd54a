"""Trees of drafts by an EAGLE-3 head: EagleTreeBuild chooses the nodes, level by level (docs/ops.md).

A tree mask covers the new tokens of one pass only, so every level feeds all nodes expanded so far again, each with the
state of its parent; the level's own nodes give the logits that the next level is built from.

Shape letters: B sequences, X nodes expanded a level, G nodes of a tree (root included), E rows of a sequence in a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from plugins.trees import StaticTree, TreeShape, TreeState, new_state, static_tree
from runtime.executors.base import DraftExecutor, StepBatch
from runtime.speculation.device_ops import cuda_ops, tree_build
from runtime.speculation.draft import Draft
from runtime.speculation.ops import host_ops

if TYPE_CHECKING:
    import torch

    from plugins.trees import DraftTree


@dataclass(slots=True)
class Roots:
    """Where trees begin.

    Attributes:
        tokens: int32 [B], the last known tokens.
        positions: int64 [B], theirs; the first slot that drafts may use.
        room: int64 [B], slots from there on.
        table: int32 [B, M], blocks.
    """

    tokens: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int64]
    room: npt.NDArray[np.int64]
    table: npt.NDArray[np.int32]

    def of(self, kept: npt.NDArray[np.int64]) -> Roots:
        """Some of them."""
        return Roots(self.tokens[kept], self.positions[kept], self.room[kept], self.table[kept])


@dataclass(slots=True)
class _Expanded:
    """Nodes expanded so far, level after level: n of each sequence.

    Attributes:
        tokens: int64 [B, n], of the target's vocabulary.
        used: bool [B, n]; a level may expand fewer nodes than X.
        sees: bool [B, n, n], ancestors and self.
        feedback: [B, n, H], the state of each node's parent.
        frontier: int64 [B, X], candidates that the last level's nodes are; -1: none.
    """

    tokens: npt.NDArray[np.int64]
    used: npt.NDArray[np.bool_]
    sees: npt.NDArray[np.bool_]
    feedback: torch.Tensor
    frontier: npt.NDArray[np.int64]

    def of(self, kept: npt.NDArray[np.int64]) -> _Expanded:
        """Those of some sequences."""
        return _Expanded(*(getattr(self, field.name)[kept] for field in fields(self)))


class TreeDrafting:
    """Builds trees of one shape.

    Args:
        shape: sizes; ``total`` is the most nodes of a tree with its root.
        static: a fixed tree; None: the best nodes by the head's own probability.
    """

    def __init__(self, shape: TreeShape, static: StaticTree | None = None) -> None:
        self.shape, self.static = shape, static
        self._offsets: torch.Tensor | None = None

    @classmethod
    def dynamic(cls, depth: int, top_k: int, total: int) -> TreeDrafting:
        """EAGLE-2's dynamic trees: ``top_k`` children of ``top_k`` nodes a level, the best ``total`` in all."""
        return cls(TreeShape(top_k, top_k, depth, total))

    @classmethod
    def fixed(cls, choices: Sequence[Sequence[int]]) -> TreeDrafting:
        """A static tree, every node as the ranks on its way from the root.

        Raises:
            ForgeError: ``TF-OPS-006`` the choices are no tree, or one past the limits.
        """
        return cls(*static_tree([tuple(path) for path in choices]))

    @property
    def most(self) -> int:
        """Draft tokens of a whole tree."""
        return self.shape.total - 1

    def describe(self) -> dict[str, Any]:
        """The shape, JSON-able."""
        sizes = {field.name: getattr(self.shape, field.name) for field in fields(self.shape)}
        return {"kind": "dynamic" if self.static is None else "static", **sizes}

    def draft(
        self, executor: DraftExecutor, roots: Roots, counts: Sequence[int], logits: torch.Tensor, states: torch.Tensor
    ) -> list[Draft | None]:
        """One tree a sequence.

        Args:
            counts: most draft tokens of each.
            logits: [B, Vd], of each sequence's last true row.
            states: [B, H], of the same rows; memory of the caller's.
        """
        shape, width = self.shape, self.shape.expand
        drafts: list[Draft | None] = [None] * len(counts)
        going = np.arange(len(counts))
        state = new_state(shape, len(going))
        tree = self._build(executor, logits[:, None], roots, state, 0)
        nodes: _Expanded | None = None
        for level in range(1, shape.levels + 1):
            # a level is built where its rows have slots and fit a pass
            rows = level * width
            possible = level < shape.levels and rows <= executor.limits.max_num_tokens
            on = np.flatnonzero(roots.room >= rows) if possible else np.empty(0, dtype=np.int64)
            if len(on) < len(going):
                for index in np.setdiff1d(np.arange(len(going)), on).tolist():
                    drafts[going[index]] = _taken(tree, index, counts[going[index]])
                going, roots, states = going[on], roots.of(on), states[on]
                state = TreeState(*(getattr(state, field.name)[on] for field in fields(state)))
                nodes = None if nodes is None else nodes.of(on)
            if not len(going):
                break
            nodes = _expanded(state, nodes, states)
            logits, states = _pass(executor, roots, nodes, width)
            tree = self._build(executor, logits, roots, state, level)
        return drafts

    def _build(
        self, executor: DraftExecutor, logits: torch.Tensor, roots: Roots, state: TreeState, level: int
    ) -> DraftTree:
        import torch

        from plugins import reference_trees

        if self._offsets is None and executor.targets is not None:
            offsets = executor.targets - np.arange(len(executor.targets))
            self._offsets = torch.from_numpy(offsets.astype(np.int32))
        roots_B, offsets_V, static = torch.from_numpy(roots.tokens), self._offsets, self.static
        device = cuda_ops() if logits.device.type == "cuda" else None
        if device is not None:
            return tree_build(
                device, logits, roots_B, state, self.shape, level, draft_to_target=offsets_V, static=static
            )
        library = host_ops()
        build = reference_trees.eagle_tree_build if library is None else library.eagle_tree_build
        return build(logits.cpu(), roots_B, state, self.shape, level, draft_to_target=offsets_V, static=static)


def _expanded(state: TreeState, nodes: _Expanded | None, states: torch.Tensor) -> _Expanded:
    """The nodes so far and the frontier's.

    Args:
        states: before the first level [B, H], of the last true rows; later [B, X, H], of the level before.
    """
    import torch

    frontier = state.frontier.numpy().astype(np.int64)
    used = frontier >= 0
    at = np.where(used, frontier, 0)
    tokens = np.take_along_axis(state.candidate_tokens.numpy().astype(np.int64), at, 1)
    count, width = frontier.shape
    itself = np.broadcast_to(np.eye(width, dtype=bool), (count, width, width))
    if nodes is None:
        return _Expanded(tokens, used, itself, states[:, None].expand(-1, width, -1), frontier)
    parents = np.take_along_axis(state.candidate_parents.numpy().astype(np.int64), at, 1)
    places = (nodes.frontier[:, None, :] == parents[:, :, None]).argmax(-1)  # [B, X] in the level before
    old, batch = nodes.tokens.shape[1], np.arange(count)[:, None]
    sees = np.zeros((count, old + width, old + width), dtype=bool)
    sees[:, :old, :old] = nodes.sees
    sees[:, old:, :old] = nodes.sees[batch, old - width + places]
    sees[:, old:, old:] = itself
    return _Expanded(
        np.concatenate([nodes.tokens, tokens], 1),
        np.concatenate([nodes.used, used], 1),
        sees,
        torch.cat([nodes.feedback, states[batch, places]], 1),
        frontier,
    )


def _pass(executor: DraftExecutor, roots: Roots, nodes: _Expanded, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [B, X, Vd] and states [B, X, H] of the last level's nodes; those of unused nodes are zeros.

    All nodes run, each seeing its ancestors and itself. Sequences that use the same ones make a pass together.
    """
    import torch

    count, total = nodes.tokens.shape
    patterns, which = np.unique(nodes.used, axis=0, return_inverse=True)
    depths = np.repeat(np.arange(1, total // width + 1), width)
    logits = states = torch.empty(0)
    whole = False
    for number, used in enumerate(patterns):
        kept = np.flatnonzero(used)
        new = kept[kept >= total - width] - (total - width)
        members = np.flatnonzero(which.reshape(-1) == number)
        most = min(executor.limits.max_batch_size, executor.limits.max_num_tokens // max(1, len(kept)))
        for begin in range(0, len(members) if len(new) else 0, most):
            part = members[begin : begin + most]
            got, made = executor.execute(
                _batch(roots.of(part), nodes.of(part), kept, depths[kept], len(new), executor.block_size),
                feedback=nodes.feedback[part][:, kept].flatten(0, 1),
            )
            got, made = got.view(len(part), len(new), -1), made.view(len(part), len(kept), -1)[:, -len(new) :]
            if len(part) == count and len(new) == width:
                return got, made
            if not whole:
                whole = True
                logits, states = (
                    got.new_zeros(count, width, got.shape[-1]),
                    made.new_zeros(count, width, made.shape[-1]),
                )
            logits[part[:, None], new] = got
            states[part[:, None], new] = made
    if not whole:  # no node anywhere: logits of a head that gives no numbers
        return torch.zeros(count, width, executor.draft_vocab_size), torch.zeros(count, width, executor.hidden_size)
    return logits, states


def _batch(
    roots: Roots,
    nodes: _Expanded,
    kept: npt.NDArray[np.int64],
    depths: npt.NDArray[np.int64],
    wanted: int,
    block_size: int,
) -> StepBatch:
    """The arrays of a pass: ``kept`` nodes of each sequence, logits of the last ``wanted``."""
    count, rows = len(roots.tokens), len(kept)
    lengths = roots.positions + rows
    starts = np.arange(count + 1) * rows
    return StepBatch(
        input_ids=nodes.tokens[:, kept].reshape(-1),
        # a node stands one behind its parent; the last true row's position is one before the root's
        positions=(roots.positions[:, None] - 1 + depths).reshape(-1),
        query_start=starts.astype(np.int32),
        sequence_lengths=lengths.astype(np.int32),
        block_table=np.ascontiguousarray(roots.table[:, : -(-int(lengths.max()) // block_size)]),
        logit_indices=(starts[1:, None] - wanted + np.arange(wanted)).reshape(-1),
        tree_mask=nodes.sees[:, kept][:, :, kept].reshape(-1, rows).astype(np.uint8),
    )


def _taken(tree: DraftTree, index: int, count: int) -> Draft | None:
    """A sequence's draft: the best ``count`` of its nodes, which keeps parents since no child scores above its own."""
    nodes = int(tree.counts[index])
    if nodes <= 1:
        return None
    tokens, parents, scores = (part[index, :nodes].numpy() for part in (tree.tokens, tree.parents, tree.scores))
    kept = np.arange(1, nodes)
    if count < len(kept):
        kept = np.sort(1 + np.argsort(-scores[1:], kind="stable")[:count])
    number = np.zeros(nodes, dtype=np.int32)
    number[kept] = np.arange(1, len(kept) + 1)
    above = parents[kept]
    return Draft(
        tokens[kept].astype(np.int64),
        "eagle3",
        number[above].astype(np.int32),
        np.exp(scores[kept] - scores[above]).astype(np.float32),
    )
