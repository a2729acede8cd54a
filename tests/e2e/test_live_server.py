"""The native layout on a real Triton server with real clients."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request

import psutil
import pytest

from evals.speed import perf_analyzer
from launcher.client import StreamClient
from launcher.local import TritonServer
from launcher.ports import pick_free
from launcher.smoke import SmokeTarget, run_smoke
from launcher.stubs import stubs_of
from triton_repo.layouts.native import emit
from trtforge.ground.errors import ForgeError

pytestmark = pytest.mark.e2e

_DYING = """
from runtime.engine import EngineCore

step = EngineCore.step

def dying(self):
    if len(self.live_ids()) > 1:
        raise MemoryError("the second request was too much")
    return step(self)

EngineCore.step = dying
"""
PROMPTS = ("What is the capital of France?", "Give one reason to write unit tests.", "List three fruits")
TOKENS = 24


@pytest.fixture(scope="module")
def expected(bundle):
    from runtime.offline import Engine
    from runtime.sampling.params import SamplingParams

    engine = Engine.load(bundle / "engine")
    params = SamplingParams(max_tokens=TOKENS, temperature=0.0)
    return {prompt: engine.generate(prompt, params)[0].text for prompt in PROMPTS}


@pytest.fixture(scope="module")
def server(bundle, tmp_path_factory):
    with TritonServer(bundle / "repository", log_path=tmp_path_factory.mktemp("log") / "server.log") as running:
        yield running


def test_smoke_checks_all_pass(server, expected):
    target = SmokeTarget(
        grpc_url=server.grpc_url,
        http_url=server.http_url,
        metrics_url=f"{server.host}:{server.metrics_port}",
        model="tiny",
        expected=expected,
        max_tokens=TOKENS,
        max_input_len=1023,
        clients=32,
    )
    checks = run_smoke(target)
    assert len(checks) == 8
    assert [f"{c.name}: {c.detail}" for c in checks if not c.passed] == []


def test_a_server_that_does_not_stream_is_checked_and_measured_too(bundle, expected, tmp_path):
    shutil.copytree(bundle / "engine", tmp_path / "engine")
    emit(tmp_path / "engine", tmp_path / "repository", name="tiny", decoupled=False)
    with TritonServer(tmp_path / "repository", log_path=tmp_path / "server.log") as running:
        target = SmokeTarget(
            grpc_url=running.grpc_url,
            http_url=running.http_url,
            metrics_url=f"{running.host}:{running.metrics_port}",
            model="tiny",
            expected=expected,
            max_tokens=TOKENS,
            max_input_len=1023,
            clients=8,
            streams=False,
        )
        checks = run_smoke(target)
        assert len(checks) == 8
        assert [f"{c.name}: {c.detail}" for c in checks if not c.passed] == []
        [level] = perf_analyzer.measure(
            grpc_url=running.grpc_url,
            model="tiny",
            prompts=list(PROMPTS),
            concurrency=(4,),
            requests_per_level=12,
            max_tokens=8,
        )
    assert level.errors == 0
    assert level.tokens == 8 * level.requests


def test_smoke_finds_a_server_that_answers_something_else(server, expected):
    wrong = {prompt: text + "!" for prompt, text in expected.items()}
    target = SmokeTarget(
        grpc_url=server.grpc_url,
        http_url=server.http_url,
        metrics_url=f"{server.host}:{server.metrics_port}",
        model="tiny",
        expected=wrong,
        max_tokens=TOKENS,
        max_input_len=1023,
        clients=2,
    )
    verdicts = {check.name: check.passed for check in run_smoke(target)}
    assert not verdicts["joined stream, whole answer and offline engine agree"]


def test_the_metrics_page_has_counters_and_gauges_with_labels(server):
    from prometheus_client.parser import text_string_to_metric_families

    with StreamClient(server.grpc_url, "tiny") as client:
        assert client.ask({"text_input": PROMPTS[0], "max_tokens": 4}).error is None
    page = f"http://{server.host}:{server.metrics_port}/metrics"

    def families():
        with urllib.request.urlopen(page, timeout=10) as answer:
            return {family.name: family for family in text_string_to_metric_families(answer.read().decode())}

    end = time.monotonic() + 10
    found = families()
    while not any(s.value for s in found["trtforge_request_success"].samples) and time.monotonic() < end:
        time.sleep(0.1)
        found = families()
    assert found["trtforge_generation_tokens"].type == "counter"
    assert found["trtforge_kv_blocks_total"].type == "gauge"
    reasons = {sample.labels["finished_reason"] for sample in found["trtforge_request_success"].samples}
    assert "length" in reasons
    assert {sample.labels["model"] for sample in found["trtforge_request_success"].samples} == {"tiny"}
    assert not [name for name in found if "spec_decode" in name], "this engine does not speculate"


def test_the_metrics_page_has_the_histograms_as_series(server):
    from prometheus_client.parser import text_string_to_metric_families

    with StreamClient(server.grpc_url, "tiny") as client:
        assert client.ask({"text_input": PROMPTS[0], "max_tokens": 4}).error is None
    page = f"http://{server.host}:{server.metrics_port}/metrics"
    end = time.monotonic() + 10
    while time.monotonic() < end:
        with urllib.request.urlopen(page, timeout=10) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
        samples = [s for f in families for s in f.samples if s.name.startswith("trtforge_time_to_first_token_seconds")]
        if any(s.value for s in samples):
            break
        time.sleep(0.2)  # they are a second old at most
    # the parser ends the name of every counter with _total
    names = [s.name.removeprefix("trtforge_time_to_first_token_seconds").removesuffix("_total") for s in samples]
    found = {(name, s.labels.get("le")): s.value for name, s in zip(names, samples, strict=True)}
    assert found["_bucket", "+Inf"] == found["_count", None] >= 1
    assert found["_sum", None] > 0
    bounds = sorted((float(le), value) for (_, le), value in found.items() if le is not None)
    assert len(bounds) == 20
    assert [value for _, value in bounds] == sorted(value for _, value in bounds)


def test_an_engine_that_is_dead_ends_a_server_that_nobody_watches(bundle, tmp_path, monkeypatch):
    """As Triton runs in a pod: no launcher of ours is there to end it, and it would stay ready."""
    monkeypatch.setattr("launcher.local.NOTICE", "NOBODY_READS_THIS")
    shutil.copytree(bundle, tmp_path / "bundle", symlinks=True)
    model = tmp_path / "bundle" / "repository" / "tiny" / "1" / "model.py"
    model.write_text(model.read_text() + _DYING)
    server = TritonServer(tmp_path / "bundle" / "repository", log_path=tmp_path / "server.log")
    monkeypatch.setattr(server, "_watch_models", lambda: None)
    with server:
        first: list[str] = []
        thread = _long_stream(server.grpc_port, first)
        with StreamClient(server.grpc_url, "tiny") as stream:
            second = stream.ask({"text_input": PROMPTS[0], "max_tokens": 900, "min_tokens": 900}, timeout=30)
        thread.join(timeout=30)
        assert "TF-RUN" in (second.error or "") and "TF-RUN" in first[0]
        for _ in range(600):
            if server.process.poll() is not None:
                break
            time.sleep(0.05)
        assert server.process.poll() is not None, "the server of a dead engine went on, and says that it is ready"
        assert "the engine is dead" in (tmp_path / "server.log").read_text()


def test_same_seed_same_text_and_log_probabilities(server):
    values = {
        "text_input": PROMPTS[0],
        "max_tokens": 12,
        "temperature": 1.0,
        "top_k": 50,
        "random_seed": 7,
        "return_log_probs": True,
    }
    with StreamClient(server.grpc_url, "tiny") as client:
        first, second = client.ask(values), client.ask(values)
        other = client.ask({**values, "random_seed": 8})
    assert first.error is None
    assert first.text == second.text
    assert first.text != other.text
    assert len(first.log_probs) == first.output_tokens == 12
    assert all(value <= 0 for value in first.log_probs)


def test_chat_and_echo_and_deadline(server):
    with StreamClient(server.grpc_url, "tiny") as client:
        plain = client.ask({"text_input": PROMPTS[0], "max_tokens": 8})
        echoed = client.ask({"text_input": PROMPTS[0], "max_tokens": 8, "exclude_input_in_output": False})
        chat = client.ask({"text_input": PROMPTS[0], "max_tokens": 8, "chat": True})
        late = client.ask({"text_input": PROMPTS[0], "max_tokens": 1000, "min_tokens": 1000, "timeout_ms": 60})
    assert echoed.text == PROMPTS[0] + plain.text
    assert chat.error is None
    assert chat.output_tokens == 8
    assert late.finish_reason == "timeout"
    assert late.output_tokens < 1000


def test_perf_analyzer_measures_the_server(server):
    levels = perf_analyzer.measure(
        grpc_url=server.grpc_url,
        model="tiny",
        prompts=list(PROMPTS),
        concurrency=(1, 4),
        requests_per_level=12,
        max_tokens=8,
    )
    assert [level.concurrency for level in levels] == [1, 4]
    for level in levels:
        assert level.errors == 0
        assert level.requests >= 12
        assert level.tokens == 8 * level.requests
        assert 0 < level.ttft["p50"] <= level.ttft["max"]


def test_perf_analyzer_against_nothing_is_a_coded_error():
    port = pick_free("127.0.0.1", 1)[0]
    with pytest.raises(ForgeError) as caught:
        perf_analyzer.measure(
            grpc_url=f"127.0.0.1:{port}",
            model="tiny",
            prompts=["x"],
            concurrency=(1,),
            requests_per_level=2,
            max_tokens=2,
        )
    assert caught.value.code == "TF-BEN-004"


def test_thousands_of_short_requests(bundle, tmp_path):
    """Requests end while the watcher asks Triton about their clients."""
    server = TritonServer(bundle / "repository", log_path=tmp_path / "server.log")
    errors: list[str] = []
    answered: list[int] = []
    with server:
        end = time.monotonic() + 8

        def client(index: int) -> None:
            try:
                with StreamClient(server.grpc_url, "tiny") as stream:
                    while time.monotonic() < end:
                        values = {"text_input": PROMPTS[0], "max_tokens": 1 + index % 3, "stream": index % 2 == 0}
                        answer = stream.ask(values, timeout=60)
                        if answer.error is not None:
                            errors.append(answer.error)
                        answered.append(index)
            except ForgeError as error:
                errors.append(error.code)

        threads = [threading.Thread(target=client, args=(i,), daemon=True) for i in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=90)
        assert server.process.poll() is None, "the server died"
    assert errors == []
    assert len(answered) > 200


def test_killed_under_load_then_started_again(bundle, expected, tmp_path):
    first = TritonServer(bundle / "repository", log_path=tmp_path / "first.log")
    outcomes: list[str] = []

    def client() -> None:
        try:
            with StreamClient(first.grpc_url, "tiny") as stream:
                answer = stream.ask({"text_input": PROMPTS[0], "max_tokens": 900, "min_tokens": 900}, timeout=60)
            outcomes.append(answer.error or "answered")
        except ForgeError as error:
            outcomes.append(error.code)

    with first:
        threads = [threading.Thread(target=client, daemon=True) for _ in range(8)]
        for thread in threads:
            thread.start()
        time.sleep(0.3)
        first.kill()
        for thread in threads:
            thread.join(timeout=90)
    assert len(outcomes) == 8, "a client hung when the server died"
    again = TritonServer(
        bundle / "repository",
        log_path=tmp_path / "second.log",
        http_port=first.http_port,
        grpc_port=first.grpc_port,
        metrics_port=first.metrics_port,
    )
    with again, StreamClient(again.grpc_url, "tiny") as stream:
        assert stream.ask({"text_input": PROMPTS[0], "max_tokens": TOKENS}).text == expected[PROMPTS[0]]


def test_an_idle_server_unloads_at_once_after_cancelled_work(bundle, tmp_path):
    for attempt in range(3):
        server = TritonServer(bundle / "repository", log_path=tmp_path / f"{attempt}.log", exit_timeout=60)
        with server:
            client = StreamClient(server.grpc_url, "tiny")
            client.ask({"text_input": PROMPTS[0], "max_tokens": 4})
            client.send({"text_input": PROMPTS[0], "max_tokens": 900, "min_tokens": 900, "stream": True})
            next(iter(client.receive(30)))
            client.close(cancel=True)
        countdown = [int(n) for n in re.findall(r'"Timeout (\d+): Found', (tmp_path / f"{attempt}.log").read_text())]
        assert min(countdown) > 30, "unloading an idle model waited for the exit timeout"


@pytest.fixture
def serve_command(bundle, tmp_path):
    ports = pick_free("127.0.0.1", 3)
    flags = [f"--{name}-port={port}" for name, port in zip(("http", "grpc", "metrics"), ports, strict=True)]
    command = [sys.executable, "-m", "trtforge", "serve", str(bundle), *flags, "--json", "--no-verify"]  # never sealed
    return command, ports


def _wait_ready(port: int, process: subprocess.Popen) -> None:
    for _ in range(600):
        assert process.poll() is None, process.stderr.read()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=2):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError("not ready in 60 s")


def test_serve_drains_on_sigterm(serve_command, expected, tmp_path):
    command, (http_port, grpc_port, _) = serve_command
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        _wait_ready(http_port, process)
        answers = []

        def client() -> None:
            with StreamClient(f"127.0.0.1:{grpc_port}", "tiny") as stream:
                answers.append(stream.ask({"text_input": PROMPTS[0], "max_tokens": 400, "min_tokens": 400}))

        thread = threading.Thread(target=client, daemon=True)
        thread.start()
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
        thread.join(timeout=30)
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
    assert [a.output_tokens for a in answers] == [400], "the request in flight was not answered"


def _long_stream(grpc_port: int, told: list[str]) -> threading.Thread:
    """A client in the middle of a long answer; what ends it is put into ``told``."""
    begun = threading.Event()

    def client() -> None:
        try:
            with StreamClient(f"127.0.0.1:{grpc_port}", "tiny") as stream:
                stream.send({"text_input": PROMPTS[0], "max_tokens": 900, "min_tokens": 900, "stream": True})
                for _ in stream.receive(60):
                    begun.set()
            told.append("answered")
        except ForgeError as error:
            told.append(f"{error.code}: {error.why}")
        begun.set()

    thread = threading.Thread(target=client, daemon=True)
    thread.start()
    assert begun.wait(30)
    return thread


def test_serve_ends_with_its_models_process(serve_command, tmp_path):
    command, (http_port, grpc_port, _) = serve_command
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        _wait_ready(http_port, process)
        time.sleep(1)  # serve itself must have seen that it is ready
        server = next(child for child in psutil.Process(process.pid).children() if "tritonserver" in child.name())
        told: list[str] = []
        thread = _long_stream(grpc_port, told)
        next(iter(stubs_of(server.pid))).kill()
        _, errors = process.communicate(timeout=30)
        thread.join(timeout=10)
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == 2
    assert "TF-LCH-031" in errors
    assert "the process of tiny died" in errors
    assert told, "a request in flight hung"
    assert told != ["answered"]
    assert not server.is_running()


def test_an_engine_that_is_dead_ends_its_server_after_telling_its_clients(bundle, tmp_path):
    shutil.copytree(bundle, tmp_path / "bundle", symlinks=True)
    model = tmp_path / "bundle" / "repository" / "tiny" / "1" / "model.py"
    model.write_text(model.read_text() + _DYING)
    server = TritonServer(tmp_path / "bundle" / "repository", log_path=tmp_path / "server.log")
    with server:
        first: list[str] = []
        thread = _long_stream(server.grpc_port, first)
        with StreamClient(server.grpc_url, "tiny") as stream:
            second = stream.ask({"text_input": PROMPTS[0], "max_tokens": 900, "min_tokens": 900}, timeout=30)
        thread.join(timeout=30)
        for _ in range(200):
            if server.process.poll() is not None:
                break
            time.sleep(0.05)
        assert server.process.poll() is not None, "the server of a dead engine went on"
        assert "the process of tiny died" in server.log_reason()
    assert "TF-RUN" in (second.error or "")
    assert len(first) == 1
    assert first[0].startswith("TF-LCH-011")
    assert "TF-RUN" in first[0]


def test_serve_refuses_a_port_that_is_taken_and_a_folder_that_is_no_bundle(server, bundle, tmp_path):
    taken = [sys.executable, "-m", "trtforge", "serve", str(bundle), f"--http-port={server.http_port}", "--no-verify"]
    result = subprocess.run(taken, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert "TF-LCH-001" in result.stdout + result.stderr
    no_bundle = [sys.executable, "-m", "trtforge", "serve", str(tmp_path)]
    result = subprocess.run(no_bundle, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert result.returncode == 2
    assert "Traceback" not in result.stdout + result.stderr
