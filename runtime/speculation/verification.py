"""From the logits of drafts to tokens: each sample walks down its draft as far as its own choices go along.

Policy: a token is chosen from its node's logits by what chooses tokens without drafts, with the sample's state as it is
after the tokens before it. So a draft decides how many tokens a step yields, and never which.

Greedy rows without any other wish take the host library's EagleAccept, one call for the drafts of one length; all
others walk with the sampler, depth by depth, batched over the samples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from plugins.host.library import load_library
from plugins.trees import MAX_NODES
from runtime.sampling.sampler import NO_TOKEN, Sampler, TokenLogprobs, as_tensor
from runtime.speculation.draft import Draft
from trtforge.ground.errors import EnvironmentLacks

if TYPE_CHECKING:
    from runtime.sample import Sample


@dataclass(slots=True, eq=False)
class Branch:
    """One sample's way down its draft.

    Attributes:
        row: of the logits, that of the root.
        draft: None: the root alone.
        path: nodes whose tokens the sample took, the root (node 0) first.
        emitted: tokens taken; the rows ``path[:emitted]`` are what the sample's cache holds now.
    """

    sample: Sample
    row: int
    draft: Draft | None = None
    path: list[int] = field(default_factory=lambda: [0])
    emitted: int = 0

    @property
    def accepted(self) -> int:
        """Draft tokens that became the sample's."""
        return min(self.emitted, len(self.path) - 1)

    def follow(self, token: int) -> bool:
        """Go on to the first child that carries ``token``; False where none does."""
        draft, node = self.draft, self.path[-1]
        if draft is None:
            return False
        if draft.parents is None:
            if node >= len(draft) or draft.tokens[node] != token:
                return False
            self.path.append(node + 1)
            return True
        children = np.flatnonzero((draft.parents[node:] == node) & (draft.tokens[node:] == token))
        if not len(children):
            return False
        self.path.append(node + int(children[0]) + 1)
        return True


#: takes a token (``NO_TOKEN``: none could be chosen) for a sample; whether the sample goes on
Take = Callable[["Sample", int, "TokenLogprobs | None"], bool]
#: takes tokens for a sample until one ends it; how many it took
TakeAll = Callable[["Sample", list[int]], int]


def branches_of(samples: Sequence[Sample], rows: Sequence[int], drafts: Sequence[Draft | None]) -> list[Branch]:
    """A branch a sample; the first samples have the drafts, behind them stand prompts that just finished."""
    return [
        Branch(sample, row, drafts[at] if at < len(drafts) else None)
        for at, (sample, row) in enumerate(zip(samples, rows, strict=True))
    ]


def verify(logits: Any, branches: Sequence[Branch], sampler: Sampler, take: Take, take_all: TakeAll) -> None:
    """Walk every branch to its end; ``take`` or ``take_all`` gets its tokens in order.

    Args:
        logits: [L, V]; node n of a branch has row ``branch.row + n``. Branches that EagleAccept can take are best
            ordered by the length of their drafts: those of one length in a row are one call.
    """
    x_LV = as_tensor(logits)
    rest: list[Branch] = []
    for length, group in groupby(branches, key=_direct_length):
        if length:
            _accept_direct(x_LV, list(group), length + 1, take, take_all)
        else:
            rest.extend(group)
    while rest:
        rows = [branch.row + branch.path[-1] for branch in rest]
        sampled = sampler.sample(x_LV, [branch.sample.sampling for branch in rest], rows)
        going = []
        for at, (branch, token) in enumerate(zip(rest, sampled.tokens, strict=True)):
            follows = token != NO_TOKEN and branch.follow(token)
            branch.emitted += token != NO_TOKEN
            if take(branch.sample, token, sampled.logprobs.get(at)) and follows:
                going.append(branch)
        rest = going


