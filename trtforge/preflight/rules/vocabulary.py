"""K6: excludes, tied weights and the vocabulary over the ranks."""

from __future__ import annotations

from collections.abc import Iterator

from trtforge.ground.names import nearest
from trtforge.models.shape import linears, matches
from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.remedies import by_hand, line
from trtforge.rules.sources import thread


@rule("TF-K6-001", "a tied lm_head would be quantized", thread("MO#138"), needs=("model",))
def tied_head_excluded(facts: Facts) -> Iterator[Violation]:
    """It is the embedding: quantized, it is stored twice and the embedding's rounding reaches every logit."""
    model, quantize = facts.require_model(), facts.recipe.quantize
    if quantize.format == "none" or not model.tied:
        return
    if not any(matches("lm_head", pattern) for pattern in quantize.unquantized):
        yield Violation(
            "lm_head shares the embedding's weights and is not excluded from quantization",
            facts.asked("quantize.exclude"),
            {"tied": True, "vocab": model.vocab, "hidden": model.hidden},
            [line("quantize.exclude", ["lm_head", *quantize.exclude])],
        )


@rule("TF-K6-002", "an exclude pattern that matches nothing", thread("TL#855"), severity="warning", needs=("model",))
def exclude_matches(facts: Facts) -> Iterator[Violation]:
    """A misspelt name leaves the module quantized, against what the recipe says."""
    quantize = facts.recipe.quantize
    if quantize.format == "none":
        return
    known = linears(facts.require_model())
    names = [name for linear in known for name in linear.names]
    for pattern in quantize.exclude:
        if not any(matches(name, pattern) for name in names):
            near = nearest(pattern.strip("*."), [linear.kind for linear in known])
            mended = [near if item == pattern else item for item in quantize.exclude]
            yield Violation(
                f"quantize.exclude: {pattern} matches no linear of this model",
                f"quantize.exclude: {pattern}",
                {"kinds": [linear.kind for linear in known], "example": names[0]},
                [
                    *([line("quantize.exclude", mended)] if near else []),
                    line("quantize.exclude", [item for item in quantize.exclude if item != pattern]),
                    *by_hand("a kind such as o_proj, or a path such as model.layers.0.*"),
                ],
            )


@rule("TF-K6-003", "the vocabulary does not split over the ranks", thread("TL#98"), needs=("model",))
def vocabulary_splits(facts: Facts) -> Iterator[Violation]:
    """The embedding and the head are cut along the vocabulary, and the graph does not pad it."""
    model, tp = facts.require_model(), facts.recipe.build.parallel.tp
    # TensorRT-LLM's checkpoints give every rank the same share and pad the last one
    if not facts.target.tensorrt_llm and model.vocab % tp:
        padded = -(-model.vocab // tp) * tp
        yield Violation(
            f"vocabulary {model.vocab} does not split over tp {tp}",
            facts.asked("build.parallel.tp"),
            {"vocab": model.vocab, "tp": tp, "padded": padded},
            [*by_hand(f"pad the embedding to {padded} rows"), "build.parallel.tp: 1"],
        )


@rule("TF-K6-004", "the head is quantized", thread("TL#1733"), severity="warning", needs=("model",))
def head_excluded(facts: Facts) -> Iterator[Violation]:
    """The head decides every token: its rounding costs more quality than its bytes are worth, and few engines load a
    quantized head."""
    model, quantize = facts.require_model(), facts.recipe.quantize
    if quantize.format == "none" or model.tied or any(matches("lm_head", pattern) for pattern in quantize.unquantized):
        return
    share = model.vocab * model.hidden / max(model.parameters, 1)
    yield Violation(
        f"lm_head ({share:.1%} of the weights) is not excluded from quantization",
        facts.asked("quantize.exclude"),
        {"vocab": model.vocab, "hidden": model.hidden, "share": round(share, 4)},
        [line("quantize.exclude", ["lm_head", *quantize.exclude])],
    )
