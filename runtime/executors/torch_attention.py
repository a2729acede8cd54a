"""PagedAttention v1 in torch operations only: any device, any pool format.

Policy: this is the fallback where the host library is missing or cannot take the tensors, and the
device path on CUDA. Keys and values are written first, then every request attends over its whole
context, gathered block by block; scores and the softmax are float32. Requests that bring one token
each (pure decode) go through one padded batch; others one request at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from trtforge.formats.elements import to_e4m3


@dataclass(frozen=True, slots=True)
class AttentionParams:
    """Attributes of a PagedAttention node, with the FP8 pool's scales.

    ``scale`` multiplies q·k; ``sliding_window`` 0 and ``soft_cap`` 0 mean off.
    """

    num_heads: int
    num_kv_heads: int
    head_size: int
    scale: float
    sliding_window: int = 0
    soft_cap: float = 0.0
    k_scale: float = 1.0
    v_scale: float = 1.0


def _store(x: torch.Tensor, pool_dtype: torch.dtype, scale: float) -> torch.Tensor:
    if pool_dtype == torch.float8_e4m3fn:
        return to_e4m3(x, scale)
    return x.to(pool_dtype)


def _raw(pool: torch.Tensor) -> torch.Tensor:
    # indexing kernels do not exist for float8 on every device: move bytes
    return pool.view(torch.uint8) if pool.dtype == torch.float8_e4m3fn else pool


def _load(raw: torch.Tensor, pool_dtype: torch.dtype, scale: float, dtype: torch.dtype) -> torch.Tensor:
    if pool_dtype == torch.float8_e4m3fn:
        return (raw.view(torch.float8_e4m3fn).float() * scale).to(dtype)
    return raw.to(dtype)


def write_kv(
    k_TKE: torch.Tensor,
    v_TKE: torch.Tensor,
    pool: torch.Tensor,
    query_start: torch.Tensor,
    sequence_lengths: torch.Tensor,
    block_table: torch.Tensor,
    params: AttentionParams,
) -> None:
    """Write this step's keys and values [T, K, E] into their slots of ``pool`` [N, 2, K, S, E]."""
    block_size = pool.shape[3]
    lengths = (query_start[1:] - query_start[:-1]).long()
    request = torch.repeat_interleave(torch.arange(len(lengths), device=pool.device), lengths)
    rank = torch.arange(k_TKE.shape[0], device=pool.device) - query_start[:-1].long()[request]
    position = sequence_lengths.long()[request] - lengths[request] + rank
    block = block_table.long()[request, position // block_size]
    slot = position % block_size
    raw = _raw(pool)
    for plane, values, scale in ((0, k_TKE, params.k_scale), (1, v_TKE, params.v_scale)):
        raw[block, plane, :, slot] = _raw(_store(values, pool.dtype, scale))


def paged_attention(
    q_THE: torch.Tensor,
    k_TKE: torch.Tensor,
    v_TKE: torch.Tensor,
    pool: torch.Tensor,
    query_start: torch.Tensor,
    sequence_lengths: torch.Tensor,
    block_table: torch.Tensor,
    params: AttentionParams,
    tree_mask: torch.Tensor | None = None,
) -> torch.Tensor:
    """Write k and v into the pool, attend, return [T, H, E] in the query's dtype.

    Args:
        q_THE: queries [T, H, E]; ``k_TKE``/``v_TKE`` [T, K, E].
        pool: [N, 2, K, S, E]; changed in place.
        query_start, sequence_lengths, block_table: int32 [B+1], [B], [B, M].
        tree_mask: uint8 or bool [T, W], visibility among a request's new tokens; of one column: plain causality.
    """
    if tree_mask is not None and tree_mask.shape[1] == 1:
        tree_mask = None
    write_kv(k_TKE, v_TKE, pool, query_start, sequence_lengths, block_table, params)
    starts, lengths = query_start.tolist(), sequence_lengths.tolist()
    if len(lengths) > 1 and len(starts) == q_THE.shape[0] + 1 and tree_mask is None and pool.device.type == "cuda":
        return _decode_padded(q_THE, pool, sequence_lengths, block_table, max(lengths), params)
    out = torch.empty_like(q_THE)
    for b, length in enumerate(lengths):
        rows = slice(starts[b], starts[b + 1])
        if rows.stop > rows.start:
            mask = None if tree_mask is None else tree_mask[rows, : rows.stop - rows.start]
            out[rows] = _one_request(q_THE[rows], pool, block_table[b], length, params, mask)
    return out


def _gather(
    pool: torch.Tensor, blocks: torch.Tensor, params: AttentionParams, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of ``blocks`` [..., M] as [..., K, M*S, E]."""
    picked = _raw(pool)[blocks]  # [..., M, 2, K, S, E]
    keys, values = picked.select(-4, 0), picked.select(-4, 1)  # [..., M, K, S, E]
    merged = [t.transpose(-4, -3).flatten(-3, -2) for t in (keys, values)]
    return (
        _load(merged[0], pool.dtype, params.k_scale, dtype),
        _load(merged[1], pool.dtype, params.v_scale, dtype),
    )


def _one_request(
    q_QHE: torch.Tensor,
    pool: torch.Tensor,
    blocks_M: torch.Tensor,
    length: int,
    params: AttentionParams,
    tree: torch.Tensor | None,
) -> torch.Tensor:
    block_size = pool.shape[3]
    count = -(-length // block_size)
    keys, values = _gather(pool, blocks_M[:count].long(), params, torch.float32)
    keys, values = keys[:, :length], values[:, :length]  # [K, C, E]
    new = q_QHE.shape[0]
    context = torch.arange(length, device=pool.device)
    position = context[length - new :, None]
    visible = context[None] <= position
    if tree is not None:
        visible = torch.cat([visible[:, : length - new], tree.bool()], dim=1)
    if params.sliding_window:
        visible = visible & (context[None] > position - params.sliding_window)
    groups = params.num_heads // params.num_kv_heads
    q = q_QHE.float().view(new, params.num_kv_heads, groups, params.head_size)
    scores = torch.einsum("qkge,kce->kgqc", q, keys) * params.scale
    if params.soft_cap:
        scores = params.soft_cap * torch.tanh(scores / params.soft_cap)
    weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
    return torch.einsum("kgqc,kce->qkge", weights, values).reshape_as(q_QHE).to(q_QHE.dtype)


def _decode_padded(
    q_BHE: torch.Tensor,
    pool: torch.Tensor,
    sequence_lengths: torch.Tensor,
    block_table: torch.Tensor,
    longest: int,
    params: AttentionParams,
) -> torch.Tensor:
    """One query a request, contexts padded to the longest: a handful of launches whatever B is."""
    block_size = pool.shape[3]
    count = -(-longest // block_size)
    keys, values = _gather(pool, block_table[:, :count].long().clamp_min(0), params, q_BHE.dtype)  # [B, K, C, E]
    context = torch.arange(count * block_size, device=pool.device)[None]
    lengths = sequence_lengths.long()[:, None]
    visible = context < lengths
    if params.sliding_window:
        visible = visible & (context >= lengths - params.sliding_window)
    if params.soft_cap == 0.0:
        out = torch.nn.functional.scaled_dot_product_attention(
            q_BHE[:, :, None], keys, values, attn_mask=visible[:, None, None], scale=params.scale, enable_gqa=True
        )
        return out[:, :, 0]
    groups = params.num_heads // params.num_kv_heads
    q = q_BHE.float().view(q_BHE.shape[0], params.num_kv_heads, groups, params.head_size)
    scores = torch.einsum("bkge,bkce->bkgc", q, keys.float()) * params.scale
    scores = params.soft_cap * torch.tanh(scores / params.soft_cap)
    weights = scores.masked_fill(~visible[:, None, None], float("-inf")).softmax(-1)
    return torch.einsum("bkgc,bkce->bkge", weights, values.float()).reshape_as(q_BHE).to(q_BHE.dtype)
