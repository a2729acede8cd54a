"""The recipe's ``serving`` on a live server: each key does what it says, and what it refuses is coded and counted."""

import json
import re
import shutil
import socket
import threading
import time
import urllib.request

import pytest

from launcher.local import TritonServer
from tests.support import forked
from tests.support.foreign_clients import generate
from tests.support.tiny_recipe import write_tiny_recipe
from triton_repo.layouts.native import emit
from trtforge.recipe.schema_serving import Serving

pytestmark = pytest.mark.e2e

SERVING = {
    "max_waiting": 2,
    "queue_timeout": 0.4,
    "default_max_tokens": 6,
    "max_output_tokens": 900,
    "stream_interval": 4,
    "coalesce": True,
    "cleanse": True,
    "salt": "of this server",
}
#: of the tiny engine
ROWS = 16


@pytest.fixture(scope="module")
def server(tiny_engine, tmp_path_factory):
    folder = tmp_path_factory.mktemp("serving")
    shutil.copytree(tiny_engine, folder / "engine")
    emit(folder / "engine", folder / "repository", name="tiny", serving=Serving.model_validate(SERVING))
    with TritonServer(folder / "repository", log_path=folder / "server.log", exit_timeout=2) as running:
        yield running


def _figures(server):
    """Metrics of the model by name and labels other than its own."""
    with urllib.request.urlopen(f"http://{server.host}:{server.metrics_port}/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    found = {}
    for line in lines:
        match = re.fullmatch(r"trtforge_(\w+)\{(.*)\} (\S+)", line)
        if match:
            labels = re.findall(r'(\w+)="([^"]*)"', match[2])
            found[(match[1], *(value for name, value in labels if name not in ("model", "version")))] = float(match[3])
    return found


def _until(condition):
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_lengths(server):
    status, silent = generate(server.http_url, "tiny", {"text_input": "Hello"})
    assert (status, silent["num_output_tokens"]) == (200, 6)
    status, refused = generate(server.http_url, "tiny", {"text_input": "Hello", "max_tokens": 901})
    assert status == 400
    assert "TF-RUN-133: max_tokens is 901; this server gives at most 900" in refused["error"]


def test_pieces(server):
    values = {"text_input": "Hello", "max_tokens": 21, "stream": True}
    _, pieces = generate(server.http_url, "tiny", values, stream=True)
    assert len(pieces) <= 7
    _, fine = generate(server.http_url, "tiny", {**values, "stream_interval": 1}, stream=True)
    assert "".join(p["text_output"] for p in pieces) == "".join(p["text_output"] for p in fine)


def test_what_nobody_sees_is_taken_out_and_said(server):
    clean, hidden = "Hello you", "Hel\u200blo\u202e you\U000e0041"
    _, plain = generate(server.http_url, "tiny", {"text_input": clean, "max_tokens": 5})
    _, cleansed = generate(server.http_url, "tiny", {"text_input": hidden, "max_tokens": 5})
    assert cleansed["text_output"] == plain["text_output"]
    assert cleansed["num_input_tokens"] == plain["num_input_tokens"]
    assert cleansed["prompt_characters_removed"] == 3
    assert "prompt_characters_removed" not in plain
    chat = json.dumps([{"role": "user", "content": hidden}])
    _, answer = generate(server.http_url, "tiny", {"messages": chat, "max_tokens": 5})
    assert answer["prompt_characters_removed"] == 3


def test_equal_requests_in_flight_are_answered_once(server):
    before = _figures(server)
    body = {"text_input": "Tell me the same", "max_tokens": 600, "min_tokens": 600}
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(generate(server.http_url, "tiny", body)), daemon=True)
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
        time.sleep(0.02)  # no more than may wait at once
    for thread in threads:
        thread.join(60)
    assert [status for status, _ in answers] == [200] * 8
    assert len({answer["text_output"] for _, answer in answers}) == 1
    assert {answer["num_output_tokens"] for _, answer in answers} == {600}

    def grew(name):
        after = _figures(server)
        return after[(name,)] - before.get((name,), 0)

    _until(lambda: grew("requests_coalesced_total") > 0)
    alone = 8 - grew("requests_coalesced_total")
    _until(lambda: grew("generation_tokens_total") >= 600 * alone)  # the page is behind by a refresh
    assert grew("generation_tokens_total") < 600 * (alone + 1)


