"""``/v1/completions``: texts continued, as one object or as a stream of pieces."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from launcher.openai_front.answers import Answers
from launcher.openai_front.ends import reasons
from launcher.openai_front.errors import bad_value
from launcher.openai_front.job import Prompt
from launcher.openai_front.log_probs import LogProbs, merged
from launcher.openai_front.parameters import refuse_completion
from launcher.openai_front.prompts import Prompts
from launcher.openai_front.schema import CompletionRequest


async def prompts_of(request: CompletionRequest, prompts: Prompts) -> list[Prompt]:
    """The prompts of a request, texts or tokens.

    Raises:
        ApiError: ``TF-OAI-002``, ``TF-OAI-003``, and what reading a prompt raises.
    """
    given = request.prompt
    if isinstance(given, str):
        refuse_completion(request, request.n or 1)
        return [await prompts.text(given)]
    if not given:
        raise bad_value("prompt", "the list is empty")
    found: list[str | list[int]] = []
    tokens: list[int] = []
    for one in given:
        if isinstance(one, int):
            tokens.append(one)
        else:
            found.append(one)
    if tokens:
        found = [tokens]
    refuse_completion(request, request.n or 1, len(found))
    return [await (prompts.text(one) if isinstance(one, str) else prompts.tokens(one)) for one in found]


class CompletionAnswer:
    """The answers to the prompts of one request.

    Args:
        head: what every object begins with.
        echoes: what stands before the answers, by prompt; empty texts without ``echo``.
    """

    def __init__(
        self,
        answers: Answers,
        *,
        n: int,
        echoes: Sequence[str],
        head: Mapping[str, Any],
        log_probs: Sequence[LogProbs],
    ) -> None:
        self._answers = answers
        self._head = {**head, "object": "text_completion"}
        self._echoes = [echo for echo in echoes for _ in range(n)]
        self._log_probs = log_probs

    async def whole(self) -> dict[str, Any]:
        """The response without a stream."""
        texts = list(self._echoes)
        parts: list[list[dict[str, Any]]] = [[] for _ in texts]
        ends: list[dict[str, str]] = [{} for _ in texts]
        async with contextlib.aclosing(self._answers.pieces()) as pieces:
            async for piece in pieces:
                texts[piece.index] += piece.text
                if self._log_probs and piece.token_ids:
                    parts[piece.index].append(self._log_probs[piece.index].of_completion(piece))
                if piece.finish:
                    ends[piece.index] = reasons(piece.finish)
        choices = [
            {"index": number, "text": text, "logprobs": merged(parts[number]), **ends[number]}
            for number, text in enumerate(texts)
        ]
        return {**self._head, "choices": choices, "usage": self._answers.usage.to_json()}

    async def stream(self, *, usage: bool) -> AsyncIterator[dict[str, Any]]:
        """The chunks of a stream; with ``usage`` the last one holds it."""
        more: dict[str, Any] = {"usage": None} if usage else {}
        echoes = list(self._echoes)
        async with contextlib.aclosing(self._answers.pieces()) as pieces:
            async for piece in pieces:
                echo, echoes[piece.index] = echoes[piece.index], ""
                said = None
                if self._log_probs and piece.token_ids:
                    said = self._log_probs[piece.index].of_completion(piece)
                if not (piece.text or echo or said or piece.finish):
                    continue
                ends = reasons(piece.finish) if piece.finish else {"finish_reason": None}
                choice = {"index": piece.index, "text": echo + piece.text, "logprobs": said, **ends}
                yield {**self._head, "choices": [choice], **more}
        if usage:
            yield {**self._head, "choices": [], "usage": self._answers.usage.to_json()}
