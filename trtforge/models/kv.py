"""Bytes of keys and values: a token and layer, a rank, a draft beside, blocks. Nothing else counts them.

Keys and values of a token are K heads of E elements each in every layer; with latent attention (DeepSeek) a layer keeps
one latent for both. Tensor-parallel ranks share the heads out, a head is copied where there are more ranks than heads,
and every rank keeps the whole latent. What layers with a sliding window keep is told by
:mod:`trtforge.models.kv_window`. Source of the arithmetic: Pope et al. 2022, https://arxiv.org/abs/2211.05102
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from trtforge.formats.table import kv_element_bits, load_formats


@dataclass(frozen=True)
class KvSizes:
    """What decides the bytes: ``latent`` is the width of latent attention's row (0: keys and values of heads)."""

    layers: int
    kv_heads: int
    head_size: int
    latent: int = 0

    def elements(self, tp: int = 1) -> int:
        """Elements of a token and layer on one of ``tp`` ranks: 2 ceil(K / tp) E, or the latent."""
        return self.latent or 2 * -(-self.kv_heads // tp) * self.head_size


def element_bits(form: str) -> float:
    """Bits of a stored key or value element, block scales included.

    Args:
        form: an element type of pools (``fp8``, ``bfloat16``), a KV mode or the type that a mode stores.

    Raises:
        KeyError: it is none of them.
    """
    known = kv_element_bits()
    if form not in known:
        form = next((row.pool for row in load_formats().kv_modes if row.pool and form in (row.name, row.dtype)), form)
    return known[form]


def kv_bytes_per_token(kv: KvSizes, form: str, *, tp: int = 1, layers: int | None = None) -> int:
    """Bytes of KV cache a token on one rank.

    Llama-3-70B in FP16: 2 x 80 layers x 8 heads x 128 x 2 B = 327,680.

    Args:
        form: an element type or KV format (:func:`element_bits`).
        layers: those of a pipeline stage (:func:`fullest_stage`); None: all of the model's.
    """
    return math.ceil((kv.layers if layers is None else layers) * kv.elements(tp) * element_bits(form) / 8)


def stage_layers(layers: int, pp: int) -> list[range]:
    """Layers of each pipeline stage; the first ``layers % pp`` stages hold one more."""
    base, more = divmod(layers, pp)
    stages, start = [], 0
    for stage in range(pp):
        stop = start + base + (stage < more)
        stages.append(range(start, stop))
        start = stop
    return stages


def fullest_stage(layers: int, pp: int) -> int:
    """Layers of the stage that holds most.

    TensorRT-LLM shares the layers of an EAGLE drafter out with the model's own: ``layers`` counts both. Source:
    https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/cpp/tensorrt_llm/runtime/gptJsonConfig.cpp
    """
    return -(-layers // pp)


def pool_blocks(pool: int, bytes_per_token: int, block: int) -> int:
    """Whole blocks of ``block`` tokens in a pool of ``pool`` bytes; 0 when it is none."""
    return max(pool, 0) // (bytes_per_token * block)


def blocks_of(tokens: int, block: int) -> int:
    """Blocks that a request of ``tokens`` tokens takes."""
    return -(-tokens // block)
