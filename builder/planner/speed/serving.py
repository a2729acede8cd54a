"""From step times to what a user sees: time to the first token, time between tokens, tokens a second.

Model of a replica in steady state (Orca, 2022, https://www.usenix.org/conference/osdi22/presentation/yu; chunks as
in Sarathi-Serve, 2024, https://arxiv.org/abs/2403.02310): every request brings a prompt of ``isl`` tokens in chunks
that share steps with decoding ones, then ``osl - 1`` further tokens. A request that ends makes room for the next,
so per request there are P = isl / chunk mixed steps and G = max(0, (osl − 1) / (B · E) − P) plain ones, where B
requests decode and a step yields E tokens each; when P alone covers the decode steps, fewer than B decode at once.

With pipeline stages the batch runs as pp micro-batches side by side: a token still passes every stage, while each
stage works on B / pp requests, so one round of all of them takes the time of a whole step of B / pp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from builder.planner.speculation import NONE, Speculating
from builder.planner.speed.roofline import Engine, StepTime, Times
from builder.planner.speed.step import decode_part, decode_step, mixed_step, prefill_part, prefill_step

#: of a mean answer, the part that stands in the cache on average while it grows
_HALF = 0.5


@dataclass(frozen=True)
class Load:
    """What the replica serves: mean prompt and answer, and prompt tokens that the prefix cache holds already."""

    isl: float
    osl: float
    cached_prefix: float = 0.0

    @property
    def new_tokens(self) -> float:
        """Prompt tokens that are computed."""
        return max(1.0, self.isl - self.cached_prefix)

    @property
    def context(self) -> float:
        """Mean context of a decoding request."""
        return self.isl + _HALF * self.osl


@dataclass(frozen=True)
class Served:
    """A replica at given batches, arrays [3, B] over slow, typical, fast and the batches; seconds and tokens a second.

    ``ttft`` of a prompt that finds a free slot; ``itl`` mean and ``itl_mixed`` of a step that carries a chunk (what
    the slowest tokens see); ``mixed_share`` of all steps; ``requests`` a second; ``input`` and ``output`` tokens a
    second of the replica; ``input_share`` of the time that the prompts cost.
    """

    batches: Times
    ttft: Times
    itl: Times
    itl_mixed: Times
    mixed_share: Times
    requests: Times
    input: Times
    output: Times
    input_share: Times
    tokens_a_step: Times

    def itl_percentile(self, share: float = 0.99) -> Times:
        """Time between tokens that ``share`` of the steps stay below: a mixed step's where they are that frequent."""
        plain = np.where(self.mixed_share < 1, self.itl_plain, self.itl_mixed)
        return np.where(self.mixed_share > 1 - share, self.itl_mixed, plain)

    @property
    def itl_plain(self) -> Times:
        """Time between tokens in a step without a chunk."""
        mixed = np.minimum(self.mixed_share, 1 - 1e-12)
        return (self.itl - mixed * self.itl_mixed) / (1 - mixed)


def steady_state(
    engine: Engine,
    load: Load,
    batches: Any,
    *,
    max_num_tokens: int,
    speculating: Speculating = NONE,
) -> Served:
    """The replica at every batch of ``batches`` (requests in flight).

    Args:
        max_num_tokens: tokens of one step; decoding requests take theirs first.
        speculating: drafts; every decode step verifies ``verified_tokens`` a request.
    """
    batch = np.atleast_1d(np.asarray(batches, dtype=np.float64))
    stages = engine.parallel.pp
    verified = speculating.verified_tokens
    accepted = np.array([speculating.tokens_a_round[0], 0.0, speculating.tokens_a_round[1]])
    accepted[1] = (accepted[0] + accepted[2]) / 2
    tokens = accepted.reshape(3, 1)
    local = np.maximum(batch / stages, 1.0)

    chunk = np.maximum(np.minimum(load.new_tokens, max_num_tokens - local * verified), 1.0)
    prompts = np.maximum(1.0, np.floor((max_num_tokens - local * verified) / load.new_tokens))
    # never more prompts in a step than requests there are
    prompts = np.minimum(prompts, local)
    packed = np.where(chunk >= load.new_tokens, prompts, 1.0)
    chunks = load.new_tokens / (chunk * packed)  # P: mixed steps a request
    behind = load.cached_prefix + np.maximum(load.new_tokens - chunk, 0) / 2

    decoding = np.maximum(local - packed * (chunks * tokens * 0 + 1), 0.0)
    rounds = (load.osl - 1) / tokens  # decode steps that a request lives through
    full = np.where(local > 0, rounds / np.maximum(local, 1e-9), 0.0)
    plain_steps = np.maximum(full - chunks, 0.0)  # G
    beside = np.minimum(rounds / chunks, np.maximum(decoding, 0.0))

    plain = _decode_time(engine, local, load.context, speculating)
    mixed_steps = _mixed_time(engine, chunk, packed, behind, beside, load.context, speculating)
    round_time = chunks * mixed_steps + plain_steps * plain
    requests = stages / round_time
    steps = chunks + plain_steps
    share = chunks / steps
    mean_step = round_time / steps
    whole = np.maximum(np.ceil(load.new_tokens / chunk), 1.0)
    first = _mixed_time(engine, chunk, 1.0 + 0 * chunk, behind, beside, load.context, speculating)
    overlap = (whole + stages - 1) / (whole * stages)  # chunks follow each other through the stages
    ttft = whole * first * np.minimum(overlap * stages, 1.0) if stages == 1 else whole * first * overlap
    extra = np.maximum(mixed_steps - plain, 0.0) * chunks
    return Served(
        batches=batch,
        ttft=ttft,
        itl=mean_step / tokens,
        itl_mixed=mixed_steps / tokens,
        mixed_share=share,
        requests=requests,
        input=requests * load.isl,
        output=requests * load.osl,
        input_share=extra / round_time,
        tokens_a_step=np.broadcast_to(tokens, mean_step.shape),
    )
