"""What binds the unquantized model on a GPU: the memory, or what the time of a request goes to, by the roofline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from builder.planner.advice.candidates import Candidate
from builder.planner.speed.facts import load_of
from builder.planner.speed.roofline import StepTime
from builder.planner.speed.serving import TYPICAL
from builder.planner.speed.step import decode_step, prefill_step

FIT = "fit"
WEIGHTS, CACHE = "decode bandwidth: weights", "decode bandwidth: KV cache"
DECODE, PREFILL = "decode compute", "prefill compute"
PREFILL_MEMORY, OTHER = "prefill bandwidth", "launches and communication"


@dataclass(frozen=True)
class Binding:
    """What binds.

    Attributes:
        what: the largest of ``shares``, or :data:`FIT`.
        shares: of a request's time, by what takes it; sums to 1.
        batch: requests in flight.
    """

    what: str
    shares: dict[str, float]
    batch: int


def binding_of(candidate: Candidate) -> Binding:
    """What binds a candidate with max_batch_size requests of the load in flight."""
    facts, load = candidate.facts, load_of(candidate.facts)
    batch = facts.serving.max_batch_size
    here = max(batch / facts.parallel.pp, 1.0)
    prompt = candidate.engine.time(prefill_step(1, load.new_tokens, load.cached_prefix))
    token = candidate.engine.time(decode_step(here, load.context))
    seconds: dict[str, float] = {}
    _add(seconds, prompt, 1.0, {"compute": PREFILL, "memory": PREFILL_MEMORY})
    # an answer's token costs its share of a step of all requests
    _add(seconds, token, load.osl / here, {"compute": DECODE, "memory": WEIGHTS})
    whole = sum(seconds.values())
    shares = {name: value / whole for name, value in sorted(seconds.items(), key=lambda item: -item[1])}
    return Binding(FIT if not candidate.fits else next(iter(shares)), shares, batch)


def _add(seconds: dict[str, float], step: StepTime, times: float, names: dict[str, str]) -> None:
    for op in step.ops:
        value = float(np.ravel(op.total[TYPICAL])[0]) * times
        if value > 0:
            name = CACHE if op.op_class == "attention_decode" else names.get(op.bound(), OTHER)
            seconds[name] = seconds.get(name, 0.0) + value
