"""K12, K13, K21, K24: rows of the feature table: what needs what, and what does not go together."""

from __future__ import annotations

from collections.abc import Iterator

from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.features import combined, turned_on, unmet_needs, without, written
from trtforge.preflight.remedies import by_hand
from trtforge.rules.sources import thread
from trtforge.templates.other_tokenizers import other_tokenizers, tokenizer_remedies

_TABLE = "https://nvidia.github.io/TensorRT-LLM/features/feature-combination-matrix.html"


def _needs(facts: Facts, kind: str) -> Iterator[Violation]:
    for row in unmet_needs(facts, kind):
        yield Violation(
            f"{row.feature} without {row.needs} on {facts.recipe.build.target}",
            f"{written(facts, row.feature)}, {written(facts, row.needs)}",
            {"feature": row.feature, "needs": row.needs, "target": facts.recipe.build.target},
            [*turned_on(facts, row.needs), *without(facts, row.feature)],
            why=row.why,
            source=row.source,
        )


def _combined(facts: Facts, kind: str, *, refused: bool) -> Iterator[Violation]:
    for row in combined(facts, kind, refused=refused):
        verdict = {
            "no": "do not go together",
            "untested": "are untested together",
            "disputed": "are said to go together and reported not to",
        }[row.support]
        yield Violation(
            f"{' and '.join(row.features)} {verdict} on {facts.recipe.build.target}",
            ", ".join(written(facts, name) for name in row.features),
            {"features": list(row.features), "support": row.support, "target": facts.recipe.build.target},
            [way for name in row.features for way in without(facts, name)],
            why=row.why,
            source=row.source,
        )


@rule("TF-K12-002", "speculation without what it needs", _TABLE, waivable=False)
def speculation_needs(facts: Facts) -> Iterator[Violation]:
    """The method reads state that another setting keeps."""
    return _needs(facts, "K12")


@rule("TF-K12-003", "speculation with a feature that excludes it", _TABLE)
def speculation_excludes(facts: Facts) -> Iterator[Violation]:
    """The engine refuses one of the two, or answers wrongly."""
    return _combined(facts, "K12", refused=True)


@rule("TF-K13-003", "a setting without what it needs", thread("TB#271"), waivable=False)
def settings_need(facts: Facts) -> Iterator[Violation]:
    """Build and server are configured apart, so the engine may lack what the server turns on."""
    return _needs(facts, "K13")


@rule("TF-K13-004", "features that do not go together", _TABLE)
def features_exclude(facts: Facts) -> Iterator[Violation]:
    """The engine refuses one of the two, or answers wrongly."""
    return _combined(facts, "K13", refused=True)


@rule("TF-K13-005", "features whose combination nobody vouches for", _TABLE, severity="warning")
def features_untested(facts: Facts) -> Iterator[Violation]:
    """It may work; the tables do not say so, or reports say otherwise."""
    return _combined(facts, "K13", refused=False)


@rule("TF-K21-001", "adapters with a feature whose combination nobody vouches for", _TABLE, severity="warning")
def adapters_untested(facts: Facts) -> Iterator[Violation]:
    """It may work; NVIDIA's matrix does not say so."""
    return _combined(facts, "K21", refused=False)


@rule("TF-K24-001", "beams with a feature that excludes them", _TABLE)
def beams_exclude(facts: Facts) -> Iterator[Violation]:
    """The engine refuses one of the two, or answers wrongly."""
    return _combined(facts, "K24", refused=True)


@rule("TF-K24-002", "beams with a feature whose combination nobody vouches for", _TABLE, severity="warning")
def beams_untested(facts: Facts) -> Iterator[Violation]:
    """It may work; NVIDIA's matrix does not say so."""
    return _combined(facts, "K24", refused=False)


@rule(
    "TF-K13-006",
    "guided decoding without a tokenizer that it can read",
    thread("TL#2624"),
    needs=("files",),
    waivable=False,
)
def guided_needs_tokenizer(facts: Facts) -> Iterator[Violation]:
    """A grammar is compiled against the vocabulary: xgrammar reads it from tokenizer.json."""
    if facts.recipe.build.trtllm.guided_decoding == "none" or facts.files is None:
        return
    if not facts.files.has("tokenizer.json"):
        yield Violation(
            f"guided decoding by {facts.recipe.build.trtllm.guided_decoding}, and no tokenizer.json in the checkpoint",
            facts.asked("build.trtllm.guided_decoding"),
            {"folder": str(facts.files.folder)},
            [*by_hand(*tokenizer_remedies(other_tokenizers(facts.files.has))), "build.trtllm.guided_decoding: none"],
        )
