"""Tokens from logits for a whole batch.

Policy: rows that want the plain argmax (the common case) cost one ``max`` over [L, V] and no Python per
row. The others are processed together, row-wise only, so that a row's result depends on its own logits
and state and never on its neighbours. Order of processing: penalties, bans (min_tokens, token
sequences, grammar), temperature, min_p, top_k, top_p (as vLLM orders them), choice by inverse
distribution function with the row's own uniform number, and last the text-level bad words (a token that
would complete one is struck out and the choice repeated).

Logits that are not numbers are a fault of the model or of a kernel: the row gets token -1 and the
engine ends that request with an error; the other rows are unaffected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from runtime.sampling.state import SamplingState

#: Most candidates a truncated row is searched among before it falls back to a full sort. A constant, so
#: that the order of tied logits cannot depend on the batch.
CANDIDATES = 1024
#: Strikes against text-level bad words before the row gives up.
MAX_STRIKES = 512

NO_TOKEN = -1


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probability of a chosen token and of the likeliest alternatives (token, logprob), best first."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(slots=True)
class Sampled:
    """Tokens [L] of one step (-1: no token could be chosen) and log-probabilities by row."""

    tokens: list[int]
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)


def as_tensor(logits: Any) -> torch.Tensor:
    """The executor's logits as a float32 tensor [L, V], shared where possible."""
    if isinstance(logits, torch.Tensor):
        return logits if logits.dtype == torch.float32 else logits.float()
    array = np.asarray(logits, dtype=np.float32)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


@torch.inference_mode()
def sample(logits: Any, states: Sequence[SamplingState]) -> Sampled:
    """Choose one token per row of ``logits`` float32 [L, V]; ``states`` holds one state per row."""
    x_LV = as_tensor(logits)
    if x_LV.shape[0] != len(states):
        raise ValueError(f"{x_LV.shape[0]} rows of logits for {len(states)} sequences")
    if not states:
        return Sampled([])
    special = [row for row, state in enumerate(states) if not state.plain]
    if len(special) == len(states):
        result = Sampled([NO_TOKEN] * len(states))
    else:
        best = x_LV.max(dim=-1)
        tokens = best.indices.tolist()
        # max propagates NaN, so one look at L values checks all of L x V.
        finite = torch.isfinite(best.values)
        if not bool(finite.all()):
            tokens = [t if ok else NO_TOKEN for t, ok in zip(tokens, finite.tolist(), strict=True)]
        result = Sampled(tokens)
    if special:
        _sample_special(x_LV, special, [states[row] for row in special], result)
    return result


def _sample_special(x_LV: torch.Tensor, rows: list[int], states: list[SamplingState], result: Sampled) -> None:
    raw_RV = x_LV[torch.tensor(rows, device=x_LV.device)]
    x_RV = raw_RV.clone()
    # max propagates NaN; +inf is as wrong, while -inf is how models mask padded vocabulary.
    broken = (~torch.isfinite(x_RV.max(dim=-1).values)).tolist()
    _penalize(x_RV, states)
    _ban(x_RV, states)
    warm = [r for r, state in enumerate(states) if state.temperature != 1.0]
    if warm:
        # Divided in float64 and by row: a tiny temperature must not overflow float32 into NaN.
        scale = torch.tensor([states[r].temperature for r in warm], dtype=torch.float64, device=x_RV.device)
        picked = x_RV[warm].double()
        picked = (picked - picked.max(dim=-1, keepdim=True).values) / scale[:, None]
        x_RV[warm] = (
            picked.clamp_(min=torch.finfo(torch.float32).min)
            .float()
            .masked_fill(torch.isneginf(x_RV[warm]), -torch.inf)
        )
    tokens = _choose(x_RV, states)
    for r, (row, state) in enumerate(zip(rows, states, strict=True)):
        token = NO_TOKEN if broken[r] else tokens[r]
        if token != NO_TOKEN and state.completes_bad_word is not None:
            token = _strike_bad_words(x_RV[r : r + 1], state, token)
        result.tokens[row] = token
        if token != NO_TOKEN and state.params.logprobs is not None:
            result.logprobs[row] = _logprobs(raw_RV[r], x_RV[r : r + 1], state, token)


