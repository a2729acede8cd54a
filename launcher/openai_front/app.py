"""The routes: OpenAI's, health and metrics. Every error has OpenAI's shape."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

from pydantic_core import to_json
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from launcher.openai_front.errors import ApiError, told
from launcher.openai_front.front import Front

log = logging.getLogger("trtforge.openai")
_PAGE = "text/plain; version=0.0.4; charset=utf-8"


def build_app(front: Front) -> Starlette:
    """The ASGI application; opens and closes what ``front`` holds with its lifespan."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await front.open()
        try:
            yield
        finally:
            await front.close()

    async def chat(request: Request) -> Any:
        _let_in(front, request, "chat")
        return await front.answer(request, "chat")

    async def completions(request: Request) -> Any:
        _let_in(front, request, "completions")
        return await front.answer(request, "completions")

    async def models(request: Request) -> Response:
        _let_in(front, request, "models")
        return _json({"object": "list", "data": [_model(front)]})

    async def model(request: Request) -> Response:
        _let_in(front, request, "models")
        front.require_model(request.path_params["name"])
        return _json(_model(front))

    async def health(request: Request) -> Response:
        live = await front.triton.live()
        ready = live and await front.ready()
        body = {"live": live, "ready": ready, "draining": front.flight.draining, "model": front.deployment.name}
        return _json(body, 200 if ready else 503)

    async def is_live(request: Request) -> Response:
        live = await front.triton.live()
        return _json({"live": live}, 200 if live else 503)

    async def metrics(request: Request) -> Response:
        _let_in(front, request, "metrics")
        own = front.figures.page()
        behind = await front.triton.metrics_page()
        return Response(behind.rstrip(b"\n") + b"\n" + own if behind else own, media_type=_PAGE)

    app = Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/models", models, methods=["GET"]),
            Route("/v1/models/{name:path}", model, methods=["GET"]),
            Route("/health", health, methods=["GET"]),
            Route("/health/live", is_live, methods=["GET"]),
            Route("/health/ready", health, methods=["GET"]),
            Route("/metrics", metrics, methods=["GET"]),
        ],
        exception_handlers={ApiError: _refused, HTTPException: _no_route, Exception: _failed},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


def _let_in(front: Front, request: Request, route: str) -> None:
    try:
        front.keys.require(request.headers.get("authorization"))
    except ApiError as error:
        front.turned_away(route, error)
        raise


def _model(front: Front) -> dict[str, Any]:
    deployment = front.deployment
    return {
        "id": deployment.name,
        "object": "model",
        "created": deployment.created,
        "owned_by": "trtforge",
        "max_model_len": deployment.max_seq_len,
    }


def _json(value: Any, status: int = 200) -> Response:
    return Response(to_json(value), status_code=status, media_type="application/json")


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return Response(
        to_json(error.to_json()), status_code=error.status, headers=error.headers, media_type="application/json"
    )


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    known = "POST /v1/chat/completions and /v1/completions, GET /v1/models, /health and /metrics"
    unknown = ApiError(
        error.status_code,
        "TF-OAI-021",
        f"{request.method} {request.url.path[:200]} is not served here; there are {known}",
        headers=dict(error.headers or {}),
    )
    return await _refused(request, unknown)


async def _failed(request: Request, error: Exception) -> Response:
    log.error("a request failed", exc_info=error)
    return await _refused(request, told(error))
