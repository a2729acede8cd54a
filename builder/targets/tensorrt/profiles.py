"""Optimization profiles and network inputs of a graph under the recipe's limits.

Two profiles: ``decode`` (a token a request) and ``mixed`` (prefill, chunks and decodes together). Dimensions are
the graph's letters; each input's range is the product of theirs, as TensorRT wants them. Padding a decode step to a
bucket needs slots of its own, so the pools get a few blocks that no scheduler sees.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trtforge.recipe.schema import Limits

DECODE, MIXED = "decode", "mixed"
#: the widest tree mask (nodes of a draft tree); steps without a tree send one column
MAX_TREE = 64
#: rows of logits of one teacher-forced step (see runtime.scoring.LOGIT_ROWS)
SCORED_ROWS = 256

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Sizes:
    """The numbers that decide every shape.

    Attributes:
        batch: B, requests of a step at most.
        tokens: T of a mixed step at most.
        rows: L, rows of logits at most.
        table: M, blocks of the longest request.
        blocks: N, blocks of a pool with the padding's own.
        padding_blocks: how many of them no scheduler sees; they come last.
        tree: whether the graph takes a tree mask.
    """

    batch: int
    tokens: int
    rows: int
    table: int
    blocks: int
    padding_blocks: int
    tree: bool = False

    @classmethod
    def of(
        cls, limits: Limits, *, block_size: int, num_blocks: int, tree: bool = False, draft_tokens: int = 0
    ) -> Sizes:
        """Sizes for the limits and ``num_blocks`` blocks that a scheduler may use.

        Args:
            draft_tokens: most draft tokens of a request, each verified by a row of logits.
        """
        batch = limits.max_batch_size
        rows = batch * MAX_TREE if tree else max(batch * (1 + draft_tokens), SCORED_ROWS)
        padding = -(-batch // block_size)
        return cls(
            batch=batch,
            tokens=limits.max_num_tokens,
            rows=min(limits.max_num_tokens, rows),
            table=-(-limits.max_seq_len // block_size),
            blocks=num_blocks + padding,
            padding_blocks=padding,
            tree=tree,
        )


def decode_buckets(batch: int) -> tuple[int, ...]:
    """Batch sizes that decode steps are padded to, each captured as one CUDA graph: powers of two, then ``batch``."""
    buckets, size = [], 1
    while size < batch:
        buckets.append(size)
        size *= 2
    return (*buckets, batch)


def dimension_ranges(sizes: Sizes, profile: str) -> dict[str, tuple[int, int, int]]:
    """(smallest, optimal, largest) of each symbolic dimension of the graph."""
    batch = (1, sizes.batch, sizes.batch)
    ranges = {
        "B": batch,
        "B_plus_1": (2, sizes.batch + 1, sizes.batch + 1),
        "M": (1, sizes.table, sizes.table),
        # every pool has the engine's size when it serves; smaller ones are for tests and small machines
        "N": (1, sizes.blocks, sizes.blocks),
        "W": (1, MAX_TREE, MAX_TREE),
    }
    if profile == DECODE:
        # a token a request: no long query, and a mask of one column (plain causality) where the graph takes one
        return {**ranges, "T": batch, "L": batch, "Q": (1, 1, 1), "W": (1, 1, 1)}
    return {
        **ranges,
        "Q": (1, sizes.tokens, sizes.tokens),
        "T": (1, sizes.tokens, sizes.tokens),
        "L": (1, min(sizes.batch, sizes.rows), sizes.rows),
    }


def profile_shapes(inputs: list[dict[str, Any]], sizes: Sizes, profile: str) -> dict[str, tuple[Shape, Shape, Shape]]:
    """Per network input with a dynamic dimension its smallest, optimal and largest shape.

    Args:
        inputs: ``{"name", "type", "shape"}`` of the graph's inputs; a shape mixes numbers and dimension names.

    Raises:
        ValueError: a dimension name that has no range (a graph of another layout).
    """
    ranges = dimension_ranges(sizes, profile)
    shapes = {}
    for value in inputs:
        names = [size for size in value["shape"] if isinstance(size, str)]
        unknown = [name for name in names if name not in ranges]
        if unknown:
            raise ValueError(f"input {value['name']} has the dimension {unknown[0]}, which no profile knows")
        if names:
            low, best, high = (
                tuple(ranges[size][which] if isinstance(size, str) else int(size) for size in value["shape"])
                for which in range(3)
            )
            shapes[str(value["name"])] = (low, best, high)
    return shapes