def _penalize(x_RV: torch.Tensor, states: list[SamplingState]) -> None:
    """Repetition, presence and frequency penalties, all rows in one gather and one scatter."""
    rows: list[int] = []
    tokens: list[int] = []
    counts: list[int] = []
    factors: list[tuple[float, float, float]] = []
    for r, state in enumerate(states):
        if state.penalized:
            seen, seen_counts = state.seen()
            rows.extend([r] * len(seen))
            tokens.extend(seen)
            counts.extend(seen_counts)
            p = state.params
            factors.extend([(p.repetition_penalty, p.presence_penalty, p.frequency_penalty)] * len(seen))
    if not tokens:
        return
    device = x_RV.device
    at = (torch.tensor(rows, device=device), torch.tensor(tokens, device=device))
    count = torch.tensor(counts, dtype=torch.float32, device=device)
    repetition, presence, frequency = torch.tensor(factors, dtype=torch.float32, device=device).unbind(-1)
    value = x_RV[at]
    value = torch.where(value > 0, value / repetition, value * repetition)
    x_RV[at] = value - presence * (count > 0) - frequency * count


def _ban(x_RV: torch.Tensor, states: list[SamplingState]) -> None:
    width = x_RV.shape[-1]
    for r, state in enumerate(states):
        bans = [token for token in state.banned() if token < width]
        if bans:
            x_RV[r, torch.tensor(bans, device=x_RV.device)] = -torch.inf
        if state.guided is not None:
            allowed = torch.from_numpy(state.guided.allowed(width)).to(x_RV.device)
            x_RV[r].masked_fill_(~allowed, -torch.inf)


def _choose(x_RV: torch.Tensor, states: list[SamplingState]) -> list[int]:
    """One token per processed row; -1 where every token is banned."""
    best = x_RV.max(dim=-1)
    tokens: list[int] = best.indices.tolist()
    possible = (~torch.isneginf(best.values)).tolist()
    whole = [r for r, s in enumerate(states) if not s.greedy and not s.truncated and possible[r]]
    narrow = [r for r, s in enumerate(states) if not s.greedy and s.truncated and possible[r]]
    if whole:
        weight = _weights(x_RV[whole], best.values[whole])
        for r, token in zip(whole, _draw(weight, [states[r] for r in whole]).tolist(), strict=True):
            tokens[r] = token
    if narrow:
        ids, weight = _truncate(x_RV[narrow], [states[r] for r in narrow])
        at = _draw(weight, [states[r] for r in narrow])
        for r, token in zip(narrow, ids.gather(-1, at[:, None])[:, 0].tolist(), strict=True):
            tokens[r] = token
    return [token if ok else NO_TOKEN for token, ok in zip(tokens, possible, strict=True)]


def _weights(x: torch.Tensor, top: torch.Tensor) -> torch.Tensor:
    """Unnormalized probabilities in float64: with float32 sums over 50,000 tokens the tail would be rounded away."""
    return (x.double() - top.double()[:, None]).exp_()


def _draw(weight: torch.Tensor, states: list[SamplingState]) -> torch.Tensor:
    """Inverse of the distribution function: index of the first candidate whose cumulated weight passes u times all."""
    cumulated = weight.cumsum(dim=-1)
    u = torch.tensor([state.uniform() for state in states], dtype=torch.float64, device=weight.device)
    target = (u * cumulated[:, -1])[:, None]
    at = torch.searchsorted(cumulated, target, right=True)[:, 0]
    # Rounding may put the target at the very end: take the last candidate that has weight.
    last = weight.shape[-1] - 1 - weight.flip(-1).gt(0).to(torch.uint8).argmax(dim=-1)
    return torch.minimum(at, last)