def moves(
    branches: Sequence[Branch], block_table: npt.NDArray[np.int32], base_positions: Sequence[int]
) -> tuple[npt.NDArray[np.int32], ...] | None:
    """Arguments of ``Executor.move_rows`` for accepted paths that do not lie together; None: all do.

    Args:
        block_table: int32 [B, M], a row a branch. base_positions: of the branches' roots.
    """
    apart = [
        at for at, b in enumerate(branches) if b.draft is not None and b.emitted and b.path[b.emitted - 1] >= b.emitted
    ]
    if not apart:
        return None
    kept = [branches[at].path[: branches[at].emitted] for at in apart]
    path = np.full((len(apart), max(map(len, kept))), -1, dtype=np.int32)
    for row, nodes in zip(path, kept, strict=True):
        row[: len(nodes)] = nodes
    bases = np.array([base_positions[at] for at in apart], dtype=np.int32)
    return np.ascontiguousarray(block_table[apart]), bases, path, np.array([len(k) for k in kept], dtype=np.int32)


def _direct_length(branch: Branch) -> int:
    """Draft tokens of a branch that EagleAccept can take; 0: the sampler has to."""
    draft = branch.draft
    return len(draft) if draft is not None and branch.sample.sampling.plain and len(draft) < MAX_NODES else 0


def _accept_direct(x_LV: torch.Tensor, branches: list[Branch], nodes: int, take: Take, take_all: TakeAll) -> None:
    """Branches whose drafts have ``nodes`` nodes with the root, and whose rows follow each other."""
    count, first = len(branches), branches[0].row
    drafts = [branch.draft for branch in branches if branch.draft is not None]
    assert len(drafts) == count and branches[-1].row == first + (count - 1) * nodes
    tokens = np.zeros((count, nodes), dtype=np.int32)
    tokens[:, 1:] = np.concatenate([draft.tokens for draft in drafts]).reshape(count, nodes - 1)
    parents = np.empty((count, nodes), dtype=np.int32)
    parents[:] = _chain(nodes)
    trees = [at for at, draft in enumerate(drafts) if draft.parents is not None]
    if trees:
        above = [draft.parents for draft in drafts if draft.parents is not None]
        parents[trees, 1:] = np.concatenate(above).reshape(len(trees), nodes - 1)
    accepted = accept_op()(
        x_LV[first : first + count * nodes],
        torch.from_numpy(tokens),
        torch.from_numpy(parents),
        torch.from_numpy(np.full(count, nodes, dtype=np.int32)),
    )
    for branch, path, length in zip(branches, accepted.path.tolist(), accepted.lengths.tolist(), strict=True):
        branch.path = path[:length]
    # all rows first: the logits push what the loop reads out of the processor's caches
    numbers = finite_nodes(x_LV.numpy(), branches)
    for branch, emitted, good in zip(branches, accepted.emitted.tolist(), numbers, strict=True):
        if good:
            branch.emitted = take_all(branch.sample, emitted[:good])
        if good < len(branch.path) and branch.sample.finish_reason is None:
            take(branch.sample, NO_TOKEN, None)


@cache
def _chain(nodes: int) -> npt.NDArray[np.int32]:
    """int32 [nodes], the parent of each node of a chain."""
    return np.arange(-1, nodes - 1, dtype=np.int32)


def finite_nodes(x_LV: npt.NDArray[np.float32], branches: Sequence[Branch]) -> list[int]:
    """How many of each path's first nodes have a row whose largest logit is a number, as the sampler asks for.

    A maximum propagates NaN.
    """
    counts = []
    for branch in branches:
        row, path = branch.row, branch.path
        if path[-1] == len(path) - 1:  # a chain, or a tree's first branch
            largest = x_LV[row : row + len(path)].max(axis=1).tolist()
        else:
            largest = [float(x_LV[row + node].max()) for node in path]
        counts.append(next((at for at, value in enumerate(largest) if not math.isfinite(value)), len(path)))
    return counts


@cache
def accept_op() -> Callable[..., Any]:
    """The host library's op; where none was built, its reference."""
    try:
        return load_library().eagle_accept
    except EnvironmentLacks:
        from plugins.reference_trees import eagle_accept

        return eagle_accept
