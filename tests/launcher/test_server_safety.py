"""What strangers can do to a real Triton server that the launcher started, and what becomes of one whose model died."""

import contextlib
import json
import os
import signal
import socket
import stat
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

import launcher.serve
from launcher.local import LAST_WORDS, TritonServer
from launcher.stubs import stubs_of
from tests.support.served_models import DECOUPLED, ECHO, HELD, write_model
from trtforge.ground.errors import ForgeError
from trtforge.tritonserver.server_launch import CLOSED_APIS, SMALL_STACK, STACK, stack_limit

pytestmark = pytest.mark.slow


def repository_in(folder: Path) -> Path:
    write_model(folder / "repository", "echo", ECHO)
    write_model(folder / "repository", "held", HELD, DECOUPLED)
    return folder / "repository"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("safety")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIP_MODE", "PREDICTION")
        with serving(folder) as running:
            yield running


def serving(folder):
    return TritonServer(repository_in(folder), log_path=folder / "server.log")


def ask(server, path: str, body: bytes | None = None, timeout: float = 20.0, **headers: str) -> int:
    """The status of an HTTP answer."""
    asked = urllib.request.Request(f"http://{server.http_url}{path}", data=body, headers=headers)
    try:
        with urllib.request.urlopen(asked, timeout=timeout) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def infer(server) -> int:
    body = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [2], "data": [1.5, -2.0]}]}
    return ask(server, "/v2/models/echo/infer", json.dumps(body).encode())


REGION = b'{"key": "/%s", "offset": 0, "byte_size": 64}'


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/systemsharedmemory/region/mine/register", REGION),
        ("/v2/systemsharedmemory/region/mine/unregister", b""),
        ("/v2/systemsharedmemory/status", None),
        ("/v2/cudasharedmemory/region/mine/register", b"{}"),
        ("/v2/cudasharedmemory/status", None),
        ("/v2/logging", None),
        ("/v2/logging", b'{"log_file": "/tmp/never"}'),
        ("/v2/trace/setting", b'{"trace_file": "/tmp/never"}'),
        ("/v2/models/echo/trace/setting", b'{"trace_level": ["TENSORS"]}'),
        ("/v2/repository/index", b"{}"),
        ("/v2/repository/models/echo/load", b"{}"),
        ("/v2/repository/models/echo/unload", b"{}"),
    ],
)
def test_http_closes_what_no_client_needs(server, path, body):
    own = next(Path("/dev/shm").glob(f"{server._shm_prefix}*")).name
    if body is REGION:
        body = REGION % own.encode()
    assert ask(server, path, body) == 403
    assert ask(server, path, body, **{"admin-key": "guess"}) == 403


@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        ("register_system_shared_memory", ("mine", "/x", 64)),
        ("get_system_shared_memory_status", ()),
        ("unregister_system_shared_memory", ()),
        ("get_cuda_shared_memory_status", ()),
        ("update_log_settings", ({"log_verbose_level": 1},)),
        ("get_log_settings", ()),
        ("update_trace_settings", ("echo", {"trace_level": ["TENSORS"]})),
        ("get_trace_settings", ()),
        ("get_model_repository_index", ()),
        ("load_model", ("echo",)),
        ("unload_model", ("echo",)),
    ],
)
def test_grpc_closes_what_no_client_needs(server, call, arguments):
    import tritonclient.grpc as grpc
    from tritonclient.utils import InferenceServerException

    client = grpc.InferenceServerClient(server.grpc_url)
    for headers in ({}, {"triton-grpc-protocol-admin-key": "guess"}):
        with pytest.raises(InferenceServerException, match="restricted"):
            getattr(client, call)(*arguments, headers=headers)
    client.close()


def test_what_clients_need_stays_open(server):
    import tritonclient.grpc as grpc

    for path in ("/v2", "/v2/health/ready", "/v2/health/live", "/v2/models/echo", "/v2/models/echo/config"):
        assert ask(server, path) == 200
    assert ask(server, "/v2/models/stats") == ask(server, "/v2/models/echo/stats") == infer(server) == 200
    client = grpc.InferenceServerClient(server.grpc_url)
    assert client.is_server_ready()
    assert client.get_inference_statistics("echo").model_stats
    assert client.get_model_config("echo").config.name == "echo"
    client.close()


def test_the_key_is_of_this_start_and_is_told_to_nobody(server, tmp_path):
    other = TritonServer(server.repository, log_path=tmp_path / "other.log")
    assert len(server._key) >= 32
    assert server._key != other._key
    assert server._key not in server.log_path.read_text()
    closed = [word for word in server.command() if server._key in word]
    assert [word.split("=")[0] for word in closed] == ["--http-restricted-api", "--grpc-restricted-protocol"]
    assert all(api in word for word in closed for api in CLOSED_APIS)


