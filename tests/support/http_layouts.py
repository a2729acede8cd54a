"""An engine of this process behind the HTTP endpoints of each layout's Triton models, and of an OpenAI server.

Requests are read as strictly as the servers themselves do: a field that the layout's models do not declare is refused.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

from runtime.offline import Engine
from runtime.sampling.params import SamplingParams
from triton_repo.layouts.ifb_tensors import BLS_INPUTS
from triton_repo.layouts.llmapi import INPUTS as LLMAPI_INPUTS
from triton_repo.layouts.native_tensors import INPUTS as NATIVE_INPUTS
from trtforge.ground.errors import ForgeError

#: kind → the model that clients ask, its inputs, and their names for the answer's length and for a stream
TRITON = {
    "native": ("tiny", NATIVE_INPUTS, "max_tokens", "stream"),
    "inflight_batcher_llm": ("tensorrt_llm_bls", BLS_INPUTS, "max_tokens", "stream"),
    "llmapi": ("tensorrt_llm", LLMAPI_INPUTS, "sampling_param_max_tokens", "streaming"),
}


class Refused(Exception):
    """A request that the server answers with 400."""


class LayoutServer:
    """``with LayoutServer(engine, kind) as address``; ``spoil`` changes what it answers."""

    def __init__(self, engine: Engine, kind: str) -> None:
        self.engine, self.kind = engine, kind
        self.spoil = lambda text: text
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> str:
        self._thread.start()
        return f"127.0.0.1:{self._server.server_address[1]}"

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def generate(self, prompt: Any, max_tokens: Any) -> str:
        if not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 1:
            raise Refused(f"{max_tokens!r} is no number of tokens")
        try:
            with self._lock:
                text = self.engine.generate([prompt], SamplingParams(max_tokens=max_tokens, temperature=0.0))[0].text
        except ForgeError as error:
            raise Refused(str(error)) from error
        return self.spoil(text)

    def prompt_log_probs(self, ids: list[int]) -> list[float | None]:
        with self._lock:
            rows = self.engine.logits(ids).astype(np.float64)
        rows -= np.log(np.exp(rows - rows.max(-1, keepdims=True)).sum(-1, keepdims=True)) + rows.max(-1, keepdims=True)
        return [None, *(float(rows[i, ids[i + 1]]) for i in range(len(ids) - 1))]

    # -- what each endpoint answers ----------------------------------------------------------------

    def get(self, path: str) -> Any:
        if self.kind == "openai":
            return {"data": [{"id": "served"}]} if path == "/v1/models" else None
        model = TRITON[self.kind][0]
        known = {"/v2/health/ready": {}, f"/v2/models/{model}/ready": {}, "/v2": {"name": "triton", "version": "2.60"}}
        return known.get(path)

    def post(self, path: str, body: dict[str, Any]) -> tuple[bool, Iterator[Any]] | None:
        """Whether the answer streams, and its parts."""
        if self.kind == "openai":
            return (bool(body.get("stream")), self._completion(body)) if path == "/v1/completions" else None
        if path == "/v2/repository/index":
            return False, iter([[{"name": TRITON[self.kind][0]}]])
        model, inputs, tokens, stream = TRITON[self.kind]
        verb = path.removeprefix(f"/v2/models/{model}/")
        if verb not in ("generate", "generate_stream"):
            return None
        if unknown := set(body) - {row.name for row in inputs}:
            raise Refused(f"unexpected inputs {sorted(unknown)}")
        if bool(body.get(stream)) is not (verb == "generate_stream"):
            raise Refused("a stream is asked for by its input and its endpoint")
        text = self.generate(body["text_input"], body[tokens])
        parts = _pieces(text) if verb == "generate_stream" else [text]
        return verb == "generate_stream", iter([{"model_name": model, "text_output": part} for part in parts])

    def _completion(self, body: dict[str, Any]) -> Iterator[Any]:
        if body["model"] != "served" or body["temperature"] != 0:
            raise Refused("another model, or sampling")
        prompt = body["prompt"]
        text = self.generate(prompt, body["max_tokens"])
        if body.get("echo"):
            return iter([{"choices": [{"text": "", "logprobs": {"token_logprobs": self.prompt_log_probs(prompt)}}]}])
        parts = _pieces(text) if body.get("stream") else [text]
        return iter([{"choices": [{"text": part}]} for part in parts])


def _pieces(text: str) -> list[str]:
    return [text[i : i + 3] for i in range(0, len(text), 3)] or [""]


def _handler(owner: LayoutServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = owner.get(self.path)
            self._json(404 if found is None else 200, found)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            try:
                found = owner.post(self.path, body)
            except (Refused, KeyError) as error:
                return self._json(400, {"error": str(error)})
            if found is None:
                return self._json(404, {"error": self.path})
            streams, parts = found
            if not streams:
                return self._json(200, next(parts))
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for part in parts:
                self.wfile.write(f"data: {json.dumps(part)}\n\n".encode())
            if owner.kind == "openai":
                self.wfile.write(b"data: [DONE]\n\n")
            return None

        def _json(self, code: int, value: Any) -> None:
            data = json.dumps(value).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            return None

    return Handler
