"""One step of an engine as the counts that its cost depends on: tokens, attended pairs, cache that is read.

Every field may be a number or a numpy array (all of one shape), so that thousands of steps are costed at once.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

Count = npt.NDArray[Any]


@dataclass(frozen=True)
class Part:
    """The prefill or the decode part of a step.

    ``tokens`` T new tokens; ``pairs`` the query-key pairs of full causal attention; ``cached`` the tokens of
    context whose keys and values are read (each once a request); ``requests`` how many; ``context`` the mean
    length that a query sees, which a sliding window cuts.
    """

    tokens: Count
    pairs: Count
    cached: Count
    requests: Count

    def windowed(self, window: int) -> tuple[Count, Count]:
        """Pairs and cached tokens under a sliding window of ``window`` tokens (0: as they are)."""
        if not window:
            return self.pairs, self.cached
        pairs = np.minimum(self.pairs, self.tokens * window)
        new = np.divide(self.tokens, np.maximum(self.requests, 1e-12))
        return pairs, np.minimum(self.cached, self.requests * (window + new))


@dataclass(frozen=True)
class Step:
    """A step with a prefill and a decode part (either may be empty); ``logits`` rows L pass the head."""

    prefill: Part
    decode: Part
    logits: Count

    @property
    def tokens(self) -> Count:
        """T, all tokens of the step."""
        return self.prefill.tokens + self.decode.tokens


def prefill_part(requests: Any, new: Any, cached: Any = 0) -> Part:
    """``requests`` prompts (or chunks) of ``new`` tokens behind ``cached`` ones that the cache holds already.

    Pairs of a chunk: new · cached + new · (new + 1) / 2.
    """
    b, n, c = np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in (requests, new, cached)))
    return Part(b * n, b * (n * c + n * (n + 1) / 2), b * (n + c), b * np.ones_like(n))


def decode_part(requests: Any, context: Any, tokens: Any = 1) -> Part:
    """``requests`` in decode with ``context`` tokens each (the new ones included), ``tokens`` new ones a request.

    More than one new token is the verification of drafts: the cache is read once for all of them.
    """
    b, s, t = np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in (requests, context, tokens)))
    pairs = b * (t * np.maximum(s - t, 0) + t * (t + 1) / 2)
    return Part(b * t, pairs, b * s, b * np.ones_like(s))


def prefill_step(requests: Any, new: Any, cached: Any = 0) -> Step:
    """A step of prompts only; each gives one row of logits."""
    return mixed_step(prefill_part(requests, new, cached), decode_part(0, 0))


def decode_step(requests: Any, context: Any, tokens: Any = 1) -> Step:
    """A step of decoding only; every new token gives a row of logits."""
    return mixed_step(prefill_part(0, 0), decode_part(requests, context, tokens))


def mixed_step(prefill: Part, decode: Part) -> Step:
    """Chunks of prompts beside decoding requests (Sarathi-Serve, 2024, https://arxiv.org/abs/2403.02310)."""
    shape = np.broadcast_shapes(prefill.tokens.shape, decode.tokens.shape)
    first, second = (_shaped(part, shape) for part in (prefill, decode))
    return Step(first, second, first.requests + second.tokens)


def _shaped(part: Part, shape: tuple[int, ...]) -> Part:
    return Part(*(np.broadcast_to(getattr(part, item.name), shape) for item in fields(Part)))
