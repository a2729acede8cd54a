"""Drafting and verifying between two engines, one request's bookkeeping; knows nothing of Triton.

A round: the draft engine continues the text by some tokens, the target engine continues it too and keeps the drafts
that are its own next tokens, then adds one of its own. The answer is therefore the target's, whatever was drafted. The
target leaves its end token out of an answer, so an answer that ran out of tokens inside the drafts has come to its end.

Source: https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/triton_backend/all_models/inflight_batcher_llm/tensorrt_llm_bls/1/lib/decode.py
(the tensors), https://arxiv.org/abs/2211.17192 (the method).
"""

from __future__ import annotations

from collections.abc import Sequence


class Rounds:
    """One request.

    Args:
        most: drafts a round at most.
        max_tokens: tokens of the answer at most.
        end: token that ends an answer and is no part of it; None: there is none.
        stops: words of tokens after which the answer ends; they are part of it.

    Attributes:
        made: tokens of the answer.
        drafted, accepted: drafts that were verified, and how many of them were kept.
        ended: no further round is wanted.
    """

    def __init__(self, most: int, max_tokens: int, end: int | None, stops: Sequence[Sequence[int]]) -> None:
        self._most, self._max_tokens, self._end = most, max_tokens, end
        self._stops = [list(word) for word in stops if word]
        self.made: list[int] = []
        self.drafted = 0
        self.accepted = 0
        self.ended = max_tokens <= 0

    @property
    def room(self) -> int:
        """Drafts that the next round may have: the target always adds a token of its own."""
        return max(0, min(self._most, self._max_tokens - len(self.made) - 1))

    def add(self, drafts: Sequence[int], verified: Sequence[int]) -> list[int]:
        """Take in what the target made of ``drafts``; returns the new tokens of the answer."""
        kept = 0
        while kept < min(len(drafts), len(verified)) and drafts[kept] == verified[kept]:
            kept += 1
        self.drafted += len(drafts)
        self.accepted += kept
        self.ended = kept == len(verified)  # it added none of its own
        before = len(self.made)
        for token in verified:
            if token == self._end:
                self.ended = True
                break
            self.made.append(int(token))
            stopped = any(self.made[-len(word) :] == word for word in self._stops)
            if stopped or len(self.made) >= self._max_tokens:
                self.ended = True
                break
        return self.made[before:]


def words_of(flat: Sequence[Sequence[int]]) -> list[list[int]]:
    """The words of one row of a flattened list: tokens, and where each word ends (-1 beyond the last)."""
    words, start = [], 0
    for stop in flat[1] if len(flat) else ():
        if stop < 0:
            break
        words.append([int(token) for token in flat[0][start:stop]])
        start = int(stop)
    return words


def drafts_wanted(asked: int | None, *, usual: int, model: str, obstacles: Sequence[str]) -> int:
    """Drafts a round of a request; 0: it runs on the target alone.

    Args:
        asked: what the client says; None: nothing.
        usual: what the repository says, which is what the target's engine verifies at most.
        model: the draft model's name; empty: there is none.
        obstacles: parts of the request that cannot be served in rounds.

    Raises:
        ValueError: the client asks for drafts that it cannot have, with the reason.
    """
    if asked is None:
        return 0 if obstacles else usual
    if asked <= 0:
        return 0
    if not model:
        raise ValueError("num_draft_tokens: this repository has no draft model (tensorrt_llm_draft_model_name)")
    if asked > usual:
        raise ValueError(f"num_draft_tokens {asked} is over the {usual} that the engine verifies")
    if obstacles:
        raise ValueError(f"num_draft_tokens with {', '.join(obstacles)}: send one of the two")
    return asked
