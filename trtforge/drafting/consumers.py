"""What a drafter lacks for each program that could serve or train it, by the rows of the dialects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trtforge.drafting.description import Eagle3
from trtforge.drafting.dialects import (
    MODELOPT,
    SPECFORGE,
    SPECULATORS,
    STRUCTURAL,
    TENSORRT_LLM,
    Dialect,
    parts_of,
)


@dataclass(frozen=True)
class Consumer:
    """Attributes:
    name: program and release.
    dialect: what it reads.
    lacks: parts that this release does not know though the dialect has them now.
    source: where that is seen.
    """

    name: str
    dialect: Dialect
    lacks: frozenset[str] = frozenset()
    source: str = ""


_TENSORRT_LLM = (
    Consumer(
        "TensorRT-LLM up to 1.2.1 (PyTorch backend)",
        TENSORRT_LLM,
        frozenset({"fc_norm", "norm_output"}),
        "https://github.com/NVIDIA/TensorRT-LLM/pull/14988",
    ),
    Consumer("TensorRT-LLM from 1.3", TENSORRT_LLM, source="https://github.com/NVIDIA/TensorRT-LLM/pull/14988"),
)
CONSUMERS = (
    Consumer("SpecForge, SGLang", SPECFORGE),
    Consumer("vLLM (speculators)", SPECULATORS),
    Consumer("ModelOpt", MODELOPT),
    *_TENSORRT_LLM,
)


def tensorrt_llm(version: str) -> Consumer:
    """The row of a release of TensorRT-LLM's PyTorch backend."""
    from packaging.version import Version

    older, newer = _TENSORRT_LLM
    return newer if Version(version) >= Version("1.3.0rc0") else older


def missing_for(consumer: Consumer, head: Eagle3, dialect: Dialect, tensors: Mapping[str, object]) -> list[str]:
    """What stands between a drafter and a consumer; empty when it can be loaded as it is."""
    wanted, missing = consumer.dialect, []
    if dialect is not wanted:
        missing.append(f"the dialect: trtforge draft convert --to {wanted.name}")
    expresses = wanted.expresses - consumer.lacks
    missing += [f"it has no {STRUCTURAL[part]}" for part in sorted(parts_of(head) - expresses)]
    if head.norm_output and "norm_output" not in expresses:
        missing.append("it does not feed the normed state back (norm_output)")
    if head.own_embedding and not keeps_embedding(wanted, head):
        missing.append("it uses the target's embedding, not the drafter's own")
    if wanted.needs_head and not head.own_head:
        missing.append("an lm_head of its own (copied with --target)")
    if wanted.has_t2d and head.mapped and "t2d" not in tensors:
        missing.append("t2d (made from d2t)")
    if head.taps is None:
        missing.append("taps written out (defaults are meant; --target gives the target's layers)")
    return missing


def keeps_embedding(dialect: Dialect, head: Eagle3) -> bool:
    """Whether a dialect stores an embedding of the drafter's own: TensorRT-LLM reads one only of another width."""
    other_width = head.target_hidden_size != head.hidden_size
    return "embed_tokens" in dialect.expresses or (dialect is TENSORRT_LLM and other_width)
