"""Tokens from logits for a whole batch.

Policy: greedy rows (the common case) cost one maximum over [L, V] for all of them together. The others are
processed together, row-wise only, so that a row's result depends on its own logits and state and never on
its neighbours. Order of processing: bias, penalties, bans (min_tokens, token sequences, grammar), temperature,
min_p, top_k, top_p (as vLLM orders them), choice by inverse distribution function with the row's own uniform
number, and last the text-level bad words (a token that would complete one is struck out and the choice
repeated).

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

#: Candidates that a truncated row is searched among, in turn, before it is sorted in full. Which of them
#: settles a row depends on that row alone, so the order of tied logits cannot depend on the batch.
CANDIDATES = (64, 1024)
#: Weights summed before the exact search: bounds the float64 work of a draw over the whole vocabulary.
CHUNK = 256
#: Columns of one maximum in the greedy search.
ARGMAX_CHUNK = 64
#: Strikes against text-level bad words before the row gives up.
MAX_STRIKES = 512
#: Lower bound of a temperature in arithmetic; below, division overflows float32.
MIN_TEMPERATURE = 1e-30

NO_TOKEN = -1
_INF = float("inf")


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


class Sampler:
    """Chooses tokens for batches; keeps work buffers: fresh pages for 32 x 50,000 logits cost more than the math.

    One instance per stepping thread.
    """

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    @torch.inference_mode()
    def sample(self, logits: Any, states: Sequence[SamplingState], rows: Sequence[int] | None = None) -> Sampled:
        """Choose one token per row of ``logits`` float32 [L, V], which are not changed; one state per row.

        Args:
            rows: of the logits, one a state; None: all of them in order.
        """
        x_LV = as_tensor(logits)
        if rows is not None and (len(rows) != x_LV.shape[0] or any(at != row for at, row in enumerate(rows))):
            at = torch.tensor(rows, dtype=torch.int64, device=x_LV.device)
            x_LV = torch.index_select(x_LV, 0, at, out=self._buffer("picked", x_LV, len(rows)))
        if x_LV.shape[0] != len(states):
            raise ValueError(f"{x_LV.shape[0]} rows of logits for {len(states)} sequences")
        if not states:
            return Sampled([])
        result = Sampled([NO_TOKEN] * len(states))
        special = [row for row, state in enumerate(states) if not state.direct]
        if len(special) < len(states):
            values, indices = _argmax(x_LV)
            tokens = indices.tolist()
            # The maximum propagates NaN, so one look at L values checks all of L x V.
            finite = torch.isfinite(values)
            if not bool(finite.all()):
                tokens = [token if ok else NO_TOKEN for token, ok in zip(tokens, finite.tolist(), strict=True)]
            result.tokens = tokens
            # Bans change a greedy row only when they hit its likeliest token.
            for row, state in enumerate(states):
                if state.direct and tokens[row] != NO_TOKEN and state.vetoes(tokens[row]):
                    special.append(row)
            special.sort()  # when all are special their rows are taken as they lie
        if special:
            self._special(x_LV, special, [states[row] for row in special], result)
        return result

    def _buffer(self, name: str, like: torch.Tensor, rows: int) -> torch.Tensor:
        found = self._buffers.get(name)
        if found is None or found.shape[0] < rows or found.shape[1] != like.shape[1] or found.device != like.device:
            found = torch.empty((rows, like.shape[1]), dtype=torch.float32, device=like.device)
            self._buffers[name] = found
        return found[:rows]

    def _rows(self, name: str, x: torch.Tensor, rows: list[int]) -> torch.Tensor:
        """The given rows of ``x``: itself when they are all, else a copy in a buffer."""
        if len(rows) == x.shape[0]:
            return x
        at = torch.tensor(rows, device=x.device)
        return torch.index_select(x, 0, at, out=self._buffer(name, x, len(rows)))

    def _special(self, x_LV: torch.Tensor, rows: list[int], states: list[SamplingState], result: Sampled) -> None:
        x_RV = self._rows("logits", x_LV, rows)
        # +inf is as wrong as NaN, while -inf is how models mask padded vocabulary.
        values, _ = best = _argmax(x_RV)
        broken = (~torch.isfinite(values)).tolist()
        bans = [state.banned() for state in states]
        if any(bans) or any(s.penalized or s.guided is not None or s.bias is not None for s in states):
            if x_RV is x_LV:
                x_RV = self._buffer("logits", x_LV, len(rows)).copy_(x_LV)
            _add_bias(x_RV, states)
            _penalize(x_RV, states)
            _ban(x_RV, states, bans)
            best = _argmax(x_RV)
        chosen = self._choose(x_RV, best, states)
        tokens = [NO_TOKEN if bad else token for bad, token in zip(broken, chosen, strict=True)]
        struck: dict[int, torch.Tensor] = {}
        for r, state in enumerate(states):
            if state.completes_bad_word is not None and tokens[r] != NO_TOKEN and state.completes_bad_word(tokens[r]):
                struck[r] = x_RV[r : r + 1].clone()
                tokens[r] = self._strike_bad_words(struck[r], state, tokens[r])
        for row, token in zip(rows, tokens, strict=True):
            result.tokens[row] = token
        told = [r for r, s in enumerate(states) if s.params.logprobs is not None and tokens[r] != NO_TOKEN]
        raw = [r for r in told if states[r].params.logprobs_mode == "raw"]
        if raw:
            counts = [states[r].params.logprobs or 0 for r in raw]
            rows_V = self._rows("raw", x_LV, [rows[r] for r in raw])
            found = self._log_probabilities(rows_V, [tokens[r] for r in raw], counts)
            result.logprobs.update(zip((rows[r] for r in raw), found, strict=True))
        for r in told:
            if states[r].params.logprobs_mode == "processed":
                x_1V = struck.get(r, x_RV[r : r + 1])
                result.logprobs[rows[r]] = self._processed(x_1V, states[r], tokens[r])

    def _choose(
        self, x_RV: torch.Tensor, best: tuple[torch.Tensor, torch.Tensor], states: list[SamplingState]
    ) -> list[int]:
        """One token per processed row with maxima ``best``; -1 where every token is banned."""
        values, indices = best
        tokens: list[int] = indices.tolist()
        possible = (~torch.isneginf(values)).tolist()
        whole = [r for r, s in enumerate(states) if not s.greedy and not s.truncated and possible[r]]
        narrow = [r for r, s in enumerate(states) if not s.greedy and s.truncated and possible[r]]
        if whole:
            picked = [states[r] for r in whole]
            weight = self._weights(self._rows("whole", x_RV, whole), values[whole], picked)
            for r, token in zip(whole, _draw(weight, picked).tolist(), strict=True):
                tokens[r] = token
        if narrow:
            picked = [states[r] for r in narrow]
            ids, weight = self._truncate(self._rows("narrow", x_RV, narrow), picked)
            at = _draw(weight, picked)
            for r, token in zip(narrow, ids.gather(-1, at[:, None])[:, 0].tolist(), strict=True):
                tokens[r] = token
        return [token if ok else NO_TOKEN for token, ok in zip(tokens, possible, strict=True)]

    def _weights(self, x: torch.Tensor, top: torch.Tensor, states: list[SamplingState]) -> torch.Tensor:
        """Unnormalized probabilities exp((x - top) / temperature) [R, V] in the work buffer, at most 1."""
        out = self._buffer("weights", x, x.shape[0])
        return _scale(torch.sub(x, top[:, None], out=out), states).exp_()

    def _truncate(self, x_RV: torch.Tensor, states: list[SamplingState]) -> tuple[torch.Tensor, torch.Tensor]:
        """Candidates (ids, weights) of truncated rows, likeliest first; dropped candidates have weight 0."""
        width = x_RV.shape[-1]
        levels = [*(level for level in CANDIDATES if level < width), width]
        open_rows = list(range(len(states)))
        parts: list[tuple[list[int], torch.Tensor, torch.Tensor]] = []
        for level in levels:
            x, picked = self._rows("open", x_RV, open_rows), [states[r] for r in open_rows]
            if level < width:
                values, ids = torch.topk(x, level, dim=-1)
            else:
                values, ids = torch.sort(x, dim=-1, descending=True, stable=True)
            weight, settled = self._keep(x, values, picked)
            done = [i for i, ok in enumerate(settled) if ok]
            if done:
                parts.append(([open_rows[i] for i in done], ids[done], weight[done]))
            open_rows = [r for r, ok in zip(open_rows, settled, strict=True) if not ok]
            if not open_rows:
                break
        if len(parts) == 1:
            return parts[0][1], parts[0][2]
        most = max(ids.shape[-1] for _, ids, _ in parts)
        all_ids = torch.zeros((len(states), most), dtype=torch.int64, device=x_RV.device)
        all_weight = torch.zeros((len(states), most), dtype=torch.float64, device=x_RV.device)
        for rows, ids, weight in parts:
            all_ids[rows, : ids.shape[-1]] = ids
            all_weight[rows, : weight.shape[-1]] = weight
        return all_ids, all_weight

    def _keep(
        self, x_RV: torch.Tensor, values: torch.Tensor, states: list[SamplingState]
    ) -> tuple[torch.Tensor, list[bool]]:
        """Weights after min_p, top_k and top_p over sorted ``values`` [R, C], and whether C candidates were enough."""
        width, candidates = x_RV.shape[-1], values.shape[-1]
        device = x_RV.device
        top_k = torch.tensor([min(s.params.top_k or width, width) for s in states], device=device)
        top_p = _column([s.params.top_p for s in states], torch.float64, device)
        min_p = _column([s.params.min_p for s in states], torch.float64, device)
        weight = _scale(values.double() - values[:, :1].double(), states).exp_()
        likely = weight >= min_p
        ranked = torch.arange(candidates, device=device)[None, :] < top_k[:, None]
        weight = weight * (likely & ranked)
        # Beyond the candidates nothing is kept when top_k or min_p already cut inside them.
        closed = (top_k <= candidates) | ~likely[:, -1]
        if candidates == width:
            closed = torch.ones_like(closed)
        total = _row_sums(weight)
        beyond = (~closed).nonzero()[:, 0].tolist()
        if beyond:
            # top_p's share is of everything kept so far, also of what lies beyond the candidates.
            picked = [states[r] for r in beyond]
            everything = self._weights(self._rows("beyond", x_RV, beyond), values[beyond, 0], picked)
            if any(state.params.min_p > 0 for state in picked):
                everything *= everything >= min_p[beyond]
            total[beyond] = _row_sums(everything)
        before = weight.cumsum(dim=-1) - weight
        limit = torch.where(top_p < 1.0, top_p * total, torch.full_like(total, torch.inf))
        # A top_k past the candidates leaves even top_p's total unknown.
        unknown = (top_k > candidates) & (top_k < width)
        settled = closed | ((before[:, -1:] >= limit)[:, 0] & ~unknown)
        weight = weight * (before < limit)
        return weight, settled.tolist()

    def _strike_bad_words(self, x_1V: torch.Tensor, state: SamplingState, token: int) -> int:
        """Strike out tokens that complete a forbidden text until one does not; -1 after MAX_STRIKES."""
        assert state.completes_bad_word is not None
        for _ in range(MAX_STRIKES):
            if token == NO_TOKEN or not state.completes_bad_word(token):
                return token
            x_1V[0, token] = -torch.inf
            token = self._choose(x_1V, _argmax(x_1V), [state])[0]
        return NO_TOKEN

    def _log_probabilities(self, x_RV: torch.Tensor, chosen: list[int], counts: list[int]) -> list[TokenLogprobs]:
        """Log-softmax of rows at the chosen tokens and at the ``counts`` likeliest."""
        top = x_RV.amax(dim=-1, keepdim=True)
        weight = torch.sub(x_RV, top, out=self._buffer("weights", x_RV, x_RV.shape[0])).exp_()
        norm = _row_sums(weight).log() + top.double()
        own = (x_RV.gather(-1, torch.tensor(chosen, device=x_RV.device)[:, None]).double() - norm)[:, 0].tolist()
        most = min(max(counts), x_RV.shape[-1])
        if most == 0:
            return [TokenLogprobs(token, logprob) for token, logprob in zip(chosen, own, strict=True)]
        best = torch.topk(x_RV, most, dim=-1)
        ids, values = best.indices.tolist(), (best.values.double() - norm).tolist()
        return [
            TokenLogprobs(
                token, own[r], tuple((t, v) for t, v in zip(ids[r], values[r], strict=True) if v > -_INF)[:count]
            )
            for r, (token, count) in enumerate(zip(chosen, counts, strict=True))
        ]

    def _processed(self, x_1V: torch.Tensor, state: SamplingState, token: int) -> TokenLogprobs:
        """Log-probabilities of what the token was drawn from."""
        if state.greedy or not state.truncated:
            scaled = x_1V / max(state.temperature, MIN_TEMPERATURE)
        else:
            ids, weight = self._truncate(x_1V, [state])
            scaled = torch.full_like(x_1V, -torch.inf)
            scaled[0, ids[0]] = weight[0].log().float()
        return self._log_probabilities(scaled, [token], [state.params.logprobs or 0])[0]


def _add_bias(x_RV: torch.Tensor, states: list[SamplingState]) -> None:
    for r, state in enumerate(states):
        if state.bias is not None:
            tokens, values = (torch.from_numpy(array).to(x_RV.device) for array in state.bias)
            x_RV[r].index_add_(0, tokens, values.to(x_RV.dtype))


def _penalize(x_RV: torch.Tensor, states: list[SamplingState]) -> None:
    """Repetition, presence and frequency penalties, all rows in one gather and one scatter."""
    penalized = [(r, state, *state.seen()) for r, state in enumerate(states) if state.penalized]
    lengths = [len(tokens) for _, _, tokens, _ in penalized]
    if not sum(lengths):
        return
    device = x_RV.device
    rows = np.repeat([r for r, _, _, _ in penalized], lengths)
    settings = [
        (s.params.repetition_penalty, s.params.presence_penalty, s.params.frequency_penalty) for _, s, _, _ in penalized
    ]
    factors = torch.from_numpy(np.repeat(np.array(settings, dtype=np.float32), lengths, axis=0)).to(device)
    repetition, presence, frequency = factors.unbind(-1)
    at = (
        torch.from_numpy(rows).to(device),
        torch.from_numpy(np.concatenate([tokens for _, _, tokens, _ in penalized])).to(device),
    )
    count = torch.from_numpy(np.concatenate([counts for _, _, _, counts in penalized])).to(device)
    value = x_RV[at]
    value = torch.where(value > 0, value / repetition, value * repetition)
    x_RV[at] = value - presence * (count > 0) - frequency * count


def _ban(x_RV: torch.Tensor, states: list[SamplingState], bans: list[Sequence[int]]) -> None:
    width = x_RV.shape[-1]
    for r, state in enumerate(states):
        if bans[r]:
            at = torch.tensor([token for token in bans[r] if token < width], dtype=torch.int64, device=x_RV.device)
            x_RV[r, at] = -torch.inf
        if state.guided is not None:
            allowed = torch.from_numpy(state.guided.allowed(width)).to(x_RV.device)
            x_RV[r].masked_fill_(~allowed, -torch.inf)


def _scale(x: torch.Tensor, states: list[SamplingState]) -> torch.Tensor:
    """Divide rows by their temperature, in place."""
    if any(state.temperature != 1.0 for state in states):
        x /= _column([max(state.temperature, MIN_TEMPERATURE) for state in states], x.dtype, x.device)
    return x


def _column(values: list[float], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=device)[:, None]


def _row_sums(x: torch.Tensor) -> torch.Tensor:
    """Sum of each row, float64 [R, 1], in pieces: torch splits a single wide row's sum between its threads."""
    width = x.shape[-1]
    if width <= 4 * CHUNK:
        return x.sum(dim=-1, keepdim=True, dtype=torch.float64)
    return _piece_sums(x).sum(dim=-1, keepdim=True, dtype=torch.float64)


