"""The record ``speculation`` of an engine: what was built to draft, and how far; builders write it, runtimes read it.

An engine without the record drafts nothing. ``version`` is the record's own: a reader that does not know it refuses the
engine, and fields that a later version adds have a meaning for engines that lack them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from trtforge.ground.versions import is_version

RECORD_VERSION = 1
#: the engine's sub-folder that holds the draft's own engine
DRAFT_DIR = "draft"
METHODS = ("ngram", "eagle3", "draft_target")
#: methods that draft with weights of their own
DRAFTED_METHODS = ("eagle3", "draft_target")
#: what the operators of trees hold (docs/ops.md): levels, children of a node, nodes without the root
MAX_LEVELS, MAX_CHILDREN, MAX_TREE_TOKENS = 16, 16, 63


@dataclass(frozen=True, slots=True)
class StaticTree:
    """A fixed tree: every node's path as ranks of its ancestors' candidates and its own."""

    choices: tuple[tuple[int, ...], ...]
    kind: Literal["static"] = "static"

    @property
    def nodes(self) -> int:
        """Draft tokens, the root not counted."""
        return len(self.choices)

    @property
    def depth(self) -> int:
        """Levels below the root."""
        return max(map(len, self.choices))


@dataclass(frozen=True, slots=True)
class DynamicTree:
    """The ``total`` best nodes (the root not counted) of ``depth`` levels, ``top_k`` children a node."""

    depth: int
    top_k: int
    total: int
    kind: Literal["dynamic"] = "dynamic"

    @property
    def nodes(self) -> int:
        """Draft tokens, the root not counted."""
        return self.total


@dataclass(frozen=True, slots=True)
class NGramSizes:
    """Tokens that are looked back for, most and fewest."""

    max_matching_ngram_size: int
    min_matching_ngram_size: int


@dataclass(frozen=True, slots=True)
class DraftPolicy:
    """What the recipe says about when to draft; see its keys. ``draft_len_schedule``: (requests, length), rising."""

    adaptive: bool = True
    max_concurrency: int | None = None
    draft_len_schedule: tuple[tuple[int, int], ...] | None = None
    acceptance_rate_threshold: float | None = None
    acceptance_rate_window_size: int | None = None


@dataclass(frozen=True, slots=True)
class SpeculationRecord:
    """Attributes:
    method: one of :data:`METHODS`.
    max_draft_len: tokens of the longest chain; with a tree its depth.
    tree: the tree that EAGLE-3 drafts where the policy wants one; None: chains only.
    ngram: sizes of n-gram drafts (the method's own, or on top of another); None: no n-gram drafts.
    taps: i of the target's outputs ``hidden_states_i`` (after i layers) that the head joins, in its order.
    draft: the engine's sub-folder with the draft's engine; None: nothing drafts with weights.
    drafter: facts of the draft for people: dialect, sizes.
    """

    method: str
    max_draft_len: int
    tree: StaticTree | DynamicTree | None = None
    ngram: NGramSizes | None = None
    taps: tuple[int, ...] = ()
    policy: DraftPolicy = DraftPolicy()
    draft: str | None = None
    drafter: Mapping[str, Any] = field(default_factory=dict)

    @property
    def most_tokens(self) -> int:
        """Draft tokens of one sequence in one step at most: the chain's, or the tree's nodes."""
        return max(self.max_draft_len, self.tree.nodes if self.tree is not None else 0)

    def to_json(self) -> dict[str, Any]:
        """The record as engine.json holds it."""
        tree = None if self.tree is None else asdict(self.tree)
        if isinstance(self.tree, StaticTree):
            tree = {"kind": "static", "choices": [list(path) for path in self.tree.choices]}
        policy = asdict(self.policy)
        if self.policy.draft_len_schedule is not None:
            policy["draft_len_schedule"] = [list(pair) for pair in self.policy.draft_len_schedule]
        return {
            "version": RECORD_VERSION,
            "method": self.method,
            "max_draft_len": self.max_draft_len,
            "tree": tree,
            "ngram": None if self.ngram is None else asdict(self.ngram),
            "taps": list(self.taps),
            "policy": policy,
            "draft": self.draft,
            "drafter": dict(self.drafter),
        }


def read_speculation(engine: Mapping[str, Any]) -> SpeculationRecord | None:
    """The record in the contents of an engine.json; None: the engine drafts nothing.

    Raises:
        ValueError: the record is of another version, or a field makes no sense; says which.
    """
    raw = engine.get("speculation")
    if raw is None:
        return None
    if not isinstance(raw, Mapping):
        raise ValueError("speculation is no object")
    if not is_version(raw.get("version"), RECORD_VERSION):
        raise ValueError(f"speculation.version is {raw.get('version')!r}, this reads {RECORD_VERSION}")
    method = raw.get("method")
    if method not in METHODS:
        raise ValueError(f"speculation.method is {method!r}, none of {', '.join(METHODS)}")
    draft = raw.get("draft")
    if draft != (DRAFT_DIR if method in DRAFTED_METHODS else None):
        raise ValueError(f"speculation.draft is {draft!r} with method {method}")
    record = SpeculationRecord(
        method,
        _whole(raw, "max_draft_len"),
        _tree(raw.get("tree")),
        _ngram(raw.get("ngram")),
        tuple(_numbers(raw.get("taps", ()), "taps")),
        _policy(_object(raw, "policy")),
        draft,
        dict(_object(raw, "drafter")),
    )
    if (method == "eagle3") is not bool(record.taps) or (method == "ngram" and record.ngram is None):
        raise ValueError(f"speculation of method {method} has taps {list(record.taps)} and ngram {record.ngram}")
    if record.tree is not None and method != "eagle3":
        raise ValueError(f"speculation.tree with method {method}")
    return record


def _object(raw: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = raw.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"speculation.{name} is no object: {str(value)[:80]}")
    return value or {}


def _whole(raw: Mapping[str, Any], name: str, most: int | None = None) -> int:
    value = raw.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1 or (most is not None and value > most):
        wanted = "a whole number of at least 1" if most is None else f"a whole number from 1 to {most}"
        raise ValueError(f"speculation: {name} is {str(value)[:80]}, not {wanted}")
    return value


def _optional(raw: Mapping[str, Any], name: str) -> int | None:
    return None if raw.get(name) is None else _whole(raw, name)


def _numbers(values: Any, name: str) -> list[int]:
    good = isinstance(values, Sequence) and not isinstance(values, str)
    if not good or not all(isinstance(v, int) and not isinstance(v, bool) and v >= 0 for v in values):
        raise ValueError(f"speculation: {name} is {values!r}, not a list of whole numbers")
    return list(values)


def _tree(raw: Any) -> StaticTree | DynamicTree | None:
    if raw is None:
        return None
    kind = raw.get("kind") if isinstance(raw, Mapping) else None
    if kind == "dynamic":
        return DynamicTree(
            _whole(raw, "depth", MAX_LEVELS), _whole(raw, "top_k", MAX_CHILDREN), _whole(raw, "total", MAX_TREE_TOKENS)
        )
    paths = tuple(tuple(_numbers(path, "tree.choices")) for path in _rows(raw, "choices")) if kind else ()
    if kind != "static" or not paths or not all(paths):
        raise ValueError(f"speculation.tree is no tree: {str(raw)[:80]}")
    return StaticTree(paths)


def _ngram(raw: Any) -> NGramSizes | None:
    if raw is None:
        return None
    if not isinstance(raw, Mapping):
        raise ValueError("speculation.ngram is no object")
    sizes = NGramSizes(_whole(raw, "max_matching_ngram_size"), _whole(raw, "min_matching_ngram_size"))
    if sizes.min_matching_ngram_size > sizes.max_matching_ngram_size:
        raise ValueError(f"speculation.ngram: {sizes}")
    return sizes


def _rows(raw: Mapping[str, Any], name: str) -> Sequence[Any]:
    value = raw.get(name)
    if value is not None and (not isinstance(value, Sequence) or isinstance(value, str)):
        raise ValueError(f"speculation: {name} is {str(value)[:80]}, not a list")
    return value or ()


def _policy(raw: Mapping[str, Any]) -> DraftPolicy:
    schedule, threshold = raw.get("draft_len_schedule"), raw.get("acceptance_rate_threshold")
    adaptive = raw.get("adaptive", True)
    if not isinstance(adaptive, bool):
        raise ValueError(f"speculation.policy.adaptive is {adaptive!r}")
    pairs = None
    if schedule is not None:
        rows = [tuple(_numbers(pair, "draft_len_schedule")) for pair in _rows(raw, "draft_len_schedule")]
        if (
            not rows
            or any(len(row) != 2 or row[0] < 1 for row in rows)
            or sorted({row[0] for row in rows}) != [row[0] for row in rows]
        ):
            raise ValueError(f"speculation.policy.draft_len_schedule is {str(schedule)[:80]}, no rising pairs")
        pairs = tuple((row[0], row[1]) for row in rows)
    if threshold is not None and not (type(threshold) in (int, float) and 0 < threshold <= 1):
        raise ValueError(f"speculation.policy.acceptance_rate_threshold is {threshold!r}, no share")
    return DraftPolicy(
        adaptive,
        _optional(raw, "max_concurrency"),
        pairs,
        None if threshold is None else float(threshold),
        _optional(raw, "acceptance_rate_window_size"),
    )
