"""What trtllm-build makes of its settings by itself, which it says in a warning at most.

Policy: the flags that are written say what the engine will have, and an engine that is read back is held against
what the builder records. Both come from here, so that they cannot part.

Source: ``build``, ``_init_max_seq_len`` (https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/tensorrt_llm/builder.py)
and ``check_max_num_tokens`` (``tensorrt_llm/_utils.py``) of 1.2.0 and 1.2.1. Settings that are never asked for here
(reduce_fusion, user_buffer, norm_quant_fusion, streamingllm) are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from trtforge.formats.table import counted_as, counted_formats, kv_modes_by

Settings = dict[str, Any]
#: the first architecture with FP8 context attention
_FP8_ATTENTION = 89


@dataclass(frozen=True)
class Change:
    """One setting that the builder replaces."""

    setting: str
    asked: Any
    becomes: Any
    why: str


def has_fp8_attention(architectures: Iterable[str]) -> bool:
    """Whether the engine's GPU has FP8 context attention; taken for granted where none is named."""
    numbers = [int(match[1]) for name in architectures if (match := re.match(r"sm_(\d+)", name))]
    return not numbers or max(numbers) >= _FP8_ATTENTION


def changes(settings: Settings, checkpoint: Mapping[str, Any], architectures: Iterable[str] = ()) -> list[Change]:
    """What the builder changes of ``settings``, room for drafts apart (:func:`recorded` adds it).

    Args:
        settings: see :func:`builder.targets.trtllm.flags.settings_of`; what is null or missing is not looked at.
        checkpoint: config.json of what the engine is built from.
        architectures: of the GPU that builds, such as ``sm_90``.
    """
    attention = _context_attention(settings, checkpoint, has_fp8_attention(architectures))
    return [*_token_limit(settings), *_eagle_attention(settings, attention)]


def settled(
    settings: Settings, checkpoint: Mapping[str, Any], architectures: Iterable[str] = ()
) -> tuple[Settings, list[Change]]:
    """The settings that the builder leaves alone, and what had to change for that."""
    found = changes(settings, checkpoint, architectures)
    return {**settings, **{change.setting: change.becomes for change in found}}, found


def recorded(settings: Settings, checkpoint: Mapping[str, Any], architectures: Iterable[str] = ()) -> Settings:
    """What config.json of an engine says of the settings: the builder's changes, and room for drafts.

    EAGLE's levels, in ``checkpoint``, count as drafts too.
    """
    found, _ = settled(settings, checkpoint, architectures)
    mode, drafts = settings.get("speculative_decoding_mode"), settings.get("max_draft_len") or 0
    if mode is None:
        return found
    levels = int(checkpoint.get("num_eagle_layers", 0)) if mode == "eagle" else 0
    if found.get("max_seq_len") is not None:
        found["max_seq_len"] += drafts + levels
    if found.get("max_num_tokens") is not None and found.get("max_batch_size") is not None:
        found["max_num_tokens"] = max(found["max_num_tokens"], found["max_batch_size"] * (drafts + 1))
    return found


def _eagle_attention(settings: Settings, found: list[Change]) -> list[Change]:
    """EAGLE's last word on paged context attention: the builder turns it on after everything that turned it off."""
    setting = "use_paged_context_fmha"
    if settings.get("speculative_decoding_mode") != "eagle" or settings.get(setting) is None:
        return found
    rest = [change for change in found if change.setting != setting]
    if settings[setting]:
        return rest
    why = "EAGLE verifies over the paged cache, and the builder turns it on by itself"
    return [*rest, Change(setting, settings[setting], True, why)]


def _token_limit(settings: Settings) -> list[Change]:
    asked, batch, length = (settings.get(name) for name in ("max_num_tokens", "max_batch_size", "max_seq_len"))
    if asked is None or batch is None or length is None:
        return []
    becomes, why = asked, ""
    if becomes > batch * length:
        becomes, why = batch * length, f"{batch} requests of {length} tokens have no more"
    block = settings.get("tokens_per_block")
    if block is not None and becomes < block:
        becomes, why = block, f"a step holds a block of {block} tokens at least"
    return [Change("max_num_tokens", asked, becomes, why)] if becomes != asked else []


def _context_attention(settings: Settings, checkpoint: Mapping[str, Any], fp8_kernels: bool) -> list[Change]:
    paged, fp8 = settings.get("use_paged_context_fmha"), settings.get("use_fp8_context_fmha")
    if paged is None or fp8 is None:
        return []
    quantization = checkpoint.get("quantization") or {}
    cache = kv_modes_by("algorithm").get(str(quantization.get("kv_cache_quant_algo")))
    fp8_pool = cache is not None and cache.dtype == "float8_e4m3fn"
    weights = counted_as(str(quantization.get("quant_algo")))
    found = []
    if weights is None or not counted_formats()[weights].fp8_attention or not fp8_kernels:
        lacks = "the GPU has no FP8 attention" if not fp8_kernels else "the weights are of no FP8 workflow"
        if fp8:
            found.append(Change("use_fp8_context_fmha", fp8, False, lacks))
        if paged and fp8_pool:
            why = f"paged context attention over an FP8 KV cache is FP8 attention, and {lacks}"
            found.append(Change("use_paged_context_fmha", paged, False, why))
    elif paged and fp8 != fp8_pool:
        why = "paged context attention computes in FP8 over an FP8 KV cache, and over no other"
        found.append(Change("use_fp8_context_fmha", fp8, fp8_pool, why))
    if paged and cache is not None and cache.dtype == "int8":
        found.append(Change("use_paged_context_fmha", paged, False, "there is none over an INT8 KV cache"))
    return found
