"""The decision: which bits are worth their loss, what of that fits, which format of those bits, which KV cache.

1. Fewer bits are worth having where a format of them takes a tenth less time a request than every format of more
   bits, and what was measured of its element types is inside the recipe's gate.
2. The advice has the fewest bits that are worth having; where they do not fit, the most bits below them that do. So
   more memory never brings fewer bits, and what does not fit is quantized further than it would be for speed.
3. Among formats of these bits: inside the gate first, then the quickest, then the least loss, then the table's order.
4. The KV cache has eight bits where that is needed (the pool holds too few requests, or reading it takes much of a
   request's time) and the keys bear them; else it stays as it is.

Sources: "memory-bound small batches gain by weights, large ones by arithmetic; FP8 first; INT4 AWQ on Ampere",
https://nvidia.github.io/Model-Optimizer/guides/_choosing_quant_methods.html; the roofline of builder/planner/speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from builder.planner.advice.binding import CACHE, Binding, binding_of
from builder.planner.advice.candidates import Candidate, candidates, unsupported
from builder.planner.advice.losses import next_figure
from builder.planner.types import Facts, bad_input, not_enough
from builder.planner.weights import TensorGroup
from trtforge.formats.table import UNQUANTIZED
from trtforge.models.record import Model
from trtforge.models.shape import OutlierKeys, outlier_keys
from trtforge.tables import architecture_table

#: share of a request's time that fewer bits must save to be worth their loss
GAIN = 0.1
#: share of a request's time in which the KV cache is read, from which its bits matter
_CACHE_SHARE = 0.2
#: candidates whose time differs by less than this are equally quick
_EQUAL = 1.02

Accept = Callable[[Candidate], Sequence[str]]


@dataclass(frozen=True)
class Advice:
    """What is advised, and what it was chosen from.

    Attributes:
        best: the advice.
        plain: the unquantized model; whether it fits is part of the reasoning.
        binding: what binds the unquantized model.
        gate: the loss that the recipe accepts; None: it has no gate.
        worth: the bits that are worth having, whether they fit or not.
        gains: by bits, the time of the quickest format inside the gate over that of the quickest one of more bits.
        cache: why the KV cache is as it is.
        considered: of each format that nothing stands against, its first group, with the narrowest KV cache.
        ruled_out: format → why it is not advised.
    """

    best: Candidate
    plain: Candidate
    binding: Binding
    gate: float | None
    worth: int
    gains: Mapping[int, float]
    cache: str
    considered: Sequence[Candidate]
    ruled_out: Mapping[str, str]


def advise(facts: Facts, groups: Sequence[TensorGroup], accept: Accept, *, checked: Model | None = None) -> Advice:
    """Advice for the plan's model, GPU, split and load.

    Args:
        groups: the model's tensors as they are stored, before any precision.
        accept: what preflight has against the recipe of a candidate; empty: nothing.
        checked: intake's record of the model, which knows the biases of its keys; None: what the plan knows.

    Raises:
        ForgeError: ``TF-PLN-060`` the checkpoint is quantized already; ``TF-PLN-061`` preflight refuses every way to
            quantize it, the unquantized one included; ``TF-PLN-062`` nothing fits.
    """
    if facts.model.prequantized is not None:
        raise _already(facts)
    arch = architecture_table().row(facts.gpu.arch)
    assert arch is not None, "a GPU of the hardware table has a row in the table of architectures"
    outliers = outlier_keys(checked or facts.model)
    everything = list(candidates(facts, groups))
    plain = next(item for item in everything if item.row.name == UNQUANTIZED and item.kv.pool is None)
    against: dict[str, list[str]] = {}
    standing: list[Candidate] = []
    for item in everything:
        why = unsupported(item, arch, facts.recipe.build.target)
        if why is None and outliers is not None and item.kv.pool is not None:
            why = f"{outliers}, which a KV cache of {item.kv.bits:g} bits rounds too coarsely"
        why = why or "; ".join(accept(item))
        if why:
            against.setdefault(item.row.name, []).append(why)
        else:
            standing.append(item)
    refused = {name: "; ".join(dict.fromkeys(reasons)) for name, reasons in against.items()}
    if not standing:
        raise _all_refused(facts, refused)
    gate = _gate(facts)
    worth, gains = _worth(standing, gate)
    fitting = [item for item in standing if item.fits]
    if not fitting:
        raise _nothing_fits(facts, min(standing, key=lambda item: item.lacks))
    within = [item.bits for item in fitting if item.bits <= worth]
    bits = max(within) if within else min(item.bits for item in fitting)
    first = min((item for item in fitting if item.bits == bits), key=lambda item: _order(item, gate))
    alike = [item for item in fitting if (item.row, item.group) == (first.row, first.group)]
    best, cache = _cache(alike, outliers)
    considered = _one_a_format(standing)
    ruled_out = _ruled_out(best, considered, refused, worth, gate)
    return Advice(best, plain, binding_of(plain), gate, worth, gains, cache, considered, ruled_out)


def _gate(facts: Facts) -> float | None:
    gate = facts.recipe.evals.perplexity.gate
    return None if gate is None else float(gate.max_increase)


def inside(candidate: Candidate, gate: float | None) -> bool:
    """Whether what was measured of a candidate's element types is inside the gate; without a figure it is not known."""
    if candidate.row.weight is None or gate is None:
        return True
    return candidate.loss is not None and candidate.loss.loss <= gate