def _piece_sums(x: torch.Tensor) -> torch.Tensor:
    """Sums of every ``CHUNK`` columns [R, C], of at least that many; the last may be of fewer."""
    width = x.shape[-1]
    even = width - width % CHUNK
    sums = x[:, :even].unflatten(-1, (-1, CHUNK)).sum(dim=-1)
    return torch.cat([sums, x[:, even:].sum(dim=-1, keepdim=True)], dim=-1) if even < width else sums


def _draw(weight: torch.Tensor, states: list[SamplingState]) -> torch.Tensor:
    """Inverse of the distribution function: index of the first candidate whose cumulated weight passes u times all.

    Wide rows are searched in two levels, chunk sums first; cumulated sums are float64, since with float32
    the tail of 50,000 tokens would be rounded away.
    """
    u = _column([state.uniform() for state in states], torch.float64, weight.device)
    width = weight.shape[-1]
    if width <= 4 * CHUNK:
        return _search(weight, u)[0]
    chunk, share = _search(_piece_sums(weight), u)
    at = (chunk * CHUNK)[:, None] + torch.arange(CHUNK, device=weight.device)
    inside = weight.gather(-1, at.clamp(max=width - 1)) * (at < width)
    return chunk * CHUNK + _search(inside, share)[0]


def _search(weight: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Index [R] where cumulated weights pass ``u`` [R, 1] times their sum, and how far into it [R, 1], from 0 to 1."""
    cumulated = weight.cumsum(dim=-1, dtype=torch.float64)
    target = u * cumulated[:, -1:]
    at = torch.searchsorted(cumulated, target, right=True)
    # Rounding may put the target at the very end: take the last candidate that has weight.
    last = weight.shape[-1] - 1 - weight.flip(-1).gt(0).to(torch.uint8).argmax(dim=-1, keepdim=True)
    at = torch.minimum(at, last)
    own = weight.gather(-1, at).double()
    share = ((target - (cumulated.gather(-1, at) - own)) / own).clamp_(0.0, 1.0)
    return at[:, 0], share


def _argmax(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Maxima [R] and the first index [R] of each; NaN wins.

    torch's ``amax`` is vectorized and its ``argmax`` is not (ten times slower over 50,000 columns), so: the
    maximum of each chunk, the first chunk that holds the largest, the first place inside it.
    """
    width = x.shape[-1]
    even = width - width % ARGMAX_CHUNK
    if even < 4 * ARGMAX_CHUNK:
        best = x.max(dim=-1)
        return best.values, best.indices
    tops = x[:, :even].unflatten(-1, (-1, ARGMAX_CHUNK)).amax(dim=-1)
    if even < width:
        tops = torch.cat([tops, x[:, even:].amax(dim=-1, keepdim=True)], dim=-1)
    chunk = tops.max(dim=-1)
    at = (chunk.indices * ARGMAX_CHUNK)[:, None] + torch.arange(ARGMAX_CHUNK, device=x.device)
    # Past the end the last column is seen again: never a first place that is not one.
    inside = x.gather(-1, at.clamp_(max=width - 1)).argmax(dim=-1)
    return chunk.values, chunk.indices * ARGMAX_CHUNK + inside


def sample(logits: Any, states: Sequence[SamplingState]) -> Sampled:
    """:meth:`Sampler.sample` once, without keeping buffers."""
    return Sampler().sample(logits, states)
