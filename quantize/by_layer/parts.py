"""Exported pieces as files, and the checkpoint that is written from them: the same files as of the whole model.

A part holds a piece's exported tensors under the checkpoint's names, and what ModelOpt says of each module. Shards are
then filled tensor by tensor, each copied from its part or from the unquantized checkpoint: none is ever in memory.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from quantize.export import as_stored, stored_dtype, write_json
from quantize.fused_experts import fused_experts_exported
from quantize.intake.writer import FLOATS, PIECE_ELEMENTS, TARGETS, TensorPlan, converted_pieces, write_safetensors
from quantize.quiet import quiet
from trtforge.ground.files import read_json, write_json_atomic
from trtforge.ground.safetensors_header import DTYPE_BITS, INDEX_NAME, WEIGHTS_NAME, TensorInfo, read_header

if TYPE_CHECKING:
    import torch

    from quantize.by_layer.pieces import Pieces

#: ``export_hf_checkpoint`` begins a new file where this would be passed
MAX_SHARD_BYTES = 10_000_000_000
#: safetensors orders a file's tensors by their types, the widest first, then by name
_ORDER = {name: place for place, name in enumerate(DTYPE_BITS)}
_RECORD = "hf_quant_config.json"


@dataclass(frozen=True)
class Part:
    """One exported piece.

    Attributes:
        path: the file of its tensors.
        sizes: bytes of each tensor as ModelOpt exported it, in its order; shards are filled by them.
        modules: what ModelOpt says of each module of the piece, in order.
        record: its ``hf_quant_config.json``; empty where the piece has nothing quantized.
    """

    path: Path
    sizes: Mapping[str, int]
    modules: Mapping[str, Any]
    record: Mapping[str, Any]


def read_part(folder: Path, name: str, identity: str) -> Part | None:
    """The part that a run of this identity has finished; None: there is none."""
    found = read_json(folder / f"{name}.json")
    if not isinstance(found, dict) or found.get("identity") != identity:
        return None
    path = folder / f"{name}.safetensors"
    return Part(path, found["sizes"], found["modules"], found["record"]) if path.is_file() else None


def export_part(
    model: Any, folder: Path, name: str, identity: str, renamed: Callable[[str], str | None], config: Mapping[str, Any]
) -> None:
    """Export a piece that ModelOpt has quantized; its file is there when this returns.

    Args:
        renamed: the checkpoint's name of a tensor or module; None: a stub that belongs to no part.
        config: the source's ``config.json``.
    """
    import modelopt.torch.export as mte
    from safetensors.torch import save_file

    taken: dict[str, torch.Tensor] = {}

    def take(directory: Path, state_dict: Mapping[str, torch.Tensor], **_: Any) -> None:
        taken.update(state_dict)
        model.config.save_pretrained(directory)

    model.save_pretrained = take
    with (
        tempfile.TemporaryDirectory(dir=folder) as scratch,
        _modules_seen() as modules,
        fused_experts_exported(),
        quiet(),
    ):
        mte.export_hf_checkpoint(model, export_dir=scratch)
        record = read_json(Path(scratch) / _RECORD) or {}
    kept = {new: tensor for old, tensor in taken.items() if (new := renamed(old)) is not None}
    stored = as_stored(kept, stored_dtype(dict(config)))
    partial = folder / f"{name}.partial"
    save_file(stored, partial, metadata={"format": "pt"})
    partial.replace(folder / f"{name}.safetensors")
    value = {
        "identity": identity,
        "sizes": {key: tensor.numel() * tensor.element_size() for key, tensor in kept.items()},
        "modules": {f"{new or old}.{kind}": said for old, kind, said in modules for new in [renamed(old)]},
        "record": record,
    }
    write_json_atomic(folder / f"{name}.json", value)


@contextlib.contextmanager
def _modules_seen() -> Iterator[list[tuple[str, str, Any]]]:
    """Inside the block, what ModelOpt's export finds of each module: its name, a kind of fact, the fact.

    ``get_quant_config`` makes one algorithm and patterns of it; of parts they could not be put together.
    """
    import modelopt.torch.export.quant_utils as quant_utils

    seen: list[tuple[str, str, Any]] = []
    module: Any = quant_utils
    original = module.process_layer_quant_config

    def record(found: dict[str, Any]) -> Any:
        seen.extend((*key.rsplit(".", 1), said) for key, said in found.items())
        return original(found)

    module.process_layer_quant_config = record
    try:
        yield seen
    finally:
        module.process_layer_quant_config = original


def write_checkpoint(
    layers: Sequence[Part], head: Part | None, pieces: Pieces, config: dict[str, Any], staging: Path, itemsize: int
) -> None:
    """Put the parts together: weights, index, ``config.json`` and ``hf_quant_config.json``, as of the whole model.

    Args:
        layers: of every decoder layer.
        head: of a quantized output head; None: it is copied as the embedding and the last norm are.
        config: the source's ``config.json``.
        itemsize: bytes of an element of what is copied, as the whole model's export would hold it.
    """
    staging.mkdir(parents=True, exist_ok=True)
    target = TARGETS[str(stored_dtype(config)).removeprefix("torch.")]
    plans: list[tuple[int, TensorPlan]] = []
    outer = [name for name in pieces.outer_names() if head is None or name not in head.sizes]
    for name in outer:
        info = pieces.headers[name]
        plan = TensorPlan(name, target, info.shape, _copied(pieces.checkpoint / info.file, info, target, name))
        plans.append((info.elements * itemsize, plan))
    between = [plan for part in layers for plan in _plans(part)]
    plans[1:1] = between
    plans += [] if head is None else list(_plans(head))
    total = sum(plan.nbytes for _, plan in plans)
    files = _shards(plans)
    for file, chosen in files.items():
        write_safetensors(staging / file, sorted(chosen, key=lambda plan: (-_ORDER[plan.dtype], plan.name)))
    if len(files) > 1:
        places = {plan.name: file for file, chosen in files.items() for plan in chosen}
        write_json(
            staging / INDEX_NAME, {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
        )
    record = _record(layers, head, pieces)
    write_json(staging / _RECORD, record)
    from modelopt.torch.export.convert_hf_config import convert_hf_quant_config_format

    write_json(staging / "config.json", {**config, "quantization_config": convert_hf_quant_config_format(record)})


def _record(layers: Sequence[Part], head: Part | None, pieces: Pieces) -> dict[str, Any]:
    """``hf_quant_config.json`` of the whole, by ModelOpt's own rule from what it said of every module."""
    from modelopt.torch.export.quant_aware_conversion import build_reverse_name_mapper, revert_quant_config_names
    from modelopt.torch.export.quant_utils import process_layer_quant_config

    modules: dict[str, Any] = {}
    for part in layers:
        modules.update((key, said) for key, said in part.modules.items() if key.startswith(f"{pieces.stack}."))
    # what lies outside the layers is in every part, as a stub that stays unquantized
    modules.update((key, said) for key, said in layers[0].modules.items() if not key.startswith(f"{pieces.stack}."))
    modules.update({} if head is None else head.modules)
    parts = [*layers, *([] if head is None else [head])]
    record = json.loads(json.dumps(next(part.record for part in parts if part.record)))
    kv_cache = next(
        (one for part in parts if (one := part.record.get("quantization", {}).get("kv_cache_quant_algo"))), None
    )
    section = {"quant_algo": None, "kv_cache_quant_algo": None, **process_layer_quant_config(modules)}
    section["kv_cache_quant_algo"] = kv_cache
    if (mapper := build_reverse_name_mapper(pieces.skeleton)) is not None:
        revert_quant_config_names(section, mapper)
    record["quantization"] = section
    return record


