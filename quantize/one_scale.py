"""One FP8 scale for linears that a target multiplies as one, written into the checkpoint before it is evaluated.

TensorRT-LLM computes query, key and value as one product, and gate and up projections as another where it fuses
them. Per-tensor FP8 has one scale for such a product: the largest of its parts, and the parts with a smaller one are
rounded again under it when the target loads or converts them. Done here, in the quantized checkpoint, what is
evaluated is what is deployed, and nothing is left to round. TensorRT-LLM's engines have one scale for keys and
values too.

Sources: https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/tensorrt_llm/_torch/modules/linear.py
(FP8QDQLinearMethod.load_weights_fused_qkv_linear and load_weights_fused_gate_up_linear),
https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/tensorrt_llm/models/modeling_utils.py (preprocess_perlayer_weights).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from trtforge.ground.e4m3 import largest_change, rescale_table
from trtforge.ground.safetensors_header import TensorInfo, read_headers
from trtforge.targets import Target

#: linears of one product, below a layer
FUSED: tuple[tuple[str, ...], ...] = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("mlp.gate_proj", "mlp.up_proj"),
)


def share_scales(checkpoint: Path, target: Target) -> dict[str, Any] | None:
    """Give fused FP8 linears of ``checkpoint`` one scale, in place; None for targets and checkpoints without such.

    Returns:
        ``linears`` and ``weights`` that were rounded again, ``largest_relative_change`` of a normal value, and
        ``kv_layers`` whose keys and values got the larger of their two scales.
    """
    if not target.one_scale:
        return None
    headers = read_headers(checkpoint)
    report: dict[str, Any] = {"linears": 0, "weights": 0, "largest_relative_change": 0.0, "kv_layers": 0}
    for layer in sorted({name.rsplit(".", 3)[0] for name in headers if name.endswith("_proj.weight")}):
        for names in FUSED:
            _share(checkpoint, headers, [f"{layer}.{name}" for name in names], report)
        if target.one_kv_scale:
            scales = [f"{layer}.self_attn.{kind}_proj.{kind}_scale" for kind in "kv"]
            report["kv_layers"] += _largest(checkpoint, headers, [name for name in scales if name in headers])
    return report


def _share(checkpoint: Path, headers: Mapping[str, TensorInfo], modules: Sequence[str], report: dict[str, Any]) -> None:
    scales = [f"{module}.weight_scale" for module in modules]
    weights = [headers.get(f"{module}.weight") for module in modules]
    if any(name not in headers or headers[name].elements != 1 for name in scales):
        return  # not quantized, or with a scale a block
    if any(info is None or info.dtype != "F8_E4M3" for info in weights):
        return
    own = [_scalar(checkpoint, headers[name]) for name in scales]
    common = max(own)
    for info, scale in zip(weights, own, strict=True):
        if info is None or scale == common or scale <= 0:
            continue
        table = rescale_table(scale / common)
        bits = np.memmap(checkpoint / info.file, np.uint8, "r+", info.offset, info.nbytes)
        bits[:] = table[bits]
        bits.flush()
        report["linears"] += 1
        report["weights"] += info.elements
        report["largest_relative_change"] = max(report["largest_relative_change"], largest_change(scale / common))
    _largest(checkpoint, headers, scales)
    _largest(checkpoint, headers, [f"{m}.input_scale" for m in modules if f"{m}.input_scale" in headers])


def _scalar(checkpoint: Path, info: TensorInfo) -> float:
    return float(np.memmap(checkpoint / info.file, np.float32, "r", info.offset, (1,))[0])


def _largest(checkpoint: Path, headers: Mapping[str, TensorInfo], names: Sequence[str]) -> int:
    """Write the largest of some float32 scalars into all of them; 1 where that changed any."""
    infos = [headers[name] for name in names if headers[name].dtype == "F32" and headers[name].elements == 1]
    values = [_scalar(checkpoint, info) for info in infos]
    if len(infos) < len(names) or len(set(values)) < 2:
        return 0
    for info in infos:
        number = np.memmap(checkpoint / info.file, np.float32, "r+", info.offset, (1,))
        number[0] = max(values)
        number.flush()
    return 1
