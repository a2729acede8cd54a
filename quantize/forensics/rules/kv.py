"""Rules on the scales of keys and values."""

from __future__ import annotations

import re
from collections.abc import Iterator

from quantize.forensics.checkpoint import Checkpoint, plain
from quantize.forensics.hits import Hit, hit, rule, said
from quantize.forensics.rules.records import kv_name
from trtforge.rules.sources import thread
from trtforge.rules.tables import Section

SECTION = Section(700, "KV cache")

_CALIBRATE = "calibrate and export again"
_ATTENTION = re.compile(
    r"(?P<layer>(?:.+\.)?(?:layers|h|blocks)\.\d+)\.(?P<attention>self_attn|attention|attn)(?:\.|$)"
)
#: the older names of a scale of keys and values, beside the projections or the attention
_OLD = ("output_scale", "kv_scale")


def _wanted(checkpoint: Checkpoint) -> bool:
    return checkpoint.record is not None and checkpoint.record.kv is not None


@rule("TF-K7-105", "error", "KV scales and no KV format", thread("SG!35455"))
def unasked(checkpoint: Checkpoint) -> Iterator[Hit]:
    """The record says nothing of the cache, so no loader applies the scales."""
    if not _wanted(checkpoint):
        yield from hit(
            "KV scales although no KV format is recorded",
            checkpoint.kv_scales,
            "record kv_cache_quant_algo (or kv_cache_scheme)",
        )


@rule("TF-K7-106", "error", "KV scales are missing", thread("VL!54705"))
def missing(checkpoint: Checkpoint) -> Iterator[Hit]:
    """Layers without scales are cached with a scale of 1 beside layers that have their own."""
    scales = {plain(name) for name in checkpoint.kv_scales}
    if not _wanted(checkpoint) or not scales:
        return
    # as the scales that are there are called, for every layer that has attention
    styles = {re.sub(r"^.*?(?:layers|h|blocks)\.\d+\.", "", name) for name in scales}
    layers = {match["layer"] for module in checkpoint.linears if (match := _ATTENTION.match(plain(module))) is not None}
    first = (re.match(r".*?(?:layers|h|blocks)\.\d+", name) for name in scales)
    stacks = {match.group(0).rpartition(".")[0] for match in first if match is not None}
    lacking = {
        f"{layer}.{style}" for layer in layers if layer.rpartition(".")[0] in stacks for style in styles
    } - scales
    yield from hit("KV scales are missing", lacking, _CALIBRATE)


@rule("TF-K7-107", "error", "KV scales that are not finite and positive", thread("LC#2853"))
def finite(checkpoint: Checkpoint) -> Iterator[Hit]:
    """A scale of zero stores every key and value as zero, and the model answers nonsense without an error."""
    if not _wanted(checkpoint):
        return
    broken = [
        name
        for name, info in checkpoint.kv_scales.items()
        if (found := checkpoint.stats(name, info)) is not None and found.bad
    ]
    yield from hit("KV scales that are not finite and positive", broken, _CALIBRATE)


@rule("TF-K7-108", "error", "every KV scale is one", thread("MO#20"))
def ones(checkpoint: Checkpoint) -> Iterator[Hit]:
    """Scales start as ones; keys and values beyond 448 are then cut."""
    values = _values(checkpoint)
    if values and all(value == 1.0 for value in values):
        yield said(
            "every KV scale is exactly 1: the cache was not calibrated",
            _CALIBRATE,
            "quantize.kv_cache: fp8_cast, if scales of 1 are meant",
        )


def _values(checkpoint: Checkpoint) -> list[float]:
    found = [checkpoint.stats(name, info) for name, info in checkpoint.kv_scales.items()] if _wanted(checkpoint) else []
    return [one.smallest for one in found if one is not None and one.count == 1 and not one.nan]


@rule("TF-AUD-171", "error", "KV scales under an old name", thread("CT!133"), cases=(thread("VL!6081"),))
def old_names(checkpoint: Checkpoint) -> Iterator[Hit]:
    """k_proj.output_scale and attention.kv_scale were names of 2024; today's loaders look for k_scale and v_scale, and
    cache with a scale of 1.
    """
    old = [
        f"{module}.{leaf}"
        for module, parts in checkpoint.parts.items()
        for leaf in parts
        if leaf in _OLD
        and _ATTENTION.match(plain(module)) is not None
        and plain(module).endswith(("k_proj", "v_proj", "attn"))
    ]
    if not checkpoint.kv_scales:
        yield from hit(
            "KV scales have the names of older tools", old, "rename them: self_attn.k_scale and self_attn.v_scale"
        )


@rule("TF-AUD-172", "error", "a KV scale of several values", thread("VL#6738"))
def shapes(checkpoint: Checkpoint) -> Iterator[Hit]:
    """Kernels of a cache take one scale a layer for keys and one for values."""
    if checkpoint.record is not None and checkpoint.record.kv == "FP8":
        yield from hit(
            "KV scales are no single values",
            [f"{name} {list(info.shape)}" for name, info in checkpoint.kv_scales.items() if info.elements != 1],
            _CALIBRATE,
        )


@rule("TF-AUD-173", "note", "a quantized KV cache without scales", thread("SGC!237"))
def uncalibrated(checkpoint: Checkpoint) -> Iterator[Hit]:
    """Loaders then cache with a scale of 1, which costs accuracy on tasks of many steps. Casting so is a choice of
    some recipes.
    """
    record = checkpoint.record
    if record is None or record.kv is None or checkpoint.kv_scales or not checkpoint.linears:
        return
    if checkpoint.expected is None and kv_name(checkpoint) is not None and not any(old_names(checkpoint)):
        yield said(
            f"{record.file} says that keys and values are {record.kv}, and no layer has scales for them",
            _CALIBRATE,
            file=record.file,
        )
