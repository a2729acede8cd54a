"""Trees of drafts by an EAGLE-3 head: EagleTreeBuild chooses the nodes, level by level (docs/ops.md).

A tree mask covers the new tokens of one pass only, so every level feeds the nodes above its own again, each with the
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

    def rows(self) -> npt.NDArray[np.bool_]:
        """bool [B, n], what a pass of the last level runs: its nodes and those above them."""
        width = self.frontier.shape[1]
        last: npt.NDArray[np.bool_] = (self.sees[:, -width:] & self.used[:, -width:, None]).any(1)
        return last

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
        shape = self.shape
        drafts: list[Draft | None] = [None] * len(counts)
        going = np.arange(len(counts))
        state = new_state(shape, len(going))
        tree = self._build(executor, logits[:, None], roots, state, 0)
        nodes: _Expanded | None = None
        for level in range(1, shape.levels + 1):
            on, rows = going[:0], None
            if level < shape.levels:
                nodes = _expanded(state, nodes, states)
                rows = nodes.rows()
                # a level is built where it has nodes, and slots and a pass for their rows
                room = np.minimum(roots.room, executor.limits.max_num_tokens)
                on = np.flatnonzero((rows[:, -shape.expand :].any(1)) & (rows.sum(1) <= room))
            if len(on) < len(going):
                for index in np.setdiff1d(np.arange(len(going)), on).tolist():
                    drafts[going[index]] = _taken(tree, index, counts[going[index]])
                going, roots = going[on], roots.of(on)
            if nodes is None or rows is None or not len(going):
                break
            if len(on) < len(rows):
                nodes, rows = nodes.of(on), rows[on]
                state = TreeState(*(getattr(state, field.name)[on] for field in fields(state)))
            logits, states = _pass(executor, roots, nodes, rows, shape.expand)
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


def _pass(
    executor: DraftExecutor, roots: Roots, nodes: _Expanded, rows: npt.NDArray[np.bool_], width: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [B, X, Vd] and states [B, X, H] of the last level's nodes; zeros where a level has fewer than X.

    Args:
        rows: bool [B, n], the nodes to run; each sees its ancestors and itself.
    """
    import torch

    sizes, level = rows.sum(1), rows.shape[1] // width
    logits = states = torch.empty(0)
    begin = 0
    while begin < len(rows):
        # as many sequences as a pass takes
        fit = np.cumsum(sizes[begin:]) <= executor.limits.max_num_tokens
        end = begin + min(int(fit.sum()), executor.limits.max_batch_size)
        part = slice(begin, end)
        of, node = np.nonzero(rows[part])
        new = np.flatnonzero(node >= (level - 1) * width)
        got, made = executor.execute(
            _batch(roots.of(np.arange(begin, end)), nodes, part, of, node, new, executor.block_size),
            feedback=nodes.feedback[of + begin, node],
        )
        if len(new) == len(rows) * width:
            return got.view(len(rows), width, -1), made[new].view(len(rows), width, -1)
        if not begin:
            logits = got.new_zeros(len(rows), width, got.shape[-1])
            states = made.new_zeros(len(rows), width, made.shape[-1])
        places = of[new] + begin, node[new] - (level - 1) * width
        logits[places], states[places] = got, made[new]
        begin = end
    return logits, states


def _batch(
    roots: Roots,
    nodes: _Expanded,
    part: slice,
    of: npt.NDArray[np.int64],
    node: npt.NDArray[np.int64],
    new: npt.NDArray[np.int64],
    block_size: int,
) -> StepBatch:
    """The arrays of a pass over ``part`` of the sequences: row r is node ``node[r]`` of the ``of[r]``-th of them."""
    count, width = len(roots.tokens), nodes.frontier.shape[1]
    sizes = np.bincount(of, minlength=count)
    starts = np.zeros(count + 1, dtype=np.int32)
    np.cumsum(sizes, out=starts[1:])
    lengths = roots.positions + sizes
    # column of a node: its place among the rows of its sequence
    column = np.full((count, nodes.tokens.shape[1]), -1)
    column[of, node] = np.arange(len(of)) - starts[of]
    columns = column[of]
    row, seen = np.nonzero(nodes.sees[part][of, node] & (columns >= 0))
    mask = np.zeros((len(of), int(sizes.max())), dtype=np.uint8)
    mask[row, columns[row, seen]] = 1
    return StepBatch(
        input_ids=nodes.tokens[part][of, node],
        # a node stands one behind its parent; the last true row's position is one before the root's
        positions=roots.positions[of] + node // width,
        query_start=starts,
        sequence_lengths=lengths.astype(np.int32),
        block_table=np.ascontiguousarray(roots.table[:, : -(-int(lengths.max()) // block_size)]),
        logit_indices=new,
        tree_mask=mask,
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
