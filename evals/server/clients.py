"""Clients of servers that answer text: Triton's generate endpoints by a layout's tensors, and OpenAI's completions.

Requests are greedy. ``HOST:PORT`` is the server's HTTP address.
"""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from trtforge.ground.errors import ForgeError
from trtforge.targets.layouts import Layout

SECONDS = 300.0
#: bytes of an answer that are read at most
_MOST = 64 * 2**20
_ADDRESS = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")
#: characters of a server's own words that an error repeats
_SHOWN = 300


class TextServer(Protocol):
    """A server that continues text."""

    kind: str
    model: str

    def complete(self, prompt: str, max_tokens: int) -> str:
        """The greedy continuation, without the prompt; raises TF-EVL-019 where the server refuses."""

    def stream(self, prompt: str, max_tokens: int) -> Iterator[str]:
        """The same in pieces, as they come."""

    def prompt_log_probs(self, token_ids: Sequence[int]) -> list[float] | None:
        """Log-probability of every token but the first, given those before it; None: the server does not say."""

    def about(self) -> dict[str, Any]:
        """What the server says of itself."""


def open_server(address: str, layout: Layout, model: str | None, name: str) -> TextServer:
    """The client of whatever answers at ``address``.

    Args:
        layout: of the bundle: it names the tensors of a Triton server.
        model: the model's name there; None: the layout's own, or the only one that an OpenAI server lists.
        name: the deployment's name, which the native layout's model has.

    Raises:
        ForgeError: TF-EVL-018 nothing answers there, or nothing that is known; TF-EVL-020 there is no such model;
            TF-EVL-029 the address is none.
    """
    _require_address(address)
    base = f"http://{address}"
    if _answers(f"{base}/v2/health/ready"):
        found: TextServer = TritonText(base, model or layout.asked_model(name), _fields(layout))
        if not _answers(f"{base}/v2/models/{found.model}/ready"):
            raise _no_model(address, found.model, _listed(base))
        return found
    try:
        listed = [str(entry["id"]) for entry in _get(f"{base}/v1/models")["data"]]
    except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException) as error:
        raise ForgeError(
            "TF-EVL-018",
            f"no Triton and no OpenAI server answers at {address}",
            asked=f"--server {address}",
            why=str(error),
            remedies=["trtforge serve BUNDLE prints its HTTP address", "trtllm-serve listens on port 8000"],
        ) from error
    chosen = model or (listed[0] if len(listed) == 1 else None)
    if chosen is None or chosen not in listed:
        raise _no_model(address, model, listed)
    return OpenAiText(base, chosen)


def _require_address(address: str) -> None:
    found = _ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found["port"]) < 2**16:
        raise ForgeError(
            "TF-EVL-029",
            f"{address} is no HOST:PORT",
            asked=f"--server {address}",
            why="A host's name or number and a port from 1 to 65535, without a scheme or a path.",
            remedies=["--server 127.0.0.1:8000", "--server [::1]:8000"],
        )


def _no_model(address: str, model: str | None, listed: Sequence[str]) -> ForgeError:
    return ForgeError(
        "TF-EVL-020",
        f"the server at {address} has no model {model}" if model else f"the server at {address} has several models",
        asked=f"--server {address}",
        numbers={"models": ", ".join(listed)},
        why="What is evaluated must be the bundle's model.",
        remedies=[f"--model {name}" for name in listed[:4]] or ["load the bundle's repository into the server"],
    )


@dataclass(frozen=True)
class Fields:
    """A layout's names: the answer's length, the switch for a stream, and what makes an answer greedy."""

    tokens: str
    stream: str
    greedy: Mapping[str, Any] = field(default_factory=dict)


def _fields(layout: Layout) -> Fields:
    if layout.question is None:
        return Fields("max_tokens", "stream")
    # the LLM API is greedy unless a choice is asked for; in the chain one candidate is greedy
    return Fields(layout.question.tokens, layout.question.stream, {"top_k": 1} if layout.chain else {})


