"""The front as a whole: what all requests share, and one request from its body to its response."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from launcher.openai_front.answers import Answers
from launcher.openai_front.backend import Triton
from launcher.openai_front.chat import ChatAnswer
from launcher.openai_front.completions import CompletionAnswer, prompts_of
from launcher.openai_front.deployment import Deployment
from launcher.openai_front.errors import ApiError, told
from launcher.openai_front.job import Prompt
from launcher.openai_front.limits import InFlight, Keys, read_body, request_id_of
from launcher.openai_front.log_probs import LogProbs
from launcher.openai_front.messages import require_answers, template_messages
from launcher.openai_front.metrics import Figures
from launcher.openai_front.parameters import (
    job_of,
    refuse_not_served,
    stream_usage,
    template_variables,
)
from launcher.openai_front.prompts import Prompts
from launcher.openai_front.request_log import RequestLog
from launcher.openai_front.schema import ChatRequest, CompletionRequest, Generation, parsed
from launcher.openai_front.settings import FrontSettings
from launcher.openai_front.sse import ClientGone, EventStream, until_gone
from launcher.openai_front.tool_plan import plan_of
from launcher.openai_front.tools.choose import format_of


class Answer(Protocol):
    """The answers to a request, as one object or as a stream of chunks."""

    async def whole(self) -> dict[str, Any]: ...

    def stream(self, *, usage: bool) -> AsyncIterator[dict[str, Any]]: ...


@dataclass
class Asked:
    """One request for answers, as far as its end and its line in the log need it."""

    route: str
    identifier: str
    started: float
    user: str | None = None
    stream: bool = False
    usage: bool = False
    answers: Answers | None = None


class Front:
    """What the routes share.

    Raises:
        ForgeError: TF-OAI-022 (keys), TF-OAI-026 (format of calls), TF-OAI-034 (log), TF-RUN-090 (tokenizer).
    """

    def __init__(self, deployment: Deployment, triton: Triton, settings: FrontSettings) -> None:
        self.deployment = deployment
        self.triton = triton
        self.settings = settings
        self.keys = Keys.read(settings.keys)
        self.flight = InFlight(settings.in_flight)
        self.prompts = Prompts(deployment)
        self.format = format_of(self.prompts.template, settings.tool_parser)
        self.figures = Figures(deployment.name)
        self.log = RequestLog(settings.log)

    async def open(self) -> None:
        self.triton.open()
        self.prompts.prepare()

    async def close(self) -> None:
        await self.triton.close()
        self.prompts.close()
        self.log.close()

    async def ready(self) -> bool:
        """Whether requests are taken, here and behind."""
        if self.flight.draining or not await self.triton.ready():
            return False
        try:
            await self.triton.require_same()
        except ApiError:
            return False
        return True

    def require_model(self, name: str) -> None:
        """Refuse another model's name.

        Raises:
            ApiError: ``TF-OAI-007``.
        """
        known = self.deployment.name
        if name not in (known, self.deployment.model):
            raise ApiError(
                404, "TF-OAI-007", f"there is no model {name[:100]} here; it is called {known}", param="model"
            )

    def turned_away(self, route: str, error: ApiError) -> None:
        """A client that is not let in is counted, and has its line in the log."""
        self.figures.answered(route, error.status, error.code, 0.0)
        self.log.write(route=route, status=error.status, code=error.code)

    async def answer(self, request: Request, route: str) -> Any:
        """The response to a request for answers, of a chat or of a completion."""
        asked = Asked(route, _identifier(route), time.monotonic())
        try:
            self.flight.enter()
        except ApiError as error:
            self.turned_away(route, error)
            raise
        try:
            asked.identifier = request_id_of(request) or asked.identifier
            body = await read_body(request, self.settings.body_bytes)
            self.figures.running(self.flight.now)
            answer = await until_gone(request.receive, self._prepared(asked, body))
            headers = {"x-request-id": asked.identifier}
            if asked.stream:
                chunks = answer.stream(usage=asked.usage)
                first = await until_gone(request.receive, _first(chunks))
                self.figures.began(time.monotonic() - asked.started)
                return EventStream(first, chunks, headers, on_end=lambda fault: self._end(asked, 200, fault))
            value = to_json(await until_gone(request.receive, answer.whole()))
        except ApiError as error:
            error.headers.setdefault("x-request-id", asked.identifier)
            await self._end(asked, error.status, error)
            raise
        except ClientGone as error:
            await self._end(asked, 499, error)
            return Response(status_code=499)
        except Exception as error:
            await self._end(asked, 500, told(error))
            raise
        except BaseException:  # the server ends, and takes its tasks with it
            await self._end(asked, 500, None)
            raise
        await self._end(asked, 200, None)
        return Response(value, media_type="application/json", headers=headers)

    async def _prepared(self, asked: Asked, body: bytes) -> Answer:
        await self.triton.require_same()
        if asked.route == "chat":
            return await self._chat(asked, parsed(ChatRequest, body))
        return await self._completion(asked, parsed(CompletionRequest, body))

    async def _chat(self, asked: Asked, request: ChatRequest) -> ChatAnswer:
        self._common(asked, request)
        asked.user = request.safety_identifier or request.user
        refuse_not_served(request)
        plan = plan_of(request, self.prompts.template, self.format, lark=self.deployment.names.lark)
        messages = template_messages(request.messages)
        require_answers(request.messages)
        prompt = await self.prompts.chat(messages, plan.tools, template_variables(request))
        job = self._job(request, [prompt], plan.guide)
        asked.answers = Answers(self.triton, job, [prompt], asked.identifier, await self._words(job.bias))
        return ChatAnswer(
            asked.answers,
            plan,
            n=job.n,
            head=self._head(asked),
            tokenizer=self.prompts.tokenizer,
            log_probs=job.log_probs,
        )

    async def _completion(self, asked: Asked, request: CompletionRequest) -> CompletionAnswer:
        self._common(asked, request)
        prompts = await prompts_of(request, self.prompts)
        job = self._job(request, prompts, None)
        asked.answers = Answers(self.triton, job, prompts, asked.identifier, await self._words(job.bias))
        number = job.n * len(prompts)
        return CompletionAnswer(
            asked.answers,
            n=job.n,
            echoes=[prompt.shown if request.echo else "" for prompt in prompts],
            head=self._head(asked),
            log_probs=[LogProbs(self.prompts.tokenizer) for _ in range(number)] if job.log_probs else [],
        )

    def _head(self, asked: Asked) -> dict[str, Any]:
        """What every object of a response begins with."""
        return {
            "id": asked.identifier,
            "created": int(time.time()),
            "model": self.deployment.name,
            "system_fingerprint": self.deployment.fingerprint,
        }

    def _common(self, asked: Asked, request: Generation) -> None:
        self.require_model(request.model)
        asked.user, asked.stream = request.user, bool(request.stream)
        asked.usage = stream_usage(request)

    def _job(self, request: Generation, prompts: list[Prompt], guide: Any) -> Any:
        deployment = self.deployment
        for prompt in prompts:
            self.prompts.refuse_long(len(prompt.tokens), "messages" if isinstance(request, ChatRequest) else "prompt")
        timeout = self.settings.timeout
        return job_of(
            request,
            deployment,
            bound=deployment.usual_length(self.settings.answer_tokens),
            timeout_ms=None if timeout is None else max(1, int(timeout * 1000)),
            guide=guide,
        )

    async def _words(self, bias: Any) -> dict[str, float]:
        return await self.prompts.words(bias) if "bias_words" in self.deployment.names.inputs else {}

    async def _end(self, asked: Asked, status: int, fault: BaseException | None) -> None:
        """A request is over: it is counted out, and its line is written."""
        self.flight.leave()
        self.figures.running(self.flight.now)
        seconds = time.monotonic() - asked.started
        code = fault.code if isinstance(fault, ApiError) else None
        if isinstance(fault, ClientGone):
            status = 499
            self.figures.left()
        usage = asked.answers.usage if asked.answers is not None else None
        if usage is not None and (status in (200, 499)):
            self.figures.used(usage)
        self.figures.answered(asked.route, status, code, seconds)
        self.log.write(
            id=asked.identifier,
            route=asked.route,
            status=status,
            code=code,
            seconds=round(seconds, 4),
            stream=asked.stream,
            user=asked.user,
            prompt_tokens=usage.prompt if usage else None,
            completion_tokens=usage.completion if usage else None,
        )


def _identifier(route: str) -> str:
    return f"{'chatcmpl' if route == 'chat' else 'cmpl'}-{secrets.token_hex(16)}"


async def _first(chunks: AsyncIterator[dict[str, Any]]) -> dict[str, Any]:
    """The first chunk: what the model refuses, it refuses before it."""
    async for chunk in chunks:
        return chunk
    raise ApiError(502, "TF-OAI-028", "the server behind ended a stream before it began; ask it again")
