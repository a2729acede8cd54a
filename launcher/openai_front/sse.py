"""Responses that end when their client goes: a stream of server-sent events, and work that is waited for.

Policy: what the engine does for a client is withdrawn when the client is gone, or takes nothing for
:data:`STALL_SECONDS`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from pydantic_core import to_json
from starlette.types import Receive, Scope, Send

from launcher.openai_front.errors import ApiError, told

#: seconds after which a client that takes nothing is taken for gone
STALL_SECONDS = 60.0
_DONE = b"data: [DONE]\n\n"
_T = TypeVar("_T")


class ClientGone(Exception):
    """Nobody is left to answer."""


async def gone(receive: Receive) -> None:
    """Return when the client has disconnected; its body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def until_gone(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """The result of ``work``, which is cancelled when the client goes.

    Raises:
        ClientGone: it went.
    """
    watcher, worker = asyncio.create_task(gone(receive)), asyncio.create_task(work)
    try:
        await asyncio.wait({watcher, worker}, return_when=asyncio.FIRST_COMPLETED)
        if worker.done():
            return worker.result()
        raise ClientGone
    finally:
        for task in (watcher, worker):
            task.cancel()
        await asyncio.gather(watcher, worker, return_exceptions=True)


class EventStream:
    """An ASGI response of server-sent events.

    Args:
        first: the first chunk, which was waited for: whatever is wrong with a request shows before it.
        rest: the other chunks; closed with the response.
        on_end: called once at the end with the fault that ended the stream, if one did.
    """

    def __init__(
        self,
        first: dict[str, Any],
        rest: AsyncIterator[dict[str, Any]],
        headers: dict[str, str],
        *,
        on_end: Callable[[BaseException | None], Awaitable[None]],
    ) -> None:
        self._first, self._rest = first, rest
        self._headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-store", **headers}
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fault: BaseException | None = None
        try:
            await until_gone(receive, self._write(send))
        except (ClientGone, ApiError) as error:
            fault = error
        except BaseException as error:
            fault = error
            raise
        finally:
            closing = getattr(self._rest, "aclose", None)
            if closing is not None:
                with contextlib.suppress(Exception):
                    await closing()
            await self._on_end(fault)

    async def _write(self, send: Send) -> None:
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in self._headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        await _send(send, _event(self._first))
        fault: Exception | None = None
        end = _DONE
        try:
            async for chunk in self._rest:
                await _send(send, _event(chunk))
        except ClientGone:
            raise
        except Exception as error:  # too late for a status: the client's library raises what the event says
            fault, end = error, _event(told(error).to_json())
        await send({"type": "http.response.body", "body": end, "more_body": False})
        if fault is not None:
            raise fault


async def _send(send: Send, body: bytes) -> None:
    """A piece of the body; waits where the client is slow, up to :data:`STALL_SECONDS`."""
    try:
        async with asyncio.timeout(STALL_SECONDS):
            await send({"type": "http.response.body", "body": body, "more_body": True})
    except TimeoutError:
        raise ClientGone from None


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + to_json(value) + b"\n\n"
