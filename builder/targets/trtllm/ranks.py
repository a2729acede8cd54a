"""Which layers, heads and rows a rank holds.

Ranks are numbered as TensorRT-LLM numbers them: the tensor-parallel rank runs fastest, so rank =
pp_rank * tp + tp_rank. When the layers do not divide over the pipeline, its first stages hold one more each.

Source: https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/tensorrt_llm/mapping.py
"""

from __future__ import annotations

from dataclasses import dataclass

from trtforge.models.kv import stage_layers


@dataclass(frozen=True)
class Rank:
    """One rank of tp x pp."""

    tp: int
    pp: int
    tp_rank: int
    pp_rank: int

    @property
    def number(self) -> int:
        return self.pp_rank * self.tp + self.tp_rank

    @property
    def first(self) -> bool:
        """Holds the embedding."""
        return self.pp_rank == 0

    @property
    def last(self) -> bool:
        """Holds the final norm and the output head."""
        return self.pp_rank == self.pp - 1


def all_ranks(tp: int, pp: int) -> list[Rank]:
    return [Rank(tp, pp, tp_rank, pp_rank) for pp_rank in range(pp) for tp_rank in range(tp)]


def layers_of(layers: int, pp: int, pp_rank: int) -> range:
    return stage_layers(layers, pp)[pp_rank]


def kv_heads_of(kv_heads: int, tp: int, tp_rank: int) -> range:
    """The KV heads of a rank: its share, or a copy of one head where there are fewer heads than ranks."""
    if kv_heads >= tp:
        each = kv_heads // tp
        return range(tp_rank * each, (tp_rank + 1) * each)
    head = tp_rank * kv_heads // tp
    return range(head, head + 1)
