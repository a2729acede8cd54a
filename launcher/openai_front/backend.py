"""The live Triton server: whether it is ready, and the answers of its model as they come.

One gRPC stream a request, on one connection: its end is the request's end, and dropping it withdraws the request, so
that a client who has gone frees the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any

from launcher.openai_front import wire
from launcher.openai_front.deployment import Deployment, differences
from launcher.openai_front.errors import ApiError, gone, of_triton
from launcher.openai_front.job import Job, Piece, Prompt

#: seconds that the server may take to say whether it is ready
HEALTH_SECONDS = 2.0


class Triton:
    """A Triton server; made and closed on the event loop that uses it.

    Attributes:
        address: ``HOST:PORT`` of its gRPC endpoint; to be set before :meth:`open`.
        metrics: URL of its metrics page; None: not known.
    """

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.address = ""
        self.metrics: str | None = None
        self._renamed = deployment.names.clients
        self._client: Any = None
        self._same = False

    def open(self) -> None:
        """Make the connection; it is taken up with the first call."""
        from tritonclient.grpc.aio import InferenceServerClient

        self._client = InferenceServerClient(self.address)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
            self._client = None

    async def live(self) -> bool:
        """Whether the server answers at all."""
        return await self._true(self._client.is_server_live(client_timeout=HEALTH_SECONDS))

    async def ready(self) -> bool:
        """Whether the server and the model take requests."""
        name = self.deployment.model
        return await self._true(self._client.is_server_ready(client_timeout=HEALTH_SECONDS)) and await self._true(
            self._client.is_model_ready(name, client_timeout=HEALTH_SECONDS)
        )

    async def _true(self, question: Any) -> bool:
        from tritonclient.utils import InferenceServerException

        try:
            return bool(await question)
        except InferenceServerException:
            return False

    async def require_same(self) -> None:
        """Refuse a server whose model is another than the repository's; asked until it once was the same.

        Raises:
            ApiError: ``TF-OAI-032``; ``TF-OAI-010`` when it does not answer.
        """
        from tritonclient.utils import InferenceServerException

        if self._same:
            return
        try:
            answer = await self._client.get_model_config(self.deployment.model, client_timeout=HEALTH_SECONDS)
        except InferenceServerException as error:
            raise gone(str(error.message())) from None
        found = differences(self.deployment, answer.config)
        if found:
            raise ApiError(
                503,
                "TF-OAI-032",
                f"the server at {self.address} serves another {self.deployment.model} than the repository that this "
                f"endpoint read: {'; '.join(found[:3])}; start the endpoint with the bundle that is served",
            )
        self._same = True

    async def metrics_page(self) -> bytes:
        """Triton's own metrics; empty where its page is not known or does not answer."""
        if self.metrics is None:
            return b""
        return await asyncio.to_thread(_fetch, self.metrics)

    async def generate(
        self, job: Job, prompt: Prompt, request_id: str, bias_words: Mapping[str, float]
    ) -> AsyncGenerator[Piece, None]:
        """The pieces of the answers to one prompt; closing the iterator withdraws the request.

        Raises:
            ApiError: what the model refused, ``TF-OAI-010`` when the server does not answer, ``TF-OAI-028`` when
                it ended an answer without a word.
        """
        deployment = self.deployment
        values = wire.tensors(deployment, job, prompt, bias_words)
        asked = {
            "model_name": deployment.model,
            "inputs": wire.inputs(deployment, values),
            "outputs": wire.outputs(deployment, job),
            "request_id": request_id,
        }
        reader = wire.Reader(deployment, job)
        pieces = self._streamed(asked, reader) if deployment.decoupled else self._whole(asked, reader)
        running = set(range(job.n))
        if job.timeout_ms is not None and not deployment.takes("timeout_ms"):
            pieces = _until(pieces, job.timeout_ms / 1000)
        async with contextlib.aclosing(pieces):
            try:
                async for piece in pieces:
                    if piece.finish:
                        running.discard(piece.index)
                    yield piece
            except TimeoutError:
                for index in sorted(running):
                    yield Piece(index, finish="timeout")
                return
        if running:
            raise ApiError(502, "TF-OAI-028", "the server behind ended an answer without saying why; ask it again")

    async def _streamed(self, asked: dict[str, Any], reader: wire.Reader) -> AsyncGenerator[Piece, None]:
        import grpc

        async def once() -> AsyncIterator[dict[str, Any]]:
            yield asked

        call = self._client.stream_infer(once())
        ended = False
        try:
            async for result, error in call:
                if error is not None:
                    raise of_triton(str(error.message()), self._renamed)
                piece = reader.piece(result.get_response())
                if piece is not None:
                    yield piece
            ended = True
        except grpc.RpcError as error:
            raise _broken(error) from None
        finally:
            if not ended:
                call.cancel()

    async def _whole(self, asked: dict[str, Any], reader: wire.Reader) -> AsyncGenerator[Piece, None]:
        from tritonclient.utils import InferenceServerException

        try:
            result = await self._client.infer(**asked)
        except InferenceServerException as error:
            if "UNAVAILABLE" in str(error.status()):
                raise gone(str(error.message())) from None
            raise of_triton(str(error.message()), self._renamed) from None
        piece = reader.piece(result.get_response())
        if piece is not None:
            yield piece


async def _until(pieces: AsyncGenerator[Piece, None], seconds: float) -> AsyncGenerator[Piece, None]:
    """The pieces that come before a deadline, which the engine does not keep; then ``TimeoutError``."""
    end = asyncio.get_running_loop().time() + seconds
    async with contextlib.aclosing(pieces):
        while True:
            # around the waiting alone: a timeout that is open at a yield would end whatever its reader does then
            async with asyncio.timeout_at(end):
                try:
                    piece = await anext(pieces)
                except StopAsyncIteration:
                    return
            yield piece


def _broken(error: Any) -> ApiError:
    """A call that the server did not answer, or whose connection broke."""
    details = str(error.details() or error.code())
    if "UNAVAILABLE" in str(error.code()) or "CANCELLED" in str(error.code()):
        return gone(details)
    return of_triton(details)


def _fetch(url: str) -> bytes:
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=HEALTH_SECONDS) as answer:
            return bytes(answer.read(32 * 2**20))
    except OSError:
        return b""
