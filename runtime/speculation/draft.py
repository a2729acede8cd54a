"""What drafters, the policy and the engine's loop say to each other.

Words: the *root* is a decoding sequence's last known token, whose keys and values are not computed yet; a *draft* is
what stands behind it, a chain or a tree; *source* names who drafted (``eagle3``, ``draft_target``, ``ngram`` with its
class of match), and is what acceptance is counted by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from runtime.scheduler.sequence import Sequence as TokenSequence

if TYPE_CHECKING:
    import torch

#: what an exporter of metrics shows: name, labels, value
Point = tuple[str, dict[str, str], float]


@dataclass(slots=True, eq=False)
class Ancestry:
    """What follows from the parents of a tree's nodes; drafts of one shape share it.

    Attributes:
        depths: int64 [1 + D], how far below the root each node stands, the root itself 0.
        sees: uint8 [1 + D, 1 + D], the ancestors of each node, and itself.
        levels: how far below the root the tree reaches.
    """

    depths: npt.NDArray[np.int64]
    sees: npt.NDArray[np.uint8]
    levels: int

    @classmethod
    def of(cls, parents: npt.NDArray[np.int32]) -> Ancestry:
        """That of parents int32 [D], which come before their children."""
        sees = np.eye(len(parents) + 1, dtype=np.uint8)
        for node, parent in enumerate(parents.tolist(), 1):
            sees[node, :node] = sees[parent, :node]
        depths = sees.sum(axis=1, dtype=np.int64) - 1
        return cls(depths, sees, int(depths.max()))


@dataclass(slots=True, eq=False)
class Draft:
    """Draft tokens behind one sequence's root. Node 0 is the root, node i + 1 carries ``tokens[i]``.

    Attributes:
        tokens: int64 [D], ids of the target's vocabulary, D at least 1.
        source: who drafted.
        parents: int32 [D], the node that each token stands behind (parents before their children); None: a chain.
        confidence: float32 [D], the drafter's own probability of each token after those before it; None: not known.
        known_ancestry: that of ``parents``, where it is known already (see :meth:`ancestry`).
    """

    tokens: npt.NDArray[np.int64]
    source: str
    parents: npt.NDArray[np.int32] | None = None
    confidence: npt.NDArray[np.float32] | None = None
    known_ancestry: Ancestry | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def ancestry(self) -> Ancestry | None:
        """Depths and ancestors of a tree's nodes, worked out once; None: a chain."""
        if self.known_ancestry is None and self.parents is not None:
            self.known_ancestry = Ancestry.of(self.parents)
        return self.known_ancestry

    def levels(self) -> int:
        """How far below the root the draft reaches."""
        ancestry = self.ancestry()
        return len(self.tokens) if ancestry is None else ancestry.levels

    def cut(self, count: int) -> Draft | None:
        """The first ``count`` nodes, a tree still as parents come first; None: nothing is left."""
        if count >= len(self.tokens):
            return self
        if count <= 0:
            return None
        return Draft(
            self.tokens[:count],
            self.source,
            None if self.parents is None else self.parents[:count],
            None if self.confidence is None else self.confidence[:count],
        )


# What follows is made by the dozen in every step: a frozen class would take four times as long to make.


@dataclass(slots=True)
class Ask:
    """Drafts wanted for one decoding sequence.

    Attributes:
        count: most tokens (nodes of a tree).
        tree: a tree of the configured shape instead of a chain.
        worth: a chain ends before a token whose product of confidences is lower: what it costs to draft and to verify
            a token, in tokens. The first token is always drafted.
    """

    sequence: TokenSequence
    count: int
    tree: bool = False
    worth: float = 0.0


@dataclass(slots=True)
class Computed:
    """Positions whose keys and values have become true in the target's cache by the last step.

    Attributes:
        start: the first position; the next is ``start + len(rows)`` = ``sequence.computed``.
        rows: int64 [n], the rows of the step's T tokens in which these positions were computed, in order (for a
            tree those of the accepted path).
        speculates: whether the request lets its sequence be drafted for; where not, no state need be kept.
    """

    sequence: TokenSequence
    start: int
    rows: npt.NDArray[np.int64]
    speculates: bool = True


#: rows of the step → the target's tapped states of these rows, a new [R, m·Ht] in the order of the layers
TapReader = Callable[[npt.NDArray[np.int64]], "torch.Tensor"]


