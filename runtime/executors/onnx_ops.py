"""Torch implementations of the ONNX operators (opset 23–24) and of ``trtforge`` v1.

Policy: meaning first. Each function follows the operator's specification for the attributes it
accepts and refuses attributes it does not implement (TF-RUN-008) rather than ignore them. Functions
take the node's inputs as tensors (None where an optional input is absent; 4-bit initializers arrive as
:class:`~runtime.executors.onnx_graph.Constant`) and return the node's outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from runtime.executors.onnx_graph import TORCH_DTYPES, Constant, Node
from runtime.executors.torch_attention import AttentionParams, paged_attention
from trtforge.formats.elements import fake_quant_two_level, unpack_e2m1, unpack_int4
from trtforge.ground.errors import ForgeError

Value = Any  # torch.Tensor, a 4-bit Constant, or None
Op = Callable[["OpContext", Node, list[Value]], Sequence[Value]]


class OpContext:
    """How an operator computes.

    Args:
        float_dtype: what float16 and bfloat16 values of the graph are held in; None keeps them.
        attention: replaces PagedAttention's torch implementation; same signature.
    """

    def __init__(
        self, float_dtype: torch.dtype | None = None, attention: Callable[..., torch.Tensor] | None = None
    ) -> None:
        self.float_dtype = float_dtype
        self.attention = attention or paged_attention

    def dtype(self, name: str) -> torch.dtype:
        """The torch dtype that holds values of the ONNX element type ``name``."""
        dtype = TORCH_DTYPES[name]
        if self.float_dtype is not None and dtype in (torch.float16, torch.bfloat16):
            return self.float_dtype
        return dtype


def unsupported(node: Node, what: str) -> ForgeError:
    """The refusal of an attribute or input that an operator does not implement."""
    return ForgeError(
        "TF-RUN-008",
        f"{node.kind} node {node.name or node.outputs[0]} uses {what}, which this runtime does not implement",
        numbers={"attributes": {k: v for k, v in node.attributes.items() if isinstance(v, int | float | str | list)}},
        why="ignoring it would change the result",
        remedies=["build the engine again with this version of trtforge"],
    )


def _onnx_type_name(code: int) -> str:
    import onnx

    return str(onnx.TensorProto.DataType.Name(code))


def _gather(ctx: OpContext, node: Node, v: list[Value]) -> Sequence[Value]:
    data, indices = v
    axis = node.attribute("axis", 0) % data.dim()
    index = indices.to(torch.int64)
    index = torch.where(index < 0, index + data.shape[axis], index)
    raw = data.view(torch.uint8) if data.dtype == torch.float8_e4m3fn else data
    picked = raw.index_select(axis, index.flatten()).view(*data.shape[:axis], *index.shape, *data.shape[axis + 1 :])
    return (picked.view(data.dtype),)


def _rms_normalization(ctx: OpContext, node: Node, v: list[Value]) -> Sequence[Value]:
    x, scale = v
    axis = node.attribute("axis", -1) % x.dim()
    wide = x.float()
    variance = wide.pow(2).mean(dim=list(range(axis, x.dim())), keepdim=True)
    normed = (wide * torch.rsqrt(variance + node.attribute("epsilon", 1e-5))).to(x.dtype)
    return ((normed * scale).to(x.dtype),)


def _gemm(ctx: OpContext, node: Node, v: list[Value]) -> Sequence[Value]:
    a = v[0].T if node.attribute("transA", 0) else v[0]
    b = v[1].T if node.attribute("transB", 0) else v[1]
    y = torch.matmul(a, b)
    if (alpha := node.attribute("alpha", 1.0)) != 1.0:
        y = y * alpha
    if len(v) > 2 and v[2] is not None:
        y = y + v[2] * node.attribute("beta", 1.0)
    return (y,)


def _transpose(ctx: OpContext, node: Node, v: list[Value]) -> Sequence[Value]:
    return (v[0].permute(node.attribute("perm") or list(range(v[0].dim()))[::-1]),)


def _softmax(ctx: OpContext, node: Node, v: list[Value]) -> Sequence[Value]:
    return (v[0].float().softmax(node.attribute("axis", -1)).to(v[0].dtype),)


def _swish(ctx: OpContext, node: Node, v: list[Value]) -> Sequence[Value]:
    return (v[0] * torch.sigmoid(v[0] * node.attribute("alpha", 1.0)),)


def _gelu(ctx: OpContext, node: Node, v: list[Value]) -> Sequence[Value]:
    return (F.gelu(v[0], approximate=node.attribute("approximate", "none")),)


def _clip(ctx: OpContext, node: Node, v: list[Value]) -> Sequence[Value]:
    x = v[0]
    if len(v) > 1 and v[1] is not None:
        x = torch.maximum(x, v[1])
    if len(v) > 2 and v[2] is not None:
        x = torch.minimum(x, v[2])
    return (x,)


def _slice(ctx: OpContext, node: Node, v: list[Value]) -> Sequence[Value]:
    data = v[0]
    starts, ends = v[1].tolist(), v[2].tolist()
    axes = v[3].tolist() if len(v) > 3 and v[3] is not None else list(range(len(starts)))
    steps = v[4].tolist() if len(v) > 4 and v[4] is not None else [1] * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        axis %= data.dim()
        chosen = range(data.shape[axis])[slice(start, None if step < 0 and end < -data.shape[axis] else end, step)]
        if step > 0:
            data = (
                data.narrow(axis, chosen.start, 0)
                if not chosen
                else data[(slice(None),) * axis + (slice(start, end, step),)]
            )
        else:
            data = data.index_select(axis, torch.tensor(list(chosen), dtype=torch.int64, device=data.device))
    return (data,)


def _split(ctx: OpContext, node: Node, v: list[Value]) -> Sequence[Value]:
    axis = node.attribute("axis", 0)
    if len(v) > 1 and v[1] is not None:
        return v[0].split(v[1].tolist(), axis)
    size = -(-v[0].shape[axis] // node.attribute("num_outputs", len(node.outputs)))
    return v[0].split(size, axis)


def _reshape(ctx: OpContext, node: Node, v: list[Value]) -> Sequence[Value]:
    x, shape = v[0], v[1].tolist()
    if not node.attribute("allowzero", 0):
        shape = [x.shape[i] if size == 0 else size for i, size in enumerate(shape)]
    return (x.reshape(shape),)


def _axes(node: Node, v: list[Value]) -> list[int] | None:
    if len(v) > 1 and v[1] is not None:
        return [int(a) for a in v[1].flatten().tolist()]
    return node.attribute("axes")


def _unsqueeze(ctx: OpContext, node: Node, v: list[Value]) -> Sequence[Value]:
    axes = _axes(node, v) or []
    rank = v[0].dim() + len(axes)
    x = v[0]
    for axis in sorted(a % rank for a in axes):
        x = x.unsqueeze(axis)
    return (x,)


def _squeeze(ctx: OpContext, node: Node, v: list[Value]) -> Sequence[Value]:
    axes = _axes(node, v)
    return (v[0].squeeze() if axes is None else v[0].squeeze(tuple(axes)),)


def _reduce(function: Callable[..., torch.Tensor]) -> Op:
    def run(ctx: OpContext, node: Node, v: list[Value]) -> Sequence[Value]:
        axes = _axes(node, v)
        if not axes:
            if node.attribute("noop_with_empty_axes", 0):
                return (v[0],)
            axes = list(range(v[0].dim()))
        return (function(v[0], dim=axes, keepdim=bool(node.attribute("keepdims", 1))),)

    return run


def _cast(ctx: OpContext, node: Node, v: list[Value]) -> Sequence[Value]:
    dtype = ctx.dtype(_onnx_type_name(node.attribute("to")))
    if dtype == torch.float8_e4m3fn and node.attribute("saturate", 1):
        return (v[0].float().clamp(-448.0, 448.0).to(dtype),)
    return (v[0].to(dtype),)


def _shape(ctx: OpContext, node: Node, v: list[Value]) -> Sequence[Value]:
    sizes = list(v[0].shape)[node.attribute("start", 0) : node.attribute("end")]
    return (torch.tensor(sizes, dtype=torch.int64),)


def _quantize_linear(ctx: OpContext, node: Node, v: list[Value]) -> Sequence[Value]:
    x, scale = v[0], v[1]
    zero = v[2] if len(v) > 2 else None
    code = node.attribute("output_dtype", 0)
    target = TORCH_DTYPES.get(_onnx_type_name(code)) if code else (zero.dtype if zero is not None else torch.uint8)
    y = x.float() / _broadcast_scale(node, x.shape, scale).float()
    if target == torch.float8_e4m3fn:
        return (y.clamp(-448.0, 448.0).to(target),)
    if target not in (torch.int8, torch.uint8):
        raise unsupported(node, f"output type {target}")
    info = torch.iinfo(target)
    y = y.round()
    if zero is not None:
        y = y + _broadcast_scale(node, x.shape, zero).float()
    return (y.clamp(info.min, info.max).to(target),)


def _dequantize_linear(ctx: OpContext, node: Node, v: list[Value]) -> Sequence[Value]:
    x, scale = v[0], v[1]
    zero = v[2] if len(v) > 2 else None
    code = node.attribute("output_dtype", 0)
    dtype = ctx.dtype(_onnx_type_name(code)) if code else scale.dtype
    if isinstance(x, Constant):
        signed = x.dtype == "INT4"
        values = unpack_e2m1(x.data, x.shape) if x.dtype == "FLOAT4E2M1" else unpack_int4(x.data, x.shape, signed)
        device = scale.device
        values = values.to(device)
    else:
        values = x
    wide = values.float()
    if zero is not None and not (isinstance(zero, torch.Tensor) and zero.dtype.is_floating_point):
        if isinstance(zero, Constant):
            if zero.dtype != "FLOAT4E2M1":
                integers = unpack_int4(zero.data, zero.shape, zero.dtype == "INT4").to(wide.device)
                wide = wide - _broadcast_scale(node, wide.shape, integers).float()
        else:
            wide = wide - _broadcast_scale(node, wide.shape, zero).float()
    return ((wide * _broadcast_scale(node, wide.shape, scale).float()).to(dtype),)


def _broadcast_scale(node: Node, shape: Sequence[int], scale: torch.Tensor) -> torch.Tensor:
    """A scale (scalar, per axis, or per block of ``block_size``) stretched so that it multiplies ``shape``."""
    if scale.dim() == 0 or scale.numel() == 1:
        return scale.reshape(())
    axis = node.attribute("axis", 1) % len(shape)
    block = node.attribute("block_size", 0)
    if scale.dim() == 1 and not block:
        return scale.view([-1 if i == axis else 1 for i in range(len(shape))])
    if not block:
        raise unsupported(node, f"a scale of rank {scale.dim()} without block_size")
    return scale.repeat_interleave(block, dim=axis).narrow(axis, 0, shape[axis])


def _rotary_embedding(ctx: OpContext, node: Node, v: list[Value]) -> Sequence[Value]:
    x, cos, sin = v[0], v[1], v[2]
    heads = node.attribute("num_heads", 0)
    flat = x.dim() == 3
    x4 = x.view(x.shape[0], x.shape[1], heads, -1) if flat else x.transpose(1, 2)  # [B, T, H, E]
    size = x4.shape[-1]
    rotary = node.attribute("rotary_embedding_dim", 0) or size
    if len(v) > 3 and v[3] is not None:
        cos, sin = cos[v[3]], sin[v[3]]
    cos, sin = cos[..., None, : rotary // 2].float(), sin[..., None, : rotary // 2].float()
    wide = x4[..., :rotary].float()
    if node.attribute("interleaved", 0):
        a, b = wide[..., 0::2], wide[..., 1::2]
        turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    else:
        a, b = wide.chunk(2, dim=-1)
        turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
    y = torch.cat((turned.to(x.dtype), x4[..., rotary:]), dim=-1) if rotary < size else turned.to(x.dtype)
    return (y.reshape(x.shape) if flat else y.transpose(1, 2),)


def attention_params(node: Node, k_scale: float, v_scale: float) -> AttentionParams:
    """The attributes of a ``trtforge::PagedAttention`` node."""
    size = int(node.attribute("head_size"))
    return AttentionParams(
        num_heads=int(node.attribute("num_heads")),
        num_kv_heads=int(node.attribute("num_kv_heads")),
        head_size=size,
        scale=float(node.attribute("scale", 0.0)) or size**-0.5,
        sliding_window=int(node.attribute("sliding_window", 0)),
        soft_cap=float(node.attribute("soft_cap", 0.0)),
        k_scale=k_scale,
        v_scale=v_scale,
    )


def _paged_attention(ctx: OpContext, node: Node, v: list[Value]) -> Sequence[Value]:
    v = v + [None] * (10 - len(v))
    q, k, values, pool, query_start, sequence_lengths, block_table, k_scale, v_scale, tree = v
    params = attention_params(
        node, 1.0 if k_scale is None else float(k_scale), 1.0 if v_scale is None else float(v_scale)
    )
    tokens = q.shape[0]
    out = ctx.attention(
        q.view(tokens, params.num_heads, params.head_size),
        k.view(tokens, params.num_kv_heads, params.head_size),
        values.view(tokens, params.num_kv_heads, params.head_size),
        pool,
        query_start,
        sequence_lengths,
        block_table,
        params,
        tree,
    )
    return out.reshape(tokens, -1), pool


def _dynamic_block_quantize(ctx: OpContext, node: Node, v: list[Value]) -> Sequence[Value]:
    if int(node.attribute("block_size", 16)) != 16:
        raise unsupported(node, f"block_size {node.attribute('block_size')}")
    scale = 1.0 if len(v) < 2 or v[1] is None else float(v[1])
    return (fake_quant_two_level(v[0], scale or 1.0).to(v[0].dtype),)


def _unary(function: Callable[[torch.Tensor], torch.Tensor]) -> Op:
    return lambda ctx, node, v: (function(v[0]),)


def _binary(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Op:
    return lambda ctx, node, v: (function(v[0], v[1]),)


def _div(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a / b if a.dtype.is_floating_point else torch.div(a, b, rounding_mode="trunc")


OPS: dict[str, Op] = {
    "Abs": _unary(torch.abs),
    "Add": _binary(torch.add),
    "Cast": _cast,
    "Clip": _clip,
    "Concat": lambda ctx, node, v: (torch.cat(v, dim=node.attribute("axis")),),
    "Cos": _unary(torch.cos),
    "DequantizeLinear": _dequantize_linear,
    "Div": _binary(_div),
    "Equal": _binary(torch.eq),
    "Erf": _unary(torch.erf),
    "Exp": _unary(torch.exp),
    "Expand": lambda ctx, node, v: (v[0].expand(torch.broadcast_shapes(v[0].shape, tuple(v[1].tolist()))),),
    "Floor": _unary(torch.floor),
    "Gather": _gather,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "Identity": _unary(lambda x: x),
    "Less": _binary(torch.lt),
    "MatMul": _binary(torch.matmul),
    "Max": _binary(torch.maximum),
    "Min": _binary(torch.minimum),
    "Mul": _binary(torch.mul),
    "Neg": _unary(torch.neg),
    "Pow": _binary(torch.pow),
    "QuantizeLinear": _quantize_linear,
    "RMSNormalization": _rms_normalization,
    "Reciprocal": _unary(torch.reciprocal),
    "ReduceMax": _reduce(torch.amax),
    "ReduceMean": _reduce(torch.mean),
    "ReduceSum": _reduce(torch.sum),
    "Reshape": _reshape,
    "RotaryEmbedding": _rotary_embedding,
    "Shape": _shape,
    "Sigmoid": _unary(torch.sigmoid),
    "Sin": _unary(torch.sin),
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": _split,
    "Sqrt": _unary(torch.sqrt),
    "Squeeze": _squeeze,
    "Sub": _binary(torch.sub),
    "Swish": _swish,
    "Tanh": _unary(torch.tanh),
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": lambda ctx, node, v: (torch.where(v[0], v[1], v[2]),),
    "trtforge::DynamicBlockQuantize": _dynamic_block_quantize,
    "trtforge::PagedAttention": _paged_attention,
}
