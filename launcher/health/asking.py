"""A Triton server asked over HTTP how it is; whatever keeps it from answering is a refusal with a code of its own."""

from __future__ import annotations

import http.client
import json
import re
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from trtforge.ground.errors import ForgeError, GateFailed

#: bytes of an answer that are read at most
_MOST = 4 << 20
#: characters of a server's own words that a refusal repeats
_SHOWN = 300
_URL = re.compile(r"(?P<scheme>https?)://(?P<place>(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(?P<port>\d{1,5}))?)/?")


def base_of(url: str) -> str:
    """``http://HOST:PORT`` of what a user gave: that, or ``HOST:PORT``.

    Raises:
        ForgeError: TF-HLT-010 it is no such address.
    """
    found = _URL.fullmatch(url if "://" in url else f"http://{url}")
    if found is None or not 0 < int(found["port"] or 1) < 2**16:
        raise ForgeError(
            "TF-HLT-010",
            f"{url} is no address of a server",
            asked=url,
            why="Its HTTP endpoint is asked: a host and a port from 1 to 65535, without a path.",
            remedies=["http://127.0.0.1:8000", "127.0.0.1:8000"],
        )
    return f"{found['scheme']}://{found['place']}"


@dataclass(frozen=True)
class Said:
    """A server's answer: its status and its text."""

    status: int
    text: str

    @property
    def error(self) -> str:
        """The server's own words, as far as they are shown."""
        try:
            return str(json.loads(self.text)["error"])[:_SHOWN]
        except (ValueError, LookupError, TypeError):
            return self.text[:_SHOWN]


class Server:
    """The HTTP endpoint of a Triton server.

    Args:
        url: its address.
        timeout: seconds that an answer may take.
    """

    def __init__(self, url: str, timeout: float) -> None:
        self.base = base_of(url)
        self._timeout = timeout

    def require_live(self) -> None:
        """Raises TF-HLT-001 nobody answers, TF-HLT-002 not in time, TF-HLT-005 somebody else does."""
        said = self._ask("/v2/health/live")
        if said.status != 200:
            raise self._no_triton(said)

    def require_ready(self, model: str | None) -> None:
        """Raises TF-HLT-003 the server or the model is not ready, TF-HLT-004 it has no such model, and as above."""
        said = self._ask("/v2/health/ready")
        if said.status == 404:
            raise self._no_triton(said)
        place = "" if model is None else f"/v2/models/{quote(model, safe='')}"
        ready = said.status == 200
        if model is not None and self._ask(f"{place}/ready").status != 200:
            if "unknown model" in self._ask(place).error:
                raise _unknown(self.base, model)
            raise self._not_ready(f"its model {model}", model)
        if not ready:
            raise self._not_ready("the server", model)

    def generate(self, model: str, body: dict[str, Any], timeout: float) -> Said:
        """The answer to one request that does not stream."""
        return self._ask(f"/v2/models/{quote(model, safe='')}/generate", body, timeout)

    def _ask(self, path: str, body: dict[str, Any] | None = None, timeout: float | None = None) -> Said:
        wait = self._timeout if timeout is None else timeout
        data = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        try:
            with urllib.request.urlopen(
                urllib.request.Request(self.base + path, data, headers), timeout=wait
            ) as answer:
                return Said(int(answer.status), answer.read(_MOST).decode("utf-8", "replace"))
        except urllib.error.HTTPError as error:
            with error:
                return Said(error.code, error.read(_MOST).decode("utf-8", "replace"))
        except TimeoutError as error:
            raise _late(self.base + path, wait) from error
        except (OSError, http.client.HTTPException) as error:
            if isinstance(getattr(error, "reason", None), TimeoutError):
                raise _late(self.base + path, wait) from error
            raise _nobody(self.base, getattr(error, "reason", None) or error) from error

    def _no_triton(self, said: Said) -> ForgeError:
        return GateFailed(
            "TF-HLT-005",
            f"what answers at {self.base} is no Triton server's HTTP endpoint",
            asked=self.base,
            numbers={"status": said.status},
            why=f"/v2/health/ says: {said.error or 'nothing'}.",
            remedies=["the HTTP port that the server printed, not its gRPC or metrics port"],
        )

    def _not_ready(self, who: str, model: str | None) -> ForgeError:
        return GateFailed(
            "TF-HLT-003",
            f"{who} at {self.base} is not ready",
            asked=f"--level ready{'' if model is None else f' --model {model}'}",
            why="It still loads, it is being drained, or a model could not be loaded.",
            remedies=["wait, and ask again", "read the server's log", "stop sending it requests meanwhile"],
        )


def _nobody(base: str, why: object) -> ForgeError:
    return GateFailed(
        "TF-HLT-001",
        f"nobody answers at {base}",
        asked=base,
        why=f"{why}.",
        remedies=["trtforge serve BUNDLE", "the HTTP address that the server printed", "read the server's log"],
    )


def _late(url: str, seconds: float) -> ForgeError:
    return GateFailed(
        "TF-HLT-002",
        f"{url} gave no answer in {seconds:g} s",
        asked=url,
        numbers={"timeout_s": round(seconds, 3)},
        why="The server hangs, is overloaded, or is not reached.",
        remedies=["end and start it again if it stays so", "a longer --timeout", "fewer requests at once"],
    )


def _unknown(base: str, model: str) -> ForgeError:
    return GateFailed(
        "TF-HLT-004",
        f"the server at {base} has no model {model}",
        asked=f"--model {model}",
        why="Its repository holds no model of that name.",
        remedies=["the model's name as the server's log prints it", "serve the bundle that was asked about"],
    )


def numbers_of(value: object) -> Sequence[Any]:
    """A tensor of a JSON answer as a flat list: one element comes without brackets."""
    return value if isinstance(value, list) else [value]
