"""K12: the shape of a draft: lookahead's sizes, and static trees against heads and lengths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.remedies import by_hand, line
from trtforge.preflight.retarget import without_speculation
from trtforge.rules.sources import thread

_LOOKAHEAD = "https://github.com/NVIDIA/TensorRT-LLM/blob/main/examples/lookahead/README.md"
_MEDUSA = "https://nvidia.github.io/TensorRT-LLM/advanced/speculative-decoding.html"
_EAGLE = "https://github.com/NVIDIA/TensorRT-LLM/blob/main/examples/eagle/README.md"
#: nodes and depth of mc_sim_7b_63, which a server drafts that is given no tree
_DEFAULT_NODES, _DEFAULT_DEPTH = 63, 4
#: the deepest tree that is written out as a remedy: what is added to one grows with the square of its depth
_WRITTEN = 32


def lookahead_draft_len(window: int, ngram: int, verification: int) -> int:
    """``max_draft_len`` of a lookahead engine for (W, N, G), as TensorRT-LLM defines it."""
    return (0 if ngram == 1 else ngram - 2) + (window - 1 + verification) * (ngram - 1)


@rule("TF-K12-010", "a draft length that the lookahead sizes do not give", _LOOKAHEAD, waivable=False)
def lookahead_agrees(facts: Facts) -> Iterator[Violation]:
    """The server derives the length from the three sizes and refuses an engine that was built for another."""
    speculation = facts.recipe.speculation
    sizes = speculation.lookahead
    if speculation.method != "lookahead":
        return
    asked = (
        f"speculation.lookahead: {{window: {sizes.window}, ngram: {sizes.ngram}, verification: {sizes.verification}}}"
    )
    derived = lookahead_draft_len(sizes.window, sizes.ngram, sizes.verification)
    if sizes.window < 2 or sizes.ngram < 2:
        yield Violation(
            "lookahead decoding of this size drafts nothing",
            asked,
            {"window": sizes.window, "ngram": sizes.ngram, "draft_tokens": derived},
            ["speculation.lookahead: {window: 4, ngram: 3, verification: 4}", without_speculation(facts)],
        )
    elif speculation.max_draft_len is not None and speculation.max_draft_len != derived:
        yield Violation(
            f"max_draft_len {speculation.max_draft_len}, the lookahead sizes give {derived}",
            f"speculation.max_draft_len: {speculation.max_draft_len}, {asked}",
            {"max_draft_len": speculation.max_draft_len, "derived": derived},
            [f"speculation.max_draft_len: {derived}", "remove speculation.max_draft_len"],
        )


def tree_problem(choices: Sequence[Sequence[int]]) -> tuple[str, list[list[int]]] | None:
    """What is wrong with a static tree, and the paths that would mend it; None for a sound one.

    A tree lists every node's path; each prefix of a path is a node too (the C++ runtime takes no paths-only form).
    """
    paths = [tuple(path) for path in choices]
    if not paths:
        return "the tree is empty", [[0]]
    if any(not path for path in paths):
        return "an empty path: the root needs none", []
    known = set(paths)
    if len(known) != len(paths):
        twice = min(path for path, times in Counter(paths).items() if times > 1)
        return f"{_shown(twice)} stands twice", []
    orphans = [path for path in paths if len(path) > 1 and path[:-1] not in known]
    if not orphans:
        return None
    if max(map(len, orphans)) > _WRITTEN:
        return f"{_shown(min(orphans)[:-1])} is missing, which other paths go through", []
    missing = sorted({path[:end] for path in orphans for end in range(1, len(path))} - known)
    return f"{_shown(missing[0])} is missing, which other paths go through", [list(path) for path in missing]


def _shown(path: Sequence[int]) -> str:
    """A path as a message holds it."""
    return str(list(path)) if len(path) <= _WRITTEN else f"a path of {len(path)} nodes, {str(list(path[:8]))[:-1]}, …]"


def _mended(choices: Sequence[Sequence[int]], add: Sequence[Sequence[int]]) -> list[list[int]]:
    """The tree with the paths that it lacks, each once and none empty, short ones first."""
    paths = {tuple(path) for path in (*choices, *add) if path}
    return [list(path) for path in sorted(paths, key=lambda path: (len(path), path))]


def _cut(choices: Sequence[Sequence[int]], depth: int) -> list[list[int]]:
    """The tree without the paths that are longer than ``depth``."""
    return [list(path) for path in choices if len(path) <= depth]


def _deeper(choices: Sequence[Sequence[int]], depth: int, longest: int | None) -> str:
    """The tree with one path of ``depth`` nodes, and room for its nodes."""
    tree = _mended(choices, [[0] * size for size in range(1, depth + 1)])
    room = f" with speculation.max_draft_len: {len(tree)}" if longest is not None and longest < len(tree) else ""
    return line("speculation.choices", tree) + room


@rule("TF-K12-011", "a draft tree that is no tree", _MEDUSA, waivable=False)
def tree_is_sound(facts: Facts) -> Iterator[Violation]:
    """A step verifies nodes by their ancestors: each path needs its prefixes, and stands once."""
    speculation = facts.recipe.speculation
    if speculation.choices is None or speculation.method not in ("medusa", "eagle", "eagle3"):
        return
    problem = tree_problem(speculation.choices)
    if problem is not None:
        message, add = problem
        mended = _mended(speculation.choices, add)
        yield Violation(
            f"speculation.choices: {message}",
            f"speculation.choices: {len(speculation.choices)} paths",
            {"paths": len(speculation.choices), "missing": add[:16]},
            [
                *([line("speculation.choices", mended)] if mended else []),
                *by_hand(*[f"add {path}" for path in add[:3]] or ["write each node's path once, without []"]),
            ],
        )


@rule("TF-K12-012", "a draft tree that heads or length do not allow", thread("TL#2115"), waivable=False)
def tree_fits(facts: Facts) -> Iterator[Violation]:
    """A path of k nodes takes k heads (or EAGLE layers), and a step verifies max_draft_len nodes at most."""
    speculation = facts.recipe.speculation
    if not speculation.choices or speculation.method not in ("medusa", "eagle", "eagle3"):
        return
    depth, nodes = max(map(len, speculation.choices)), len(speculation.choices)
    heads, longest = speculation.heads, speculation.max_draft_len
    shape = {"depth": depth, "nodes": nodes, "heads": heads, "max_draft_len": longest}
    asked = f"speculation.choices: {nodes} paths, depth {depth}"
    if heads is not None and depth > heads:
        yield Violation(
            f"the tree is {depth} deep, there are {heads} heads",
            f"{asked}, speculation.heads: {heads}",
            shape,
            [f"speculation.heads: {depth}", line("speculation.choices", _cut(speculation.choices, heads))],
        )
    if heads is not None and speculation.method == "eagle" and depth < heads:
        yield Violation(
            f"the tree is {depth} deep, the engine has {heads} EAGLE layers, which must be equal",
            f"{asked}, speculation.heads: {heads}",
            shape,
            [
                f"speculation.heads: {depth}",
                *([_deeper(speculation.choices, heads, longest)] if heads <= _WRITTEN else []),
            ],
            source=_EAGLE,
        )
    limit = longest if speculation.method != "eagle3" else None
    if limit is not None and nodes > limit:
        yield Violation(
            f"the tree has {nodes} nodes, max_draft_len is {limit}",
            f"{asked}, speculation.max_draft_len: {limit}",
            shape,
            [f"speculation.max_draft_len: {nodes}", *by_hand(f"leave {limit} paths")],
        )
    if speculation.method == "eagle3" and longest is not None and depth > longest:
        yield Violation(
            f"the tree is {depth} deep, max_draft_len is {longest}",
            f"{asked}, speculation.max_draft_len: {longest}",
            shape,
            [f"speculation.max_draft_len: {depth}", line("speculation.choices", _cut(speculation.choices, longest))],
        )


@rule("TF-K12-023", "an EAGLE engine that the server's default tree does not fit", _EAGLE, waivable=False)
def default_tree_fits(facts: Facts) -> Iterator[Violation]:
    """Without speculation.choices the server drafts mc_sim_7b_63: as deep as the engine has EAGLE layers, and with no
    more nodes than a step verifies."""
    speculation = facts.recipe.speculation
    if speculation.method != "eagle" or not facts.target.trtllm_build or speculation.choices:
        return
    heads, longest = speculation.heads or _DEFAULT_DEPTH, speculation.max_draft_len or _DEFAULT_NODES
    if heads != _DEFAULT_DEPTH or longest < _DEFAULT_NODES:
        yield Violation(
            f"the default tree is {_DEFAULT_DEPTH} deep and has {_DEFAULT_NODES} nodes, the engine has {heads} EAGLE "
            f"layers and verifies {longest}",
            f"speculation: {{heads: {speculation.heads}, max_draft_len: {speculation.max_draft_len}}}",
            {"depth": _DEFAULT_DEPTH, "nodes": _DEFAULT_NODES, "heads": heads, "max_draft_len": longest},
            [
                f"speculation: {{heads: {_DEFAULT_DEPTH}, max_draft_len: {_DEFAULT_NODES}}}",
                *by_hand(f"a tree of {longest} nodes, {heads} deep, in speculation.choices"),
            ],
        )
