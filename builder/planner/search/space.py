"""What is searched: the values along every axis, from the tables and the recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from builder.planner.hardware import Gpu
from builder.planner.parallelism import candidates
from builder.planner.precision import KV_BITS, WEIGHT_FORMATS
from builder.planner.speculation import NONE, Speculating, assumed
from builder.planner.types import ParallelPlan, Precision, Serving
from trtforge.formats.table import load_formats
from trtforge.models.record import Model
from trtforge.tables import architecture_table

#: requests in flight of a replica
BATCHES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
#: draft tokens a step
DRAFT_LENGTHS = (1, 3, 5, 7)
#: up to so many GPUs replicas that leave some of them idle are tried too
_ALL_SIZES = 16
#: prompt and decode tokens of one step
STEP_TOKENS = (512, 2048, 8192)


@dataclass(frozen=True)
class Space:
    """The axes. ``groups`` are the block lengths that a weight format may be quantized with, preferred first."""

    precisions: tuple[Precision, ...]
    parallels: tuple[ParallelPlan, ...]
    batches: tuple[int, ...] = BATCHES
    speculating: tuple[Speculating, ...] = (NONE,)
    step_tokens: tuple[int, ...] = STEP_TOKENS
    groups: Mapping[str, tuple[int, ...]] | None = None

    @property
    def size(self) -> int:
        """Points."""
        return (
            len(self.precisions)
            * len(self.parallels)
            * len(self.batches)
            * len(self.speculating)
            * len(self.step_tokens)
        )

    def grouped(self, precision: Precision) -> list[Precision]:
        """The precision with each block length that its format may have."""
        sizes = (self.groups or {}).get(precision.weights, ())
        return [replace(precision, group_size=size) for size in sizes] or [precision]


def default_space(
    model: Model,
    precision: Precision,
    gpu: Gpu,
    count: int,
    serving: Serving,
    *,
    formats: Mapping[str, Sequence[int]] | None = None,
    kv_formats: Sequence[str] = (load_formats().first_choice.kv_cache,),
    speculating: Speculating = NONE,
    ngram: bool = True,
) -> Space:
    """Formats with a kernel on the GPU, every split of at most ``count`` GPUs, and the recipe's own values.

    Args:
        precision: the recipe's; its base, exclude list and values are part of the space.
        formats: weight formats that the chain can make, each with its block lengths, preferred first (None:
            every one of the planner's table).
        kv_formats: KV formats that the engine can read, beside the unquantized one.
        speculating: the recipe's method; drafts of several lengths are tried.
        ngram: n-gram, which needs nothing, is tried too: the target must have it.
    """
    row = architecture_table().row(gpu.arch)
    known = {name: (size,) if (size := WEIGHT_FORMATS[name].block) > 0 else () for name in WEIGHT_FORMATS}
    offered: Mapping[str, Sequence[int]] = known if formats is None else formats
    # a format that the architecture's row does not state has no kernel that anyone promised
    weights = [precision.base]
    kv = [precision.base]
    if model.prequantized is None:
        stated = row.formats if row is not None else {}
        usable = {name for name, support in stated.items() if support in ("yes", "weight-only")}
        weights += [name for name in offered if name in usable and name in WEIGHT_FORMATS and name != precision.base]
        caches = row.kv_cache if row is not None else {}
        kv += [name for name in kv_formats if name in KV_BITS and caches.get(name) == "yes"]
        # the recipe's own formats too, unless the table says that they have no kernel, or that users dispute it
        own = stated.get(precision.weights, "yes") in ("yes", "weight-only")
        weights += [precision.weights] if own and precision.weights not in weights else []
        kv += [precision.kv] if caches.get(precision.kv, "yes") == "yes" and precision.kv not in kv else []
    else:
        weights = [precision.weights]
        kv += [precision.kv] if precision.kv not in kv else []
    plans = tuple(
        plan
        for plan in candidates(count, model.moe is not None)
        if plan.tp % plan.ep == 0 and (count <= _ALL_SIZES or count % plan.gpus == 0)
    )
    tokens = tuple(sorted({*STEP_TOKENS, serving.max_num_tokens}))
    mixed = precision.mixed
    return Space(
        precisions=tuple(
            replace(precision, weights=w, kv=k, group_size=None, mixed=mixed if w == precision.weights else ())
            for w in weights
            for k in kv
        ),
        parallels=plans,
        speculating=_speculating(speculating, ngram),
        step_tokens=tokens,
        groups={name: tuple(sizes) for name, sizes in offered.items() if sizes},
    )


def _speculating(given: Speculating, ngram: bool) -> tuple[Speculating, ...]:
    """No speculation, n-gram where asked, and the recipe's method; an assumed acceptance counts with its low end."""
    tried = [NONE]
    methods = {"ngram": assumed("ngram")} if ngram else {}
    methods |= {given.method: given} if given.method != "none" else {}
    for method in methods.values():
        if method.choices:
            tried.append(method)
            continue
        low = method.acceptance[0]
        accepted = method.acceptance if method.measured else (low, low)
        tried += [replace(method, draft_length=length, acceptance=accepted) for length in DRAFT_LENGTHS]
    return tuple(tried)