def _plans(part: Part) -> Iterator[tuple[int, TensorPlan]]:
    header, _ = read_header(part.path)
    for name, size in part.sizes.items():
        info = header[name]
        yield size, TensorPlan(name, info.dtype, info.shape, _bytes(part.path, info))


def _bytes(path: Path, info: TensorInfo) -> Callable[[], Iterator[npt.NDArray[Any]]]:
    def pieces() -> Iterator[npt.NDArray[Any]]:
        for begin in range(0, info.nbytes, PIECE_ELEMENTS):
            count = min(PIECE_ELEMENTS, info.nbytes - begin)
            yield np.fromfile(path, np.uint8, count, offset=info.offset + begin)

    return pieces


def _copied(path: Path, info: TensorInfo, target: str, name: str) -> Callable[[], Iterator[npt.NDArray[Any]]]:
    """The pieces of an unquantized tensor in the type in which the checkpoint keeps such."""

    def pieces() -> Iterator[npt.NDArray[Any]]:
        kind = FLOATS[info.dtype]
        for begin in range(0, info.elements, PIECE_ELEMENTS):
            count = min(PIECE_ELEMENTS, info.elements - begin)
            values = np.fromfile(path, kind, count, offset=info.offset + begin * kind.itemsize)
            yield from converted_pieces(values, info.dtype, target, name)

    return pieces


def _shards(plans: Sequence[tuple[int, TensorPlan]], limit: int | None = None) -> dict[str, list[TensorPlan]]:
    """File names and their tensors, cut where huggingface_hub cuts the whole model's state."""
    most = MAX_SHARD_BYTES if limit is None else limit
    groups: list[list[TensorPlan]] = []
    current: list[TensorPlan] = []
    filled = 0
    for size, plan in plans:
        if size > most:
            groups.append([plan])
            continue
        if filled + size > most:
            groups.append(current)
            current, filled = [], 0
        current.append(plan)
        filled += size
    if current:
        groups.append(current)
    if len(groups) == 1:
        return {WEIGHTS_NAME: groups[0]}
    return {f"model-{i:05d}-of-{len(groups):05d}.safetensors": group for i, group in enumerate(groups, 1)}
