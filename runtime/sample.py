"""One sample of a live request: from a chosen token to what the client sees and whether it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from runtime.detokenizer import Detokenizer
from runtime.request import FinishReason, SampleOutput
from runtime.sampling.state import SamplingState
from runtime.sampling.words import BadWordFilter, StopMatcher
from runtime.scheduler.sequence import Sequence

if TYPE_CHECKING:
    from runtime.sampling.sampler import TokenLogprobs


class Sample:
    """Sequence, sampling state and text pipeline of one sample.

    Args:
        sequence: its tokens and blocks.
        sampling: its counts and random stream.
        detokenizer: None when the engine has no tokenizer: no text then.
        stops: stop texts, or None.
        bad_words: text-level bad words, or None.
    """

    def __init__(
        self,
        sequence: Sequence,
        sampling: SamplingState,
        *,
        detokenizer: Detokenizer | None,
        stops: StopMatcher | None,
        bad_words: BadWordFilter | None,
    ) -> None:
        self.sequence = sequence
        self.sampling = sampling
        self._detokenizer = detokenizer
        self._stops = stops
        self._bad_words = bad_words
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprobs] = []
        self.cumulative_logprob: float | None = 0.0 if sampling.params.logprobs is not None else None
        self.finish_reason: FinishReason | None = None
        self.stop_reason: str | int | None = None
        self.last_token_at: float | None = None
        #: whether an output was taken already
        self.told = False

    @property
    def untold(self) -> int:
        """Tokens since the last output."""
        return len(self._tokens)

    def accept(self, token: int, logprobs: TokenLogprobs | None) -> None:
        """Take the next token; sets :attr:`finish_reason` when it ends the sample."""
        sampling, params = self.sampling, self.sampling.params
        sampling.observe(token)
        self._tokens.append(token)
        if logprobs is not None and self.cumulative_logprob is not None:
            self._logprobs.append(logprobs)
            self.cumulative_logprob += logprobs.logprob
        if token in sampling.end_ids:
            self._end(FinishReason.STOP, token)
            return
        count = len(sampling.generated)
        if self._detokenizer is not None:
            piece = self._detokenizer.push(token)
            if piece:
                self._show(piece, armed=count >= params.min_tokens)
                if self.finish_reason is not None:
                    return
        if sampling.stopped() or (
            sampling.guided is not None and sampling.guided.accept(token) and count >= params.min_tokens
        ):
            self._end(FinishReason.STOP, None)
        elif count >= params.max_tokens or self.sequence.length >= len(self.sequence.tokens):
            self._end(FinishReason.LENGTH, None)

    def accept_all(self, tokens: list[int]) -> int:
        """Take tokens, none of which the sequence has yet, until one ends the sample; how many were taken.

        What comes of them is what :meth:`accept` would make of one after the other. Only where the sampling
        ``takes_runs``.
        """
        sampling, sequence = self.sampling, self.sequence
        room = min(sampling.params.max_tokens - len(sampling.generated), len(sequence.tokens) - sequence.length)
        taken = tokens[:room]
        ended = not sampling.end_ids.isdisjoint(taken)
        if ended:
            taken = taken[: next(at for at, token in enumerate(taken, 1) if token in sampling.end_ids)]
        if self._detokenizer is not None:
            shown = taken[:-1] if ended else taken
            if self._stops is None:
                piece = self._detokenizer.push_all(shown)
                if piece:
                    self._text.append(piece)
            else:
                kept = self._show_all([self._detokenizer.push(token) for token in shown])
                if self.finish_reason is not None:
                    taken = taken[:kept]
        sampling.generated += taken
        self._tokens += taken
        if self.finish_reason is None:
            if ended:
                self._end(FinishReason.STOP, taken[-1])
            elif len(taken) == room:
                self._end(FinishReason.LENGTH, None)
        return len(taken)

    def end(self, reason: FinishReason) -> None:
        """End the sample from outside (deadline, cancellation, fault)."""
        if self.finish_reason is None:
            self._end(reason, None)

    def take_output(self) -> SampleOutput:
        """The news since the last call."""
        output = SampleOutput(
            index=self.sequence.sample,
            text="".join(self._text),
            token_ids=self._tokens,
            logprobs=self._logprobs if self.cumulative_logprob is not None else None,
            cumulative_logprob=self.cumulative_logprob,
            num_tokens=len(self.sampling.generated),
            finish_reason=self.finish_reason,
            stop_reason=self.stop_reason,
            num_draft_tokens=self.num_draft_tokens,
            num_accepted_tokens=self.num_accepted_tokens,
        )
        self._text, self._tokens, self._logprobs, self.told = [], [], [], True
        return output

    def _show(self, piece: str, *, armed: bool) -> None:
        if self._bad_words is not None:
            self._bad_words.push(piece)
        if self._stops is None:
            self._text.append(piece)
            return
        self._text.append(self._stops.push(piece, armed=armed))
        if self._stops.matched is not None:
            self.finish_reason, self.stop_reason = FinishReason.STOP, self._stops.matched

    def _show_all(self, pieces: list[str]) -> int:
        """Show what stop texts let pass of the pieces; how many pieces it took."""
        assert self._stops is not None
        text = "".join(pieces)
        if not self._stops.completes(text):
            if text:
                self._text.append(self._stops.push(text, armed=False))
            return len(pieces)
        for number, piece in enumerate(pieces, 1):
            if piece:
                self._show(piece, armed=True)
                if self.finish_reason is not None:
                    return number
        raise AssertionError("a stop text completes in the pieces' text and in none of them")

    def _end(self, reason: FinishReason, stop_reason: str | int | None) -> None:
        self.finish_reason, self.stop_reason = reason, stop_reason
        rest = self._detokenizer.finish() if self._detokenizer is not None else ""
        if self._stops is not None:
            rest = self._stops.push(rest, armed=False) + self._stops.finish()
        if rest:
            self._text.append(rest)