def test_an_environment_that_opens_another_endpoint_is_not_passed_on(server):
    assert b"AIP_MODE" not in Path(f"/proc/{server.process.pid}/environ").read_bytes()
    assert "Vertex" not in server.log_path.read_text()


def test_who_started_the_server_may_use_what_is_closed(server):
    assert ask(server, "/v2/repository/index", b"{}", **server.admin_headers) == 200
    assert ask(server, "/v2/systemsharedmemory/status", **server.admin_headers) == 200


def test_other_users_cannot_open_the_servers_shared_memory(server):
    regions = list(Path("/dev/shm").glob(f"{server._shm_prefix}*"))
    assert regions
    assert [oct(stat.S_IMODE(path.stat().st_mode) & 0o077) for path in regions] == ["0o0"] * len(regions)


def test_requests_that_fill_the_stack_do_not_end_the_server(server):
    """8 MiB, the usual stack, end at a form of 4.2 MB, half a million chunks, and 120 kB of brackets."""
    for nested in (b"[" * 2_000_000, b'{"a":' * 400_000, b'{"inputs":' + b"[" * 500_000 + b"]" * 500_000 + b"}"):
        status = ask(server, "/v2/models/echo/infer", nested, timeout=60, **{"Content-Type": "application/json"})
        assert status in (400, 500)
        assert infer(server) == 200
    assert ask(server, "/v2/models/echo/infer", b"a" * 6_000_000, timeout=60) in (400, 500)
    assert infer(server) == 200
    host, port = server.http_url.split(":")
    with socket.create_connection((host, int(port)), timeout=120) as raw:
        head = "POST /v2/models/echo/infer HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        raw.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        for _ in range(6):
            raw.sendall(b"1\r\nX\r\n" * 100_000)
        raw.sendall(b"0\r\n\r\n")
        assert raw.recv(64).startswith(b"HTTP/1.1 ")
    assert server.process.poll() is None
    assert infer(server) == 200


def test_threads_get_a_large_stack_of_a_finite_size(server):
    limits = Path(f"/proc/{server.process.pid}/limits").read_text()
    soft = next(line for line in limits.splitlines() if line.startswith("Max stack size")).split()[3]
    assert soft == str(STACK)


@pytest.mark.parametrize(
    ("soft", "hard", "space", "overcommit", "expected"),
    [
        (8 << 20, -1, -1, "0", STACK),
        (-1, -1, -1, "1", STACK),
        (8 << 20, 512 << 20, -1, "0", 512 << 20),
        (4 << 30, -1, -1, "0", 4 << 30),
        (8 << 20, -1, -1, "2", SMALL_STACK),
        (8 << 20, -1, 32 << 30, "0", SMALL_STACK),
        (8 << 20, 16 << 20, 32 << 30, "0", 16 << 20),
    ],
)
def test_the_stack_fits_the_limits_that_hold(tmp_path, soft, hard, space, overcommit, expected):
    rule = tmp_path / "overcommit"
    rule.write_text(f"{overcommit}\n")
    assert stack_limit(soft, hard, space, overcommit=rule) == expected


