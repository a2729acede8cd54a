"""A stand-in for Triton's HTTP endpoint whose every answer a test decides."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.http_server import Quiet, listening

OK: tuple[int, Any] = (200, "")
NOT_READY: tuple[int, Any] = (400, {"error": "Model version not ready"})
UNKNOWN: tuple[int, Any] = (404, {"error": "Request for unknown model: 'm' is not found"})


@dataclass
class Said:
    """Answers by path, what was asked, and seconds before a ``generate`` is answered, request by request."""

    answers: Mapping[str, tuple[int, Any]]
    waits: list[float] = field(default_factory=list)
    asked: list[tuple[str, Any]] = field(default_factory=list)


def healthy(tokens: list[int], log_probs: list[float], **more: tuple[int, Any]) -> dict[str, tuple[int, Any]]:
    return {
        "/v2/health/live": OK,
        "/v2/health/ready": OK,
        "/v2/models/m/ready": OK,
        "/v2/models/m/generate": (200, {"output_ids": tokens, "output_log_probs": log_probs}),
        **more,
    }


@contextmanager
def served(said: Said) -> Iterator[str]:
    class Handler(Quiet):
        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            said.asked.append((self.path, json.loads(self.rfile.read(length)) if length else None))
            if length and said.waits:
                time.sleep(said.waits.pop(0))
            status, content = said.answers.get(self.path, (404, ""))
            body = (content if isinstance(content, str) else json.dumps(content)).encode()
            try:
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                pass  # the client did not wait

        do_GET = do_POST = _answer

    with listening(Handler) as port:
        yield f"127.0.0.1:{port}"
