"""What the tests of the OpenAI endpoint share: a deployment without a server, and a Triton that says what it should."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from launcher.openai_front.deployment import Deployment
from launcher.openai_front.job import Job, Piece, Prompt
from launcher.openai_front.names import names_of
from triton_repo.layouts import llmapi
from triton_repo.layouts.ifb_tensors import BLS_INPUTS, BLS_OUTPUTS
from triton_repo.layouts.native_tensors import INPUTS, OUTPUTS
from trtforge.targets.layouts import INFLIGHT_BATCHER, LLM_API, NATIVE, Layout

#: a layout's inputs and outputs, as its repository has them
TABLES: Mapping[str, tuple[Iterable[Any], Iterable[Any]]] = {
    NATIVE.name: (INPUTS, OUTPUTS),
    INFLIGHT_BATCHER.name: (BLS_INPUTS, BLS_OUTPUTS),
    LLM_API.name: ([*llmapi.INPUTS, *llmapi.GUIDE_INPUTS], llmapi.OUTPUTS),
}


def deployment(layout: Layout = NATIVE, tokenizer: Path = Path(), **changes: Any) -> Deployment:
    """A deployment with all tensors of its layout."""
    inputs, outputs = TABLES[layout.name]
    made = Deployment(
        names=names_of(layout),
        model="tiny",
        name="tiny",
        tokenizer=tokenizer,
        max_seq_len=1024,
        max_input_len=1000,
        block_size=16,
        decoupled=True,
        batched=layout is not LLM_API,
        parameters={},
        inputs={row.name: row.dtype.replace("STRING", "BYTES") for row in inputs},
        outputs=frozenset(row.name for row in outputs),
        unheeded=frozenset(),
        adds_special=True,
        created=0,
        fingerprint="fp_test",
    )
    return replace(made, **changes)


class ScriptedTriton:
    """Answers every request with the pieces of a function; notes what was asked, and what was withdrawn."""

    def __init__(self, deployment: Deployment, pieces: Any) -> None:
        self.deployment = deployment
        self._pieces = pieces
        self.asked: list[tuple[str, Job]] = []
        self.withdrawn: list[str] = []

    async def generate(
        self, job: Job, prompt: Prompt, request_id: str, bias_words: Mapping[str, float]
    ) -> AsyncGenerator[Piece, None]:
        self.asked.append((request_id, job))
        ended = False
        try:
            for piece in self._pieces(job, prompt):
                await asyncio.sleep(0)
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
            ended = True
        finally:
            if not ended:
                self.withdrawn.append(request_id)


def said(*texts: str, finish: str = "stop", index: int = 0) -> list[Piece]:
    """Pieces of one answer, a token each."""
    return [
        Piece(index, text, finish if at == len(texts) - 1 else "", at + 1, 0 if at else 16)
        for at, text in enumerate(texts)
    ]
