"""What an EAGLE-3 head's engine states of itself, and what its executors check of a pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from runtime.executors.engine_dir import EngineInfo
from trtforge.drafting.maps import read_targets
from trtforge.ground.errors import ForgeError
from trtforge.ground.safetensors_header import read_headers

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class HeadFacts:
    """Attributes:
    draft_vocab_size: Vd, columns of the logits.
    hidden_size: H, the width of what is fed back.
    tap_width: m·Ht, the width of the target's tapped states side by side.
    mapped: whether draft tokens have ids of their own.
    """

    draft_vocab_size: int
    hidden_size: int
    tap_width: int
    mapped: bool


def head_facts(info: EngineInfo) -> HeadFacts:
    """The record ``drafter`` of a head's engine.json.

    Raises:
        ForgeError: TF-RUN-001 the engine is no head's, or its record garbled.
    """
    facts = info.raw.get("drafter")
    facts = facts if isinstance(facts, dict) else {}
    sizes: list[Any] = [facts.get(name) for name in ("draft_vocab_size", "hidden_size", "tap_width")]
    good = all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes)
    if good and facts.get("kind") == "eagle3" and isinstance(facts.get("mapped"), bool):
        return HeadFacts(sizes[0], sizes[1], sizes[2], facts["mapped"])
    raise ForgeError(
        "TF-RUN-001",
        f"{info.directory} is not the engine of an EAGLE-3 head: its record drafter is missing or garbled",
        asked=str(info.directory),
        why="widths and vocabulary of the head are read from it",
        remedies=["give the engine/draft folder of a bundle", "build the engine again"],
    )


def head_targets(info: EngineInfo) -> npt.NDArray[np.int64] | None:
    """int64 [Vd], the target's token of each draft token; None: the same ids.

    Raises:
        ForgeError: TF-RUN-013 the map is missing, or leaves the target's vocabulary.
    """
    facts = head_facts(info)
    if not facts.mapped:
        return None
    d2t = read_headers(info.directory).get("d2t")
    if d2t is not None and d2t.shape == (facts.draft_vocab_size,):
        targets: npt.NDArray[np.int64] = read_targets(info.directory, d2t)
        if targets.min() >= 0 and targets.max() < info.record.vocab_size:
            return targets
    raise ForgeError(
        "TF-RUN-013",
        "the draft's map of tokens is missing, or names tokens that the target has not",
        asked=str(info.directory),
        numbers={"draft_vocab_size": facts.draft_vocab_size, "vocab_size": info.record.vocab_size},
        why="a draft token becomes the target's token by the map alone",
        remedies=["build the engine again", "run `trtforge verify` on the bundle"],
    )


def states_given(
    facts: HeadFacts, tokens: int, taps: torch.Tensor | None, feedback: torch.Tensor | None
) -> tuple[str, torch.Tensor]:
    """The input that a pass of ``tokens`` rows reads, and its states.

    Raises:
        ValueError: not exactly one is given, or it does not fit.
    """
    name, given, width = (
        ("taps", taps, facts.tap_width) if feedback is None else ("feedback", feedback, facts.hidden_size)
    )
    if given is None or (taps is not None and feedback is not None):
        raise ValueError("a pass reads taps or feedback, one of the two")
    if tuple(given.shape) != (tokens, width):
        raise ValueError(f"{name} of shape {tuple(given.shape)} for {tokens} tokens of width {width}")
    return name, given
