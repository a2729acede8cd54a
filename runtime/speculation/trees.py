"""Trees of drafts by an EAGLE-3 head: EagleTreeBuild chooses the nodes, level by level (docs/ops.md).

Every level feeds the nodes above its own again (:mod:`runtime.speculation.tree_passes`), each with the state of its
parent; the level's own nodes give the logits that the next level is built from.

Shape letters: B sequences, X nodes expanded a level, G nodes of a tree (root included), T rows of a pass, H states.
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
from runtime.speculation.draft import Ancestry, Draft
from runtime.speculation.ops import host_ops, picked
from runtime.speculation.tree_passes import FixedGrowth, FixedPasses, FreeGrowth, Growth, columns_of

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


class TreeDrafting:
    """Builds trees of one shape.

    Args:
        shape: sizes; ``total`` is the most nodes of a tree with its root.
        static: a fixed tree; None: the best nodes by the head's own probability.
    """

    def __init__(self, shape: TreeShape, static: StaticTree | None = None) -> None:
        self.shape, self.static = shape, static
        self._passes = None if static is None else FixedPasses(static, shape)
        #: of the last number of sequences; what it holds does not matter before level 0
        self._state: TreeState | None = None
        self._offsets: torch.Tensor | None = None
        #: by the number of nodes, of a static tree
        self._ancestries: dict[int, Ancestry] = {}
        #: [B * (1 + N), H], the states of each sequence's root and of its expanded nodes by their columns
        self._states: torch.Tensor | None = None
        #: [B, X, Vd], logits of levels that expand fewer nodes than X
        self._logits: torch.Tensor | None = None

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
        state = self._state
        if state is None or len(state.frontier) != len(going):
            state = self._state = new_state(shape, len(going))
        tree = self._build(executor, logits[:, None], roots, state, 0)
        kept = self._begin(states)
        growth: Growth = FreeGrowth(shape, len(going))
        if self._passes is not None:
            growth = FixedGrowth(self._passes, len(going))
        tokens = np.zeros((len(going), columns_of(shape)), dtype=np.int64)
        # a level is built where it has nodes, and slots and a pass for their rows
        room = np.minimum(roots.room, executor.limits.max_num_tokens)
        for level in range(1, shape.levels + 1):
            on = growth.level(state, room) if level < shape.levels else going[:0]
            if on is not None:
                left = np.setdiff1d(np.arange(len(going)), on) if len(on) else np.arange(len(going))
                for at, draft in zip(going[left].tolist(), self._taken(tree, left, going, counts), strict=True):
                    drafts[at] = draft
                if not len(on):
                    break
                going, roots, tokens, room = going[on], roots.of(on), tokens[on], room[on]
                state = TreeState(*(getattr(state, field.name)[on] for field in fields(state)))
                growth.keep(on)
            growth.fill(tokens, state)
            logits = self._pass(executor, roots, growth, tokens, going, kept, last=level + 1 == shape.levels)
            tree = self._build(executor, logits, roots, state, level)
        return drafts

    def _begin(self, states: torch.Tensor) -> torch.Tensor:
        """[B * (1 + N), H], room for the states of a batch's nodes, with those of the roots."""
        count, width = states.shape
        room, stride = self._states, 1 + columns_of(self.shape)
        if room is None or len(room) < count * stride or room.dtype != states.dtype or room.device != states.device:
            room = self._states = states.new_empty(count * stride, width)
        room[: count * stride : stride] = states
        return room

    def _pass(
        self,
        executor: DraftExecutor,
        roots: Roots,
        growth: Growth,
        tokens: npt.NDArray[np.int64],
        going: npt.NDArray[np.int64],
        kept: torch.Tensor,
        *,
        last: bool,
    ) -> torch.Tensor:
        """Logits [B, X, Vd] of the last level's nodes; those of nodes that a level lacks mean nothing.

        Args:
            tokens: int64 [B, N], of the nodes by their columns.
            going: int64 [B], where each sequence's states are kept.
            kept: the states of parents; those of the new nodes are added, unless the pass is the ``last``.
        """
        import torch

        count, width = len(tokens), self.shape.expand
        whole: torch.Tensor | None = None
        begin = 0
        while begin < count:
            end = growth.end(begin, executor.limits)
            rows = growth.rows(begin, end)
            read, write = rows.read, rows.write
            if begin or going[-1] >= count:
                # states stay where the first pass had its sequences
                away = (going[begin:end] - np.arange(end - begin)) * (1 + columns_of(self.shape))
                read, write = read + away[rows.of], write + away[rows.of[rows.new]]
            positions = roots.positions[begin:end]
            lengths = positions + growth.sizes(begin, end)
            batch = StepBatch(
                input_ids=tokens[begin:end].ravel()[rows.node],
                # a node stands one behind its parent; the last true row's position is one before the root's
                positions=positions[rows.of] + rows.depth,
                query_start=rows.starts,
                sequence_lengths=lengths.astype(np.int32),
                block_table=np.ascontiguousarray(
                    roots.table[begin:end, : -(-max(lengths.tolist()) // executor.block_size)]
                ),
                logit_indices=rows.new,
                tree_mask=rows.mask,
            )
            got, made = executor.execute(batch, feedback=picked(kept, read))
            if not last:
                kept.index_copy_(0, torch.from_numpy(write).to(kept.device), picked(made, rows.new))
            if len(rows.new) == count * width:
                return got.view(count, width, -1)
            if whole is None:
                whole = self._room(count, got)
            if rows.each:
                whole[begin:end, : rows.each] = got.view(end - begin, rows.each, -1)
            else:
                slots = rows.node[rows.new] % columns_of(self.shape) % width
                whole[rows.of[rows.new] + begin, slots] = got
            begin = end
        assert whole is not None
        return whole

    def _room(self, count: int, like: torch.Tensor) -> torch.Tensor:
        """[B, X, Vd], memory for logits that do not lie together."""
        room, width = self._logits, like.shape[-1]
        if room is None or len(room) < count or room.dtype != like.dtype or room.device != like.device:
            room = self._logits = like.new_zeros(count, self.shape.expand, width)
        return room[:count]

    def _taken(
        self, tree: DraftTree, chosen: npt.NDArray[np.int64], going: npt.NDArray[np.int64], counts: Sequence[int]
    ) -> list[Draft | None]:
        """Drafts of the ``chosen`` of a batch's trees, whose sequences are ``going`` of those asked for."""
        tokens, parents = tree.tokens.numpy().astype(np.int64), tree.parents.numpy()
        scores, depths = tree.scores.numpy(), tree.depths.numpy().astype(np.int64)
        sees, sizes, levels = tree.mask.numpy(), tree.counts.tolist(), depths.max(1).tolist()
        # the root's own number means nothing
        above = scores[:, parents[0]] if self.static is not None else np.take_along_axis(scores, parents, 1)
        confidence = np.exp(scores - above)
        drafts: list[Draft | None] = []
        for index, at in zip(chosen.tolist(), going[chosen].tolist(), strict=True):
            nodes = sizes[index]
            if nodes <= 1:
                drafts.append(None)
                continue
            draft = Draft(tokens[index, 1:nodes], "eagle3", parents[index, 1:nodes], confidence[index, 1:nodes])
            if counts[at] < nodes - 1:
                draft = _best(draft, scores[index, 1:nodes], counts[at])
            else:
                draft.known_ancestry = self._ancestries.get(nodes)
                if draft.known_ancestry is None:
                    draft.known_ancestry = Ancestry(depths[index, :nodes], sees[index, :nodes, :nodes], levels[index])
                    if self.static is not None:
                        self._ancestries[nodes] = draft.known_ancestry
            drafts.append(draft)
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


def _best(draft: Draft, scores: npt.NDArray[np.float32], count: int) -> Draft:
    """The best ``count`` nodes of a tree, which keeps parents since no child scores above its own."""
    assert draft.parents is not None and draft.confidence is not None
    kept = np.sort(np.argsort(-scores, kind="stable")[:count])
    number = np.zeros(len(draft) + 1, dtype=np.int32)
    number[kept + 1] = np.arange(1, count + 1)
    return Draft(draft.tokens[kept], draft.source, number[draft.parents[kept]], draft.confidence[kept])
