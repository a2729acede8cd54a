"""A Hub model by ranges: small files whole, of weight files the headers, of scales what is asked for.

The result is a folder in this package's cache, of the commit's name, with sparse files of the full length: whoever
reads headers sees the model as it will be, and nothing of the weights is downloaded. :data:`MARK` tells such a folder.
Files that are neither read nor fetched (pickles, code, other tokenizers) stand there as holes, so that they
are refused by their names.

The login and the meaning of refusals are huggingface_hub's, the requests httpx's: with time-outs and retries, the token
in a header that no redirect to another host gets and no message shows.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quantize.intake.disk import system_answers
from quantize.intake.hub import IGNORED, hub_library, offline, refusal
from quantize.intake.source import Source
from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.ground.json_file import MAX_TOKENIZER_BYTES
from trtforge.ground.progress import Progress
from trtforge.ground.safetensors_header import MAX_HEADER_BYTES, PARTIAL_MARK, TensorInfo

MARK = PARTIAL_MARK
#: seconds until a connection stands, and between two pieces of an answer; requests, and seconds more before each
CONNECT, READ = 5.0, 20.0
RETRIES, PAUSE = 3, 1.0
#: of a weight file in the first request: most headers are shorter
FIRST = 1 << 17
#: ranges closer than this are one request
NEAR = 1 << 16
#: of values, at most in all, and in how many requests
MOST_BYTES, MOST_REQUESTS = 64 << 20, 512
_PARALLEL = 8
_WHOLE = (".json", ".jinja")


@dataclass
class HubFolder:
    """The folder of one commit; :meth:`bring` fetches values into it."""

    source: Source
    path: Path
    commit: str

    def __post_init__(self) -> None:
        self._held: set[tuple[str, int]] = set()

    def holds(self, info: TensorInfo) -> bool:
        """Whether a tensor's values lie in the folder."""
        return (info.file, info.offset) in self._held

    def bring(self, infos: Sequence[TensorInfo]) -> None:
        """Fetch the values of these tensors, neighbours in one request; those beyond the bounds are left out.

        Raises:
            ForgeError: as :func:`open_hub`.
        """
        spans: list[tuple[str, int, int, list[TensorInfo]]] = []
        total = 0
        for info in sorted((one for one in infos if not self.holds(one)), key=lambda one: (one.file, one.offset)):
            if spans and spans[-1][0] == info.file and 0 <= info.offset - spans[-1][2] <= NEAR:
                file, begin, _, members = spans.pop()
                spans.append((file, begin, info.offset + info.nbytes, [*members, info]))
            else:
                spans.append((info.file, info.offset, info.offset + info.nbytes, [info]))
        kept = []
        for span in spans[:MOST_REQUESTS]:
            total += span[2] - span[1]
            if total <= MOST_BYTES:
                kept.append(span)

        def fetch(span: tuple[str, int, int, list[TensorInfo]]) -> None:
            file, begin, end, _ = span
            data = client.range(file, begin, end - begin)
            with (self.path / file).open("r+b") as out:
                out.seek(begin)
                out.write(data)

        with (
            system_answers(self.path, f"fetching scales of {self.source.repo}"),
            _Client(self.source, self.commit) as client,
        ):
            _each(fetch, kept)
        self._held |= {(info.file, info.offset) for span in kept for info in span[3]}


def open_hub(source: Source, cache: Path, progress: Progress) -> HubFolder:
    """The headers of a Hub model, from this package's cache where the commit is known.

    Raises:
        EnvironmentLacks: ``TF-SRC-019`` no connection, ``TF-SRC-027`` no huggingface_hub.
        ForgeError: ``TF-SRC-020`` no such model or a closed one, ``TF-SRC-005`` a header that cannot be one.
    """
    entry, known = _entry(source, cache), cached_folder(source, cache)
    if known is not None and (offline() or known.name == source.revision):
        return HubFolder(source, known, known.name)
    if offline():
        raise refusal(source, OSError("HF_HUB_OFFLINE is set"))
    hub_library(source)
    with (
        system_answers(cache, f"reading {source.repo} from the Hub"),
        _Client(source, source.revision or "main") as client,
    ):
        try:
            files = client.listing()
        except EnvironmentLacks as error:
            if known is not None and error.code == "TF-SRC-019":
                return HubFolder(source, known, known.name)
            raise
        folder = entry / client.commit
        if not (folder / MARK).is_file():
            _fill(folder, client, files, progress)
        (entry / "refs").mkdir(parents=True, exist_ok=True)
        (entry / "refs" / _flat(source.revision or "main")).write_text(client.commit, encoding="utf-8")
    return HubFolder(source, folder, client.commit)


def cached_folder(source: Source, cache: Path) -> Path | None:
    """The folder of headers of the source's commit, when it was fetched before."""
    entry = _entry(source, cache)
    names = [source.revision] if source.revision else []
    with suppress(OSError):
        names.append((entry / "refs" / _flat(source.revision or "main")).read_text(encoding="utf-8").strip())
    folders = (entry / name for name in names if name and "/" not in name and name not in (".", ".."))
    return next((folder for folder in folders if (folder / MARK).is_file()), None)


