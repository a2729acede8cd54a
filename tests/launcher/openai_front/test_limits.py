"""Keys, request ids, and how many requests run at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from launcher.openai_front.errors import ApiError
from launcher.openai_front.limits import InFlight, Keys, read_body, request_id_of
from launcher.openai_front.request_log import RequestLog
from launcher.openai_front.sse import ClientGone
from trtforge.ground.errors import ForgeError

KEY = "a-key-of-twenty-four-bytes"


def test_without_a_file_everybody_is_let_in() -> None:
    Keys.read(None).require(None)


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", f"Basic {KEY}", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", KEY]
)
def test_only_the_key_lets_in(tmp_path: Path, header: str | None) -> None:
    path = tmp_path / "keys"
    path.write_text(f"\n# comment\n{KEY}\n  second-key-with-spaces-around  \n")
    keys = Keys.read(path)
    keys.require(f"Bearer {KEY}")
    keys.require("bearer second-key-with-spaces-around")
    with pytest.raises(ApiError) as caught:
        keys.require(header)
    assert (caught.value.status, caught.value.code) == (401, "TF-OAI-008")
    assert caught.value.headers["WWW-Authenticate"] == "Bearer"
    assert KEY not in str(vars(keys))


@pytest.mark.parametrize(
    "text", [None, "", "# none\n", "short\n", f"{KEY}\nwith a space in it\n", "sch\u00fcssel-mit-umlaut\n"]
)
def test_files_that_are_no_keys(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "keys"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(ForgeError) as caught:
        Keys.read(path)
    assert caught.value.code == "TF-OAI-022"
    assert "openssl rand" in caught.value.remedies[0]


def test_requests_under_way_are_counted() -> None:
    flight = InFlight(2)
    flight.enter()
    flight.enter()
    with pytest.raises(ApiError) as caught:
        flight.enter()
    assert (caught.value.status, caught.value.headers["Retry-After"]) == (429, "1")
    flight.leave()
    flight.enter()
    flight.leave()
    flight.draining = True
    with pytest.raises(ApiError) as caught:
        flight.enter()
    assert (caught.value.status, caught.value.code) == (503, "TF-OAI-011")


@pytest.mark.parametrize(
    ("given", "taken"), [(None, True), ("a-1_2.3:/+=@", True), ("", False), ("a b", False), ("é", False)]
)
def test_request_ids(given: str | None, taken: bool) -> None:
    request: Any = SimpleNamespace(headers={} if given is None else {"x-request-id": given})
    if taken:
        assert request_id_of(request) == given
        return
    with pytest.raises(ApiError, match="TF-OAI-025"):
        request_id_of(request)


def body_of(messages: list[dict[str, Any]], headers: dict[str, str] | None = None) -> bytes:
    async def receive() -> Any:
        return messages.pop(0)

    given = {"content-type": "application/json", **(headers or {})}
    raw = [(name.encode(), value.encode()) for name, value in given.items()]
    return asyncio.run(read_body(Request({"type": "http", "method": "POST", "headers": raw}, receive), 100))


def test_a_client_that_goes_before_its_body_ends_is_gone_and_no_fault() -> None:
    with pytest.raises(ClientGone):
        body_of([{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}])


@pytest.mark.parametrize(("encoding", "taken"), [("", True), ("identity", True), ("gzip", False), ("br, gzip", False)])
def test_bodies_that_are_packed_are_refused_by_name(encoding: str, taken: bool) -> None:
    messages = [{"type": "http.request", "body": b"{}", "more_body": False}]
    if taken:
        assert body_of(messages, {"content-encoding": encoding}) == b"{}"
        return
    with pytest.raises(ApiError) as caught:
        body_of(messages, {"content-encoding": encoding})
    assert (caught.value.status, caught.value.code) == (415, "TF-OAI-006")
    assert encoding in caught.value.message


def test_the_log_is_its_users_own(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "requests.jsonl"
    for _ in range(2):
        with RequestLog(path) as log:
            log.write(id="x", user=None)
    assert path.stat().st_mode & 0o777 == 0o600
    lines = path.read_text().splitlines()
    assert len(lines) == 2 and all('"id": "x"' in line and "user" not in line for line in lines)
    RequestLog(None).write(id="x")
