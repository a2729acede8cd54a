"""Weights tensor by tensor: from safetensors headers or from the sizes alone, in any precision, for any rank.

Policy: tensors of one kind and shape form a group (``*`` stands for layer and expert numbers), so a plan of a
large mixture of experts is a few dozen rows that a person can check. Real headers decide where there are any;
without, the same rows follow from the configuration. How a group is split is a rule of its name:
q, k, v, gate and up by rows; o and down by columns; embedding and head by vocabulary; norms, routers and
scales of whole tensors on every rank. A rank with fewer KV heads than one holds a copy of one.
Source of the rules: https://arxiv.org/abs/1909.08053 (Megatron) and TensorRT-LLM's ``Mapping``
(https://github.com/NVIDIA/TensorRT-LLM/blob/main/tensorrt_llm/mapping.py).
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from builder.planner.precision import weight_format
from builder.planner.types import ParallelPlan, Precision
from trtforge.ground.safetensors_header import DTYPE_BITS, TensorInfo
from trtforge.models.kv import stage_layers
from trtforge.models.record import Model, tensors
from trtforge.models.shape import matches

Part = Literal["embedding", "attention", "mlp", "experts", "norms", "head", "scales"]
Split = Literal["none", "plain", "kv", "vocab"]

_BASE_BITS = {"float32": 32, "bfloat16": 16, "float16": 16}
_FLOATS = frozenset({"F16", "BF16", "F32", "F64"})
_SHORT = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d+)\.")
_EXPERT = re.compile(r"\.experts\.\d+\.")
_SCALE = re.compile(
    r"(weight_scale(_2|_inv)?|input_scale|output_scale|pre_quant_scale|[kv]_scale|_scales|g_idx|zeros)$"
)
_ROWS = re.compile(r"\.(q_proj|q_b_proj|kv_b_proj|qkv_proj|gate_proj|up_proj|gate_up_proj|w1|w3|c_attn|c_fc)\.")
_KV = re.compile(r"\.(k_proj|v_proj)\.")
_COLUMNS = re.compile(r"\.(o_proj|down_proj|w2|c_proj)\.")
_FUSED = re.compile(r"\.experts\.(gate_up_proj|down_proj)(_blocks|_scales|_bias)?$")


@dataclass(frozen=True)
class TensorGroup:
    """Tensors of one name pattern, shape and type.

    ``layers`` are the layers that hold them (empty: outside the layers), ``each`` how many a layer holds (its
    experts); ``axis`` is the dimension that tensor parallelism cuts, by the rule ``split``. ``experts``: they are
    shared out over expert-parallel ranks; with ``fused`` the experts are the first dimension. ``linear``: a weight
    that a format may quantize.
    """

    pattern: str
    shape: tuple[int, ...]
    bits: float
    dtype: str
    part: Part
    layers: tuple[int, ...] = ()
    each: int = 1
    axis: int | None = None
    split: Split = "none"
    experts: bool = False
    fused: bool = False
    linear: bool = False

    @property
    def count(self) -> int:
        """How many tensors the model has of it."""
        return self.each * max(len(self.layers), 1)

    @property
    def elements(self) -> int:
        """Elements of one tensor."""
        product = 1
        for size in self.shape:
            product *= size
        return product

    @property
    def bytes(self) -> int:
        """Bytes of all of them in the whole model."""
        return self.count * _bytes(self.elements, self.bits)


def _bytes(elements: int, bits: float) -> int:
    return -(-int(elements * bits) // 8)


# from headers ------------------------------------------------------------------------------------------------------
def groups_from_headers(headers: Mapping[str, TensorInfo], model: Model) -> list[TensorGroup]:
    """The groups of a checkpoint as it is stored. Non-safetensors names that match no rule stay on every rank."""
    layers: dict[tuple[str, tuple[int, ...], str], dict[int, int]] = {}
    for name, info in headers.items():
        found = _LAYER.search(name)
        pattern = name
        if found:
            pattern = f"{name[: found.start(1)]}*{name[found.end(1) :]}"
        pattern = _EXPERT.sub(".experts.*.", pattern)
        counts = layers.setdefault((pattern, info.shape, info.dtype), {})
        layer = int(found.group(1)) if found else -1
        counts[layer] = counts.get(layer, 0) + 1
    groups = []
    for (pattern, shape, dtype), counts in layers.items():
        for each in sorted(set(counts.values())):
            held = tuple(sorted(layer for layer, count in counts.items() if count == each and layer >= 0))
            group = TensorGroup(pattern, shape, DTYPE_BITS[dtype], dtype, "norms", held, each)
            groups.append(_classified(group, model))
    return groups


def _classified(group: TensorGroup, model: Model) -> TensorGroup:
    """``group`` with its part, its split and whether a format may quantize it, from its name."""
    name, shape = group.pattern, group.shape
    expert = ".experts." in name
    fused = _FUSED.search(name)
    if fused:
        return _fused(group, model)
    part = _part(name)
    axis, split = _axis(name, shape)
    linear = (
        name.endswith(".weight")
        and len(shape) == 2
        and part in ("attention", "mlp", "experts", "head")
        and group.dtype in _FLOATS
        and not re.search(r"(^|\.)(router|gate|shared_expert_gate)\.weight$", name)
    )
    return replace(group, part=part, axis=axis, split=split, experts=expert, linear=linear)


def _fused(group: TensorGroup, model: Model) -> TensorGroup:
    """Experts in one tensor: [experts, …]; the width of the experts says which dimension is cut."""
    width = model.moe.ffn if model.moe else 0
    wide = {2 * width, width} if ".gate_up_proj" in group.pattern else {width, width // 32}
    if group.pattern.endswith("down_proj_bias"):
        wide = set()
    axis = next((index for index, size in enumerate(group.shape[1:], 1) if size in wide), None)
    if ".down_proj" in group.pattern and group.pattern.endswith(("_blocks", "_scales")):
        axis = 2
    part: Part = "scales" if group.pattern.endswith("_scales") else "experts"
    return replace(
        group,
        part=part,
        axis=axis,
        split="plain" if axis is not None else "none",
        experts=True,
        fused=True,
        linear=len(group.shape) == 3 and group.dtype in _FLOATS,
    )


def _part(name: str) -> Part:
    if _SCALE.search(name):
        return "scales"
    if ".experts." in name:
        return "experts"
    if re.search(r"(^|\.)(lm_head|output)\.", name):
        return "head"
    if re.search(r"(^|\.)(embed_tokens|wte|word_embeddings|tok_embeddings|embed)\.", name):
        return "embedding"
    if "norm" in name:
        return "norms"
    if re.search(r"\.(self_attn|attention|attn)\.", name):
        return "attention"
    if re.search(r"\.(mlp|feed_forward|block_sparse_moe|shared_experts?)\.", name):
        return "mlp"
    return "norms"


def _axis(name: str, shape: tuple[int, ...]) -> tuple[int | None, Split]:
    """Which dimension tensor parallelism cuts. A scalar, or a vector along the other dimension, is on every rank."""
    if not shape or shape == (1,) or "norm" in name.rsplit(".", 2)[-2:][0]:
        return None, "none"
    along_inputs = name.endswith(".pre_quant_scale")
    if re.search(r"(^|\.)(embed_tokens|wte|tok_embeddings|word_embeddings|lm_head)\.", name):
        return 0, "vocab"
    if _KV.search(name) and not along_inputs:
        return 0, "kv"
    if _ROWS.search(name) and not along_inputs:
        return 0, "plain"
    if _COLUMNS.search(name):
        if len(shape) >= 2:
            return (1, "plain") if shape[1] > 1 else (None, "none")
        return (0, "plain") if along_inputs else (None, "none")
    return None, "none"


# from sizes --------------------------------------------------------------------------------------------------------
def groups_from_facts(model: Model) -> list[TensorGroup]:
    """The unquantized groups that a model of these sizes has, named as Transformers names them."""
    bits, dtype = _BASE_BITS[model.dtype], _SHORT[model.dtype]
    return [
        _classified(TensorGroup(kind.pattern, kind.shape, bits, dtype, "norms", kind.layers, kind.each), model)
        for kind in tensors(model)
    ]


def groups_from_shapes(shapes: Mapping[str, tuple[int, ...]], model: Model) -> list[TensorGroup]:
    """The groups of tensors that are known by name and shape, in the model's type."""
    bits, dtype = int(_BASE_BITS[model.dtype]), _SHORT[model.dtype]
    infos = {
        name: TensorInfo("", dtype, shape, 0, math.prod(shape) * bits // 8) for name, shape in sorted(shapes.items())
    }
    return groups_from_headers(infos, model)


def active_parameters(model: Model) -> int:
    """Weights that one token passes through, a tied head counted once."""
    total = 0
    for kind in tensors(model):
        routed = model.moe is not None and ".experts." in kind.pattern
        share = model.moe.active / model.moe.experts if routed and model.moe else 1
        total += round(kind.elements * kind.count * share)
    return total


# precision ---------------------------------------------------------------------------------------------------------
def in_precision(groups: Iterable[TensorGroup], precision: Precision) -> list[TensorGroup]:
    """The groups as the engine holds them: linears in the plan's format with their scales, the rest in ``base``.

    What a checkpoint stores quantized stays as it is. Shapes of the scales are those of ModelOpt's exports
    (``trtforge/formats/formats.yaml``).
    """
    base = _BASE_BITS[precision.base]
    result: list[TensorGroup] = []
    for group in groups:
        if group.dtype not in _FLOATS or group.part == "scales":
            result.append(group)
            continue
        plain = replace(group, bits=base, dtype=_SHORT[precision.base])
        if not group.linear or precision.weights == precision.base:
            result.append(plain)
            continue
        kept, chosen = _excluded(group, precision.exclude)
        if kept is not None:
            result.append(replace(plain, layers=kept))
        for weights, size, patterns in precision.mixed:
            if chosen is not None:
                taken, chosen = _excluded(replace(plain, layers=chosen), patterns)
                if taken is not None:
                    own = replace(precision, weights=weights, group_size=size)
                    result.extend(_quantized(replace(plain, layers=taken), own))
        if chosen is not None:
            result.extend(_quantized(replace(plain, layers=chosen), precision))
    return result


def _excluded(group: TensorGroup, patterns: Sequence[str]) -> tuple[tuple[int, ...] | None, tuple[int, ...] | None]:
    """Layers that the exclude patterns keep, and those that are quantized; None where there are none."""
    module = group.pattern.removesuffix(".weight")
    if not group.layers:
        hit = any(matches(module, pattern) for pattern in patterns)
        return ((), None) if hit else (None, ())
    if not patterns:
        return None, group.layers
    kept = tuple(
        layer
        for layer in group.layers
        if any(matches(module.replace("layers.*", f"layers.{layer}", 1), pattern) for pattern in patterns)
    )
    rest = tuple(layer for layer in group.layers if layer not in set(kept))
    return kept or None, rest or None


def _quantized(group: TensorGroup, precision: Precision) -> Iterator[TensorGroup]:
    row = weight_format(precision.weights)
    yield replace(group, bits=row.bits, dtype=row.name, linear=False)
    stem = group.pattern.removesuffix(".weight")
    block = precision.group_size if precision.group_size and row.block > 0 else row.block
    *lead, rows, columns = group.shape
    scale = replace(group, part="scales", linear=False, bits=row.scale_bits, dtype=f"scale {row.scale_bits} bit")
    if row.block == 128 * 128:
        yield replace(scale, pattern=f"{stem}.weight_scale", shape=(*lead, -(-rows // 128), -(-columns // 128)))
    elif block > 0:
        yield replace(scale, pattern=f"{stem}.weight_scale", shape=(*lead, rows, -(-columns // block)))
    elif block == -1:
        by_row = group.axis == len(lead)
        yield replace(
            scale,
            pattern=f"{stem}.weight_scale",
            shape=(*lead, rows),
            axis=len(lead) if by_row else None,
            split=group.split if by_row else "none",
        )
    if row.input_factors and group.split == "plain" and group.axis == len(lead) + 1:
        # the other linears' factors are folded into the norm before them
        yield replace(
            scale,
            pattern=f"{stem}.pre_quant_scale",
            shape=(*lead, columns),
            bits=_BASE_BITS[precision.base],
            dtype=_SHORT[precision.base],
            axis=len(lead),
        )
    if row.tensor_scales:
        per_expert = tuple(lead) if group.fused else ()
        yield replace(
            scale,
            pattern=f"{stem}.*_scale",
            shape=(*per_expert, row.tensor_scales),
            bits=32,
            dtype="F32",
            axis=None,
            split="none",
        )


# ranks -------------------------------------------------------------------------------------------------------------
def rank_bytes(group: TensorGroup, model: Model, parallel: ParallelPlan, stage: int) -> int:
    """Bytes that one rank of a pipeline stage holds of a group: its layers, its part of the cut dimension, its experts.

    A cut that does not come out even is rounded up, as a padded tensor would be.
    """
    if group.layers:
        held = stage_layers(model.layers, parallel.pp)[stage]
        # layers are in order, and a search asks this a hundred thousand times
        count = bisect_left(group.layers, held.stop) - bisect_left(group.layers, held.start)
    else:
        count = int(_on_stage(group, parallel.pp, stage))
    if not count:
        return 0
    shape, each, ways = list(group.shape), group.each, parallel.tp
    if group.experts:
        ways = max(parallel.tp // parallel.ep, 1)
        if group.fused:
            shape[0] = -(-shape[0] // parallel.ep)
        else:
            each = -(-each // parallel.ep)
    if group.axis is not None and ways > 1:
        size = shape[group.axis]
        if group.split == "kv":
            heads = -(-model.kv_heads // ways)
            shape[group.axis] = -(-size * heads // model.kv_heads)
        else:
            shape[group.axis] = -(-size // ways)
    elements = 1
    for size in shape:
        elements *= size
    return count * each * _bytes(elements, group.bits)


def _on_stage(group: TensorGroup, pp: int, stage: int) -> bool:
    """The embedding lies on the first stage; head and final norm on the last."""
    return stage == 0 if group.part == "embedding" else stage == pp - 1


def rank_weights(groups: Sequence[TensorGroup], model: Model, parallel: ParallelPlan, stage: int = 0) -> dict[str, int]:
    """Bytes by part that one rank of a stage holds.

    A tied head costs nothing on one stage; with several the last stage needs a copy of the embedding.
    """
    parts: dict[str, int] = {}
    for group in groups:
        held = rank_bytes(group, model, parallel, stage)
        if held:
            parts[group.part] = parts.get(group.part, 0) + held
    if model.tied and parallel.pp > 1 and stage == parallel.pp - 1:
        copies = [replace(group, part="head") for group in groups if group.part == "embedding"]
        parts["head"] = parts.get("head", 0) + sum(rank_bytes(copy, model, parallel, stage) for copy in copies)
    return parts