def _truncate(x_RV: torch.Tensor, states: list[SamplingState]) -> tuple[torch.Tensor, torch.Tensor]:
    """Candidates (ids, weights) of truncated rows, likeliest first; dropped candidates have weight 0.

    Works on the CANDIDATES best tokens; a row whose kept set might reach further is sorted in full.
    """
    width = x_RV.shape[-1]
    few = min(CANDIDATES, width)
    values, ids = torch.topk(x_RV, few, dim=-1)
    weight, settled = _keep(x_RV, values, states)
    if few < width and not all(settled):
        open_rows = [r for r, done in enumerate(settled) if not done]
        all_values, all_ids = torch.sort(x_RV[open_rows], dim=-1, descending=True, stable=True)
        all_weight, _ = _keep(x_RV[open_rows], all_values, [states[r] for r in open_rows])
        ids = torch.nn.functional.pad(ids, (0, width - few))
        weight = torch.nn.functional.pad(weight, (0, width - few))
        ids[open_rows], weight[open_rows] = all_ids, all_weight
    return ids, weight


def _keep(x_RV: torch.Tensor, values: torch.Tensor, states: list[SamplingState]) -> tuple[torch.Tensor, list[bool]]:
    """Weights after min_p, top_k and top_p over sorted ``values`` [R, C], and whether C candidates were enough."""
    width, candidates = x_RV.shape[-1], values.shape[-1]
    device = x_RV.device
    top_k = torch.tensor([s.params.top_k if s.params.top_k > 0 else width for s in states], device=device)
    top_p = torch.tensor([s.params.top_p for s in states], dtype=torch.float64, device=device)
    min_p = torch.tensor([s.params.min_p for s in states], dtype=torch.float64, device=device)
    weight = _weights(values, values[:, 0])
    likely = weight >= min_p[:, None]
    ranked = torch.arange(candidates, device=device)[None, :] < top_k[:, None]
    weight = weight * (likely & ranked)
    # Beyond the candidates nothing is kept when top_k or min_p already cut inside them.
    closed = (top_k <= candidates) | ~likely[:, -1]
    if candidates == width:
        closed = torch.ones_like(closed)
    total = weight.sum(dim=-1)
    if not bool(closed.all()):
        # top_p's share is of everything kept so far, also of what lies beyond the candidates.
        everything = _weights(x_RV, values[:, 0])
        everything = (everything * (everything >= min_p[:, None])).sum(dim=-1)
        total = torch.where(closed, total, everything)
    before = weight.cumsum(dim=-1) - weight
    limit = torch.where(top_p < 1.0, top_p * total, torch.full_like(total, torch.inf))
    settled = closed | (before[:, -1] >= limit)
    weight = weight * (before < limit[:, None])
    return weight, settled.tolist()


def _strike_bad_words(x_1V: torch.Tensor, state: SamplingState, token: int) -> int:
    """Strike out tokens that complete a forbidden text until one does not; -1 after MAX_STRIKES."""
    assert state.completes_bad_word is not None
    for _ in range(MAX_STRIKES):
        if token == NO_TOKEN or not state.completes_bad_word(token):
            return token
        x_1V[0, token] = -torch.inf
        token = _choose(x_1V, [state])[0]
    return NO_TOKEN


def _logprobs(raw_V: torch.Tensor, x_1V: torch.Tensor, state: SamplingState, token: int) -> TokenLogprobs:
    count = state.params.logprobs or 0
    if state.params.logprobs_mode == "raw":
        log_V = torch.log_softmax(raw_V.double(), dim=-1)
    else:
        log_V = torch.log_softmax(x_1V[0].double(), dim=-1)
        if not state.greedy and state.truncated:
            ids, weight = _truncate(x_1V, [state])
            kept = (weight[0] / weight[0].sum()).log()
            log_V = torch.full_like(log_V, -torch.inf)
            log_V[ids[0][weight[0] > 0]] = kept[weight[0] > 0]
    top: tuple[tuple[int, float], ...] = ()
    if count:
        best = torch.topk(log_V, min(count, log_V.shape[-1]))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        top = tuple((t, p) for t, p in pairs if p > float("-inf"))
    return TokenLogprobs(token, float(log_V[token]), top)
