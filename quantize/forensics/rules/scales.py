"""Rules on the values of scales and zero points."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from quantize.forensics.checkpoint import Checkpoint
from quantize.forensics.hits import Hit, hit, rule, said
from quantize.forensics.stats import Stats
from trtforge.rules.sources import thread
from trtforge.rules.tables import Section

SECTION = Section(500, "Values of scales")

_CALIBRATE = "check the weights, calibrate again and export"
#: what a scale of each kind can be at all, in a trained model, with orders of magnitude to spare
_PLAUSIBLE = {
    "scale": (1e-12, 1e4),
    "global": (1e-12, 1.0),
    "input": (1e-12, 1e7),
    "factor": (1e-9, 1e9),
    "divisor": (1.0, 1e12),
}


def _all(checkpoint: Checkpoint) -> Iterator[tuple[str, str, str, Stats]]:
    """Tensor, part, kind and values of every scale that was read."""
    for name, (_, leaf, info, kind) in checkpoint.scales.items():
        found = checkpoint.stats(name, info)
        if found is not None and found.count:
            yield name, leaf, kind, found


@rule(
    "TF-K7-103",
    "error",
    "scales that are not finite and positive",
    thread("MO#1633"),
    cases=(thread("CT#832"), thread("MO!1382"), thread("SG!33541")),
)
def finite(checkpoint: Checkpoint) -> Iterator[Hit]:
    """One NaN or infinity spreads over everything that is computed behind it; a zero erases its weights, or is divided
    by.
    """
    broken = []
    for name, _, kind, found in _all(checkpoint):
        # of powers of two, 0 is 2^-127, which a block of zeros may have; a tensor of nothing else was never written
        unwritten = found.nan or found.largest == 2.0**-127
        if unwritten if kind == "exponent" else found.bad:
            broken.append(name)
    yield from hit("scales that are not finite and positive", broken, _CALIBRATE)


@rule("TF-K7-104", "error", "every scale is one", thread("MO#20"))
def ones(checkpoint: Checkpoint) -> Iterator[Hit]:
    """Scales start as ones; calibration that ran leaves none of them."""
    for leaf, kind, values in _scalars(checkpoint):
        if len(values) > 1 and all(value == 1.0 for value in values):
            # a scale of inputs is pinned to one by design in some NVFP4 recipes
            by_design = kind == "input" and checkpoint.expected is None
            yield said(
                f"every {leaf} is exactly 1: calibration did not run",
                "quantize again with a calibration corpus",
                severity="warning" if by_design else None,
            )


def _scalars(checkpoint: Checkpoint) -> Iterator[tuple[str, str, list[float]]]:
    """Part, kind and values of the scales of one element each."""
    found: dict[tuple[str, str], list[float]] = {}
    for _, leaf, kind, values in _all(checkpoint):
        if values.count == 1 and not values.nan and kind != "exponent":
            found.setdefault((leaf, kind), []).append(values.smallest)
    for (leaf, kind), numbers in found.items():
        yield leaf, kind, numbers


@rule("TF-AUD-141", "warning", "every scale is the same", thread("MO#20"))
def alike(checkpoint: Checkpoint) -> Iterator[Hit]:
    """No two tensors of a model have exactly the same range; one figure everywhere is a placeholder."""
    for leaf, kind, values in _scalars(checkpoint):
        if kind != "input" and len(values) > 3 and len(set(values)) == 1 and values[0] != 1.0:
            yield said(f"all {len(values)} {leaf} are {values[0]:g}", _CALIBRATE)
    flat = [
        name
        for name, _, kind, found in _all(checkpoint)
        if kind in ("scale", "exponent")
        and found.count >= 64
        and found.constant is not None
        and not (kind == "exponent" and found.largest == 2.0**-127)
    ]
    yield from hit("tensors whose block scales are all the same", flat, _CALIBRATE)


@rule("TF-AUD-142", "warning", "scales of an impossible size", thread("MO!2038"))
def plausible(checkpoint: Checkpoint) -> Iterator[Hit]:
    """Scales follow from the largest weight or activation; figures so far out are of another unit, or of bytes that
    were read as the wrong type.
    """
    wrong: dict[str, list[str]] = {}
    for name, leaf, kind, found in _all(checkpoint):
        low, high = _PLAUSIBLE.get(kind, (0.0, float("inf")))
        if not found.bad and kind not in ("divisor", "global") and (found.largest > high or found.smallest < low):
            wrong.setdefault(leaf, []).append(f"{name} ({found.smallest:.2g} … {found.largest:.2g})")
    for leaf, names in wrong.items():
        yield from hit(f"{leaf} far from what weights or activations can have", names, _CALIBRATE)


@rule("TF-AUD-143", "error", "a global scale the other way round", thread("MAX#6600"))
def reciprocal(checkpoint: Checkpoint) -> Iterator[Hit]:
    """ModelOpt stores what the block scales are multiplied by (the largest weight over 2688), compressed-tensors what
    they are divided by. A figure of the other kind makes the weights millions of times too large or too small.
    """
    for kind, wrong_side, other in (("global", "above", "divisors"), ("divisor", "below", "factors")):
        names = [
            f"{name} ({found.smallest:.3g})"
            for name, leaf, this, found in _all(checkpoint)
            if this == kind
            and found.count == 1
            and not found.bad
            and leaf != "alpha"
            and (found.smallest > 1 if kind == "global" else found.smallest < 1)
        ]
        yield from hit(
            f"global scales {wrong_side} 1, as if they were {other}",
            names,
            "store the reciprocal, or name the tool that wrote them",
        )


@rule("TF-AUD-144", "warning", "scales below the normal range of their type", thread("MO!1382"))
def denormal(checkpoint: Checkpoint) -> Iterator[Hit]:
    """Denormal scales have few bits left, and kernels that flush them to zero erase their weights."""
    wrong = []
    for name, _, kind, found in _all(checkpoint):
        coarse = checkpoint.scales[name][2].dtype in ("F8_E4M3", "F16")
        # block scales under one global scale reach down to denormal E4M3 by design; most of them being so is no design
        if kind != "exponent" and found.tiny and not found.bad and (not coarse or found.tiny * 2 > found.count >= 16):
            wrong.append(f"{name} ({found.tiny} of {found.count})")
    yield from hit("tensors with denormal scales", wrong, _CALIBRATE)


@rule(
    "TF-AUD-145",
    "error",
    "zero points of another version of GPTQ's format",
    thread("VL!38966"),
    cases=(thread("VL!26092"),),
)
def gptq_zeros(checkpoint: Checkpoint) -> Iterator[Hit]:
    """checkpoint_format gptq stores a zero point less one, gptq_v2 the zero point itself. Read as the other, every
    weight is a step off.
    """
    record = checkpoint.record
    if record is None or record.tool != "gptq":
        return
    version = str(record.section.get("checkpoint_format") or "gptq")
    wrong: list[str] = []
    for module, info in checkpoint.zeros():
        scheme = checkpoint.scheme(module)
        if scheme is None or scheme.bits not in (2, 4, 8) or scheme.asymmetric or info.dtype != "I32":
            continue
        raw = checkpoint.raw(info)
        if not raw:
            continue
        middle = 1 << (scheme.bits - 1)
        wanted = middle if version == "gptq_v2" else middle - 1
        other = middle - 1 if version == "gptq_v2" else middle
        values = np.frombuffer(raw, np.uint32)
        repeated = sum(1 << shift for shift in range(0, 32, scheme.bits))
        if bool((values == np.uint32(other * repeated)).all()) and other != wanted:
            wrong.append(f"{module}.qzeros")
    yield from hit(
        f"symmetric linears with the zero points of {'gptq' if version == 'gptq_v2' else 'gptq_v2'}, the record says "
        f"{version}",
        wrong,
        f"set checkpoint_format: {'gptq' if version == 'gptq_v2' else 'gptq_v2'} in the record",
        file=record.file,
    )
