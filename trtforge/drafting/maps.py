"""The maps of an EAGLE-3 drafter: ``d2t`` [Vd] of offsets (token = draft + d2t[draft]), ``t2d`` [V] of flags.

They are read whole (a map has some hundred KB), so that a bad one is refused before any weight is loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trtforge.drafting.findings import DraftFinding
from trtforge.ground.safetensors_header import TensorInfo

if TYPE_CHECKING:
    import numpy as np

#: what maps are stored as
_INTEGERS = {"I64": "<i8", "I32": "<i4"}
_FLAGS = {"BOOL": "?", "U8": "u1"}
_WHY = "A draft token becomes the target's token by the map alone; one wrong entry drafts words that nobody asked for."
_AGAIN = "download the drafter again and compare its SHA-256 with the publisher's"


def read_array(folder: Path, info: TensorInfo, kind: str) -> np.ndarray:
    """The tensor at ``info`` as an array of numpy's type ``kind``."""
    import numpy as np

    with (folder / info.file).open("rb") as file:
        file.seek(info.offset)
        return np.frombuffer(file.read(info.nbytes), dtype=kind).reshape(info.shape)


def read_targets(folder: Path, info: TensorInfo) -> np.ndarray:
    """The target's token of each draft token, int64 [Vd], of a map that :func:`map_findings` has no fault of."""
    import numpy as np

    offsets = read_array(folder, info, _INTEGERS[info.dtype]).astype(np.int64)
    return np.arange(offsets.size, dtype=np.int64) + offsets


def map_findings(
    folder: Path, d2t: TensorInfo | None, t2d: TensorInfo | None, *, vocab: int, draft_vocab: int
) -> list[DraftFinding]:
    """What is wrong with the maps of a drafter of ``draft_vocab`` tokens for a target of ``vocab`` tokens."""
    import numpy as np

    if d2t is None:
        if draft_vocab == vocab:
            return []
        return [
            DraftFinding(
                "TF-DRF-010",
                f"the drafter has {draft_vocab} tokens, its target {vocab}, and no d2t says which they are",
                numbers={"draft_vocab": draft_vocab, "vocab": vocab, "t2d": t2d is not None},
                why=_WHY,
                remedies=["the publisher's checkpoint with d2t", _AGAIN],
            )
        ]
    if d2t.dtype not in _INTEGERS or d2t.shape != (draft_vocab,):
        return [
            DraftFinding(
                "TF-DRF-010",
                f"d2t is {d2t.dtype} {list(d2t.shape)}; a head of {draft_vocab} tokens has I64 or I32 [{draft_vocab}]",
                numbers={"shape": list(d2t.shape), "dtype": d2t.dtype, "draft_vocab": draft_vocab},
                why=_WHY,
                remedies=[_AGAIN],
            )
        ]
    targets = read_targets(folder, d2t)
    faults: list[DraftFinding] = []
    outside = np.flatnonzero((targets < 0) | (targets >= vocab))
    falls = np.flatnonzero(np.diff(targets) <= 0)
    if outside.size:
        first = int(outside[0])
        faults.append(
            DraftFinding(
                "TF-DRF-008",
                f"d2t leads {outside.size} draft tokens out of the target's {vocab} tokens: "
                f"{first} becomes {int(targets[first])}",
                numbers={"outside": int(outside.size), "first": first, "target": int(targets[first]), "vocab": vocab},
                why=_WHY,
                remedies=["the drafter of this very target (another model's has another vocabulary)", _AGAIN],
            )
        )
    elif falls.size:
        first = int(falls[0])
        faults.append(
            DraftFinding(
                "TF-DRF-008",
                f"d2t's targets do not rise at {falls.size} places: draft tokens {first} and {first + 1} become "
                f"{int(targets[first])} and {int(targets[first + 1])}",
                numbers={"places": int(falls.size), "first": first},
                why="d2t holds offsets to the draft's own ids, and the kept tokens in their order: where targets "
                "repeat or fall, the map holds ids instead of offsets, or is of another head.",
                remedies=["where d2t holds the targets themselves: subtract 0, 1, 2 … from it", _AGAIN],
            )
        )
    if t2d is not None and not faults:
        faults += _t2d_findings(folder, t2d, targets, vocab)
    return faults


def _t2d_findings(folder: Path, t2d: TensorInfo, targets: np.ndarray, vocab: int) -> list[DraftFinding]:
    if t2d.dtype not in _FLAGS or t2d.shape != (vocab,):
        return [
            DraftFinding(
                "TF-DRF-009",
                f"t2d is {t2d.dtype} {list(t2d.shape)}; a target of {vocab} tokens has BOOL [{vocab}]",
                numbers={"shape": list(t2d.shape), "dtype": t2d.dtype, "vocab": vocab},
                remedies=[_AGAIN],
            )
        ]
    kept = read_array(folder, t2d, _FLAGS[t2d.dtype]).astype(bool)
    count = int(kept.sum())
    differ = count + targets.size - 2 * int(kept[targets].sum())
    if count == targets.size and not differ:
        return []
    return [
        DraftFinding(
            "TF-DRF-009",
            f"t2d keeps {count} tokens, the drafter has {targets.size}, and d2t and t2d name {differ} different ones",
            numbers={"kept": count, "draft_vocab": int(targets.size), "different": differ},
            why="Both maps say which of the target's tokens the drafter has; trainers read one, servers the other.",
            remedies=[_AGAIN],
        )
    ]
