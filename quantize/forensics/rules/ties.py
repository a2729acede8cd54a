"""Rules on embedding and head."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator

from quantize.forensics.checkpoint import Checkpoint, plain
from quantize.forensics.hits import Hit, hit, rule, said
from trtforge.rules.sources import MODELOPT_CHANGES, thread
from trtforge.rules.tables import Section

SECTION = Section(800, "Embedding and head")

_HEADS = ("lm_head", "language_model.lm_head", "model.lm_head")


def _head(checkpoint: Checkpoint) -> list[str]:
    return [name for name in checkpoint.tensors if name.startswith(tuple(f"{head}." for head in _HEADS))]


@rule(
    "TF-K6-105",
    "error",
    "a tied head is stored",
    thread("LC!2798"),
    cases=(
        thread("LC#996"),
        thread("LC!2835"),
        thread("SG!577"),
    ),
)
def tied(checkpoint: Checkpoint) -> Iterator[Hit]:
    """The head is the embedding; stored a second time, quantized or not, loaders drop it, fail on its scales, or
    compute with another head than the model has.
    """
    if checkpoint.tied is not True:
        return
    quantized = any(plain(module) in _HEADS for module in checkpoint.quantized)
    yield from hit(
        "stored although the head is tied to the embedding",
        _head(checkpoint),
        "exclude lm_head and export again",
        "set tie_word_embeddings: false, if the stored head is the trained one",
        severity=None if quantized or checkpoint.expected is not None else "warning",
    )


@rule("TF-K6-106", "error", "the head is missing", thread("LF#2789"))
def headless(checkpoint: Checkpoint) -> Iterator[Hit]:
    """config.json says that the head is not the embedding, and there is none."""
    classes = checkpoint.files.json("config.json").get("architectures")
    generates = isinstance(classes, list) and any("ForCausalLM" in str(name) for name in classes)
    if checkpoint.tied is False and generates and not checkpoint.files.weights.incomplete and not _head(checkpoint):
        yield said(
            "lm_head.weight is missing and the embeddings are not tied",
            "set tie_word_embeddings: true, if the model ties its head",
            "export again",
        )


@rule("TF-K6-107", "error", "the embedding is missing", MODELOPT_CHANGES)
def no_embedding(checkpoint: Checkpoint) -> Iterator[Hit]:
    """Without its table no token has a vector."""
    if checkpoint.files.weights.incomplete:
        return
    if not any(
        fnmatch.fnmatchcase(plain(module), pattern) for module in checkpoint.parts for pattern in ("*embed*", "*wte")
    ):
        yield said("the embedding's weight is missing", "export again")
