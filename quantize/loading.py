"""Whether a checkpoint is computed whole or layer by layer on this machine; said once, the same for every stage."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from quantize.plan import read_config
from trtforge.ground.errors import EnvironmentLacks
from trtforge.ground.safetensors_header import read_headers
from trtforge.ground.units import format_size
from trtforge.machine.memory import memory
from trtforge.models.loading import LIBRARY_BYTES, Footprint, Loading, Mode

#: bytes of an element on a GPU: checkpoints come in types of 16 bits
_ITEM_ON_GPU = 2
#: of an element of the states between layers
_STATE_BYTES = 4


def choose(asked: Loading, checkpoint: Path, models: int = 1, *, on_gpu: bool = False) -> Mode:
    """How ``checkpoint`` is brought into the memory that is free now.

    Args:
        models: how many of it are needed at once, where they are whole.
        on_gpu: it is computed on GPUs where torch has some, in its own type; all of them together hold it.

    Raises:
        ForgeError: ``TF-QNT-012`` it does not fit.
    """
    footprint, have = _computed_on(checkpoint, on_gpu)
    mode = footprint.mode(asked, have + _loaded(), models)
    if mode is None:
        fits = asked == "whole" and footprint.by_layer_bytes <= have + _loaded()
        raise _too_little(f"model.loading: {asked}", footprint, have, models, asked == "whole", fits)
    return mode


def require_whole(checkpoint: Path, models: int) -> None:
    """For what compares ``models`` of ``checkpoint``, whole and at once, before the first of them is loaded.

    Raises:
        ForgeError: ``TF-QNT-012`` they do not fit.
    """
    footprint, have = _computed_on(checkpoint, on_gpu=True)
    least = footprint.whole_bytes(models)
    if least > have + _loaded():
        raise EnvironmentLacks(
            "TF-QNT-012",
            f"The machine has too little free memory for {models} of this model at once",
            asked=f"{models} models at once",
            numbers={"whole_bytes": least, "available_bytes": have, "parameters": footprint.parameters},
            why="The unquantized model and one with calibrated quantizers are compared, linear by linear, both whole; "
            "neither is taken layer by layer here.",
            remedies=[
                f"A machine with {format_size(least)} of free memory",
                "trtforge quantize advise RECIPE: compares formats without loading the model",
                "quantize.mixed or quantize.exclude written by hand: quantizing takes one layer at a time",
            ],
        )


def spilled_bytes(asked: Loading, checkpoint: Path, tokens: int) -> int:
    """Bytes on the disk beside the result while ``checkpoint`` is quantized over so many tokens; 0 where it is whole.

    States before and behind a layer, in float32 and for two passes over the text.
    """
    if _footprint(checkpoint).mode(asked, memory().available + _loaded()) == "whole":
        return 0
    return 2 * 2 * tokens * int(read_config(checkpoint)["hidden_size"]) * _STATE_BYTES


def _computed_on(checkpoint: Path, on_gpu: bool) -> tuple[Footprint, int]:
    """What a checkpoint takes where it is computed, and what is free there."""
    footprint = _footprint(checkpoint)
    if on_gpu and (free := _gpu_bytes()) is not None:
        return replace(footprint, itemsize=_ITEM_ON_GPU), free
    return footprint, memory().available


def _footprint(checkpoint: Path) -> Footprint:
    return Footprint.of_tensors({name: info.shape for name, info in read_headers(checkpoint).items()})


def _loaded() -> int:
    """What is counted for the libraries and taken already: it is not free any more, and not needed again."""
    return LIBRARY_BYTES if "torch" in sys.modules else 0


def _gpu_bytes() -> int | None:
    """Free memory of all GPUs that torch computes on; None: it has none."""
    import torch

    if not torch.cuda.is_available():
        return None
    return sum(int(torch.cuda.mem_get_info(index)[0]) for index in range(torch.cuda.device_count()))


def told(mode: Mode) -> str:
    """The mode in words, for the progress."""
    return "the model is loaded whole" if mode == "whole" else "one decoder layer is in memory at a time"


def _too_little(
    asked: str, footprint: Footprint, have: int, models: int, whole: bool, by_layer_fits: bool
) -> EnvironmentLacks:
    least = footprint.whole_bytes(models) if whole else footprint.by_layer_bytes
    return EnvironmentLacks(
        "TF-QNT-012",
        "The machine has too little free memory to compute this model",
        asked=asked,
        numbers={
            "whole_bytes": footprint.whole_bytes(models),
            "by_layer_bytes": footprint.by_layer_bytes,
            "available_bytes": have,
            "parameters": footprint.parameters,
        },
        why="The model is computed in float32: all of it at once, or one decoder layer, the embedding or the head.",
        remedies=[
            *(["model.loading: by_layer"] if by_layer_fits else []),
            f"A machine with {format_size(least)} of free memory",
            "Use a checkpoint that is quantized already",
        ],
    )
