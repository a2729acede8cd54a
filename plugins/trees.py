"""Draft trees as the speculation ops pass them: sizes, state over the levels, the tree, and what was accepted.

Shape letters: B requests, V vocabulary, G nodes of a tree (root included), C candidates over all levels, X nodes
expanded at a level. Contracts: docs/ops.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtforge.ground.errors import ForgeError

if TYPE_CHECKING:
    import torch

MAX_NODES = 64
MAX_CHILDREN = 16
MAX_LEVELS = 16


@dataclass(frozen=True)
class TreeShape:
    """Attributes of EagleTreeBuild.

    Args:
        top_k: children drawn from each expanded node.
        expand: X, nodes expanded at each level after the first.
        levels: depth of the tree.
        total: G, nodes of the tree with its root.
    """

    top_k: int
    expand: int
    levels: int
    total: int

    @property
    def candidates(self) -> int:
        """C: children of the root, then of X nodes a level."""
        return self.offset(self.levels)

    def offset(self, level: int) -> int:
        """Index of a level's first candidate."""
        return 0 if level == 0 else self.top_k + (level - 1) * self.expand * self.top_k


@dataclass
class TreeState:
    """What the levels of a build hand on; changed in place by every call."""

    candidate_tokens: torch.Tensor  #: [B, C] int32
    candidate_parents: torch.Tensor  #: [B, C] int32; -1: the root
    candidate_scores: torch.Tensor  #: [B, C] float32
    frontier: torch.Tensor  #: [B, X] int32; -1: none


@dataclass
class DraftTree:
    """A tree, node 0 being the root; nodes from ``counts`` on are not in use."""

    tokens: torch.Tensor  #: [B, G] int32
    parents: torch.Tensor  #: [B, G] int32
    depths: torch.Tensor  #: [B, G] int32
    scores: torch.Tensor  #: [B, G] float32
    mask: torch.Tensor  #: [B, G, G] uint8, ancestor or self
    counts: torch.Tensor  #: [B] int32


@dataclass
class StaticTree:
    """A fixed tree: the parent of each node and which of its parent's children it is, level after level."""

    parents: torch.Tensor  #: [G] int32
    ranks: torch.Tensor  #: [G] int32


@dataclass
class Acceptance:
    """What EagleAccept found."""

    path: torch.Tensor  #: [B, G] int32, then -1
    lengths: torch.Tensor  #: [B] int32
    emitted: torch.Tensor  #: [B, G] int32, then -1
    bonus: torch.Tensor  #: [B] int32


def new_state(shape: TreeShape, requests: int, device: torch.device | str = "cpu") -> TreeState:
    """State before level 0; its contents do not matter."""
    import torch

    size = (requests, shape.candidates)
    return TreeState(
        torch.zeros(size, dtype=torch.int32, device=device),
        torch.full(size, -1, dtype=torch.int32, device=device),
        torch.zeros(size, device=device),
        torch.full((requests, shape.expand), -1, dtype=torch.int32, device=device),
    )


def new_tree(shape: TreeShape, requests: int, device: torch.device | str = "cpu") -> DraftTree:
    """Uninitialized outputs of EagleTreeBuild."""
    import torch

    nodes = (requests, shape.total)
    tokens, parents, depths = (torch.empty(nodes, dtype=torch.int32, device=device) for _ in range(3))
    mask = torch.empty((*nodes, shape.total), dtype=torch.uint8, device=device)
    counts = torch.empty(requests, dtype=torch.int32, device=device)
    return DraftTree(tokens, parents, depths, torch.empty(nodes, device=device), mask, counts)


def static_tree(choices: list[tuple[int, ...]], device: torch.device | str = "cpu") -> tuple[TreeShape, StaticTree]:
    """The static tree of paths of ranks, such as [(0,), (1,), (0, 0)], and the smallest shape that holds it.

    Raises:
        ForgeError: TF-OPS-006 for a path without its prefix, a repeated path, or a tree past the limits.
    """
    import torch

    paths = sorted(choices, key=lambda path: (len(path), path))
    index: dict[tuple[int, ...], int] = {(): 0}
    parents, ranks = [-1], [0]
    for path in paths:
        if not path or path in index or path[:-1] not in index:
            raise _refused(path, "every path but the root's needs its prefix, once")
        index[path] = len(parents)
        parents.append(index[path[:-1]])
        ranks.append(path[-1])
    expanded: dict[int, set[tuple[int, ...]]] = {}
    for path in paths:
        expanded.setdefault(len(path) - 1, set()).add(path[:-1])
    widest = max((len(nodes) for depth, nodes in expanded.items() if depth > 0), default=1)
    shape = TreeShape(max(ranks) + 1, widest, max(len(path) for path in paths) if paths else 0, len(parents))
    limits = (shape.top_k, MAX_CHILDREN), (shape.expand, MAX_CHILDREN), (shape.levels, MAX_LEVELS)
    if shape.levels < 1 or min(ranks) < 0 or shape.total > MAX_NODES or any(size > most for size, most in limits):
        raise _refused(choices, f"trees have 2 to {MAX_NODES} nodes, {MAX_LEVELS} levels, {MAX_CHILDREN} children")
    arrays = (torch.tensor(values, dtype=torch.int32, device=device) for values in (parents, ranks))
    return shape, StaticTree(*arrays)


def _refused(asked: object, why: str) -> ForgeError:
    return ForgeError(
        "TF-OPS-006",
        "the choices make no static tree",
        asked=str(asked),
        why=why,
        remedies=["list every node as the ranks on its way from the root, prefixes included"],
    )
