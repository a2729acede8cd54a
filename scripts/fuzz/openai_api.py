"""Bodies as clients of OpenAI's API send them, up to the tensors that Triton would get; texts with calls of tools."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from scripts.fuzz import mutate
from scripts.fuzz.harness import Attempt, Fault, Target
from trtforge.ground.errors import ForgeError

TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}
CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "content": "1", "tool_call_id": "1"},
    ],
    "max_completion_tokens": 5,
    "stop": ["a"],
    "temperature": 0.5,
    "logit_bias": {"5": -100},
    "tools": [TOOL],
    "tool_choice": "required",
    "stream": True,
    "stream_options": {"include_usage": True},
    "response_format": {"type": "text"},
}
COMPLETION: dict[str, Any] = {"model": "tiny", "prompt": ["hello"], "max_tokens": 5, "logprobs": 0, "n": 2, "seed": -1}
PIECES = (
    "<tool_call>", "</tool_call>", '{"name": "f"', ', "arguments": ', '"parameters": ', "{", "}", "[", "]", "(", ")",
    '"', "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "f", "f(", "a=1", "**x", "lambda: 0", "\\", "\\u", "null", ",",
    ";", "\n", "[" * 300, "(" * 300, "9" * 5000, "\ud800", "\0", "é",
)  # fmt: skip


def make(pristine: Path) -> Attempt:
    """Nothing has to be written."""
    from launcher.openai_front import wire
    from launcher.openai_front.errors import ApiError
    from launcher.openai_front.job import Prompt
    from launcher.openai_front.messages import require_answers, template_messages
    from launcher.openai_front.parameters import job_of, refuse_completion, refuse_not_served, stream_usage
    from launcher.openai_front.schema import ChatRequest, CompletionRequest, Generation, parsed
    from launcher.openai_front.tool_plan import plan_of
    from launcher.openai_front.tools.choose import FORMATS
    from tests.launcher.openai_front.support import deployment
    from trtforge.targets.layouts import LAYOUTS

    def ask(draw: random.Random) -> None:
        where = deployment(draw.choice(list(LAYOUTS.values())))
        chat = draw.random() < 0.7
        body = mutate.dumped(draw, mutate.document(draw, CHAT if chat else COMPLETION))
        guide = None
        request: Generation
        if chat:
            request = parsed(ChatRequest, body)
            refuse_not_served(request)
            guide = plan_of(request, "{{ tools }}", FORMATS["hermes"]).guide
            template_messages(request.messages)
            require_answers(request.messages)
        else:
            request = parsed(CompletionRequest, body)
            refuse_completion(request, request.n or 1)
        stream_usage(request)
        job = job_of(request, where, bound=100, guide=guide)
        words = {str(token): value for token, value in job.bias.items()}
        wire.inputs(where, wire.tensors(where, job, Prompt([1, 2], "x"), words))

    def read(draw: random.Random) -> None:
        form = FORMATS[draw.choice(list(FORMATS))]
        pieces = [draw.choice(PIECES) for _ in range(draw.randint(0, 30))]

        def events(parts: list[str]) -> list[Any]:
            parser = form.parser(form.numbering(["f"]))
            return [event for part in parts for event in parser.push(part)] + parser.finish()

        def words(found: list[Any]) -> str:
            return "".join(event for event in found if isinstance(event, str))

        if words(events(pieces)) != words(events(["".join(pieces)])):
            raise Fault(f"the pieces of a text make a difference: {pieces}")

    def attempt(draw: random.Random, folder: Path) -> None:
        try:
            ask(draw) if draw.random() < 0.7 else read(draw)
        except ApiError as error:
            if error.status >= 500:
                raise Fault(f"HTTP {error.status}: {error}") from error
            raise ForgeError(error.code, error.message) from error

    return attempt


OPENAI = Target("openai", "bodies of OpenAI's API up to Triton's tensors; texts with calls of tools", make, cases=300)