def _entry(source: Source, cache: Path) -> Path:
    return cache / "hub-headers" / _flat(source.repo)


def _flat(name: str) -> str:
    return name.replace("/", "--")


def _fill(folder: Path, client: _Client, files: dict[str, int], progress: Progress) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    progress.start(f"Reading the headers of {client.source.repo}", len(files))

    def one(item: tuple[str, int]) -> None:
        name, size = item
        data = b""
        if name.endswith(".safetensors"):
            data = client.range(name, 0, min(size, FIRST))
            length = 8 + int.from_bytes(data[:8], "little")
            if len(data) >= 8 and length <= min(size, MAX_HEADER_BYTES):
                data = (
                    data[:length] if length <= len(data) else data + client.range(name, len(data), length - len(data))
                )
        elif name.endswith(_WHOLE) and size <= MAX_TOKENIZER_BYTES:
            data = client.range(name, 0, size)
        with (folder / name).open("wb") as out:
            out.write(data)
            out.truncate(size)  # what is not here is a hole
        progress.advance(1)

    _each(one, files.items())
    record = {"repo": client.source.repo, "commit": client.commit, "files": files}
    (folder / MARK).write_text(json.dumps(record, indent=2), encoding="utf-8")


def _each(work: Any, items: Iterable[Any]) -> None:
    with ThreadPoolExecutor(_PARALLEL) as pool:
        for _ in pool.map(work, items):
            pass


class _Client:
    """Requests for one model at one revision; :attr:`commit` is known after :meth:`listing`."""

    def __init__(self, source: Source, revision: str) -> None:
        self.source, self.commit = source, revision
        self._endpoint = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
        import httpx

        self._http = httpx.Client(follow_redirects=True, timeout=httpx.Timeout(READ, connect=CONNECT))

    def __enter__(self) -> _Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def listing(self) -> dict[str, int]:
        """Top-level file → bytes of the revision."""
        answer = json.loads(
            self._get(
                f"{self._endpoint}/api/models/{self.source.repo}/revision/{_quoted(self.commit)}?blobs=true",
                {},
                64 << 20,
            )
        )
        commit = answer.get("sha")
        if not isinstance(commit, str) or "/" in commit or not commit.strip("."):
            raise refusal(self.source, OSError("the Hub's answer names no commit"))
        self.commit = commit
        found = {}
        for row in answer.get("siblings") or ():
            name, size = row.get("rfilename"), row.get("size")
            plain = isinstance(name, str) and "/" not in name and "\\" not in name and name not in ("", ".", "..", MARK)
            if plain and isinstance(size, int) and 0 <= size < 2**43 and not _ignored(name):
                found[name] = size
        return found

    def range(self, name: str, begin: int, size: int) -> bytes:
        """``size`` bytes of a file from ``begin``."""
        if size <= 0:
            return b""
        url = f"{self._endpoint}/{self.source.repo}/resolve/{_quoted(self.commit)}/{_quoted(name)}"
        data = self._get(url, {"Range": f"bytes={begin}-{begin + size - 1}"}, size, begin)
        if len(data) != size:
            raise refusal(self.source, OSError(f"{name} ended after {len(data)} of {size} bytes"))
        return data

    def _get(self, url: str, headers: dict[str, str], most: int, begin: int = 0) -> bytes:
        """At most ``most`` bytes of an answer; one that ignores the range is read up to where it is needed."""
        import httpx
        from huggingface_hub.utils import build_hf_headers, hf_raise_for_status

        again: Exception | None = None
        for attempt in range(RETRIES):
            time.sleep(PAUSE * attempt)
            try:
                with self._http.stream("GET", url, headers={**build_hf_headers(), **headers}) as answer:
                    if answer.status_code in (429, 500, 502, 503, 504):
                        again = OSError(f"the Hub answered {answer.status_code}")
                        continue
                    if answer.status_code >= 400:
                        answer.read()
                    hf_raise_for_status(answer)
                    skip = begin if headers and answer.status_code != 206 else 0
                    data = bytearray()
                    for piece in answer.iter_bytes():
                        data += piece
                        if len(data) >= skip + most:
                            break
                    return bytes(data[skip : skip + most])
            except httpx.ConnectError as error:  # nobody there: asking again only makes the user wait
                raise refusal(self.source, error) from None
            except (httpx.TimeoutException, httpx.TransportError) as error:
                again = error
            except Exception as error:
                raise refusal(self.source, error) from None
        raise refusal(self.source, again or OSError("no answer")) from None


def _quoted(part: str) -> str:
    from urllib.parse import quote

    return quote(part, safe="")


def _ignored(name: str) -> bool:
    from fnmatch import fnmatchcase

    return any(fnmatchcase(name, pattern) for pattern in IGNORED)


def absent(error: ForgeError) -> bool:
    """Whether a refusal means that the model cannot be reached from here, and nothing about the model."""
    return error.code in ("TF-SRC-019", "TF-SRC-027")
