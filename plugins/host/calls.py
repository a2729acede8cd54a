"""Argument structs of the ops from torch tensors, checked; shared by the host library and the CUDA library.

A tensor of the wrong kind is refused with TF-OPS-005 before its memory is handed over.
"""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, Any

from plugins.host import abi, checks

if TYPE_CHECKING:
    import torch

    from plugins.trees import Acceptance, DraftTree, StaticTree, TreeShape, TreeState


def attention_struct(**fields: Any) -> abi.PagedAttentionArgs:
    """PagedAttention's struct with these fields; scales default to 1."""
    args = abi.PagedAttentionArgs(
        struct_size=ctypes.sizeof(abi.PagedAttentionArgs), scale=1.0, k_scale=1.0, v_scale=1.0
    )
    for name, value in fields.items():
        setattr(args, name, value)
    return args


def attention_args(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    kv_pool: torch.Tensor,
    query_start: torch.Tensor,
    sequence_lengths: torch.Tensor,
    block_table: torch.Tensor,
    out: torch.Tensor | None,
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
    device: str = "cpu",
) -> tuple[abi.PagedAttentionArgs, torch.Tensor, tuple[Any, ...]]:
    """The struct of ``trtforge::PagedAttention`` v1, the output, and what must stay alive during the call."""
    import torch

    if out is None:
        out = torch.empty(query.shape[0], num_heads * head_size, dtype=query.dtype, device=query.device)
    tokens = int(query.shape[0])
    checks.matrix("query", query, (tokens, num_heads * head_size), None, device)
    checks.matrix("key", key, (tokens, num_kv_heads * head_size), query.dtype, device)
    checks.matrix("value", value, (tokens, num_kv_heads * head_size), query.dtype, device)
    checks.matrix("out", out, (tokens, num_heads * head_size), query.dtype, device)
    pool_dtype = checks.pool_code(kv_pool)
    if kv_pool.dim() != 5 or not kv_pool.is_contiguous() or kv_pool.device.type != device:
        raise checks.refuse("kv_pool", kv_pool, f"a contiguous {device.upper()} tensor [N, 2, K, S, E]")
    blocks, pair, pool_heads, slots, pool_head = (int(n) for n in kv_pool.shape)
    if (pair, pool_heads, pool_head) != (2, num_kv_heads, head_size):
        raise checks.refuse("kv_pool", kv_pool, f"[N, 2, {num_kv_heads}, S, {head_size}]")
    requests = int(sequence_lengths.shape[0])
    checks.indices("query_start", query_start, (requests + 1,), device)
    checks.indices("sequence_lengths", sequence_lengths, (requests,), device)
    checks.indices("block_table", block_table, (requests, int(block_table.shape[-1])), device)
    width = 0
    if tree_mask is not None:
        if tree_mask.dtype not in (torch.bool, torch.uint8) or tree_mask.dim() != 2 or len(tree_mask) != tokens:
            raise checks.refuse("tree_mask", tree_mask, f"bool or uint8 [{tokens}, W]")
        tree_mask = tree_mask.contiguous()
        width = int(tree_mask.shape[1])
    if sinks is not None and (sinks.dtype != torch.float32 or tuple(sinks.shape) != (num_heads,)):
        raise checks.refuse("sinks", sinks, f"float32 [{num_heads}]")
    if sinks is not None:
        sinks = sinks.contiguous()
    args = attention_struct(
        query=query.data_ptr(),
        key=key.data_ptr(),
        value=value.data_ptr(),
        kv_pool=kv_pool.data_ptr(),
        output=out.data_ptr(),
        query_start=query_start.data_ptr(),
        sequence_lengths=sequence_lengths.data_ptr(),
        block_table=block_table.data_ptr(),
        tree_mask=None if tree_mask is None else tree_mask.data_ptr(),
        sinks=None if sinks is None else sinks.data_ptr(),
        query_stride=query.stride(0),
        key_stride=key.stride(0),
        value_stride=value.stride(0),
        output_stride=out.stride(0),
        block_table_stride=block_table.stride(0),
        tree_mask_stride=width,
        num_tokens=tokens,
        num_requests=requests,
        max_blocks=int(block_table.shape[1]),
        num_blocks=blocks,
        block_size=slots,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_size=head_size,
        activation_dtype=checks.code("query", query),
        pool_dtype=pool_dtype,
        sliding_window=sliding_window,
        tree_mask_width=width,
        scale=1.0 / math.sqrt(head_size) if scale is None else scale,
        soft_cap=soft_cap,
        k_scale=k_scale,
        v_scale=v_scale,
    )
    return args, out, (tree_mask, sinks)


