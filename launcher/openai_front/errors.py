"""Refusals in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}`` with our stable code in ``code``.

A fault of the model behind comes as the one line that Triton passes on (``CODE: message; why; remedies``): its code
decides the HTTP status, and the parameter is named as an OpenAI client calls it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trtforge.ground.errors import ForgeError

_CODE = re.compile(r"\bTF-[A-Z][A-Z0-9]*-\d{3}\b")
#: seconds that a client should wait before it asks a busy server again
RETRY_SECONDS = 1
#: HTTP status of an error by its code; every other one is the client's own fault (400)
_STATUS: Mapping[str, int] = {
    "TF-RUN-056": 429,  # the engine's queue is full
    "TF-RUN-057": 503,  # it drains
    "TF-RUN-058": 503,  # it is dead
    "TF-RUN-059": 500,
    "TF-RUN-060": 500,
    "TF-RUN-069": 500,
    "TF-RUN-088": 501,  # a package that the server lacks
    "TF-RUN-095": 501,
    "TF-RUN-132": 503,  # it waited too long for its turn
    "TF-RUN-199": 500,
    "TF-TRI-079": 500,
    "TF-TRI-085": 500,
    "TF-TRI-087": 503,
}
#: code of the runtime → the parameter that an OpenAI client knows
_PARAMETERS: Mapping[str, str] = {
    "TF-RUN-051": "messages",
    "TF-RUN-055": "n",
    "TF-RUN-070": "max_tokens",
    "TF-RUN-071": "temperature",
    "TF-RUN-072": "top_k",
    "TF-RUN-073": "top_p",
    "TF-RUN-074": "min_p",
    "TF-RUN-075": "repetition_penalty",
    "TF-RUN-076": "presence_penalty",
    "TF-RUN-077": "frequency_penalty",
    "TF-RUN-078": "min_tokens",
    "TF-RUN-079": "stop",
    "TF-RUN-082": "seed",
    "TF-RUN-084": "n",
    "TF-RUN-087": "response_format",
    "TF-RUN-088": "response_format",
    "TF-RUN-091": "messages",
    "TF-RUN-092": "messages",
    "TF-RUN-093": "messages",
    "TF-RUN-094": "messages",
    "TF-RUN-118": "logit_bias",
    "TF-RUN-133": "max_tokens",
    "TF-TRI-091": "response_format",
}
_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class ApiError(Exception):
    """A refusal that becomes the response.

    Args:
        status: of HTTP.
        code: our stable code.
        message: what is wrong, and what would work.
        param: the parameter that it is about.
        headers: further headers of the response.
    """

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.status, self.code, self.message, self.param = status, code, message, param
        self.headers = dict(headers or {})
        if status in (429, 503):
            self.headers.setdefault("Retry-After", str(RETRY_SECONDS))

    def to_json(self) -> dict[str, Any]:
        """The body of the response."""
        kind = _TYPES.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


def of_forge(error: ForgeError, param: str | None = None) -> ApiError:
    """A refusal of ours as a response."""
    details = [error.message, error.why, *error.remedies[:2]]
    return ApiError(
        _STATUS.get(error.code, 400),
        error.code,
        "; ".join(detail for detail in details if detail),
        param=param or _PARAMETERS.get(error.code),
    )


def of_triton(said: str, renamed: Mapping[str, str] | None = None) -> ApiError:
    """What the model said of a request that it refused.

    Args:
        renamed: tensor → what an OpenAI client calls it; the first mention in each sentence is the name, what follows
            may be the client's own value.
    """
    found = _CODE.search(said)
    if found is None:
        return ApiError(502, "TF-OAI-028", f"the server behind refused the request: {said[:500]}")
    code = found[0]
    sentences, named = [], _PARAMETERS.get(code)
    for sentence in (said[found.end() :].lstrip(": ") or said).split("; "):
        for tensor, name in (renamed or {}).items():
            sentence, changed = re.subn(rf"\b{tensor}\b", name, sentence, count=1)
            if changed:
                named = named or name
                break
        sentences.append(sentence)
    return ApiError(_STATUS.get(code, 400), code, "; ".join(sentences), param=named)


def gone(why: str) -> ApiError:
    """The server behind does not answer."""
    return ApiError(503, "TF-OAI-010", f"the server behind is not ready: {why[:300]}; send the request again later")


def told(error: Exception) -> ApiError:
    """What a client is told of any error: our own in its words, others by their kind alone."""
    if isinstance(error, ApiError):
        return error
    return ApiError(500, "TF-OAI-020", f"the endpoint failed: {type(error).__name__}; its log has more")


def not_offered(name: str, why: str, remedy: str = "") -> ApiError:
    """A parameter that OpenAI has and this server has not."""
    way = remedy or f"leave {name} out"
    return ApiError(400, "TF-OAI-002", f"{name} is not offered: {why}; {way}", param=name)


def bad_value(name: str, why: str) -> ApiError:
    """A parameter whose value cannot be."""
    return ApiError(400, "TF-OAI-003", f"{name}: {why}", param=name)