def _worth(standing: Sequence[Candidate], gate: float | None) -> tuple[int, dict[int, float]]:
    """The fewest bits that are worth having; what each number of bits takes of the time of more bits."""
    quickest: dict[int, float] = {}
    for item in standing:
        if inside(item, gate):
            quickest[item.bits] = min(quickest.get(item.bits, math.inf), item.seconds)
    if not quickest:
        return max(item.bits for item in standing), {}
    ordered = sorted(quickest, reverse=True)
    worth, best, gains = ordered[0], quickest[ordered[0]], {}
    for bits in ordered[1:]:
        gains[bits] = quickest[bits] / best
        if quickest[bits] <= (1 - GAIN) * best:
            worth = bits
        best = min(best, quickest[bits])
    return worth, gains


def _order(candidate: Candidate, gate: float | None) -> tuple[Any, ...]:
    loss = candidate.loss.loss if candidate.loss is not None else math.inf
    quick = round(math.log(candidate.seconds) / math.log(_EQUAL))
    return (not inside(candidate, gate), quick, loss if candidate.row.weight is not None else 0.0)


def _cache(alike: Sequence[Candidate], outliers: OutlierKeys | None) -> tuple[Candidate, str]:
    """Of the candidates of one format the one with the right KV cache, and why; ``outliers``: against a narrow one."""
    wide = next((item for item in alike if item.kv.pool is None), None)
    narrow = next((item for item in alike if item.kv.pool is not None), None)
    if narrow is None:
        assert wide is not None
        return wide, f"stays as it is: {outliers or 'no other is offered here'}"
    asked = narrow.facts.serving.max_batch_size
    if wide is None or not wide.fits:
        return narrow, f"{narrow.kv.bits:g} bits: at the model's own type not even one request of the load fits"
    if wide.requests.guaranteed < asked:
        return narrow, (
            f"{narrow.kv.bits:g} bits: the pool holds {narrow.requests.guaranteed:,} requests instead of "
            f"{wide.requests.guaranteed:,}, {asked:,} are asked for"
        )
    share = binding_of(wide).shares.get(CACHE, 0.0)
    if share >= _CACHE_SHARE:
        return narrow, f"{narrow.kv.bits:g} bits: reading it takes {share:.0%} of a request's time"
    return wide, (
        f"stays as it is: the pool holds {wide.requests.guaranteed:,} requests, {asked:,} are asked for, and reading "
        f"it takes {share:.0%} of a request's time"
    )


def _one_a_format(standing: Sequence[Candidate]) -> list[Candidate]:
    """The first group of each format, with the KV cache that the most requests fit in."""
    found: dict[str, Candidate] = {}
    for item in standing:
        known = found.get(item.row.name)
        if known is None or (item.group == known.group and (item.kv.bits or 16) < (known.kv.bits or 16)):
            found[item.row.name] = item
    return list(found.values())


def _ruled_out(
    best: Candidate,
    considered: Sequence[Candidate],
    refused: Mapping[str, str],
    worth: int,
    gate: float | None,
) -> dict[str, str]:
    stand = {item.row.name: item for item in considered}
    found = {name: why for name, why in refused.items() if name not in stand}
    for name, item in stand.items():
        if name == best.row.name:
            continue
        if not item.fits:
            found[name] = f"does not fit: its weights alone take {item.weight_bytes / 2**30:,.2f} GiB a GPU"
        elif not inside(item, gate):
            found[name] = _outside(item, gate)
        elif item.bits > best.bits:
            found[name] = f"{item.seconds / best.seconds:.2f} of the advice's time a request"
        elif item.bits < worth:
            found[name] = f"fewer bits save under {GAIN:.0%}: {item.seconds / best.seconds:.2f} of the advice's time"
        else:
            found[name] = f"{item.seconds / best.seconds:.2f} of the advice's time a request at the same bits or fewer"
    return found


def _outside(candidate: Candidate, gate: float | None) -> str:
    allows = f"the gate allows {gate or 0.0:.1%}"
    if candidate.loss is None:
        return f"no loss is published of its element types, and {allows}: evaluate it to know"
    text = f"measured loss {candidate.loss.loss:.1%} ({candidate.loss.metric}), {allows}"
    larger = next_figure(candidate.row, candidate.facts.model.parameters)
    return text if larger is None else f"{text}; {larger.loss:.1%} ({larger.metric}): evaluate it to know"


def _already(facts: Facts) -> Exception:
    return bad_input(
        "TF-PLN-060",
        f"{facts.model.name} is quantized already ({facts.model.prequantized})",
        asked="quantize advise",
        why="Quantizing again would round values that were rounded before; there is nothing to choose.",
        remedies=["advise on the unquantized checkpoint", "trtforge plan RECIPE --gpu NAME plans it as it is"],
    )


def _all_refused(facts: Facts, refused: Mapping[str, str]) -> Exception:
    return bad_input(
        "TF-PLN-061",
        f"no way to quantize {facts.model.name} passes preflight on {facts.gpu.name}, nor does the unquantized model",
        asked=f"build.target: {facts.recipe.build.target}, --gpu {facts.gpu.name}",
        why=refused.get(UNQUANTIZED, "every format is refused"),
        remedies=["trtforge check RECIPE says what is wrong beside the format", "another --gpu or build.target"],
        refused=refused,
    )


def _nothing_fits(facts: Facts, least: Candidate) -> Exception:
    return not_enough(
        "TF-PLN-062",
        f"{facts.model.name} does not fit {facts.count} x {facts.gpu.name} in any format that is served there",
        asked=f"--gpu {facts.gpu.name} --count {facts.count}, split {facts.parallel}",
        why=f"{least.name} takes the least and lacks {max(least.lacks, 0) / 2**30:,.2f} GiB on its fullest GPU.",
        remedies=["a larger --count", "another --gpu", "lower build.limits.max_num_tokens or max_seq_len"],
        lacks=max(least.lacks, 0),
        weight_bytes=least.weight_bytes,
    )
