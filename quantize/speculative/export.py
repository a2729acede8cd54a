"""A trained head as a folder that servers load: SpecForge's dialect, which SGLang and this project read as it stands.

``trtforge draft convert`` makes the other dialects of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from quantize.speculative.shape import offsets
from trtforge.drafting.description import Eagle3
from trtforge.drafting.dialects import SPECFORGE, written_name
from trtforge.drafting.inspection import inspect_folder
from trtforge.drafting.writing import config_of
from trtforge.ground.json_file import read_json_object

WEIGHTS = "model.safetensors"
#: what a drafter takes over from its target's config.json although it computes nothing with it
_CARRIED = ("bos_token_id", "eos_token_id", "pad_token_id")


def export_head(
    head: Eagle3, tensors: Mapping[str, Tensor], tokens: Sequence[int], checkpoint: Path, folder: Path
) -> None:
    """Write config.json and model.safetensors, and hold the folder against the target.

    Args:
        tensors: under canonical names; rounded to bfloat16 here.
        tokens: the target's token of each draft token.
        checkpoint: the target's folder.

    Raises:
        ForgeError: the first error of an inspection of what was written.
    """
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    stored = {written_name(name, SPECFORGE, head.layers): value.to(torch.bfloat16) for name, value in tensors.items()}
    if head.mapped:
        stored["d2t"] = torch.tensor(offsets(tokens), dtype=torch.int64)
        stored["t2d"] = torch.zeros(head.vocab_size, dtype=torch.bool)
        stored["t2d"][torch.tensor(tokens)] = True
    save_file({name: value.contiguous() for name, value in stored.items()}, folder / WEIGHTS, metadata={"format": "pt"})
    target: dict[str, Any] = read_json_object(checkpoint / "config.json")
    carried = {name: target[name] for name in _CARRIED if target.get(name) is not None}
    config = config_of(head, SPECFORGE, carried, target)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for finding in inspect_folder(folder, checkpoint).errors:
        raise finding.refusal(str(folder))
