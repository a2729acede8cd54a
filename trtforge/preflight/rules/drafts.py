"""K12: speculation in trtforge's own runtime: keys that nothing reads, trees and lengths that a step cannot verify."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from trtforge.drafting.record import MAX_CHILDREN, MAX_LEVELS, MAX_TREE_TOKENS
from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.remedies import by_hand
from trtforge.preflight.retarget import without_speculation
from trtforge.preflight.rules.limits import unread_keys
from trtforge.preflight.rules.speculation import draft_tokens
from trtforge.rules.sources import SAMPLING_PAPER, SPECULATION
from trtforge.tables.decoders import decoders

#: what EagleTreeBuild, EagleAccept and PagedKVMove hold (docs/ops.md): nodes with the root, levels, children
_NODES, _LEVELS, _CHILDREN = MAX_TREE_TOKENS + 1, MAX_LEVELS, MAX_CHILDREN
_OPS = "https://arxiv.org/abs/2406.16858"


@rule("TF-K12-030", "a speculation key that the target or method cannot honour", SPECULATION, waivable=False)
def keys_are_honoured(facts: Facts) -> Iterator[Violation]:
    """Served without it, the engine would draft otherwise than the recipe says."""
    if facts.recipe.speculation.method != "none":
        yield from unread_keys(facts, facts.features.refusals)


@rule("TF-K12-031", "n-gram sizes without n-gram drafting", "https://arxiv.org/abs/2304.04487", waivable=False)
def sizes_are_used(facts: Facts) -> Iterator[Violation]:
    """Sizes of pieces of text say nothing while nothing is drafted from the text."""
    speculation = facts.recipe.speculation
    if speculation.method not in ("eagle3", "draft_target") or speculation.ngram_on_top:
        return
    if facts.target.runs_here and facts.is_written(("speculation", "ngram")):
        yield Violation(
            f"speculation.ngram is given, and {speculation.method} drafts alone",
            f"speculation.ngram, speculation.method: {speculation.method}",
            {"ngram_on_top": False},
            ["speculation.ngram_on_top: true", "remove speculation.ngram"],
        )


@rule("TF-K12-032", "a draft that the operators do not hold", _OPS, waivable=False)
def operators_hold_draft(facts: Facts) -> Iterator[Violation]:
    """Draft trees, their masks and the walk through them have a fixed most of nodes, levels and children."""
    speculation, nodes = facts.recipe.speculation, draft_tokens(facts)
    if speculation.method == "none" or not facts.target.runs_here or not nodes:
        return
    row = facts.features.method(facts.recipe.build.target, speculation.method)
    if row is None or row.support == "no":
        return  # another target's method, which TF-K12-001 refuses: its lengths are not of these operators
    paths = [path for path in speculation.choices or () if path]
    found = [("draft tokens", nodes, _NODES - 1)]
    if paths:
        depth = max(map(len, paths))
        wide = max(Counter(len(parent) for parent in {path[:-1] for path in paths}).values())
        found += [
            ("levels", depth, _LEVELS),
            ("children of a node", 1 + max(map(max, paths)), _CHILDREN),
            ("nodes with children in a level", wide, _CHILDREN),
        ]
    for what, size, most in found:
        if size > most:
            shape = "speculation.choices" if paths else "speculation.max_draft_len"
            yield Violation(
                f"{size} {what}, the operators hold {most}",
                f"{shape}: {len(paths) or speculation.max_draft_len}",
                {what: size, "most": most},
                by_hand("a smaller tree in speculation.choices") if paths else [f"speculation.max_draft_len: {most}"],
            )


@rule("TF-K12-033", "a draft longer than a step", SAMPLING_PAPER, waivable=False)
def step_holds_draft(facts: Facts) -> Iterator[Violation]:
    """The root and all its draft tokens are verified in one step, and all of them have positions."""
    limits, drafts = facts.recipe.build.limits, draft_tokens(facts)
    if facts.recipe.speculation.method == "none" or not drafts:
        return
    for name, most in (("max_num_tokens", limits.max_num_tokens), ("max_seq_len", limits.max_seq_len)):
        if 1 + drafts > most:
            yield Violation(
                f"a root and {drafts} draft tokens, build.limits.{name} is {most}",
                f"build.limits.{name}: {most}, speculation.max_draft_len: {facts.recipe.speculation.max_draft_len}",
                {"draft_tokens": drafts, name: most},
                [f"build.limits.{name}: {1 + drafts}", without_speculation(facts)],
            )


@rule("TF-K12-034", "a draft model that has no graph", SAMPLING_PAPER, needs=("draft",), waivable=False)
def draft_has_a_graph(facts: Facts) -> Iterator[Violation]:
    """The draft model runs as the target does, from a graph that is written for classes that trtforge knows."""
    files, recipe = facts.draft_files, facts.recipe
    if files is None or recipe.speculation.method != "draft_target" or not facts.target.runs_here:
        return
    named = (files.config.get("architectures") or [None])[0]
    known = list(decoders())
    if isinstance(named, str) and named not in known:
        yield Violation(
            f"the draft is a {named}",
            facts.asked("speculation.draft"),
            {"architecture": named, "known": known},
            [*by_hand("a draft model of one of these classes"), without_speculation(facts)],
        )
