"""An EAGLE-3 drafter as a release of TensorRT-LLM's PyTorch backend loads it: as it stands, or converted.

Its loader reads its own dialect only, takes no taps from the drafter's config.json and joins the captured states in
the order of their layers (``Eagle3OneModelSpecMetadata`` sorts them), so taps are told to ``LLM()``.

Source: https://github.com/NVIDIA/TensorRT-LLM/blob/main/tensorrt_llm/_torch/speculative/eagle3.py and
https://github.com/NVIDIA/TensorRT-LLM/blob/main/tensorrt_llm/_torch/models/modeling_speculative.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtforge.drafting.consumers import Consumer, keeps_embedding, tensorrt_llm
from trtforge.drafting.conversion import Conversion, Plan, plan, write
from trtforge.drafting.description import Eagle3
from trtforge.drafting.dialects import STRUCTURAL, parts_of
from trtforge.drafting.inspection import Inspection
from trtforge.ground.errors import ForgeError


@dataclass(frozen=True)
class LoadedHead:
    """What a release loads of a drafter.

    Attributes:
        consumer: the release.
        conversion: what has to be written; None where the folder is loaded as it stands.
        taps: layers of the target that are captured, 0-based and ascending; None: the release's own choice.
    """

    source: Inspection
    consumer: Consumer
    conversion: Plan | None
    taps: tuple[int, ...] | None

    def convert(self, out: Path) -> Conversion:
        """Write the drafter as the new folder ``out``, in the release's dialect.

        Raises:
            ForgeError: ``TF-DRF-027`` it cannot be written.
        """
        assert self.conversion is not None
        return write(self.conversion, out, asked=f"speculation.draft: {self.source.folder.name}")

    def to_json(self, done: Conversion | None = None) -> dict[str, Any]:
        """From what and how the drafter came, for the artifact; ``done`` is the conversion that wrote it."""
        assert self.source.dialect is not None
        facts: dict[str, Any] = {
            "from": self.source.dialect.name,
            "dialect": self.consumer.dialect.name,
            "converted": done is not None,
            "taps": list(self.taps) if self.taps is not None else None,
        }
        kept = ("rope_theta", "lost", "copied_from_target", "config_keys_left_out")
        document = done.to_json() if done is not None else {}
        return facts | {name: document[name] for name in kept if name in document}


def head_for(source: Inspection, version: str, *, asked: str, whole: bool = True) -> LoadedHead:
    """How the release ``version`` of TensorRT-LLM gets the EAGLE-3 drafter ``source``.

    Args:
        whole: as for :func:`~trtforge.drafting.conversion.plan`.

    Raises:
        ForgeError: what :func:`~trtforge.drafting.conversion.plan` refuses, and ``TF-DRF-030`` a part that this
            release has not.
    """
    consumer = tensorrt_llm(version)
    made = plan(source, consumer.dialect.name, asked=asked, whole=whole)
    head, dialect = source.head, source.dialect
    assert head is not None and dialect is not None
    _require_parts(head, consumer, version, asked)
    stands = dialect is consumer.dialect and (not head.own_embedding or keeps_embedding(dialect, head))
    return LoadedHead(source, consumer, None if stands else made, head.taps)


def _require_parts(head: Eagle3, consumer: Consumer, version: str, asked: str) -> None:
    lacks = sorted({*parts_of(head), *(["norm_output"] if head.norm_output else [])} & consumer.lacks)
    if not lacks:
        return
    words = {**STRUCTURAL, "norm_output": "the normed state that is fed back (norm_output)"}
    raise ForgeError(
        "TF-DRF-030",
        f"TensorRT-LLM {version} does not read {' and '.join(words[part] for part in lacks)}",
        asked=asked,
        numbers={"parts": lacks, "tensorrt_llm": version},
        why="The loader ignores what it does not know, and the drafter would compute something else.",
        remedies=["a stack with TensorRT-LLM 1.3 or later", "a drafter without it"],
    )
