"""A Hugging Face Hub on loopback: one model, its listing and files by ranges, and what goes wrong on real ones."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.support.http_server import Quiet, listening

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class FakeHub:
    """Attributes:
    folder: the model's files; repo: its name.
    gated: requests without this token are refused. flaky: so many requests are answered 503 first.
    whole: ranges are ignored. cut: weight files end after so many bytes of each answer. elsewhere: files are on
        another host, as the Hub's storage is. slow: seconds before each answer.
    requests: (path, range, authorization) of every one; sent: bytes of bodies.
    """

    folder: Path
    repo: str = "org/tiny"
    gated: str | None = None
    flaky: int = 0
    whole: bool = False
    cut: int | None = None
    elsewhere: bool = False
    slow: float = 0.0
    port: int = 0
    requests: list[tuple[str, str | None, str | None]] = field(default_factory=list)
    sent: int = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """The hub answers while the context lasts."""

    class Handler(Quiet):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:  # the name is http.server's
            path, asked = unquote(urlsplit(self.path).path), self.headers.get("Range")
            hub.requests.append((path, asked, self.headers.get("Authorization")))
            time.sleep(hub.slow)
            if hub.flaky > 0:
                hub.flaky -= 1
                return self._answer(503, b"busy")
            if path.startswith("/cdn/"):
                return self._file(path.removeprefix("/cdn/"), asked)
            if hub.gated is not None and self.headers.get("Authorization") != f"Bearer {hub.gated}":
                return self._answer(
                    401, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access is restricted"}
                )
            if path in (f"/api/models/{hub.repo}/revision/main", f"/api/models/{hub.repo}/revision/{COMMIT}"):
                rows = [{"rfilename": file.name, "size": file.stat().st_size} for file in sorted(hub.folder.iterdir())]
                return self._answer(200, json.dumps({"sha": COMMIT, "siblings": rows}).encode())
            start = f"/{hub.repo}/resolve/{COMMIT}/"
            if not path.startswith(start):
                return self._answer(
                    404, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository Not Found"}
                )
            name = path.removeprefix(start)
            if hub.elsewhere:
                return self._answer(302, b"", {"Location": f"http://localhost:{hub.port}/cdn/{name}"})
            return self._file(name, asked)

        def _file(self, name: str, asked: str | None) -> None:
            data = (hub.folder / name).read_bytes()
            if asked is None or hub.whole:
                return self._answer(200, data)
            first, _, last = asked.removeprefix("bytes=").partition("-")
            part = data[int(first) : int(last) + 1]
            if hub.cut is not None and name.endswith(".safetensors"):
                part = part[: hub.cut]
            return self._answer(206, part, {"Content-Range": f"bytes {first}-{last}/{len(data)}"})

        def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
                self.send_header(key, value)
            self.end_headers()
            try:
                self.wfile.write(body)
                hub.sent += len(body)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # who asked for a range and got it all hangs up

    with listening(Handler) as hub.port:
        yield hub
