"""The levels of health against a server whose answers a test decides."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from launcher.health.asking import Server, base_of
from launcher.health.checks import check
from launcher.health.recording import Position, Probe, Recording
from tests.launcher.health.support import NOT_READY, OK, UNKNOWN, Said, healthy, served
from tests.launcher.health.test_recording import bundle_of
from trtforge.cli.app import invoke
from trtforge.ground.errors import ForgeError

TOKENS, LOG_PROBS = [5, 6], [-0.5, -1.5]


def recorded(seconds: float = 5.0, warm_up: float = 0.0, layout: str = "native", noise: float = 0.0) -> Recording:
    answer = [Position(token=5, log_prob=-0.5), Position(token=6, log_prob=-1.5, ties={7: -1.52})]
    return Recording(
        model="m",
        layout=layout,
        noise=noise,
        probes=[Probe(prompt=[1, 2], answer=answer, seconds=seconds)],
        load_seconds=1.0,
        first_seconds=1.0,
        warm_up_seconds=warm_up,
    )


def deep(said: Said, made: Recording | None = None) -> list[str]:
    with served(said) as url:
        return [item.detail for item in check(Server(url, 5.0), "deep", "m", made or recorded())]


def refused(said: Said, made: Recording | None = None) -> ForgeError:
    with pytest.raises(ForgeError) as caught:
        deep(said, made)
    assert caught.value.remedies and caught.value.why
    return caught.value


def test_a_server_that_answers_as_recorded_is_well_and_is_asked_for_no_more_than_that() -> None:
    said = Said(healthy(TOKENS, LOG_PROBS))
    assert "the recorded tokens, mean log-probability -1.0000" in deep(said)[-1]
    path, body = said.asked[-1]
    assert path == "/v2/models/m/generate"
    assert (body["input_ids"], body["max_tokens"], body["temperature"]) == ([1, 2], 2, 0.0)
    assert body["return_log_probs"] is True and body["exclude_input_in_output"] is True


def test_levels_ask_for_what_they_name_and_nothing_else() -> None:
    said = Said(healthy(TOKENS, LOG_PROBS))
    with served(said) as url:
        assert [item.name for item in check(Server(url, 5.0), "live")] == ["live"]
        assert [path for path, _ in said.asked] == ["/v2/health/live"]
        assert [item.name for item in check(Server(url, 5.0), "ready", "m")] == ["live", "ready"]
    assert {path for path, _ in said.asked} == {"/v2/health/live", "/v2/health/ready", "/v2/models/m/ready"}


@pytest.mark.parametrize(
    ("tokens", "log_probs", "passes"),
    [
        ([5, 7], [-0.5, -1.52], True),  # a near tie
        ([5, 8], [-0.5, -1.52], False),  # none
        ([7, 6], [-0.5, -1.5], False),  # a near tie elsewhere
        ([5], [-0.5], False),
        ([5, 6, 6], [-0.5, -1.5, -1.0], False),
        ([], [], False),
        (TOKENS, [-0.5, -1.69], True),  # 0.095 nat in the mean
        (TOKENS, [-0.5, -1.71], False),
        (TOKENS, [-0.31, -1.5], True),
        (TOKENS, [-0.29, -1.5], False),
        (TOKENS, [-0.5, float("nan")], False),
    ],
)
def test_an_answer_is_the_recorded_one_but_for_rounding(
    tokens: list[int], log_probs: list[float], passes: bool
) -> None:
    said = Said(healthy(tokens, log_probs))
    if passes:
        deep(said)
    else:
        error = refused(said)
        assert error.code == "TF-HLT-007" and int(error.exit_code) == 1


def test_paritys_noise_widens_what_probabilities_may_be() -> None:
    said = Said(healthy(TOKENS, [-0.5, -1.9]))
    refused(said)
    deep(said, recorded(noise=0.06))


def test_an_answer_of_one_token_comes_without_brackets() -> None:
    one = recorded()
    one = one.model_copy(update={"probes": [one.probes[0].model_copy(update={"answer": one.probes[0].answer[:1]})]})
    said = Said(healthy(TOKENS, LOG_PROBS))
    said.answers = {**said.answers, "/v2/models/m/generate": (200, {"output_ids": 5, "output_log_probs": -0.5})}
    deep(said, one)


def test_a_server_may_be_slow_once() -> None:
    deep(Said(healthy(TOKENS, LOG_PROBS), waits=[0.6]), recorded(seconds=0.1, warm_up=0.4))


def test_a_server_that_stays_slow_is_not_well() -> None:
    late = refused(Said(healthy(TOKENS, LOG_PROBS), waits=[0.6, 0.6]), recorded(seconds=0.1, warm_up=0.9))
    assert late.code == "TF-HLT-008" and int(late.exit_code) == 1 and late.numbers["limit_s"] == 0.5
    hangs = refused(Said(healthy(TOKENS, LOG_PROBS), waits=[0.6, 1.5]), recorded(seconds=0.1, warm_up=0.9))
    assert hangs.code == "TF-HLT-002" and int(hangs.exit_code) == 1


@pytest.mark.parametrize(
    ("answers", "code"),
    [
        ({"/v2/health/ready": NOT_READY, "/v2/models/m/ready": NOT_READY, "/v2/models/m": OK}, "TF-HLT-003"),
        ({"/v2/health/ready": NOT_READY}, "TF-HLT-003"),
        ({"/v2/models/m/ready": NOT_READY, "/v2/models/m": OK}, "TF-HLT-003"),
        ({"/v2/models/m/ready": NOT_READY, "/v2/models/m": UNKNOWN}, "TF-HLT-004"),
        ({"/v2/health/live": (404, "not found")}, "TF-HLT-005"),
        ({"/v2/models/m/generate": (400, {"error": "Stub process 'm_0_0' is not healthy."})}, "TF-HLT-006"),
        ({"/v2/models/m/generate": (200, {"text_output": "x"})}, "TF-HLT-006"),
        ({"/v2/models/m/generate": (200, {"output_ids": [5], "output_log_probs": [0, 0]})}, "TF-HLT-006"),
        ({"/v2/models/m/generate": (200, "<html>")}, "TF-HLT-006"),
    ],
)
def test_whatever_is_wrong_has_a_code_and_ends_with_exit_code_1(answers: dict[str, Any], code: str) -> None:
    error = refused(Said({**healthy(TOKENS, LOG_PROBS), **answers}))
    assert error.code == code and int(error.exit_code) == 1
    if code == "TF-HLT-006" and answers["/v2/models/m/generate"][0] == 400:
        assert "Stub process" in str(error.why)


def test_nobody_answers_and_somebody_says_nothing() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        url = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ForgeError) as caught:
            check(Server(url, 1.0), "live")
        assert caught.value.code == "TF-HLT-001" and int(caught.value.exit_code) == 1
        silent.listen()
        with pytest.raises(ForgeError) as caught:
            check(Server(url, 0.2), "live")
        assert caught.value.code == "TF-HLT-002" and int(caught.value.exit_code) == 1


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("http://h:1/", "http://h:1"),
        ("https://models.example", "https://models.example"),
        ("[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_addresses(url: str, base: str) -> None:
    assert base_of(url) == base


@pytest.mark.parametrize("url", ["ftp://h:1", "h:0", "h:70000", "http://h:1/v2", "file:///etc/passwd", "h 1", "u@h:1"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(ForgeError) as caught:
        base_of(url)
    assert caught.value.code == "TF-HLT-010" and int(caught.value.exit_code) == 2


def test_a_layout_without_tokens_is_refused_by_name() -> None:
    error = refused(Said(healthy(TOKENS, LOG_PROBS)), recorded(layout="llmapi"))
    assert error.code == "TF-HLT-023" and "llmapi" in str(error) and int(error.exit_code) == 2


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = bundle_of(tmp_path, recorded().model_dump_json().encode())
    with served(Said(healthy(TOKENS, LOG_PROBS))) as url:
        assert invoke(["health", url, "--level", "deep", "--bundle", str(bundle), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["healthy"] is True and found["model"] == "m"
        assert [item["name"] for item in found["checks"]] == ["live", "ready", "recorded prompt 1"]
        assert invoke(["health", url, "--model", "m", "--quiet"]) == 0
        assert capsys.readouterr().out.strip() == f"http://{url}: ready"
    assert invoke(["health", url, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "TF-HLT-001"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--level", "deep"], "TF-HLT-012"),
        (["--level", "deeper"], "TF-HLT-011"),
        (["--level", "deep", "--bundle", "."], "TF-HLT-020"),
    ],
)
def test_faulty_commands(
    arguments: list[str], code: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert invoke(["health", "localhost:1", *arguments, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == code
