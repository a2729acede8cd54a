"""What sampling must remember of one sequence between steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from runtime.sampling.params import SamplingParams
from runtime.sampling.random import uniform

if TYPE_CHECKING:
    from runtime.sampling.guided import GuidedState

#: distinct generated tokens that a new state has room for
_ROOM = 64


class SamplingState:
    """Counts, bans and random stream of one sequence. Survives preemption: it depends on tokens only.

    Args:
        params: validated parameters.
        seed: the seed in force (``params.seed`` or the engine's draw).
        sample: index among the request's parallel samples.
        prompt: prompt tokens, int64 [n].
        end_ids: tokens that end the request (end of sequence unless ignored, and stop tokens).
        completes_bad_word: whether a token would complete a forbidden text, or None.
        guided: grammar state, or None.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        seed: int,
        sample: int,
        prompt: npt.NDArray[np.int64],
        end_ids: frozenset[int],
        completes_bad_word: Callable[[int], bool] | None = None,
        guided: GuidedState | None = None,
    ) -> None:
        self.params = params
        self.seed = seed
        self.sample = sample
        self.prompt = prompt
        self.end_ids = end_ids
        self.generated: list[int] = []
        self.completes_bad_word = completes_bad_word
        self.guided = guided
        self.greedy = params.greedy
        self.temperature = 1.0 if self.greedy else params.effective_temperature
        self.truncated = params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0
        self._single_bans = [s[0] for s in params.bad_token_sequences if len(s) == 1]
        self.bad_sequences = [s for s in params.bad_token_sequences if len(s) > 1]
        self.penalized = (
            params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        )
        seen = np.unique(prompt) if params.repetition_penalty != 1.0 else np.zeros(0, dtype=np.int64)
        # grows with what is generated: max_tokens is the client's word, and may be in the billions
        self._seen = np.zeros(len(seen) + (_ROOM if self.penalized else 0), dtype=np.int64)
        self._seen[: len(seen)] = seen
        self._seen_counts = np.zeros(len(self._seen), dtype=np.float32)
        self._seen_index = {token: at for at, token in enumerate(seen.tolist())} if self.penalized else {}
        self._stop_sequences = params.stop_token_sequences
        #: tokens int64 [n] and what is added to their logits float32 [n]; None: nothing is
        self.bias: tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]] | None = None
        if params.logit_bias:
            tokens, values = zip(*params.logit_bias, strict=True)
            self.bias = np.array(tokens, dtype=np.int64), np.array(values, dtype=np.float32)
        #: the likeliest token of the raw logits is the answer, unless :meth:`vetoes` says no
        self.direct = (
            self.greedy and not self.penalized and guided is None and params.logprobs is None and self.bias is None
        )
        self._guarded = bool(params.bad_token_sequences or params.min_tokens or completes_bad_word is not None)
        #: the likeliest token of the raw logits is the answer, whatever it is
        self.plain = self.direct and not self._guarded
        #: several tokens can be taken at once: nothing but end tokens, stop texts and lengths ends the sequence
        self.takes_runs = self.plain and not self._stop_sequences

    def fork(
        self, sample: int, *, completes_bad_word: Callable[[int], bool] | None, guided: GuidedState | None
    ) -> SamplingState:
        """The state of another sample of the same prompt; only valid before anything was generated."""
        if self.generated:
            raise RuntimeError("samples fork before their first token")
        return SamplingState(
            self.params,
            seed=self.seed,
            sample=sample,
            prompt=self.prompt,
            end_ids=self.end_ids,
            completes_bad_word=completes_bad_word,
            guided=guided,
        )

    def vetoes(self, token: int) -> bool:
        """Whether a ban forbids ``token`` next."""
        if not self._guarded:
            return False
        completes = self.completes_bad_word
        return token in self.banned() or (completes is not None and completes(token))

    def uniform(self) -> float:
        """The number in [0, 1) that decides the next token."""
        return uniform(self.seed, self.sample, len(self.generated))

    def observe(self, token: int) -> None:
        self.generated.append(token)
        if self.penalized:
            self._count(token)

    def stopped(self) -> bool:
        """Whether the newest tokens complete a stop sequence; none counts before ``min_tokens``."""
        if not self._stop_sequences or len(self.generated) < self.params.min_tokens:
            return False
        return any(tuple(self.generated[-len(s) :]) == s for s in self._stop_sequences)

    def seen(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Tokens under a penalty and how often each occurs in the output (0: prompt only)."""
        count = len(self._seen_index)
        return self._seen[:count], self._seen_counts[:count]

    def cornered(self, width: int) -> bool:
        """Whether the grammar's tokens are all banned: what the client asked for contradicts itself.

        Args:
            width: tokens of the vocabulary.
        """
        if self.guided is None:
            return False
        banned, completes = frozenset(self.banned()), self.completes_bad_word
        return all(
            token in banned or (completes is not None and completes(token))
            for token in np.flatnonzero(self.guided.allowed(width)).tolist()
        )

    def banned(self) -> Sequence[int]:
        """Tokens that must not come next, by min_tokens and by token sequences."""
        bans = list(self._single_bans)
        if len(self.generated) < self.params.min_tokens:
            bans.extend(self.end_ids)
        for sequence in self.bad_sequences:
            head = len(sequence) - 1
            if len(self.generated) >= head and tuple(self.generated[-head:]) == sequence[:-1]:
                bans.append(sequence[-1])
        return bans

    def _count(self, token: int) -> None:
        at = self._seen_index.setdefault(token, len(self._seen_index))
        if at == len(self._seen):
            self._seen = np.concatenate((self._seen, np.zeros_like(self._seen)))
            self._seen_counts = np.concatenate((self._seen_counts, np.zeros_like(self._seen_counts)))
        self._seen[at] = token
        self._seen_counts[at] += 1.0