def _ended_within(server, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while server.process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    return server.process.poll() is not None


def test_a_server_ends_with_its_models_process_and_so_do_the_requests_in_flight(tmp_path):
    server = TritonServer(repository_in(tmp_path), log_path=tmp_path / "server.log")
    outcomes: list[object] = []

    def wait_for_an_answer() -> None:
        try:
            outcomes.append(ask(server, "/v2/models/held/generate_stream", b'{"IN": [1, 2]}', timeout=60))
        except OSError as error:
            outcomes.append(error)

    with server:
        stubs = {model: process for process, model in stubs_of(server.process.pid).items()}
        assert sorted(stubs) == ["echo", "held"]
        waiting = threading.Thread(target=wait_for_an_answer, daemon=True)
        waiting.start()
        time.sleep(0.5)
        stubs["held"].kill()
        assert _ended_within(server, 10)
        waiting.join(timeout=5)
        assert outcomes, "a request of a dead model hung"
        assert not server.is_ready()
        assert server.log_reason() == "the process of held died", "lines that are no errors are no reason"
        assert "echo" not in server.fallen
    assert list(Path("/dev/shm").glob(f"{server._shm_prefix}*")) == []


def test_a_stub_that_is_a_zombie_or_another_process_is_not_taken_for_alive():
    from launcher.stubs import lives

    child = os.fork()
    if child == 0:
        os._exit(0)
    process = psutil.Process(child)
    for _ in range(100):
        if process.status() == psutil.STATUS_ZOMBIE:
            break
        time.sleep(0.01)
    assert not lives(process)
    os.waitpid(child, 0)
    assert not lives(process)
    assert lives(psutil.Process())


def test_stopping_a_server_is_no_death_and_neither_is_the_end_of_a_models_own_child(tmp_path):
    server = TritonServer(repository_in(tmp_path), log_path=tmp_path / "server.log")
    with server:
        time.sleep(4)
        assert infer(server) == 200
    assert server.fallen == ""


class Held:
    """``serve`` with a client that waits for ever; ``act`` gets the server's process once the client waits."""

    def __init__(self, folder, monkeypatch, act):
        repository = folder / "repository"
        write_model(repository, "held", HELD, DECOUPLED)
        monkeypatch.setattr(launcher.serve, "find_repository", lambda bundle: (repository, "held"))
        self._folder, self._act, self.answered = folder, act, threading.Event()

    def _client(self, http: str) -> None:
        request = urllib.request.Request(f"http://{http}/v2/models/held/generate_stream", b'{"IN": [1, 2]}')
        with contextlib.suppress(OSError):
            urllib.request.urlopen(request, timeout=60).read()
        self.answered.set()

    def _ready(self, endpoints) -> None:
        threading.Thread(target=self._client, args=(endpoints.http,), daemon=True).start()
        time.sleep(0.5)
        # another server of this module's tests may run beside it
        place = str(self._folder)
        [server] = [child for child in psutil.Process().children() if any(place in word for word in child.cmdline())]
        threading.Thread(target=self._act, args=(server,), daemon=True).start()

    def run(self, drain: int) -> float:
        """Seconds that it took; raises what ``serve`` raises."""
        began = time.monotonic()
        ports = {"http_port": 0, "grpc_port": 0, "metrics_port": 0}
        log = self._folder / "server.log"
        launcher.serve.serve(self._folder, log_path=log, exit_timeout=drain, on_ready=self._ready, **ports)
        return time.monotonic() - began


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_ends_the_drain(tmp_path, monkeypatch, first):
    before = signal.signal(first, signal.SIG_DFL)  # tests may run under nohup, whose SIGHUP is left alone

    def signals(server) -> None:
        os.kill(os.getpid(), first)
        time.sleep(1.0)
        os.kill(os.getpid(), signal.SIGINT)

    held = Held(tmp_path, monkeypatch, signals)
    try:
        assert held.run(drain=100) < 60
    finally:
        signal.signal(first, before)
    assert held.answered.wait(5), "a request outlived the server"


def test_a_model_that_dies_in_a_drain_ends_it(tmp_path, monkeypatch):
    def stop_and_kill(server) -> None:
        [model] = stubs_of(server.pid)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(1.0)
        model.kill()

    held = Held(tmp_path, monkeypatch, stop_and_kill)
    began = time.monotonic()
    with pytest.raises(ForgeError, match="TF-LCH-031") as caught:
        held.run(drain=100)
    assert time.monotonic() - began < 60 and caught.value.why == "the process of held died"
    assert held.answered.wait(5), "a request outlived the server"


def test_a_server_that_another_process_stops_ends_serve_and_leaves_nobody_waiting(tmp_path, monkeypatch):
    """Triton 2.51 hangs or crashes now and then at the end of a drain with requests in flight."""
    held = Held(tmp_path, monkeypatch, lambda server: server.terminate())
    with pytest.raises(ForgeError, match="TF-LCH-031") as caught:
        held.run(drain=1)
    assert caught.value.why == "another process told it to stop"
    assert held.answered.wait(LAST_WORDS), "a request outlived the server"


def test_a_server_that_was_killed_has_the_signal_for_a_reason(tmp_path, monkeypatch):
    held = Held(tmp_path, monkeypatch, lambda server: server.kill())
    with pytest.raises(ForgeError, match="TF-LCH-031") as caught:
        held.run(drain=1)
    assert caught.value.why == "it was ended by SIGKILL, which the kernel sends when memory runs out"


def test_what_a_classification_of_text_does_is_told(tmp_path):
    """No option of Triton 2.51 closes this; it divides by the size of an element, which text has not."""
    write_model(tmp_path / "repository", "echo", ECHO)
    config = tmp_path / "repository" / "echo" / "config.pbtxt"
    config.write_text(config.read_text().replace("TYPE_FP32", "TYPE_STRING"))
    tensor = {"name": "IN", "shape": [2], "datatype": "BYTES", "data": ["a", "b"]}
    plain = {"inputs": [tensor]}
    asked = {**plain, "outputs": [{"name": "OUT", "parameters": {"classification": 1}}]}
    with TritonServer(tmp_path / "repository", log_path=tmp_path / "server.log") as server:
        assert ask(server, "/v2/models/echo/infer", json.dumps(plain).encode()) == 200
        with contextlib.suppress(OSError):
            ask(server, "/v2/models/echo/infer", json.dumps(asked).encode())
        assert _ended_within(server, 10)
        assert server.log_reason() == (
            "it was ended by SIGFPE, which a request for the classification of a text output causes in Triton 2.51"
        )
