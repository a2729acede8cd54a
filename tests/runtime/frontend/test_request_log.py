"""One line a request, whatever its end, and no word of what was asked or answered."""

from __future__ import annotations

import itertools
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from runtime.engine import EngineCore
from runtime.frontend.request_log import RequestLog, times_of
from runtime.frontend.service import Service
from runtime.request import RequestTimes
from runtime.serving import AsyncEngine
from tests.runtime.frontend.test_service import BACKEND, Request, Slow, _tokens
from triton_repo.layouts.native_tensors import INPUTS
from trtforge.ground.errors import ForgeError
from trtforge.recipe.schema_serving import Serving


class Logged:
    """A service with a log in a file; lines are there once it is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.executor = Slow()
        self.engine = AsyncEngine(EngineCore(self.executor))
        self.log = RequestLog(str(path))
        self.service = Service(self.engine, BACKEND, inputs=[row.name for row in INPUTS], request_log=self.log)

    def take(self, arrays: dict[str, Any], **more: Any) -> Request:
        request = Request(arrays, **more)
        self.service.take(request)
        return request

    def lines(self) -> list[dict[str, Any]]:
        self.executor.may.set()
        self.service.close()
        assert self.engine.shutdown(20)
        self.service.flush()
        return [json.loads(line) for line in self.path.read_text().splitlines()]


@pytest.fixture
def logged(tmp_path: Path) -> Logged:
    return Logged(tmp_path / "requests.jsonl")


def test_an_answer_is_a_line_with_its_tokens_and_times(logged: Logged) -> None:
    logged.take(_tokens(max_tokens=5), request_id="mine\n\x00").wait()
    [line] = logged.lines()
    assert line["id"] == "mine??"
    assert (line["prompt_tokens"], line["cached_tokens"], line["output_tokens"]) == (3, 0, 5)
    assert (line["finish_reason"], line["code"]) == ("length", None)
    assert 0 <= line["queue_s"] <= line["ttft_s"] <= line["e2e_s"] and line["itl_mean_s"] >= 0
    assert line["time"].endswith("+00:00")
    assert set(line) == {"time", "id", "prompt_tokens", "cached_tokens", "output_tokens", "queue_s", "ttft_s",
                         "itl_mean_s", "e2e_s", "finish_reason", "code"}  # fmt: skip


def test_a_stream_is_one_line_and_a_row_is_one(logged: Logged) -> None:
    logged.take(_tokens(max_tokens=6, stream=True), request_id="stream").wait()
    logged.take(_tokens(rows=3, max_tokens=2), request_id="rows").wait()
    lines = logged.lines()
    assert [(line["id"], line["output_tokens"]) for line in lines] == [("stream", 6), *[("rows", 2)] * 3]


def test_a_refusal_has_its_code(logged: Logged) -> None:
    logged.take(_tokens(max_tokens=0), request_id="r").wait()
    logged.take(_tokens(), parameters={"max_tokns": 3}).wait()
    first, second = logged.lines()
    assert (first["id"], first["finish_reason"]) == ("r", "refused") and first["code"].startswith("TF-RUN-")
    assert second["code"] == "TF-RUN-106"


def test_a_cancelled_request_and_a_client_that_has_gone(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    logged.executor.may.clear()
    gone = logged.take(_tokens(max_tokens=20), request_id="gone")
    gone.gone = True
    logged.service.watch()
    logged.executor.may.set()
    gone.wait()
    # the sender finds out on a thread of its own: the engine, which would be done by then, waits before its second step
    withdrawn, cancel, execute = threading.Event(), logged.engine.cancel, logged.executor.execute
    steps = itertools.count()
    monkeypatch.setattr(logged.engine, "cancel", lambda key: (cancel(key), withdrawn.set()))
    monkeypatch.setattr(
        logged.executor, "execute", lambda batch: (next(steps) and withdrawn.wait(20), execute(batch))[1]
    )
    logged.take(_tokens(max_tokens=20, stream=True), request_id="deaf", refuses=True)
    assert withdrawn.wait(20)
    lines = {line["id"]: line for line in logged.lines()}
    assert set(lines) == {"gone", "deaf"}
    assert {line["finish_reason"] for line in lines.values()} == {"cancelled"}


def test_a_failed_step_has_its_code(logged: Logged) -> None:
    logged.executor.fault = MemoryError("none")
    logged.take(_tokens(), request_id="unlucky").wait()
    [line] = logged.lines()
    assert (line["finish_reason"], line["code"]) == ("error", "TF-RUN-059")


def test_the_file_is_appended_to_and_its_users_alone(tmp_path: Path) -> None:
    for number in range(2):
        log = RequestLog(str(tmp_path / "log"))
        log.refused(str(number), "TF-RUN-001")
        log.close()
    assert [json.loads(line)["id"] for line in (tmp_path / "log").read_text().splitlines()] == ["0", "1"]
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("place", ["relative.log", "/no/such/folder/log", "/"])
def test_a_file_that_cannot_be_opened_is_refused(place: str) -> None:
    with pytest.raises(ForgeError) as caught:
        RequestLog(place)
    assert caught.value.code == "TF-RUN-140"


@pytest.mark.parametrize("place", ["requests.log", "", "/var/log/a\nb", "stdout"])
def test_the_recipe_takes_stderr_and_absolute_paths(place: str) -> None:
    assert Serving.model_validate({"request_log": "stderr"}).request_log == "stderr"
    with pytest.raises(ValueError, match="absolute path"):
        Serving.model_validate({"request_log": place})


def test_times_that_did_not_come_are_null() -> None:
    assert times_of(RequestTimes(1.0), 0) == {"queue_s": None, "ttft_s": None, "itl_mean_s": None, "e2e_s": None}
    found = times_of(RequestTimes(1.0, 1.5, 2.0, 4.5, 4.0), 5)
    assert found == {"queue_s": 0.5, "ttft_s": 1.0, "itl_mean_s": 0.5, "e2e_s": 3.5}