#: rows of one sequence, on average, that steps leave to be computed before its next draft at most
ORDINARY_ROWS = 16


class Drafter(Protocol):
    """Makes drafts. One instance an engine; called by the stepping thread only.

    A drafter with a cache of its own shares the target's block numbers: ``sequence.blocks`` names its blocks too.
    It must notice by itself, from ``Computed.start``, that a sequence was preempted (start falls) or began on
    shared blocks (start is not 0 at first), and draft only where its own rows are true.
    """

    name: str

    def propose(self, asks: Sequence[Ask]) -> list[Draft | None]:
        """A draft of at most ``count`` tokens for each ask, None where there is none; batched over the asks."""

    def observe(self, computed: Sequence[Computed], taps: TapReader | None) -> None:
        """Take in the last step. ``taps`` is None where the engine taps nothing; it is valid during the call only."""

    def fork(self, parent: TokenSequence, children: Sequence[TokenSequence]) -> None:
        """Samples that split off: they share the parent's blocks and what is known of them."""

    def leave(self, sequence: TokenSequence) -> None:
        """The sequence ended; nothing of it need be kept."""

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        """Copy on write: whole blocks (source, destination), before the next propose."""

    def describe(self) -> dict[str, Any]:
        """What drafts, JSON-able."""

    def close(self) -> None:
        """Release weights and pools."""


class ModelDrafter(Drafter, Protocol):
    """A drafter with a model of its own, which may know too little of a sequence to draft for it."""

    #: whether the last :meth:`propose` began with no more rows than steps leave: what it took is a draft's price then,
    #: and otherwise that of a prompt, or of a long pause
    ordinary: bool

    def ready(self, sequence: TokenSequence) -> bool:
        """Whether a draft could be had now; cheap."""


@dataclass(slots=True)
class Candidate:
    """A way in which a sequence can be drafted for in this step.

    Attributes:
        source: who would draft.
        most: most tokens that it could be.
        ready: the draft exists already (an n-gram's), so that drafting costs nothing.
    """

    sequence: TokenSequence
    source: str
    most: int
    ready: bool = False


@dataclass(slots=True)
class Choice:
    """What the policy wants of one candidate; ``count`` 0: no draft. ``worth`` is the ask's."""

    candidate: Candidate
    count: int
    tree: bool = False
    worth: float = 0.0


class Policy(Protocol):
    """Chooses who is drafted for, by whom and how far; learns from what is accepted and from how long steps take."""

    def choose(self, candidates: Sequence[Sequence[Candidate]], *, running: int, prefill_tokens: int) -> list[Choice]:
        """One choice a sequence out of its candidates (each group belongs to one sequence, and is not empty).

        Args:
            running: decoding sequences of the step, those that cannot be drafted for included.
            prefill_tokens: tokens of others' prompts that wait to run in the same step.
        """

    def record(
        self,
        sequence: TokenSequence,
        source: str,
        drafted: int,
        accepted: int,
        *,
        tree: bool,
        asked: int | None = None,
    ) -> None:
        """A verification's result: ``accepted`` of ``drafted`` tokens; of a tree both count levels.

        Args:
            asked: tokens (levels) that were asked for, where the draft was ended before: by its drafter, in doubt, or
                by a grammar that forbids what came next (``drafted`` may be 0 then).
        """

    def learn(self, sequence: TokenSequence, source: str, drafted: int, accepted: int) -> None:
        """What a chain that nobody verified would have yielded, known from the tokens that were written."""

    def timed(self, part: str, tokens: int, requests: int, seconds: float) -> None:
        """How long a part of a step took.

        Args:
            part: ``verify``: the target's step, without prefill; ``draft``: one propose of a drafter with weights,
                ``tree`` where it grew trees, neither where it made both; ``catch_up``: one that began with more rows
                than steps leave, which is no price of its length; ``host``: the Python of the step beside both.
            tokens: verify: all tokens of the step; draft: the longest chain's; tree: its levels; catch_up: either;
                host: draft tokens verified, 0 in a plain step.
            requests: decoding sequences of the step; draft, tree, catch_up: those asked for.
        """

    def leave(self, sequence: TokenSequence) -> None:
        """The sequence ended."""

    def points(self) -> Iterable[Point]:
        """Figures for the metrics; asked for by any thread."""

    def explain(self) -> dict[str, Any]:
        """Costs, acceptance by source and position, and the choices they lead to by batch; JSON-able."""
