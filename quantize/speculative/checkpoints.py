"""Checkpoints of a training: weights, optimizer and best weights as safetensors, and where it is as JSON.

One folder a checkpoint, renamed into place when it is complete; the one before it goes then.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trtforge.ground.json_file import read_json_object

_MOMENTS = ("exp_avg", "exp_avg_sq")
_DONE = "step-"


@dataclass(frozen=True)
class Checkpoint:
    """Attributes:
    record: what :func:`save` was given.
    moments: AdamW's, named ``exp_avg.NAME`` and ``exp_avg_sq.NAME``.
    """

    record: dict[str, Any]
    weights: dict[str, Tensor]
    moments: dict[str, Tensor]
    best: dict[str, Tensor]

    def into(self, optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]) -> None:
        """Give an AdamW its moments and its number of steps back."""
        for name, parameter in parameters.items():
            optimizer.state[parameter] = {
                "step": torch.tensor(float(self.record["step"])),
                **{moment: self.moments[f"{moment}.{name}"].clone() for moment in _MOMENTS},
            }


def save(
    folder: Path,
    record: Mapping[str, Any],
    parameters: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    best: Mapping[str, Tensor],
) -> None:
    """Write a checkpoint below ``folder`` and remove the earlier ones; ``record`` holds ``step``."""
    from safetensors.torch import save_file

    draft = folder / "writing"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    state = optimizer.state
    moments = {
        f"{moment}.{name}": state[parameter][moment].contiguous()
        for name, parameter in parameters.items()
        for moment in _MOMENTS
    }
    save_file({name: value.detach().contiguous() for name, value in parameters.items()}, draft / "weights.safetensors")
    save_file(moments, draft / "moments.safetensors")
    save_file(dict(best), draft / "best.safetensors")
    (draft / "record.json").write_text(json.dumps(dict(record), indent=1) + "\n", encoding="utf-8")
    done = folder / f"{_DONE}{record['step']:08d}"
    shutil.rmtree(done, ignore_errors=True)
    draft.rename(done)
    for old in _all(folder)[:-1]:
        shutil.rmtree(old)


def latest(folder: Path) -> Checkpoint | None:
    """The last complete checkpoint below ``folder``; None where there is none."""
    from safetensors.torch import load_file

    found = _all(folder)
    if not found:
        return None
    weights, moments, best = (load_file(found[-1] / f"{name}.safetensors") for name in ("weights", "moments", "best"))
    return Checkpoint(read_json_object(found[-1] / "record.json"), weights, moments, best)


def _all(folder: Path) -> list[Path]:
    return sorted(folder.glob(f"{_DONE}*"))
