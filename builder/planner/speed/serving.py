"""From step times to what a user sees: time to the first token, time between tokens, tokens a second.

Model of a replica in steady state with B requests in flight (Orca, 2022,
https://www.usenix.org/conference/osdi22/presentation/yu; chunks as in Sarathi-Serve, 2024,
https://arxiv.org/abs/2403.02310). A request brings a prompt, cut in chunks that share steps with decoding requests,
and then lives through R = (osl - 1) / E decode steps, a step yielding E tokens (1 without speculation). Per request
the replica runs P mixed steps, D requests decoding beside the chunk, and G plain steps of all B:

    P · D + G · B = R,   D = min(B − n, R / P) with n prompts in a mixed step,
    requests a second = 1 / (P · t_mixed + G · t_plain)

When P mixed steps alone cover R, there is no plain step and fewer than B decode at once: the load is bound by
prompts, and by Little's law the others wait for their first token. With pp pipeline stages, min(pp, B)
micro-batches run side by side; each passes every stage, so its step takes the time of a whole step of its share of
the batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from builder.planner.speculation import NONE, Speculating
from builder.planner.speed.roofline import Engine, Times
from builder.planner.speed.step import decode_part, decode_step, mixed_step, prefill_part, prefill_step

#: share of a request's tokens in mixed steps from which the 99th percentile is one of theirs: a fifth of a per cent
#: on average, because prompts come in bursts and the percentile has to hold in the busy minutes
_TAIL = 0.002
#: index of the typical variant
TYPICAL = 1


@dataclass(frozen=True)
class Load:
    """What a replica serves: mean prompt and answer, and the prompt tokens that the prefix cache holds already."""

    isl: float
    osl: float
    cached_prefix: float = 0.0

    @property
    def new_tokens(self) -> float:
        """Prompt tokens that are computed (the last one always is)."""
        return max(1.0, self.isl - self.cached_prefix)

    @property
    def context(self) -> float:
        """Mean context of a decoding request: its prompt and half of its answer."""
        return self.isl + self.osl / 2


@dataclass(frozen=True)
class Served:
    """A replica at every batch: arrays [3, B] over slow, typical, fast and the batches; seconds, tokens a second.

    ``ttft`` is the mean time from entering the replica to the first token: the prompt's chunks, and the wait where
    prompts bind (a step that runs already comes on top); ``itl`` is the mean time a token;
    ``gap`` the 99th percentile of the time between two steps of a request: with speculation several tokens arrive
    at once. ``requests`` a second; ``input`` and ``output`` tokens a second; ``input_share`` of the time that the
    prompts cost beyond the decoding beside them. ``plain`` and ``mixed`` are the times of the two kinds of step.
    """

    ttft: Times
    itl: Times
    gap: Times
    requests: Times
    input: Times
    output: Times
    input_share: Times
    plain: Times
    mixed: Times


def prefill_time(engine: Engine, tokens: Any, *, cached: Any = 0, requests: Any = 1) -> Times:
    """Seconds [3, …] of a step of prompts alone: the time to the first token of an idle replica."""
    return engine.time(prefill_step(requests, tokens, cached)).total


def decode_time(
    engine: Engine, requests: Any, context: Any, speculating: Speculating = NONE, draft: Engine | None = None
) -> Times:
    """Seconds [3, …] of one decode step of ``requests``: verification and the drafts before it.

    The draft's passes are timed on ``draft`` where its shapes are known, else as ``draft_cost`` plain steps each.
    """
    step = decode_step(requests, context, speculating.verified_tokens)
    return engine.time(step).total + drafting_time(engine, requests, context, speculating, draft)


def drafting_time(
    engine: Engine, requests: Any, context: Any, speculating: Speculating, draft: Engine | None = None
) -> Times:
    """Seconds [3, …] of all draft passes of a round; 0 where drafts cost nothing."""
    if not speculating.draft_steps:
        return np.zeros((3, *np.shape(requests)))
    if draft is not None:
        return speculating.draft_steps * draft.time(decode_step(requests, context)).total
    if not speculating.draft_cost:
        return np.zeros((3, *np.shape(requests)))
    return speculating.draft_steps * speculating.draft_cost * engine.time(decode_step(requests, context)).total


def steady_state(
    engine: Engine,
    load: Load,
    batches: Any,
    *,
    max_num_tokens: int,
    speculating: Speculating = NONE,
    draft: Engine | None = None,
) -> Served:
    """The replica with ``batches`` requests in flight (an array [B]).

    Args:
        max_num_tokens: tokens of one step; decoding requests take theirs before prompts do.
        speculating: drafts; a decode step verifies ``verified_tokens`` a request. The slow variant goes with the
            low acceptance, the fast one with the high one.
        draft: the draft model's engine, where its shapes are known.
    """
    batch = np.atleast_1d(np.asarray(batches, dtype=np.float64))
    low, high = speculating.tokens_a_round
    yields = sorted({low, (low + high) / 2, high})
    solved = _solve(engine, load, batch, max_num_tokens, speculating, np.array(yields)[:, None], draft)
    rows = [yields.index(wanted) for wanted in (low, (low + high) / 2, high)]
    variants = range(len(rows))
    return Served(**{item.name: getattr(solved, item.name)[variants, rows] for item in fields(Served)})


def _solve(
    engine: Engine,
    load: Load,
    batch: npt.NDArray[np.float64],
    max_num_tokens: int,
    speculating: Speculating,
    yielded: npt.NDArray[np.float64],
    draft: Engine | None,
) -> Served:
    """:func:`steady_state` for numbers of tokens a step, [Y, 1]; every field is [3, Y, B]."""
    micro = np.minimum(float(engine.parallel.pp), batch)
    local = np.broadcast_to(batch / micro, (len(yielded), len(batch)))
    rounds = max(load.osl - 1, 0.0) / yielded
    budget = np.maximum(max_num_tokens - local * speculating.verified_tokens, 1.0)
    chunks = np.ceil(load.new_tokens / budget)
    # several whole prompts share a step only when that many requests end in one
    together = np.clip(local / np.maximum(rounds, 1e-9), 1.0, np.maximum(np.floor(budget / load.new_tokens), 1.0))
    together = np.minimum(together, local)
    mixed_steps = chunks / together
    by_prompts = rounds / mixed_steps <= local - together
    beside = np.where(by_prompts, rounds / mixed_steps, local - together)
    plain_steps = np.where(by_prompts, 0.0, (rounds - mixed_steps * beside) / local)

    chunk = load.new_tokens / chunks
    behind = load.cached_prefix + (load.new_tokens - chunk) / 2
    # a step's time costs the same for one batch and for a hundred: all of them, and those beside a chunk, at once
    both = np.stack([local, beside])
    drafts = drafting_time(engine, both, load.context, speculating, draft)
    steps = engine.time(decode_step(both, load.context, speculating.verified_tokens)).total + drafts
    plain, alone = steps[:, 0], np.where(beside > 0, steps[:, 1], 0.0)
    mixing = mixed_step(
        prefill_part(together, chunk, behind), decode_part(beside, load.context, speculating.verified_tokens)
    )
    mixed = engine.time(mixing).total + drafts[:, 1] * (beside > 0)

    spent = mixed_steps * mixed + plain_steps * plain
    in_mixed, in_plain = mixed_steps * beside, plain_steps * local
    lived = np.maximum(in_mixed + in_plain, 1e-12)
    mean = np.where(rounds > 0, (in_mixed * mixed + in_plain * plain) / lived, plain)
    requests = micro / spent
    # when every step is mixed a request stays for B · P of them; what its chunks and answer do not fill is waiting
    waiting = np.where(by_prompts, np.maximum(local * mixed_steps - rounds - chunks, 0.0), 0.0)
    return Served(
        ttft=(chunks + waiting) * mixed,
        itl=mean / yielded,
        gap=np.where(in_mixed / lived > _TAIL, mixed, plain),
        requests=requests,
        input=requests * load.isl,
        output=requests * load.osl,
        input_share=np.clip(mixed_steps * (mixed - alone) / spent, 0.0, 1.0),
        plain=plain,
        mixed=mixed,
    )


def knee(batches: Any, served: Served, levels: Mapping[str, float] | None = None) -> int | None:
    """The batch with most tokens a second for the time between tokens, or None at the end of the batches.

    That ratio is a queue's "power" (L. Kleinrock, "Power and deterministic rules of thumb for probabilistic problems
    in computer communications", 1979); at its maximum a system is loaded well: less leaves throughput, more buys little
    of it with delay. Typical variant; only batches that meet ``levels`` (``ttft_p99``, ``itl_p99``, seconds) count.
    """
    limits, most = levels or {}, float("inf")
    first = served.ttft[TYPICAL] + served.gap[TYPICAL]
    good = (first <= limits.get("ttft_p99", most)) & (served.gap[TYPICAL] <= limits.get("itl_p99", most))
    power = np.where(good, served.output[TYPICAL] / served.itl[TYPICAL], 0.0)
    best = int(power.argmax())
    return None if best == len(power) - 1 or not good.any() else int(np.atleast_1d(batches)[best])
