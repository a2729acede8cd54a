"""Plain PyTorch references of every op of the host library: slow, obvious, and what the kernels are tested against.

Each function follows the written contract of docs/ops.md line by line, in float32 (or the dtype given), without
tiling. They work on any device and dtype; index tensors are read with ``tolist``.
"""

from __future__ import annotations

import math

import torch

from trtforge.formats.elements import fake_quant_two_level, to_e4m3


def store_kv(x: torch.Tensor, dtype: torch.dtype, scale: float) -> torch.Tensor:
    """A key or value as the pool stores it."""
    if dtype in (torch.float8_e4m3fn, torch.uint8):
        return to_e4m3(x, scale).view(dtype)
    return x.float().to(dtype)


def load_kv(x: torch.Tensor, scale: float) -> torch.Tensor:
    """A stored key or value as float32."""
    if x.dtype == torch.uint8:
        x = x.view(torch.float8_e4m3fn)
    return x.float() * scale if x.dtype == torch.float8_e4m3fn else x.float()


def visible_keys(
    length: int, new_tokens: int, *, sliding_window: int = 0, tree_mask: torch.Tensor | None = None
) -> torch.Tensor:
    """Which keys each new token sees: bool [q, length]. ``tree_mask`` is the request's own [q, W] rows."""
    base = length - new_tokens
    keys = torch.arange(length)
    seen = torch.zeros(new_tokens, length, dtype=torch.bool)
    for row in range(new_tokens):
        position = base + row
        if tree_mask is None:
            allowed = keys <= position
        else:
            fresh = tree_mask[row, :new_tokens].bool()
            position = base + max(int(fresh.sum()), 1) - 1
            allowed = torch.cat([torch.ones(base, dtype=torch.bool), fresh])
        if sliding_window > 0:
            inside = keys > position - sliding_window
            allowed = allowed & (inside | (keys >= base) if tree_mask is not None else inside)
        seen[row] = allowed
    return seen


def paged_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    kv_pool: torch.Tensor,
    query_start: torch.Tensor,
    sequence_lengths: torch.Tensor,
    block_table: torch.Tensor,
    out: torch.Tensor | None = None,
    *,
    num_heads: int,
    num_kv_heads: int,
    head_size: int,
    scale: float | None = None,
    sliding_window: int = 0,
    soft_cap: float = 0.0,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    tree_mask: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """``trtforge::PagedAttention`` v2 (docs/ops.md): writes key and value into ``kv_pool``, returns [T, H*E]."""
    heads, kv_heads, size = num_heads, num_kv_heads, head_size
    slots = int(kv_pool.shape[3])
    scale = 1.0 / math.sqrt(size) if scale is None else scale
    result = torch.zeros(query.shape[0], heads * size, dtype=query.dtype) if out is None else out
    starts, lengths = query_start.tolist(), sequence_lengths.tolist()
    # All writes come first: a request may share blocks with another one of the step.
    for b, length in enumerate(lengths):
        fresh = starts[b + 1] - starts[b]
        for token in range(starts[b], starts[b + 1]):
            position = length - fresh + token - starts[b]
            block = int(block_table[b, position // slots])
            for plane, (row, factor) in enumerate(((key[token], k_scale), (value[token], v_scale))):
                stored = store_kv(row.view(kv_heads, size), kv_pool.dtype, factor)
                kv_pool[block, plane, :, position % slots].copy_(stored)
    for b, length in enumerate(lengths):
        begin, end = starts[b], starts[b + 1]
        if begin == end:
            continue
        mask = None if tree_mask is None or tree_mask.shape[1] == 1 else tree_mask[begin:end]
        seen = visible_keys(length, end - begin, sliding_window=sliding_window, tree_mask=mask)
        first = int(seen.any(0).nonzero()[0]) if seen.any() else length
        # [keys, 2, K, E]; positions before every window are never followed: their blocks may be gone.
        positions = torch.arange(first, length)
        bits = kv_pool.view(torch.uint8) if kv_pool.dtype == torch.float8_e4m3fn else kv_pool
        context = bits[block_table[b, positions // slots].long(), :, :, positions % slots].view(kv_pool.dtype)
        keys = load_kv(context[:, 0], k_scale).repeat_interleave(heads // kv_heads, dim=1)
        values = load_kv(context[:, 1], v_scale).repeat_interleave(heads // kv_heads, dim=1)
        queries = query[begin:end].float().reshape(-1, heads, size)
        scores = torch.einsum("qhe,khe->hqk", queries, keys) * scale
        if soft_cap > 0:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        scores = scores.masked_fill(~seen[:, first:], float("-inf"))
        if sinks is not None:
            column = sinks.float().view(heads, 1, 1).expand(-1, end - begin, 1)
            weights = torch.softmax(torch.cat([scores, column], dim=-1), dim=-1)[..., :-1]
        else:
            weights = torch.softmax(scores, dim=-1)
        # A row that sees no key gives zeros.
        weights = weights.masked_fill(~seen[:, first:].any(-1).view(1, -1, 1), 0.0)
        attended = torch.einsum("hqk,khe->qhe", weights, values)
        result[begin:end] = attended.reshape(end - begin, heads * size).to(result.dtype)
    return result


def rms_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float, weight_offset: float = 0.0) -> torch.Tensor:
    """``x * rsqrt(mean(x²) + eps) * (weight + weight_offset)``, rounded to x's dtype once."""
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    return (y * (weight.float() + weight_offset)).to(x.dtype)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, *, eps: float, weight_offset: float = 0.0
) -> torch.Tensor:
    """``residual += x`` in place (rounded to its dtype), then the norm of the residual."""
    residual.copy_((residual.float() + x.float()).to(residual.dtype))
    return rms_norm(residual, weight, eps=eps, weight_offset=weight_offset)


def rope(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, *, heads: int, head_size: int) -> torch.Tensor:
    """Half rotation of [T, heads*E] by [T, R/2] tables; the part of a head past R is left alone."""
    tokens, half = cosine.shape
    y = x.float().view(tokens, heads, head_size).clone()
    a, b = y[..., :half].clone(), y[..., half : 2 * half].clone()
    c, s = cosine.view(tokens, 1, half), sine.view(tokens, 1, half)
    y[..., :half] = a * c - b * s
    y[..., half : 2 * half] = b * c + a * s
    return y.view(x.shape).to(x.dtype)


def silu_mul(x: torch.Tensor) -> torch.Tensor:
    """``silu(gate) * up`` of a packed [T, 2F]."""
    gate, up = x.float().chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(x.dtype)


def fp8_fake_quant(x: torch.Tensor, scale: float, *, dequantize: bool = True) -> torch.Tensor:
    """``e4m3(x / scale)``, times scale when ``dequantize``, in x's dtype."""
    y = to_e4m3(x, scale).float()
    return (y * scale if dequantize else y).to(x.dtype)


def nvfp4_fake_quant(x: torch.Tensor, scale: float) -> torch.Tensor:
    """Dynamic NVFP4 of [T, D] in blocks of 16: E4M3 block scales times ``scale`` = amax / (6·448)."""
    return fake_quant_two_level(x, scale or 1.0).to(x.dtype)
