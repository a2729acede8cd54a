"""K12: a draft against its target and its own use: vocabulary, tokenizer, width, size, and how deep it drafts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from trtforge.drafting.statements import RECORD, tokenizers_differ
from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.remedies import Remedy, by_hand, line
from trtforge.preflight.retarget import without_speculation
from trtforge.preflight.sources import SourceFiles
from trtforge.rules.sources import EAGLE_3_PAPER, SAMPLING_PAPER, SPECULATION, SPECULATORS

#: keys of a head's config.json that bound what it drafts
_DEPTHS = ("num_lookahead_tokens", "num_speculative_tokens", "speculative_tokens")


def _vocabulary(files: SourceFiles) -> int | None:
    value = files.config.get("vocab_size")
    return value if isinstance(value, int) else None


@rule("TF-K12-006", "draft and target read different vocabularies", SPECULATION, needs=("model", "draft"))
def vocabularies_agree(facts: Facts) -> Iterator[Violation]:
    """A draft token is an id of the target's vocabulary; with another tokenizer hardly one is accepted, or ids run past
    the embedding."""
    files, model, speculation = facts.draft_files, facts.require_model(), facts.recipe.speculation
    if files is None:
        return
    asked, vocabulary = f"speculation.draft: {speculation.draft}", _vocabulary(files)
    remedies: list[str | Remedy] = [
        *by_hand("a draft that was trained with the target's tokenizer"),
        without_speculation(facts),
    ]
    if vocabulary is not None and vocabulary != model.vocab:
        yield Violation(
            f"the draft has {vocabulary} tokens, the target {model.vocab}",
            asked,
            {"draft_vocab": vocabulary, "target_vocab": model.vocab},
            remedies,
        )
    elif facts.files is not None and (how := _tokens_differ(facts.files, files)) is not None:
        yield Violation(
            f"the draft's tokenizer.json gives other ids than the target's{how}",
            asked,
            {"draft": str(files.folder), "target": str(facts.files.folder)},
            remedies,
        )


def _tokens_differ(one: SourceFiles, other: SourceFiles) -> str | None:
    """How two tokenizers give different ids: by their tables, or by what they do; None for a folder without one."""
    tables = [files.tokenizer.get("model") for files in (one, other)]
    vocabularies = [table.get("vocab") for table in tables if isinstance(table, dict)]
    if len(vocabularies) != 2:
        return None
    if vocabularies[0] != vocabularies[1]:
        return ""
    how = other.once(f"tokenizer against {one.folder}", lambda: tokenizers_differ(other.folder, one.folder))
    return f": {how}" if how is not None else None


@rule("TF-K12-007", "a draft of another width", EAGLE_3_PAPER, needs=("model", "draft"), waivable=False)
def widths_agree(facts: Facts) -> Iterator[Violation]:
    """Heads and EAGLE layers read the target's hidden states, so their width is the target's."""
    files, model = facts.draft_files, facts.require_model()
    if files is None or facts.recipe.speculation.method not in ("eagle", "eagle3", "medusa"):
        return
    config = files.config
    given = config.get("target_hidden_size") or config.get("hidden_size")
    if isinstance(given, int) and given != model.hidden:
        yield Violation(
            f"the heads read a width of {given}, the target has {model.hidden}",
            facts.asked("speculation.draft"),
            {"draft_hidden": given, "target_hidden": model.hidden},
            [*by_hand("heads that were trained on this target"), without_speculation(facts)],
        )


@rule(
    "TF-K12-008",
    "a draft that is no cheaper than its target",
    SAMPLING_PAPER,
    severity="warning",
    needs=("model", "draft"),
)
def draft_is_small(facts: Facts) -> Iterator[Violation]:
    """A step drafts several tokens one after another; a draft of half the target's size costs more than it saves."""
    yield from _compared(facts, ("draft_target", "eagle3"), at_least=0.5, below=1.0)


@rule("TF-K12-039", "a draft model that is as large as its target", SAMPLING_PAPER, needs=("model", "draft"))
def draft_is_smaller(facts: Facts) -> Iterator[Violation]:
    """Each drafted token takes a step of the draft, one after another, and then the target's own; what drafts at the
    target's cost only adds to it."""
    yield from _compared(facts, ("draft_target",), at_least=1.0)  # TF-DRF-023 says it of an EAGLE-3 drafter


