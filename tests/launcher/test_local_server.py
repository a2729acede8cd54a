"""The launcher against a real Triton server with a model of a few lines."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from launcher.installation import find_installation
from launcher.local import TritonServer
from launcher.ports import pick_free
from tests.support.served_models import ECHO, write_model
from trtforge.ground.errors import ForgeError

pytestmark = pytest.mark.slow


@pytest.fixture
def repository(tmp_path):
    write_model(tmp_path / "repository", "echo", ECHO)
    return tmp_path / "repository"


def _infer(server) -> list[float]:
    import json

    body = {"inputs": [{"name": "IN", "datatype": "FP32", "shape": [2], "data": [1.5, -2.0]}]}
    url = f"http://{server.http_url}/v2/models/echo/infer"
    with urllib.request.urlopen(url, data=json.dumps(body).encode(), timeout=10) as answer:
        return json.loads(answer.read())["outputs"][0]["data"]


def _living(group: int) -> list[int]:
    """Processes of a group that still run (a killed one may stay a zombie until init collects it)."""
    import psutil

    living = []
    for process in psutil.process_iter(["pid", "status"]):
        try:
            if os.getpgid(process.pid) == group and process.info["status"] != psutil.STATUS_ZOMBIE:
                living.append(process.pid)
        except ProcessLookupError:
            continue
    return living


def _soon_gone(group: int) -> bool:
    for _ in range(50):
        if not _living(group):
            return True
        time.sleep(0.1)
    return False


def _shared_memory(server) -> list[Path]:
    return list(Path("/dev/shm").glob(f"{server._shm_prefix}*"))


def test_starts_serves_drains_and_leaves_nothing(repository, tmp_path):
    server = TritonServer(repository, log_path=tmp_path / "server.log")
    with server:
        assert server.host == "127.0.0.1"
        assert _infer(server) == [1.5, -2.0]
        group = server.process.pid
        assert _shared_memory(server)
    assert _soon_gone(group)
    assert _shared_memory(server) == []
    server.stop()


def test_killed_under_way_and_started_again_on_the_same_ports(repository, tmp_path):
    first = TritonServer(repository, log_path=tmp_path / "first.log")
    with first:
        first.kill()
        assert _shared_memory(first) == []
    again = TritonServer(
        repository,
        log_path=tmp_path / "second.log",
        http_port=first.http_port,
        grpc_port=first.grpc_port,
        metrics_port=first.metrics_port,
    )
    with again:
        assert _infer(again) == [1.5, -2.0]


@pytest.mark.parametrize("taken", ["http", "grpc", "metrics"])
def test_a_picked_port_that_another_process_takes_first_is_replaced(repository, tmp_path, monkeypatch, taken):
    server = TritonServer(repository, log_path=tmp_path / "server.log")
    before = getattr(server, f"{taken}_port")
    with socket.socket() as other:
        other.bind(("127.0.0.1", before))
        other.listen()
        with server:
            assert getattr(server, f"{taken}_port") != before
            assert _infer(server) == [1.5, -2.0]


def test_a_port_that_was_asked_for_is_never_replaced(repository, tmp_path):
    server = TritonServer(repository, log_path=tmp_path / "server.log", http_port=pick_free("127.0.0.1", 1)[0])
    with socket.socket() as other:
        other.bind(("127.0.0.1", server.http_port))
        other.listen()
        with pytest.raises(ForgeError) as caught, server:
            pass
    assert caught.value.code == "TF-LCH-002"
    assert "already in use" in (caught.value.why or "")


def test_another_server_on_the_port_is_not_mistaken_for_this_one(repository, tmp_path):
    with TritonServer(repository, log_path=tmp_path / "first.log") as first:
        second = TritonServer(repository, log_path=tmp_path / "second.log")
        second.http_port = first.http_port
        second.start()
        try:
            for _ in range(20):
                assert first.is_ready()
                assert not second.is_ready()
                time.sleep(0.1)
        finally:
            second.stop()


def test_a_model_that_fails_to_load_gives_its_reason(repository, tmp_path):
    (repository / "echo" / "1" / "model.py").write_text("raise ImportError('no such engine')\n")
    server = TritonServer(repository, log_path=tmp_path / "server.log")
    with pytest.raises(ForgeError) as caught, server:
        pass
    assert caught.value.code == "TF-LCH-002"
    assert "no such engine" in (caught.value.why or "")
    assert server.process is None


def test_a_server_that_does_not_get_ready_is_stopped(repository, tmp_path):
    (repository / "echo" / "1" / "model.py").write_text("import time\ntime.sleep(600)\n")
    server = TritonServer(repository, log_path=tmp_path / "server.log", exit_timeout=1)
    server.start()
    group = server.process.pid
    with pytest.raises(ForgeError) as caught:
        server.wait_ready(timeout=3)
    assert caught.value.code == "TF-LCH-003"
    assert _soon_gone(group)


def test_the_server_ends_when_its_parent_is_killed(repository, tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from launcher.local import TritonServer\n"
        f"s = TritonServer(Path({str(repository)!r}), log_path=Path({str(tmp_path / 'child.log')!r})); s.start()\n"
        "s.wait_ready(); print(s.process.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    for _ in range(300):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            break
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        if state == "Z":
            break
        time.sleep(0.1)
    else:
        pytest.fail("the server outlived its parent")


def test_the_installation_is_the_wheel_or_path():
    assert find_installation().binary.is_file()
