"""uvicorn's HTTP protocol with limits on a request's head: its size, and the time that it may take to come.

uvicorn itself takes a head of any size, from a client that sends a byte a minute.
"""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic_core import to_json
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from launcher.openai_front.errors import ApiError

#: bytes of a request's line and headers
HEAD_BYTES = 32 * 1024
#: seconds from the first byte of a connection, or the last response, to the end of a head; and from a response to the
#: end of a body that it did not wait for
HEAD_SECONDS = 20.0


class LimitedProtocol(HttpToolsProtocol):
    """Closes connections whose head is too large or too slow."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._in_head = False
        #: bytes of the head, as the parser tells of them, and as they came
        self._told = self._came = 0
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        # the parser tells of a header when it is whole; of one that never ends it never does
        if self._in_head and self._came > HEAD_BYTES:
            self.send_400_response("The request's head is too large.")
            return
        self._came += len(data)
        super().data_received(data)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._told, self._came = True, 0, 0
        if self._deadline is None:
            self._begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._stop()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._stop()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        if self.cycle is not None and self.cycle.more_body:
            self._begin()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP in the shape of every other error, and close."""
        body = to_json(ApiError(400, "TF-OAI-033", f"this is no HTTP request: {msg}").to_json())
        head = [b"HTTP/1.1 400 Bad Request", *(b"%b: %b" % row for row in self.server_state.default_headers)]
        head += [b"content-type: application/json", b"content-length: %d" % len(body), b"connection: close"]
        self.transport.write(b"\r\n".join([*head, b"", body]))
        self.transport.close()

    def _count(self, size: int) -> None:
        self._told += size
        if self._told > HEAD_BYTES:
            raise _HeadTooLarge

    def _begin(self) -> None:
        self._stop()
        self._deadline = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _stop(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self.transport is not None and not self.transport.is_closing():
            self.transport.close()


class _HeadTooLarge(Exception):
    """httptools makes an HttpParserCallbackError of it, which uvicorn answers with 400."""
