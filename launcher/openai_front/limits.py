"""What one client may cost: keys, the size and the time of a body, and how many requests run at once."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
from collections.abc import Sequence
from pathlib import Path

from starlette.requests import ClientDisconnect, Request

from launcher.openai_front.errors import ApiError
from launcher.openai_front.sse import ClientGone
from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import read_text_file

#: characters of a key at least: what can be guessed keeps nobody out
LEAST_KEY = 16
#: seconds that a client may take to send a body
BODY_SECONDS = 30.0
_KEYS_BYTES = 1 << 20
#: times the most bytes of a body, up to which one that is too large is read to be refused in words
_DROPPED = 4
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=@-]{1,128}")


class Keys:
    """The keys that let a client in; held as digests, and compared in a time that tells nothing of them.

    Args:
        keys: none: everybody is let in.
    """

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self._digests = [_digest(key) for key in keys]

    @classmethod
    def read(cls, path: Path | None) -> Keys:
        """The keys of a file, one a line; empty lines and lines that begin with ``#`` are none.

        Raises:
            ForgeError: TF-OAI-022 when it cannot be read, has no key, or one that is too short.
        """
        if path is None:
            return cls()
        try:
            lines = [line.strip() for line in read_text_file(path, _KEYS_BYTES).splitlines()]
        except (OSError, ValueError) as error:
            raise _bad_keys(path, str(error)) from None
        keys = [line for line in lines if line and not line.startswith("#")]
        if not keys:
            raise _bad_keys(path, "there is no key in it, and an empty list would let nobody in")
        short = [number for number, line in enumerate(lines, 1) if line in keys and len(line) < LEAST_KEY]
        if short:
            raise _bad_keys(path, f"the key in line {short[0]} has fewer than {LEAST_KEY} characters")
        if any(not key.isascii() or " " in key for key in keys):
            raise _bad_keys(path, "a key holds a space or what is no ASCII, which no header can carry")
        return cls(keys)

    def require(self, authorization: str | None) -> None:
        """Refuse a request without a key that is known.

        Raises:
            ApiError: ``TF-OAI-008``.
        """
        if not self._digests:
            return
        scheme, _, key = (authorization or "").partition(" ")
        digest = _digest(key.strip() if scheme.lower() == "bearer" else "")
        # every one is compared, whichever fits
        if not sum(hmac.compare_digest(digest, known) for known in self._digests):
            raise ApiError(
                401,
                "TF-OAI-008",
                "no valid API key: send the header Authorization with the word Bearer and a key of this server",
                headers={"WWW-Authenticate": "Bearer"},
            )


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _bad_keys(path: Path, why: str) -> ForgeError:
    return ForgeError(
        "TF-OAI-022",
        "the file of API keys cannot be used",
        asked=str(path),
        why=why,
        remedies=[f"one key a line, each of {LEAST_KEY} characters or more: openssl rand -hex 24 >> {path}"],
    )


class InFlight:
    """How many requests for answers run at once.

    Args:
        most: more are refused, so that they wait at their clients and not here.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.now = 0
        self.draining = False

    def enter(self) -> None:
        """Count a request in; every one that is let in is to be counted out.

        Raises:
            ApiError: ``TF-OAI-009`` when as many run as may, ``TF-OAI-011`` during a drain.
        """
        if self.draining:
            raise ApiError(
                503, "TF-OAI-011", "this server is being stopped and takes no more requests; ask another replica"
            )
        if self.now >= self._most:
            raise ApiError(
                429, "TF-OAI-009", f"{self.now} requests are under way, as many as run at once; ask again later"
            )
        self.now += 1

    def leave(self) -> None:
        self.now -= 1


async def read_body(request: Request, most: int) -> bytes:
    """A JSON body.

    Raises:
        ApiError: ``TF-OAI-005`` over ``most`` bytes, ``TF-OAI-006`` for another content type or encoding,
            ``TF-OAI-019`` when it does not come in :data:`BODY_SECONDS`.
        ClientGone: the client went before its end.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(
            415, "TF-OAI-006", f"the body's content type is {kind[:60] or 'not said'}; send application/json"
        )
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity"):
        raise ApiError(415, "TF-OAI-006", f"the body's content encoding is {encoding[:60]}; send it as it is")
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                size += len(part)
                if size <= most:
                    parts.append(part)
                    continue
                # read on and let it go: who is still sending would not read the refusal
                parts.clear()
                if size > _DROPPED * most:
                    break
    except TimeoutError:
        raise ApiError(408, "TF-OAI-019", f"the body did not come within {BODY_SECONDS:g} s; send it again") from None
    except ClientDisconnect:
        raise ClientGone from None
    if size > most:
        raise ApiError(413, "TF-OAI-005", f"the body has more than {most} bytes; send less")
    return b"".join(parts)


def request_id_of(request: Request) -> str | None:
    """The client's ``X-Request-Id``.

    Raises:
        ApiError: ``TF-OAI-025`` for one that no log line could hold.
    """
    given = request.headers.get("x-request-id")
    if given is None:
        return None
    if not _REQUEST_ID.fullmatch(given):
        raise ApiError(
            400, "TF-OAI-025", "X-Request-Id has 1 to 128 letters, digits and . _ : / + = @ -", param="X-Request-Id"
        )
    return given