def _compared(facts: Facts, names: tuple[str, ...], *, at_least: float, below: float = math.inf) -> Iterator[Violation]:
    """A draft whose share of the target's parameters lies in this range."""
    files, model = facts.draft_files, facts.require_model()
    if files is None or facts.recipe.speculation.method not in names:
        return
    parameters = sum(info.elements for info in files.tensors.values())
    if not model.parameters or not at_least <= parameters / model.parameters < below:
        return
    yield Violation(
        f"the draft has {parameters:,} parameters, the target {model.parameters:,}",
        facts.asked("speculation.draft"),
        {"draft": parameters, "target": model.parameters, "ratio": round(parameters / model.parameters, 2)},
        [*by_hand(f"a draft of {model.parameters // 10:,} parameters or fewer"), without_speculation(facts)],
    )


@rule("TF-K12-040", "a draft deeper than its head drafts", EAGLE_3_PAPER, needs=("draft",))
def head_drafts_so_deep(facts: Facts) -> Iterator[Violation]:
    """A head that states how many tokens it drafts was trained for those; its further ones are guesses that hardly any
    verification accepts, and each takes a step."""
    files = facts.draft_files
    if files is not None and facts.recipe.speculation.method == "eagle3":
        yield from _deeper(facts, _declared(files.config), "is made for")


@rule("TF-K12-041", "a draft deeper than its publisher proposes", SPECULATORS, severity="warning", needs=("draft",))
def head_is_used_as_proposed(facts: Facts) -> Iterator[Violation]:
    """speculators write the draft length that they measured beside the head; beyond it acceptance falls by step."""
    files = facts.draft_files
    if files is None or facts.recipe.speculation.method != "eagle3" or files.has(RECORD):
        return  # a conversion writes the least that the format wants, and nobody measured it
    yield from _deeper(facts, _proposed(files.config), "is proposed with")


def _deeper(facts: Facts, most: int | None, how: str) -> Iterator[Violation]:
    asked = facts.recipe.speculation
    if asked.choices:
        depth = max(map(len, asked.choices))
    else:
        depth = asked.dynamic_tree.depth if asked.dynamic_tree is not None else asked.max_draft_len or 0
    if most is None or depth <= most:
        return
    shorter = [f"speculation.max_draft_len: {most}"]
    if asked.choices:
        kept = [list(path) for path in asked.choices if len(path) <= most]
        shorter = [line("speculation.choices", kept)]
    elif asked.dynamic_tree is not None:
        top = asked.dynamic_tree.top_k
        total = min(asked.dynamic_tree.total, top + (most - 1) * top**2)
        length = f" with speculation.max_draft_len: {most}" if asked.max_draft_len is not None else ""
        shorter = [f"speculation.dynamic_tree: {{depth: {most}, top_k: {top}, total: {total}}}{length}"]
    yield Violation(
        f"drafts are {depth} deep, the head {how} {most}",
        f"speculation.draft: {asked.draft}",
        {"depth": depth, "head": most},
        [*shorter, *by_hand(f"a head for {depth} tokens"), without_speculation(facts)],
    )


def _declared(config: Mapping[str, Any]) -> int | None:
    """The tokens that a head's config.json says it drafts at most."""
    eagle = config.get("eagle_config")
    places = [config, eagle if isinstance(eagle, Mapping) else {}]
    return next((value for place in places for name in _DEPTHS if (value := _whole(place.get(name))) is not None), None)


def _proposed(config: Mapping[str, Any]) -> int | None:
    """The draft length of speculators' proposal method: the default one's, else the longest."""
    section = config.get("speculators_config")
    given = section.get("proposal_methods") if isinstance(section, Mapping) else None
    rows = [row for row in given if isinstance(row, Mapping)] if isinstance(given, list) else []
    default = section.get("default_proposal_method") if isinstance(section, Mapping) else None
    chosen = [row for row in rows if row.get("proposal_type") == default] or rows
    return max((length for row in chosen if (length := _whole(row.get("speculative_tokens")))), default=None)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