class TritonText:
    """Triton's ``generate`` and ``generate_stream``."""

    kind = "triton"

    def __init__(self, base: str, model: str, fields: Fields) -> None:
        self.model = model
        self._base, self._url, self._fields = base, f"{base}/v2/models/{model}", fields

    def complete(self, prompt: str, max_tokens: int) -> str:
        answer = _post(f"{self._url}/generate", self._body(prompt, max_tokens))
        return _text_output(answer).removeprefix(prompt)

    def stream(self, prompt: str, max_tokens: int) -> Iterator[str]:
        body = self._body(prompt, max_tokens) | {self._fields.stream: True}
        for event in _events(f"{self._url}/generate_stream", body):
            yield _text_output(event)

    def prompt_log_probs(self, token_ids: Sequence[int]) -> list[float] | None:
        return None  # the generate endpoints give those of generated tokens only

    def about(self) -> dict[str, Any]:
        said = _get(f"{self._base}/v2")
        return {"kind": self.kind, "model": self.model, "name": said.get("name"), "version": said.get("version")}

    def _body(self, prompt: str, max_tokens: int) -> dict[str, Any]:
        return {"text_input": prompt, self._fields.tokens: max_tokens, **self._fields.greedy}


class OpenAiText:
    """``/v1/completions``."""

    kind = "openai"

    def __init__(self, base: str, model: str) -> None:
        self.model = model
        self._base, self._url = base, f"{base}/v1/completions"

    def complete(self, prompt: str, max_tokens: int) -> str:
        return _choice(_post(self._url, self._body(prompt, max_tokens)))

    def stream(self, prompt: str, max_tokens: int) -> Iterator[str]:
        for event in _events(self._url, self._body(prompt, max_tokens) | {"stream": True}):
            if event.get("choices"):
                yield _choice(event)

    def prompt_log_probs(self, token_ids: Sequence[int]) -> list[float] | None:
        body = self._body(list(token_ids), 1) | {"echo": True, "logprobs": 1}
        try:
            said = _post(self._url, body)["choices"][0]["logprobs"]["token_logprobs"]
            values = [float(value) for value in said[1 : len(token_ids)]]
        except (ForgeError, LookupError, TypeError, ValueError):
            return None
        return values if len(values) == len(token_ids) - 1 else None

    def about(self) -> dict[str, Any]:
        return {"kind": self.kind, "model": self.model}

    def _body(self, prompt: str | list[int], max_tokens: int) -> dict[str, Any]:
        return {"model": self.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}


def _text_output(answer: Mapping[str, Any]) -> str:
    if "error" in answer:
        raise _refused(str(answer["error"]))
    text = answer.get("text_output")
    if isinstance(text, list):
        text = text[0] if text else ""
    if not isinstance(text, str):
        raise _refused(f"its answer has no text_output: {json.dumps(answer)[:_SHOWN]}")
    return text


def _choice(answer: Mapping[str, Any]) -> str:
    try:
        return str(answer["choices"][0]["text"])
    except (LookupError, TypeError) as error:
        raise _refused(f"its answer has no choice with a text: {json.dumps(answer)[:_SHOWN]}") from error


def _refused(why: str) -> ForgeError:
    return ForgeError(
        "TF-EVL-019",
        "the server refused the request",
        why=why,
        remedies=["read the server's log", "evaluate the server that was started from this bundle"],
    )


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError, http.client.HTTPException):
        return False


def _listed(base: str) -> list[str]:
    """The models of a Triton server; none where it does not say."""
    try:
        return [str(row["name"]) for row in _json(urllib.request.Request(f"{base}/v2/repository/index", data=b"{}"))]
    except (ForgeError, OSError, ValueError, LookupError, TypeError):
        return []


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.loads(answer.read(_MOST))


def _request(url: str, body: Mapping[str, Any]) -> urllib.request.Request:
    return urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})


def _post(url: str, body: Mapping[str, Any]) -> Any:
    return _json(_request(url, body))


def _json(request: urllib.request.Request) -> Any:
    try:
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return json.loads(answer.read(_MOST))
    except urllib.error.HTTPError as error:
        raise _refused(f"HTTP {error.code}: {error.read(_SHOWN).decode('utf-8', 'replace')}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _refused(str(error)) from error


def _events(url: str, body: Mapping[str, Any]) -> Iterator[Any]:
    """Server-sent events with JSON, until ``[DONE]`` or the end."""
    try:
        with urllib.request.urlopen(_request(url, body), timeout=SECONDS) as answer:
            for line in answer:
                text = line.decode("utf-8", "replace").strip()
                if not text.startswith("data:"):
                    continue
                data = text.removeprefix("data:").strip()
                if data == "[DONE]":
                    return
                yield json.loads(data)
    except urllib.error.HTTPError as error:
        raise _refused(f"HTTP {error.code}: {error.read(_SHOWN).decode('utf-8', 'replace')}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _refused(str(error)) from error