class SpeculationOps:
    """EagleTreeBuild, EagleAccept and PagedKVMove of a library; contracts in docs/ops.md."""

    #: Where tensors must lie.
    device = "cpu"

    def run_op(self, name: str, args: ctypes.Structure) -> None:
        """Call an op by its C name; raises the ForgeError of a status."""
        raise NotImplementedError

    def eagle_tree_build(
        self,
        draft_logits: torch.Tensor,
        root_tokens: torch.Tensor,
        state: TreeState,
        shape: TreeShape,
        level: int,
        *,
        draft_to_target: torch.Tensor | None = None,
        static: StaticTree | None = None,
    ) -> DraftTree:
        """One level of a draft tree.

        Args:
            draft_logits: [B, R, V] float32, bfloat16 or float16; R = 1 at level 0 and X after it. Rows may be
                strided. Row r belongs to candidate ``state.frontier[b, r]``.
            root_tokens: [B] int32, the last accepted tokens.
            state: in and out; ``plugins.trees.new_state`` before level 0.
            draft_to_target: [V] int32, added to a draft token's id (EAGLE-3's d2t).
            static: a fixed tree instead of the best nodes.

        Raises:
            ForgeError: TF-OPS-005 for tensors of the wrong kind, TF-OPS-1xx for what the op refuses.
        """
        import torch

        from plugins.trees import new_tree

        requests = len(root_tokens)
        rows = 1 if level == 0 else shape.expand
        stride = int(draft_logits.stride(1)) if draft_logits.dim() == 3 else 0
        good = draft_logits.dim() == 3 and tuple(draft_logits.shape[:2]) == (requests, rows)
        good = good and (requests < 2 or draft_logits.stride(0) == rows * stride) and draft_logits.stride(2) == 1
        if not good or draft_logits.device.type != self.device:
            raise checks.refuse("draft_logits", draft_logits, f"[{requests}, {rows}, V] with even rows")
        vocabulary = int(draft_logits.shape[2])
        size = (requests, shape.candidates)
        checks.dense("root_tokens", root_tokens, (requests,), torch.int32, self.device)
        checks.dense("candidate_tokens", state.candidate_tokens, size, torch.int32, self.device)
        checks.dense("candidate_parents", state.candidate_parents, size, torch.int32, self.device)
        checks.dense("candidate_scores", state.candidate_scores, size, torch.float32, self.device)
        checks.dense("frontier", state.frontier, (requests, shape.expand), torch.int32, self.device)
        if draft_to_target is not None:
            checks.dense("draft_to_target", draft_to_target, (vocabulary,), torch.int32, self.device)
        if static is not None:
            checks.dense("parents", static.parents, (shape.total,), torch.int32, self.device)
            checks.dense("ranks", static.ranks, (shape.total,), torch.int32, self.device)
        tree = new_tree(shape, requests, draft_logits.device)
        args = abi.EagleTreeArgs(
            struct_size=ctypes.sizeof(abi.EagleTreeArgs),
            draft_logits=draft_logits.data_ptr(),
            root_tokens=root_tokens.data_ptr(),
            draft_to_target=_pointer(draft_to_target),
            static_parents=_pointer(None if static is None else static.parents),
            static_ranks=_pointer(None if static is None else static.ranks),
            candidate_tokens=state.candidate_tokens.data_ptr(),
            candidate_parents=state.candidate_parents.data_ptr(),
            candidate_scores=state.candidate_scores.data_ptr(),
            frontier=state.frontier.data_ptr(),
            tokens=tree.tokens.data_ptr(),
            parents=tree.parents.data_ptr(),
            depths=tree.depths.data_ptr(),
            scores=tree.scores.data_ptr(),
            mask=tree.mask.data_ptr(),
            counts=tree.counts.data_ptr(),
            row_stride=stride,
            level=level,
            requests=requests,
            vocabulary=vocabulary,
            top_k=shape.top_k,
            expand=shape.expand,
            levels=shape.levels,
            total=shape.total,
            logits_dtype=checks.code("draft_logits", draft_logits),
        )
        self.run_op("eagle_tree_build", args)
        return tree

    def eagle_accept(
        self,
        target_logits: torch.Tensor,
        tokens: torch.Tensor,
        parents: torch.Tensor,
        counts: torch.Tensor,
        *,
        temperatures: torch.Tensor | None = None,
        seeds: torch.Tensor | None = None,
        root_positions: torch.Tensor | None = None,
    ) -> Acceptance:
        """Walk each tree along the target's own choices.

        Args:
            target_logits: [B*G, V] float32, bfloat16 or float16; rows may be strided.
            tokens, parents: [B, G] int32; counts: [B] int32 (a ``DraftTree``'s).
            temperatures: [B] float32, 0 greedy; None: all greedy. seeds: [B] int64 and root_positions: [B] int32
                are needed with them.

        Raises:
            ForgeError: TF-OPS-005 for tensors of the wrong kind, TF-OPS-1xx for what the op refuses.
        """
        import torch

        from plugins.trees import Acceptance

        if tokens.dim() != 2:
            raise checks.refuse("tokens", tokens, "[B, G]")
        requests, total = (int(n) for n in tokens.shape)
        rows, vocabulary = checks.matrix("target_logits", target_logits, None, None, self.device)
        if rows != requests * total:
            raise checks.refuse("target_logits", target_logits, f"[{requests * total}, V]")
        checks.dense("tokens", tokens, (requests, total), torch.int32, self.device)
        checks.dense("parents", parents, (requests, total), torch.int32, self.device)
        checks.dense("counts", counts, (requests,), torch.int32, self.device)
        for name, tensor, dtype in (
            ("temperatures", temperatures, torch.float32),
            ("seeds", seeds, torch.int64),
            ("root_positions", root_positions, torch.int32),
        ):
            if tensor is not None:
                checks.dense(name, tensor, (requests,), dtype, self.device)
        whole: dict[str, Any] = {"dtype": torch.int32, "device": target_logits.device}
        result = Acceptance(
            torch.empty(requests, total, **whole), torch.empty(requests, **whole),
            torch.empty(requests, total, **whole), torch.empty(requests, **whole),
        )  # fmt: skip
        args = abi.EagleAcceptArgs(
            struct_size=ctypes.sizeof(abi.EagleAcceptArgs),
            target_logits=target_logits.data_ptr(),
            tokens=tokens.data_ptr(),
            parents=parents.data_ptr(),
            counts=counts.data_ptr(),
            temperatures=_pointer(temperatures),
            seeds=_pointer(seeds),
            root_positions=_pointer(root_positions),
            path=result.path.data_ptr(),
            lengths=result.lengths.data_ptr(),
            emitted=result.emitted.data_ptr(),
            bonus=result.bonus.data_ptr(),
            row_stride=target_logits.stride(0),
            requests=requests,
            vocabulary=vocabulary,
            total=total,
            logits_dtype=checks.code("target_logits", target_logits),
        )
        self.run_op("eagle_accept", args)
        return result

    def paged_kv_move(
        self,
        pools: list[torch.Tensor],
        block_table: torch.Tensor,
        base_positions: torch.Tensor,
        path: torch.Tensor,
        lengths: torch.Tensor,
    ) -> None:
        """Move the keys and values of accepted nodes to contiguous positions, in every pool.

        Args:
            pools: [N, 2, K, S, E] each, of one shape and dtype; changed in place.
            block_table: [B, M] int32. base_positions: [B] int32, the position of tree node 0.
            path: [B, G] int32 and lengths: [B] int32, as ``eagle_accept`` gives them.

        Raises:
            ForgeError: TF-OPS-005 for tensors of the wrong kind, TF-OPS-1xx for what the op refuses.
        """
        if not pools:
            return
        first = pools[0]
        for pool in pools:
            good = pool.dim() == 5 and pool.shape == first.shape and pool.dtype == first.dtype
            if not good or not pool.is_contiguous() or pool.device.type != self.device or pool.shape[1] != 2:
                raise checks.refuse("pool", pool, "contiguous [N, 2, K, S, E], like the first")
        requests = int(lengths.shape[0])
        width = int(path.shape[-1])
        checks.indices("block_table", block_table, (requests, int(block_table.shape[-1])), self.device)
        checks.indices("base_positions", base_positions, (requests,), self.device)
        checks.indices("lengths", lengths, (requests,), self.device)
        checks.indices("path", path, (requests, width), self.device)
        if not path.is_contiguous():
            raise checks.refuse("path", path, f"contiguous int32 [{requests}, {width}]")
        pointers = (ctypes.c_void_p * len(pools))(*(pool.data_ptr() for pool in pools))
        args = abi.KvMoveArgs(
            struct_size=ctypes.sizeof(abi.KvMoveArgs),
            pools=ctypes.addressof(pointers),
            block_table=block_table.data_ptr(),
            base_positions=base_positions.data_ptr(),
            path=path.data_ptr(),
            lengths=lengths.data_ptr(),
            block_table_stride=block_table.stride(0),
            num_pools=len(pools),
            num_blocks=int(first.shape[0]),
            requests=requests,
            max_blocks=int(block_table.shape[1]),
            path_width=width,
            num_kv_heads=int(first.shape[2]),
            head_size=int(first.shape[4]),
            block_size=int(first.shape[3]),
            pool_dtype=checks.pool_code(first),
        )
        self.run_op("kv_move", args)


def _pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None else int(tensor.data_ptr())
