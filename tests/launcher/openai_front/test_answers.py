"""Requests of Triton behind a client's request, and the shapes of the answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from launcher.openai_front.answers import Answers, parts_of
from launcher.openai_front.chat import ChatAnswer
from launcher.openai_front.completions import CompletionAnswer
from launcher.openai_front.errors import ApiError
from launcher.openai_front.job import Job, Piece, Prompt
from launcher.openai_front.log_probs import LogProbs, token_text
from launcher.openai_front.tool_plan import ToolPlan
from launcher.openai_front.tools.events import Numbering
from launcher.openai_front.tools.hermes import HermesParser
from runtime.tokenizer import EngineTokenizer
from tests.launcher.openai_front.support import ScriptedTriton, deployment, said
from trtforge.targets.layouts import INFLIGHT_BATCHER, LLM_API

PROMPT = Prompt([1, 2, 3])


def run(work: Any) -> Any:
    return asyncio.run(work)


async def listed(source: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in source]


def answers(script: Any, job: Job | None = None, prompts: int = 1, where: Any = None) -> tuple[Answers, ScriptedTriton]:
    triton = ScriptedTriton(where or deployment(), script)
    return Answers(triton, job or Job(9), [PROMPT] * prompts, "r", {}), triton


def test_samples_go_in_one_request_where_the_model_makes_them() -> None:
    [one] = parts_of(Job(1, n=4, seed=7), [PROMPT], deployment())
    assert (one.first, one.job.n, one.job.seed) == (0, 4, 7)
    apart = parts_of(Job(1, n=3, seed=7), [PROMPT] * 2, deployment(LLM_API))
    assert [(part.prompt, part.first, part.job.n, part.job.seed) for part in apart] == [
        (0, 0, 1, 7), (0, 1, 1, 8), (0, 2, 1, 9), (1, 3, 1, 10), (1, 4, 1, 11), (1, 5, 1, 12),
    ]  # fmt: skip
    assert len(parts_of(Job(1, n=3), [PROMPT], deployment(decoupled=False))) == 3


def test_an_answer_has_no_more_than_its_own_prompt_leaves() -> None:
    prompts = [Prompt([1] * 1000), PROMPT]
    found = [part.job.max_tokens for part in parts_of(Job(500), prompts, deployment(LLM_API))]
    assert found == [24, 500]
    assert [part.job.max_tokens for part in parts_of(Job(5), prompts, deployment())] == [5, 5]


def test_an_engine_that_draws_no_seed_gets_one() -> None:
    """TensorRT-LLM begins every answer with the same seed when none is sent."""
    [native] = parts_of(Job(1), [PROMPT], deployment())
    assert native.job.seed is None
    for layout in (INFLIGHT_BATCHER, LLM_API):
        seeds = {parts_of(Job(1), [PROMPT], deployment(layout))[0].job.seed for _ in range(3)}
        assert len(seeds) == 3 and None not in seeds


def test_pieces_of_all_prompts_are_numbered_through() -> None:
    made, triton = answers(lambda job, prompt: said("a", "b"), prompts=3)
    pieces = run(listed(made.pieces()))
    assert sorted((piece.index, piece.text) for piece in pieces) == [(i, t) for i in range(3) for t in "ab"]
    assert sorted(name for name, _ in triton.asked) == ["r-0", "r-1", "r-2"]
    assert made.usage.to_json() == {
        "prompt_tokens": 9, "completion_tokens": 6, "total_tokens": 15, "prompt_tokens_details": {"cached_tokens": 0},
    }  # fmt: skip
    assert triton.withdrawn == []


def test_a_server_that_tells_nothing_of_its_cache_leaves_it_out() -> None:
    made, _ = answers(lambda job, prompt: [Piece(0, "a", "stop", 1)])
    run(listed(made.pieces()))
    assert "prompt_tokens_details" not in made.usage.to_json()


def test_the_fault_of_one_request_ends_all() -> None:
    def script(job: Job, prompt: Prompt) -> list[Any]:
        fault = ApiError(400, "TF-RUN-055", "no")
        return [fault] if job.seed == 1 else said(*"abcdefgh")

    made, triton = answers(script, Job(9, seed=0), prompts=3)
    with pytest.raises(ApiError, match="TF-RUN-055"):
        run(listed(made.pieces()))
    assert {"r-0", "r-1", "r-2"} == set(triton.withdrawn)


def test_an_iterator_that_is_closed_withdraws_what_runs() -> None:
    made, triton = answers(lambda job, prompt: said(*"abcdefgh"), prompts=2)

    async def some() -> None:
        pieces = made.pieces()
        await anext(pieces)
        await pieces.aclose()

    run(some())
    assert set(triton.withdrawn) == {"r-0", "r-1"}


def chat_of(script: Any, plan: ToolPlan | None = None, n: int = 1) -> ChatAnswer:
    made, _ = answers(script, Job(9, n=n))
    common: dict[str, Any] = {"head": {"id": "id", "model": "tiny", "system_fingerprint": "fp"}, "tokenizer": None}
    return ChatAnswer(made, plan or ToolPlan(), n=n, log_probs=False, **common)


@pytest.mark.parametrize(
    ("finish", "ends"),
    [
        ("stop", {"finish_reason": "stop"}),
        ("length", {"finish_reason": "length"}),
        ("timeout", {"finish_reason": "length", "stop_reason": "timeout"}),
        ("cancelled", {"finish_reason": "stop", "stop_reason": "cancelled"}),
    ],
)
def test_reasons_of_an_end(finish: str, ends: dict[str, str]) -> None:
    [choice] = run(chat_of(lambda job, prompt: said("a", finish=finish)).whole())["choices"]
    assert {name: choice[name] for name in choice if name.endswith("reason")} == ends


CALL = ["Look: ", '<tool_call>{"name": "f", ', '"arguments": {"a', '": 1}}', "</tool_call>"]


def tools(*, one: bool = False, named: bool = False) -> ToolPlan:
    return ToolPlan(tools=[{}], parser=lambda: HermesParser(Numbering(["f"])), one=one, named=named)


def test_a_call_is_told_in_pieces_and_whole() -> None:
    [choice] = run(chat_of(lambda job, prompt: said(*CALL), tools()).whole())["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Look:", "tool_calls")
    [call] = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": '{"a": 1}'}
    chunks = run(listed(chat_of(lambda job, prompt: said(*CALL), tools()).stream(usage=True)))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    assert deltas[0] == {"role": "assistant", "content": "", "refusal": None}
    parts = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert parts[0]["id"] and parts[0]["type"] == "function" and parts[0]["function"]["name"] == "f"
    assert "".join(part["function"]["arguments"] for part in parts) == '{"a": 1}'
    assert chunks[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == len(CALL)


def test_a_call_that_was_cut_is_of_that_length() -> None:
    [choice] = run(chat_of(lambda job, prompt: said(*CALL[:3], finish="length"), tools()).whole())["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["arguments"] == '{"a'


def test_one_call_is_one_and_a_named_one_stops() -> None:
    twice = ['<tool_call>{"name": "f"}</tool_call>'] * 2
    [both] = run(chat_of(lambda job, prompt: said(*twice), tools()).whole())["choices"]
    [one] = run(chat_of(lambda job, prompt: said(*twice), tools(one=True)).whole())["choices"]
    assert [len(choice["message"]["tool_calls"]) for choice in (both, one)] == [2, 1]
    [named] = run(chat_of(lambda job, prompt: said(*twice), tools(named=True)).whole())["choices"]
    assert named["finish_reason"] == "stop"


def test_tokens_have_their_texts_and_bytes(tiny_checkpoint: Path) -> None:
    tokenizer = EngineTokenizer.load(tiny_checkpoint)
    tokens = tokenizer.encode(" é🙂", add_special_tokens=False)
    raw = b"".join(bytes(token_text(tokenizer, token)[1]) for token in tokens)
    assert raw.decode() == " é🙂"
    assert token_text(tokenizer, 1) == ("<|im_start|>", list(b"<|im_start|>"))
    made, _ = answers(lambda job, prompt: [Piece(0, "x", "stop", 2, None, tokens[:2], [-1.0, -2.0])])
    echoes = {"echoes": ["> "], "head": {"id": "i", "model": "m", "system_fingerprint": "f"}}
    body = run(CompletionAnswer(made, n=1, log_probs=[LogProbs(tokenizer)], **echoes).whole())
    [choice] = body["choices"]
    assert choice["text"] == "> x" and choice["logprobs"]["token_logprobs"] == [-1.0, -2.0]
    assert choice["logprobs"]["text_offset"] == [0, len(choice["logprobs"]["tokens"][0])]


def test_bytes_of_a_sentencepiece_token() -> None:
    from tokenizers import Tokenizer, decoders, models

    backend = Tokenizer(models.BPE({"▁a": 0, "<0xC3>": 1, "b": 2}, [], byte_fallback=True, unk_token="b"))
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = EngineTokenizer(backend)
    assert [tokenizer.token_bytes(token) for token in range(3)] == [b" a", b"\xc3", b"b"]


def test_a_deadline_withdraws_what_still_runs() -> None:
    from launcher.openai_front.backend import _until

    closed: list[bool] = []

    async def slow() -> Any:
        try:
            yield Piece(0, "a")
            await asyncio.sleep(60)
        finally:
            closed.append(True)

    async def read() -> list[str]:
        found = []
        with pytest.raises(TimeoutError):
            async for piece in _until(slow(), 0.01):
                found.append(piece.text)
        return found

    assert run(read()) == ["a"] and closed == [True]


def test_a_fault_within_a_stream_is_its_last_event() -> None:
    from launcher.openai_front.sse import EventStream

    async def chunks() -> Any:
        yield {"n": 2}
        raise ZeroDivisionError("a secret")

    ends: list[BaseException | None] = []

    async def end(fault: BaseException | None) -> None:
        ends.append(fault)

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def never() -> Any:
        await asyncio.sleep(60)

    with pytest.raises(ZeroDivisionError):  # for the server's log
        run(EventStream({"n": 1}, chunks(), {}, on_end=end)({}, never, send))
    body = b"".join(message.get("body", b"") for message in sent)
    assert body.startswith(b'data: {"n":1}\n\ndata: {"n":2}\n\ndata: {"error":')
    assert b"TF-OAI-020" in body and b"secret" not in body and b"[DONE]" not in body
    assert sent[-1]["more_body"] is False and isinstance(ends[0], ZeroDivisionError)


def test_prompts_are_cleansed_where_the_recipe_says_so(tiny_checkpoint: Path) -> None:
    """They go to the model as tokens, in which it would find nothing to take out."""
    from launcher.openai_front.prompts import Prompts

    tools = [{"type": "function", "function": {"name": "f", "description": "a\u200bb"}}]
    found = {}
    for flag in ("true", "false"):
        prompts = Prompts(deployment(tokenizer=tiny_checkpoint, parameters={"cleanse": flag}))

        async def read(prompts: Prompts = prompts) -> list[list[int]]:
            chat = [{"role": "user", "content": "a\u200bb"}]
            return [(await prompts.text("a\u200bb")).tokens, (await prompts.chat(chat, tools, {})).tokens]

        found[flag] = run(read())
        prompts.close()
    clean = Prompts(deployment(tokenizer=tiny_checkpoint))
    plain = [{"role": "user", "content": "ab"}]
    assert found["true"] == [run(clean.text("ab")).tokens, run(clean.chat(plain, None, {})).tokens]
    assert found["false"] != found["true"]
    clean.close()
