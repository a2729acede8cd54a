"""The four ops that the host library and the CUDA library share, for checked tensors; contracts in docs/ops.md."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from plugins.checked import checked
from trtforge.native import ops
from trtforge.native.ops import Op

if TYPE_CHECKING:
    import torch

    from plugins.trees import Acceptance, DraftTree, StaticTree, TreeShape, TreeState


def attention_args(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    kv_pool: torch.Tensor,
    query_start: torch.Tensor,
    sequence_lengths: torch.Tensor,
    block_table: torch.Tensor,
    out: torch.Tensor | None = None,
    *,
    tree_mask: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    scale: float | None = None,
    device: str = "cpu",
    **attributes: Any,
) -> tuple[Any, torch.Tensor]:
    """The struct of ``trtforge::PagedAttention`` and the output.

    Args:
        query: [T, H*E] float32, bfloat16 or float16; rows may be strided (a slice of a packed qkv).
        key: [T, K*E], same dtype; value likewise.
        kv_pool: [N, 2, K, S, E] float32, bfloat16, float16 or float8_e4m3fn (or uint8 holding E4M3 bits);
            contiguous; written in place.
        query_start: [B+1] int32. sequence_lengths: [B] int32. block_table: [B, M] int32.
        out: [T, H*E] in the query's dtype; made when None.
        tree_mask: [T, W] bool or uint8. sinks: [H] float32.
        scale: default 1/sqrt(E).
        attributes: num_heads, num_kv_heads, head_size; sliding_window, soft_cap, k_scale, v_scale.

    Raises:
        ForgeError: TF-OPS-005 for tensors of the wrong kind.
    """
    import torch

    heads, size = attributes["num_heads"], attributes["head_size"]
    if out is None:
        out = torch.empty(query.shape[0], heads * size, dtype=query.dtype, device=query.device)
    tensors = {
        "query": query, "key": key, "value": value, "kv_pool": kv_pool, "output": out, "query_start": query_start,
        "sequence_lengths": sequence_lengths, "block_table": block_table, "tree_mask": tree_mask, "sinks": sinks,
    }  # fmt: skip
    scale = 1.0 / math.sqrt(size) if scale is None else scale
    return checked(ops.PAGED_ATTENTION, tensors, device=device, scale=scale, **attributes), out


class SharedOps:
    """EagleTreeBuild, EagleAccept and PagedKVMove of a library."""

    #: Where tensors must lie.
    device = "cpu"

    def run_op(self, op: Op, args: Any) -> None:
        """Call an op with its struct; raises the ForgeError of a status."""
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
        from plugins.trees import new_tree

        tree = new_tree(shape, len(root_tokens), draft_logits.device)
        tensors = vars(state) | vars(tree) | {"draft_logits": draft_logits, "root_tokens": root_tokens}
        tensors["draft_to_target"] = draft_to_target
        if static is not None:
            tensors |= {"static_parents": static.parents, "static_ranks": static.ranks}
        sizes = {"R": 1 if level == 0 else shape.expand, "C": shape.candidates, "requests": len(root_tokens)}
        args = checked(
            ops.EAGLE_TREE_BUILD, tensors, device=self.device, level=level, **asdict(shape), **sizes
        )  # fmt: skip
        self.run_op(ops.EAGLE_TREE_BUILD, args)
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

        requests, total = len(counts), int(tokens.shape[-1])
        whole: dict[str, Any] = {"dtype": torch.int32, "device": target_logits.device}
        result = Acceptance(
            torch.empty(requests, total, **whole), torch.empty(requests, **whole),
            torch.empty(requests, total, **whole), torch.empty(requests, **whole),
        )  # fmt: skip
        tensors = {
            "target_logits": target_logits, "tokens": tokens, "parents": parents, "counts": counts,
            "temperatures": temperatures, "seeds": seeds, "root_positions": root_positions, **vars(result),
        }  # fmt: skip
        args = checked(ops.EAGLE_ACCEPT, tensors, device=self.device, total=total, requests=requests)
        self.run_op(ops.EAGLE_ACCEPT, args)
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
        _, _, kv_heads, _, head_size = pools[0].shape if pools[0].dim() == 5 else (0,) * 5
        tensors: dict[str, Any] = {
            "block_table": block_table, "base_positions": base_positions, "path": path, "lengths": lengths,
            "pools": pools,
        }  # fmt: skip
        args = checked(ops.KV_MOVE, tensors, device=self.device, num_kv_heads=kv_heads, head_size=head_size)
        self.run_op(ops.KV_MOVE, args)
