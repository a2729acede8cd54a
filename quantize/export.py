"""From ModelOpt's export to a finished checkpoint directory with the same bytes every time.

Policy: ``config.json`` is the source's own plus ``quantization_config`` (transformers would rewrite
dtype, version and defaults); weights that stay unquantized are stored in the source's dtype, scales in
float32; tensors are written in name order without metadata that varies. The tokenizer, chat template
and generation config are the source's files, byte for byte. A file of the source that is a weight, an
index or a record of an earlier stage is not copied.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtforge.ground.files import copy_file

if TYPE_CHECKING:
    import torch

SUMMARY_FILE = "quantize.json"
#: what an unquantized checkpoint and its tokenizer may hold beside the weights; records of stages are not listed
COMPANIONS = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "vocab.json",
    "merges.txt",
)
#: last parts of tensor names that stay float32
SCALE_LEAVES = ("weight_scale", "weight_scale_2", "input_scale", "k_scale", "v_scale")


def copy_companions(checkpoint: Path, out: Path) -> None:
    """Copy tokenizer, chat template, generation config and (for remote-code models) Python files."""
    for name in COMPANIONS:
        if (checkpoint / name).is_file():
            copy_file(checkpoint / name, out / name)
    for path in sorted(checkpoint.glob("*.py")):
        copy_file(path, out / path.name)


def copy_checkpoint(checkpoint: Path, out: Path) -> None:
    """An unquantized checkpoint as it is: weights, index, configuration and companions."""
    copy_companions(checkpoint, out)
    patterns = ("config.json", "hf_quant_config.json", "*.safetensors", "model.safetensors.index.json")
    for path in sorted({path for pattern in patterns for path in checkpoint.glob(pattern)}):
        copy_file(path, out / path.name)


def collect_export(staging: Path, config: dict[str, Any]) -> None:
    """Normalize ModelOpt's export in place.

    Args:
        staging: what ``export_hf_checkpoint`` wrote.
        config: the source's ``config.json``.
    """
    exported = json.loads((staging / "config.json").read_text(encoding="utf-8"))
    quantization = {key: exported[key] for key in ("quantization_config",) if key in exported}
    write_json(staging / "config.json", {**config, **quantization})
    dtype = stored_dtype(config)
    sizes = sum(_rewrite_weights(path, dtype) for path in sorted(staging.glob("*.safetensors")))
    index = staging / "model.safetensors.index.json"
    if index.is_file():
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        write_json(index, {"metadata": {"total_size": sizes}, "weight_map": dict(sorted(weight_map.items()))})
    quant_config = staging / "hf_quant_config.json"
    write_json(quant_config, json.loads(quant_config.read_text(encoding="utf-8")))
    (staging / "generation_config.json").unlink(missing_ok=True)


def move_export(staging: Path, checkpoint: Path, out: Path) -> None:
    """Put the finished files of an export, and the companions of the unquantized ``checkpoint``, into ``out``."""
    copy_companions(checkpoint, staging)
    for path in sorted(staging.iterdir()):
        path.replace(out / path.name)


def stored_dtype(config: dict[str, Any]) -> torch.dtype:
    """The dtype of the checkpoint's unquantized tensors, by ``config.json`` (bfloat16 when it does not say)."""
    import torch

    dtype: torch.dtype = getattr(torch, str(config.get("dtype") or config.get("torch_dtype") or "bfloat16"))
    return dtype


def as_stored(tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """An export's tensors as they are stored: float32 that is no scale as ``dtype``."""
    import torch

    # scalars keep their shape; a contiguous copy keeps views of one storage apart
    return {
        name: tensor.to(dtype).contiguous()
        if tensor.dtype == torch.float32 and not name.endswith(SCALE_LEAVES)
        else tensor
        for name, tensor in tensors.items()
    }


def _rewrite_weights(path: Path, dtype: torch.dtype) -> int:
    """Store float32 tensors that are no scales as ``dtype``; returns the bytes of all tensors of the file."""
    from safetensors.torch import load_file, save_file

    tensors = as_stored(load_file(path), dtype)
    partial = path.with_suffix(".partial")
    save_file(dict(sorted(tensors.items())), partial, metadata={"format": "pt"})
    partial.chmod(0o644)
    partial.replace(path)
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def write_json(path: Path, value: Any) -> None:
    """JSON with sorted keys and a final newline: the same value is the same bytes."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
