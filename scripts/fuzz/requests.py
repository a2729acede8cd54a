"""Requests: tensors as a client sends them and requests of any shape, through what prepares them, and their steps."""

from __future__ import annotations

import math
import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scripts.fuzz import mutate
from scripts.fuzz.harness import Attempt, Fault, Target
from tests.support.damage import ODD
from tests.support.tiny import write_tiny_llama
from triton_repo.layouts.native_tensors import INPUTS

_TYPES: dict[str, Any] = {
    "STRING": object, "BOOL": np.bool_, "INT32": np.int32, "INT64": np.int64, "UINT8": np.uint8, "UINT64": np.uint64,
    "FP16": np.float16, "FP32": np.float32,
}  # fmt: skip
WORDS: tuple[Any, ...] = (
    b"hello", b"", b"\xff\xfe", "é".encode(), b"<|im_end|>", b"a" * 3000, b"a\0b", "🙂".encode(), b"\xed\xa0\x80",
    b"{{ 1 }}", "text", None, 7,
    b'[{"role": "user", "content": "hi\xe2\x80\x8b"}]', b"[]", b'[{"role": 1}]', b"[" * 3000,
)  # fmt: skip
NUMBERS = (0, 1, 2, -1, 7, 64, 2**31 - 1, -(2**31), 0.5, 1.0, -0.5, float("nan"), float("inf"), 1e-30, 3.4e38)
GUIDES: tuple[dict[str, Any], ...] = (
    {"regex": "a+"}, {"regex": "(a{1000}){1000}"}, {"regex": "(a|a)*" * 50}, {"regex": "[" * 100}, {"regex": "(?=x)"},
    {"regex": ""}, {"regex": "(.*a){300}"}, {"regex": "\\p{L}{0,9999}"}, {"json_schema": {"type": "object"}},
    {"json_schema": {"$ref": "#"}}, {"json_schema": "{" * 3000}, {"json_schema": {"enum": list(range(5000))}},
    {"json_schema": {"pattern": "(x+x+)+y", "type": "string"}}, {"json_schema": {"type": "array", "minItems": 10**9}},
    {"choice": ("a", "b")}, {"choice": ()}, {"choice": ("a" * 9999,) * 50}, {},
    {"json_schema": {"allOf": [{"anyOf": [{"type": "object", "properties": {c: {}}} for c in "abcdef"]}] * 6}},
)  # fmt: skip


def _tensors(draw: random.Random) -> dict[str, np.ndarray]:
    prompt = draw.choice(("text_input", "text_input", "text_input", "input_ids", "messages"))
    always = {prompt, "max_tokens"} if draw.random() < 0.95 else set()
    rows = [row for row in INPUTS if row.name in always or draw.random() < 0.06]
    count = draw.choice((1, 1, 1, 2))
    found: dict[str, np.ndarray] = {}
    for row in rows:
        kind = _TYPES[row.dtype]
        sizes = [draw.choice((1, 1, 1, 2, 0)) if size < 0 or draw.random() < 0.05 else size for size in row.dims]
        shape = (count if draw.random() < 0.98 else 3, *sizes)
        array: np.ndarray = np.empty(shape, dtype=kind)
        for index in np.ndindex(*shape):
            if kind is object:
                array[index] = draw.choice(WORDS if draw.random() < 0.2 else WORDS[:1])
            elif kind is np.bool_:
                array[index] = draw.random() < 0.5
            else:
                array[index] = _number(draw, row.dtype)
        found[row.name] = array
    if "max_tokens" in found and draw.random() < 0.8:
        found["max_tokens"] = np.full((count, 1), draw.choice((1, 2, 5, 20)), dtype=np.int32)
    return found


def _number(draw: random.Random, dtype: str) -> float:
    number = draw.choice(NUMBERS)
    if dtype.startswith("FP"):
        return min(number, 6e4) if dtype == "FP16" else number
    whole = draw.choice((0, 1, 2, 7)) if math.isnan(number) or abs(number) > 2**31 else int(number)
    if dtype == "UINT8":
        return abs(whole) % 256
    return abs(whole) if dtype == "UINT64" else min(whole, 2**31 - 1)


def make(pristine: Path) -> Attempt:
    """A simulated executor with a real tokenizer; what is accepted also runs to its end."""
    from runtime.engine import EngineConfig, EngineCore
    from runtime.executors.base import ExecutorLimits
    from runtime.frontend.asking import read
    from runtime.request import Request
    from runtime.sampling.params import GuidedDecoding, SamplingParams
    from runtime.tokenizer import EngineTokenizer
    from tests.support.simulation import SimulatedExecutor

    tokenizer = EngineTokenizer.load(write_tiny_llama(pristine / "model", layers=1))

    def fresh(draw: random.Random) -> EngineCore:
        limits = ExecutorLimits(4, 64, 256, 200)
        executor = SimulatedExecutor(num_blocks=64, block_size=16, vocab_size=512, limits=limits, eos_token_ids=(2,))
        config = EngineConfig(
            stream_interval=draw.choice((1, 3)),
            cleanse=draw.random() < 0.5,
            max_output_tokens=draw.choice((None, 8)),
            queue_timeout=draw.choice((None, 60.0)),
        )
        return EngineCore(executor, tokenizer, config=config)

    def params(draw: random.Random) -> SamplingParams:
        given: dict[str, Any] = {"max_tokens": draw.choice((1, 4, 16))}
        names = [name for name in SamplingParams.__dataclass_fields__ if name not in ("max_tokens", "guided")]
        for name in draw.sample(names, draw.choice((0, 0, 1, 2))):
            given[name] = draw.choice(
                (draw.choice(ODD), draw.choice(NUMBERS), ("a", "b"), (1, 2), [[1], [2, 3]], ["\ud800"])
            )
        if draw.random() < 0.4:
            given["guided"] = GuidedDecoding(**draw.choice(GUIDES))
        return SamplingParams(**given)

    def request(draw: random.Random) -> Any:
        chat: Any = [{"role": "user", "content": "hi"}]
        given: dict[str, Any] = {
            draw.choice(("prompt", "prompt", "prompt_token_ids", "messages")): draw.choice(
                (
                    "hello",
                    "a" * 5000,
                    [1, 2, 3],
                    mutate.document(draw, chat),
                    draw.choice(ODD),
                    np.arange(3),
                    [2**70],
                    "\ud800",
                )
            )
        }
        names = ("request_id", "priority", "timeout", "stream", "stream_interval", "cache_salt")
        for name in draw.sample(names, draw.choice((0, 0, 1))):
            given[name] = draw.choice((*ODD, 5, 0.1))
        return Request(params=params(draw), **given)

    def attempt(draw: random.Random, folder: Path) -> None:
        core = fresh(draw)
        if draw.random() < 0.5:
            encode = partial(tokenizer.encode, add_special_tokens=False)
            asked = [one.request for one in read(_tensors(draw), eos_token_ids=(2,), encode=encode)]
        else:
            asked = [request(draw)]
        for one in asked:
            core.add_request(one)
        for _ in range(300):  # the context has 256 tokens
            if not core.has_unfinished():
                break
            for output in core.step():
                if output.error is not None and output.error["code"] not in ("TF-RUN-060", "TF-RUN-122", "TF-RUN-136"):
                    raise Fault(f"accepted, and failed in a step: {output.error}")
        else:
            raise Fault("a request does not end")

    return attempt


REQUESTS = Target(
    "requests", "requests: tensors, parameters, grammars, chats; and the steps of what is accepted", make, cases=150
)
