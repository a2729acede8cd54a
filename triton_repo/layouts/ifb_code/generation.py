"""Text of an answer while its tokens come in; knows nothing of Triton.

Policy: what is shown depends on the tokens only, never on how they arrive: a streamed answer joined is the whole
answer. A stop text ends the answer wherever token borders fall and is not part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from runtime.detokenizer import Detokenizer
from runtime.sampling.words import StopMatcher


class Answer:
    """The text of one sequence.

    Args:
        detokenizer: incremental detokenizer of this sequence.
        stops: texts that end the answer; empty ones are ignored.
        min_tokens: a stop text that completes before counts as text.
        apart: decodes each push by itself, instead of the detokenizer (``accumulate_tokens: false``).
    """

    def __init__(
        self,
        detokenizer: Detokenizer,
        stops: Sequence[str] = (),
        *,
        min_tokens: int = 0,
        apart: Callable[[Sequence[int]], str] | None = None,
    ) -> None:
        self._detokenizer = detokenizer
        self._matcher = StopMatcher([stop for stop in stops if stop])
        self._min_tokens = min_tokens
        self._apart = apart
        self._closed = False
        self.tokens = 0

    @property
    def stopped(self) -> bool:
        """Whether a stop text completed; further tokens change nothing."""
        return self._matcher.matched is not None

    def push(self, tokens: Sequence[int]) -> str:
        """Text that became certain through ``tokens``."""
        if self._apart is not None:
            if self.stopped:
                return ""
            self.tokens += len(tokens)
            return self._matcher.push(self._apart(tokens), armed=self.tokens >= self._min_tokens)
        pieces = []
        for token in tokens:
            if self.stopped:
                break
            self.tokens += 1
            pieces.append(self._show(self._detokenizer.push(int(token))))
        return "".join(pieces)

    def finish(self) -> str:
        """What was held back, once no more tokens come; empty the second time."""
        if self._closed:
            return ""
        self._closed = True
        text = ""
        if not self.stopped and self._apart is None:
            text = self._show(self._detokenizer.finish())
        return text if self.stopped else text + self._matcher.finish()

    def _show(self, piece: str) -> str:
        return self._matcher.push(piece, armed=self.tokens >= self._min_tokens)

    def reason(self, max_tokens: int) -> str:
        """``length`` when the answer was cut at ``max_tokens``, else ``stop``."""
        return "length" if self.tokens >= max_tokens and not self.stopped else "stop"


def refusal(*, stream: bool, decoupled: bool, beam_width: int, max_beam_width: int) -> str | None:
    """Why a request cannot be served, or None."""
    if stream and not decoupled:
        return "TF-TRI-076: stream asks for a decoupled repository; emit it with triton.decoupled: true"
    if stream and beam_width > 1:
        return f"TF-TRI-077: beam_width {beam_width} cannot stream: beams change until the end; beam_width: 1"
    if not 1 <= beam_width <= max_beam_width:
        return f"TF-TRI-078: beam_width {beam_width} is outside the engine's 1 to {max_beam_width}"
    return None


def end_early(responses: Any) -> bool:
    """Cancel a request whose further responses nobody wants; False where Triton's iterator cannot."""
    cancel = getattr(responses, "cancel", None)
    if cancel is None:
        return False
    cancel()
    return True
