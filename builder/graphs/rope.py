"""Inverse frequencies of rotary embeddings, with the scalings that Llama-family checkpoints use.

Policy: the same arithmetic, step for step and in float32 where transformers uses float32, as
``transformers.modeling_rope_utils`` (the models were trained or extended with it); the tests compare
the two. A type whose frequencies grow with the sequence at run time (dynamic) is refused: one initializer cannot
hold them. Of longrope's two lists the model's own context decides: a model whose context is longer than the original
one has the long factors for every prompt, because keys in the cache cannot be rotated again when a request grows over
the border (transformers takes the short ones for sequences below it).

Sources: linear, kaiokendev 2023; YaRN, https://arxiv.org/abs/2309.00071; llama3, Meta's Llama 3.1 reference code;
LongRoPE, https://arxiv.org/abs/2402.13753.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from trtforge.ground.errors import ForgeError
from trtforge.models.longrope import is_extended

Array = npt.NDArray[np.float32]


def _positive(rope: Mapping[str, Any], key: str) -> float:
    value = rope.get(key)
    # float32 is what frequencies are computed in: beyond it they would be 0 or no numbers
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not 0 < value <= float(np.finfo(np.float32).max)
    ):
        raise ForgeError(
            "TF-GRF-003",
            f"The rope type {rope['rope_type']} needs a positive {key}, not {str(value)[:40]}",
            asked=str(rope["rope_type"]),
            numbers={key: str(value)[:40]},
            why="The rope section of config.json is incomplete; a guess would turn long prompts to garbage.",
            remedies=[f"Add {key} to rope_parameters in config.json, as the model's publisher states it"],
        )
    return float(value)


def _powers(rope: Mapping[str, Any], head_size: int) -> Array:
    """theta^(2i/E) for i < E/2, float32 as torch computes it."""
    exponents = np.arange(0, head_size, 2, dtype=np.float32) / np.float32(head_size)
    return np.power(np.float32(_positive(rope, "rope_theta")), exponents, dtype=np.float32)


def _default(rope: Mapping[str, Any], head_size: int) -> tuple[Array, float]:
    return np.float32(1) / _powers(rope, head_size), 1.0


def _linear(rope: Mapping[str, Any], head_size: int) -> tuple[Array, float]:
    return _default(rope, head_size)[0] / np.float32(_positive(rope, "factor")), 1.0


def _llama3(rope: Mapping[str, Any], head_size: int) -> tuple[Array, float]:
    inv_freq = _default(rope, head_size)[0]
    factor = _positive(rope, "factor")
    low, high = _positive(rope, "low_freq_factor"), _positive(rope, "high_freq_factor")
    context = _positive(rope, "original_max_position_embeddings")
    if not low < high:
        raise ForgeError(
            "TF-GRF-003",
            f"The rope type llama3 needs a low_freq_factor below its high_freq_factor, not {low:g} and {high:g}",
            asked="llama3",
            numbers={"low_freq_factor": low, "high_freq_factor": high},
            why="Frequencies between the two are mixed by how far they lie from each; there would be none.",
            remedies=["Write both in rope_parameters in config.json as the model's publisher states them"],
        )
    wavelength = np.float32(2 * math.pi) / inv_freq
    long, short = wavelength > context / low, wavelength < context / high
    scaled = np.where(long, inv_freq / np.float32(factor), inv_freq)
    smooth = (np.float32(context) / wavelength - np.float32(low)) / np.float32(high - low)
    between = (1 - smooth) * scaled / np.float32(factor) + smooth * scaled
    return np.where(~long & ~short, between, scaled).astype(np.float32), 1.0


def _yarn(rope: Mapping[str, Any], head_size: int) -> tuple[Array, float]:
    context = _positive(rope, "original_max_position_embeddings")
    if rope.get("factor") is None and rope.get("max_position_embeddings"):
        factor = _positive(rope, "max_position_embeddings") / context
    else:
        factor = _positive(rope, "factor")
    attention = rope.get("attention_factor")
    if attention is None:
        attention = _yarn_attention(factor, rope.get("mscale"), rope.get("mscale_all_dim"))
    base = _positive(rope, "rope_theta")

    def dimension(rotations: float) -> float:
        return head_size * math.log(context / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(float(rope.get("beta_fast") or 32)), dimension(float(rope.get("beta_slow") or 1))
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_size - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(head_size // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low), 0, 1)
    powers = _powers(rope, head_size)
    keep = np.float32(1) - ramp.astype(np.float32)
    interpolated = np.float32(1) / (np.float32(factor) * powers)
    return interpolated * (1 - keep) + keep / powers, float(attention)


def _yarn_attention(factor: float, mscale: float | None, mscale_all: float | None) -> float:
    def scale(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    return scale(mscale) / scale(mscale_all) if mscale and mscale_all else scale(1.0)


def _longrope(rope: Mapping[str, Any], head_size: int) -> tuple[Array, float]:
    original, factor = _positive(rope, "original_max_position_embeddings"), rope.get("factor")
    if factor is None:
        factor = _positive(rope, "max_position_embeddings") / original
    key = "long_factor" if is_extended(rope) else "short_factor"
    extension = np.array(rope.get(key) or [], dtype=np.float32)
    if extension.shape != (head_size // 2,) or not np.all(extension > 0) or not np.all(np.isfinite(extension)):
        raise ForgeError(
            "TF-GRF-003",
            f"The rope type longrope needs {head_size // 2} positive numbers as {key}",
            asked="longrope",
            numbers={"wanted": head_size // 2, "given": extension.size},
            why="Each pair of rotated values has a factor of its own.",
            remedies=[f"Add {key} to rope_parameters in config.json, as the model's publisher states it"],
        )
    attention = rope.get("attention_factor")
    if attention is None:
        attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return np.float32(1) / (extension * _powers(rope, head_size)), float(attention)


ROPE_TYPES: dict[str, Callable[[Mapping[str, Any], int], tuple[Array, float]]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}


def inverse_frequencies(rope: Mapping[str, Any], head_size: int) -> tuple[Array, float]:
    """Inverse frequencies float32 [R/2] and the factor on cos and sin.

    Args:
        rope: rope_type, rope_theta and the type's own keys (see :func:`trtforge.models.config.rope_section`).
        head_size: R, how many values of a head are rotated; even.

    Raises:
        ForgeError: ``TF-GRF-003`` an unknown type or a missing key.
    """
    kind = str(rope.get("rope_type", "default"))
    if kind not in ROPE_TYPES:
        raise ForgeError(
            "TF-GRF-003",
            f"The rope type {kind} is not supported",
            asked=kind,
            numbers={"supported": list(ROPE_TYPES)},
            why="Its frequencies change with the sequence length at run time, or its formula is unknown here.",
            remedies=[f"Use a checkpoint with rope type {', '.join(ROPE_TYPES)}"],
        )
    inv_freq, attention = ROPE_TYPES[kind](rope, head_size)
    return np.ascontiguousarray(inv_freq, dtype=np.float32), attention
