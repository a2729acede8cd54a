"""A launch script of a plan with the real Triton server: what it closes, and what becomes of it when a model dies."""

import os
import shlex
import signal
import stat
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from launcher.installation import find_installation
from launcher.plans import plan
from launcher.ports import pick_free
from launcher.scripts import write_scripts
from launcher.stubs import stubs_of
from tests.launcher.test_plans import recipe
from tests.support.served_models import ECHO, write_model
from trtforge.tritonserver.server_launch import STACK

pytestmark = pytest.mark.slow


def three_ports() -> int:
    """The first of three ports in a row that are free."""
    from launcher.ports import is_free

    for port in range(pick_free("127.0.0.1", 1)[0] % 20000 + 20000, 65000, 3):
        if all(is_free("127.0.0.1", port + more) for more in range(3)):
            return port
    raise AssertionError("no free ports")


@pytest.fixture
def started(tmp_path):
    """A bundle's server.sh, run with the wheel's server as ``tritonserver`` on PATH; ready."""
    bundle, programs = tmp_path / "bundle", tmp_path / "bin"
    write_model(bundle / "repository", "echo", ECHO)
    port = three_ports()
    write_scripts(plan(recipe("native"), first_port=port), bundle / "launch")
    programs.mkdir()
    found = find_installation()
    places = [f"--backend-directory={found.backend_directory}"] if found.backend_directory else []
    words = shlex.join([str(found.binary), *places])
    (programs / "tritonserver").write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    (programs / "tritonserver").chmod(0o755)
    environment = {**os.environ, **found.environment, "AIP_MODE": "PREDICTION"}
    environment["PATH"] = f"{programs}:{environment['PATH']}"
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [bundle / "launch" / "server.sh"], env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        for _ in range(300):
            assert process.poll() is None, (tmp_path / "log").read_text()
            if status(port, "/v2/health/ready") == 200:
                break
            time.sleep(0.1)
        yield process, port, tmp_path / "log"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for region in Path("/dev/shm").glob(f"trtllm_{process.pid}_*"):
            region.unlink()


def status(port: int, path: str, body: bytes | None = None) -> int | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data=body, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return None


def test_a_script_starts_a_closed_server_that_ends_with_its_model(started):
    process, port, log = started
    assert status(port, "/v2/systemsharedmemory/status") == status(port, "/v2/logging") == 403
    assert status(port, "/v2/trace/setting") == status(port, "/v2/repository/index", b"{}") == 403
    assert status(port, "/v2/models/echo/stats") == 200
    command = psutil.Process(process.pid).cmdline()
    keys = {word.rpartition("admin-key=")[2] for word in command if "admin-key=" in word}
    assert [len(key) for key in keys] == [48]
    assert keys.pop() not in log.read_text()
    assert b"AIP_MODE" not in Path(f"/proc/{process.pid}/environ").read_bytes()
    limits = Path(f"/proc/{process.pid}/limits").read_text()
    assert f"Max stack size            {STACK} " in limits
    time.sleep(2.5)
    regions = list(Path("/dev/shm").glob(f"trtllm_{process.pid}_*"))
    assert regions and {stat.S_IMODE(region.stat().st_mode) for region in regions} == {0o600}
    assert process.poll() is None, "an idle server was ended"
    next(iter(stubs_of(process.pid))).kill()
    assert process.wait(timeout=10) != 0
    assert "process of a Python model died" in log.read_text()


def test_sigterm_still_ends_it_in_order(started):
    process, _, log = started
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=40) == 0, log.read_text()
    assert "died" not in log.read_text()
