"""Advice in words: the answer, the reasoning line by line with its numbers, what was ruled out; and as JSON."""

from __future__ import annotations

from typing import Any

from builder.planner.advice.binding import FIT
from builder.planner.advice.rule import GAIN, Advice, inside
from builder.planner.sections.speed import short
from builder.planner.sizes import size
from trtforge.formats.table import load_formats
from trtforge.rules.sources import MODELOPT_BENCHMARK

#: label and text
Row = tuple[str, str]


def answer(advice: Advice) -> list[Row]:
    """What is advised, in four lines."""
    best, row = advice.best, advice.best.row
    group = f"{best.group}" if best.group else "none: no scale for a block"
    kept = ", ".join(best.precision.exclude) or "nothing"
    scope = f"every linear but {kept}" if row.weight is not None else "nothing is quantized"
    return [
        ("format", f"{row.name} ({row.title})"),
        ("KV cache", f"{best.kv.name} ({best.kv.title})"),
        ("group", group if row.weight is not None else "none"),
        ("scope", scope),
    ]


def reasoning(advice: Advice) -> list[Row]:
    """Why, in the order in which it was decided."""
    best, plain, facts = advice.best, advice.plain, advice.best.facts
    model, gpu, serving, load = facts.model, facts.gpu, facts.serving, facts.workload
    rows = [
        (
            "model",
            f"{model.parameters / 1e9:,.3g} billion parameters, {model.layers} layers; unquantized "
            f"{size(plain.weight_bytes)} of weights a GPU",
        ),
        ("GPU", f"{facts.count} x {gpu.title} ({gpu.arch}), {size(gpu.visible_bytes)} each, split {facts.parallel}"),
        (
            "rates",
            f"{gpu.bandwidth / 1e12:,.3g} TB/s; dense "
            + ", ".join(f"{name} {rate:,.4g} TFLOPS" for name, rate in gpu.dense_tflops.items()),
        ),
        (
            "load",
            f"{serving.max_batch_size} requests in flight of {load.mean_isl:,.0f} prompt and {load.mean_osl:,.0f} "
            "answer tokens",
        ),
        ("fits unquantized", _fit(advice)),
        ("binds", _binds(advice)),
        ("gate", _gate(advice)),
    ]
    rows += [("speed", text) for text in _speed(advice)]
    rows.append(("fits as advised", _room(advice)))
    rows.append(("KV cache", advice.cache))
    if best.row.speedup_at_64 is not None:
        rows.append(("published", f"{best.row.speedup_at_64:g} times 16 bits at 64 requests ({MODELOPT_BENCHMARK})"))
    if best.row.measured is not None:
        rows.append(("measured here", f"{best.row.measured}, of SmolLM2-135M-Instruct"))
    if not inside(best, advice.gate):
        rows.append(("risk", "what was measured misses the gate: evaluate before relying on it"))
    return rows


def _fit(advice: Advice) -> str:
    plain = advice.plain
    fullest = min(plain.memory, key=lambda plan: plan.free)
    need = fullest.total - fullest.of("kv")
    if not plain.fits:
        return f"no: {size(need)} beside the KV pool of {size(fullest.capacity)}, and not one request of the load"
    return (
        f"yes: {size(need)} beside the KV pool of {size(fullest.capacity)}; the pool holds "
        f"{plain.requests.guaranteed:,} requests"
    )


def _binds(advice: Advice) -> str:
    binding = advice.binding
    parts = ", ".join(f"{name} {share:.0%}" for name, share in binding.shares.items() if share >= 0.01)
    time = f"of {short(advice.plain.seconds * 1e3)} ms a request: {parts}"
    return f"the memory; {time}" if binding.what == FIT else f"{binding.what}; {time}"


def _gate(advice: Advice) -> str:
    loss, gate = advice.best.loss, advice.gate
    accepts = "none: any loss is accepted" if gate is None else f"accepts {gate:.1%} (evals.perplexity.gate)"
    if advice.best.row.weight is None:
        return accepts
    if loss is None:
        return f"{accepts}; nothing is published of this format's element types"
    return f"{accepts}; measured {loss.loss:.1%}, {loss.metric} ({loss.source})"


def _speed(advice: Advice) -> list[str]:
    rows = [
        f"{bits} bits take {ratio:.2f} of the time of the quickest of more bits"
        + (f", under {1 - GAIN:.2f}: worth having" if ratio <= 1 - GAIN else f", {1 - GAIN:.2f} would be worth it")
        for bits, ratio in advice.gains.items()
    ]
    best, plain = advice.best, advice.plain
    rows.append(
        f"the advice takes {short(best.seconds * 1e3)} ms a request, {best.seconds / plain.seconds:.2f} of the "
        f"unquantized model's {short(plain.seconds * 1e3)} ms (planned, not measured)"
    )
    if best.bits != advice.worth:
        why = "do not fit" if best.bits < advice.worth else "are not offered here"
        rows.append(f"{advice.worth} bits would be worth having and {why}")
    return rows


def _room(advice: Advice) -> str:
    best = advice.best
    return f"{size(best.weight_bytes)} of weights a GPU; the pool holds {best.requests.guaranteed:,} requests"


def to_json(advice: Advice) -> dict[str, Any]:
    """The advice for ``--json``."""
    order = [row.name for row in load_formats().formats]
    return {
        "advice": advice.best.to_json(),
        "answer": dict(answer(advice)),
        "reasoning": [{"about": about, "text": text} for about, text in reasoning(advice)],
        "binds": {"what": advice.binding.what, "shares": advice.binding.shares, "batch": advice.binding.batch},
        "gate": advice.gate,
        "unquantized": advice.plain.to_json(),
        "considered": [item.to_json() for item in advice.considered],
        "ruled_out": {name: advice.ruled_out[name] for name in order if name in advice.ruled_out},
    }