def test_a_queue_has_a_length_and_an_end(server):
    """More than run at once: two wait, and no longer than they may; the others are refused at once."""
    before = _figures(server)
    long = {"max_tokens": 900, "min_tokens": 900, "temperature": 0.9}
    answers = []

    def ask(number):
        begin = time.monotonic()
        status, answer = generate(server.http_url, "tiny", {"text_input": f"number {number}", **long})
        answers.append((status, answer, time.monotonic() - begin))

    threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(3 * ROWS)]
    for thread in threads:
        thread.start()
        time.sleep(0.05)  # one after the other: the rows fill up before anybody has to wait
    for thread in threads:
        thread.join(120)
    refused = [answer["error"] for status, answer, _ in answers if status != 200]
    full, late = ([error for error in refused if code in error] for code in ("TF-RUN-056", "TF-RUN-132"))
    assert len(full) + len(late) == len(refused)
    assert full
    assert late
    assert len(answers) - len(refused) >= ROWS
    assert all(answer["num_output_tokens"] == 900 for status, answer, _ in answers if status == 200)
    _until(lambda: ("requests_rejected_total", "TF-RUN-132") in _figures(server))

    def counted(code):
        key = ("requests_rejected_total", code)
        return _figures(server).get(key, 0) - before.get(key, 0)

    _until(lambda: (counted("TF-RUN-056"), counted("TF-RUN-132")) == (len(full), len(late)))


def test_a_reader_that_does_not_read_delays_nobody_and_loses_nothing(server):
    """Triton keeps its answer, which is one answer at most."""
    body = json.dumps(
        {"text_input": "A slow reader", "max_tokens": 900, "min_tokens": 900, "stream": True, "stream_interval": 1}
    ).encode()
    host, port = server.http_url.split(":")
    with socket.create_connection((host, int(port)), timeout=60) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        head = f"POST /v2/models/tiny/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        slow.sendall(f"{head}Connection: close\r\n\r\n".encode() + body)
        _until(lambda: _figures(server)[("num_requests_running",)] >= 1)
        for number in range(3):
            status, quick = generate(server.http_url, "tiny", {"text_input": f"quick {number}", "max_tokens": 5})
            assert (status, quick["num_output_tokens"]) == (200, 5)
        _until(lambda: _figures(server)[("num_requests_running",)] == 0)  # its blocks are free: it was not waited for
        slow.settimeout(60)
        received = b""
        while part := slow.recv(65536):
            received += part
            if b'"length"' in received:
                break
    events = [json.loads(event) for event in re.findall(rb"data: (\{.*?\})\r?\n", received)]
    assert events[-1]["num_output_tokens"] == 900
    _, whole = generate(server.http_url, "tiny", {"text_input": "A slow reader", "max_tokens": 900, "min_tokens": 900})
    assert "".join(event["text_output"] for event in events) == whole["text_output"]


def test_a_whole_run_with_a_serving_section_passes_its_own_checks(tmp_path):
    """Smoke test and load test keep within the limits that the recipe sets, and see that they hold."""
    path = write_tiny_recipe(tmp_path)
    section = {"max_output_tokens": 16, "default_max_tokens": 4, "max_waiting": 6, "queue_timeout": "30s"}
    section |= {"stream_interval": 3, "coalesce": True, "cleanse": True, "default_timeout": "60s", "salt": "x"}
    path.write_text(f"{path.read_text()}serving: {json.dumps(section)}\n")
    words = [str(path), "--store", str(tmp_path / "store"), "--until", "bench"]
    done = forked.run("tests.support.tiny_recipe", words)
    assert done.returncode == 0, done.stderr[-3000:]
    gates = {gate["name"]: gate["passed"] for stage in json.loads(done.stdout)["stages"] for gate in stage["gates"]}
    assert all(gates.values()), gates
    assert any(name.startswith("smoke") for name in gates), gates
