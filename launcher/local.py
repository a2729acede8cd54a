"""A Triton server as a local process: start, wait until ready, drain, stop.

Policy: binds to loopback unless told otherwise; a start that fails leaves no process, no shared memory
and an error that carries the server's own reason; a server whose model's process died is ended with it
(:mod:`launcher.stubs`); stopping drains first (Triton answers the requests in
flight, up to ``exit_timeout``), then terminates the whole process group, then removes the shared-memory
regions that carry this server's prefix.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import http.client
import os
import re
import resource
import secrets
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import TracebackType

import psutil

from launcher.installation import Installation, find_installation
from launcher.ports import pick_free, require_address, require_free
from launcher.stubs import StubWatch, lives, stubs_of
from trtforge.ground.drain_notice import NOTICE, leave_notice
from trtforge.ground.errors import ForgeError
from trtforge.tritonserver.server_launch import KEY, OPENING_VARIABLE, UMASK, body_limit, closing, stack_limit

_PR_SET_PDEATHSIG = 1
SHARED_MEMORY = Path("/dev/shm")
_SHM_PREFIX = "trtforge_"
#: ends of the names of a launcher's lock and of what it tells its models when it drains, beside its regions
_LOCK, _DRAIN = "lock", "drain"
#: seconds between the end of a drain, when requests are told that they get no answer, and the end of the server
LAST_WORDS = 5
#: seconds that a draining server may live without any of its models' processes
LEFT_ALONE = 5.0
_ERROR_LINE = re.compile(r"^E\d{4} |error:|failed to|ModuleNotFoundError|Exception|Error:", re.IGNORECASE)
#: what the CPU build of the server always says about GPUs that are not there
_HARMLESS = re.compile(r"cuda|nvml|dcgm|gpu memory|pinned", re.IGNORECASE)
#: Triton prints tables of its models and options when it starts; they are no reason
_TABLE_LINE = re.compile(r"\s*([+|].*)?$")
_PORT_TAKEN = re.compile(r"already in use|failed to bind", re.IGNORECASE)
#: what a signal that ended a server tells of the reason
_SIGNAL_HINTS: dict[int, str] = {
    signal.SIGKILL: "which the kernel sends when memory runs out",
    signal.SIGFPE: "which a request for the classification of a text output causes in Triton 2.51",
}
#: starts with fresh ports when another process took a picked one first
_PORT_ATTEMPTS = 5


def _before_exec(stack: tuple[int, int]) -> None:
    """In the child: be told to stop when the parent dies, even by SIGKILL; threads with a large stack."""
    with contextlib.suppress(OSError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_STACK, stack)


def _stack() -> tuple[int, int]:
    """The stack's soft and hard limits for a server that is started now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    return stack_limit(soft, hard, space, infinite=resource.RLIM_INFINITY), hard


def remove_abandoned_shared_memory(folder: Path = SHARED_MEMORY) -> None:
    """Remove the regions of launchers that were killed.

    A launcher holds a lock on a file beside its regions as long as it lives. Its process id would not tell: containers
    may share the folder and number their processes apart. Regions without such a file are left alone.
    """
    for lock in folder.glob(f"{_SHM_PREFIX}*_{_LOCK}"):
        with contextlib.suppress(OSError), lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while its launcher lives
            _remove(folder, lock.name.removesuffix(_LOCK))


def _remove(folder: Path, prefix: str) -> None:
    """Remove the regions of one server, its lock last."""
    for region in sorted(folder.glob(f"{prefix}*"), key=lambda path: path.name.endswith(_LOCK)):
        with contextlib.suppress(OSError):
            region.unlink()


class TritonServer:
    """One server over one model repository.

    Args:
        repository: the model repository.
        host: address to bind.
        http_port, grpc_port, metrics_port: 0 picks a free one.
        log_path: where the server's output goes.
        exit_timeout: seconds that requests get when the server drains.
        extra_arguments: further command-line arguments of tritonserver.
    """

    def __init__(
        self,
        repository: Path,
        *,
        log_path: Path,
        host: str = "127.0.0.1",
        http_port: int = 0,
        grpc_port: int = 0,
        metrics_port: int = 0,
        exit_timeout: int = 20,
        installation: Installation | None = None,
        extra_arguments: tuple[str, ...] = (),
    ) -> None:
        self.repository = repository.resolve()
        self.host = host
        self._asked = {"http": http_port, "grpc": grpc_port, "metrics": metrics_port}
        require_address(host, 0)
        require_free(host, {name: port for name, port in self._asked.items() if port})
        self._shm_prefix = f"{_SHM_PREFIX}{os.getpid()}_{secrets.token_hex(4)}_"
        self._pick_ports()
        self.log_path = log_path
        self.exit_timeout = exit_timeout
        self.installation = installation or find_installation()
        self.extra_arguments = extra_arguments
        self.process: subprocess.Popen[bytes] | None = None
        # in no log, no file and no answer: who holds this object may use the closed APIs, and nobody else
        self._key = secrets.token_hex(24)
        self._watch: StubWatch | None = None
        self._begun = 0.0
        #: from the start until every model was ready, once it is
        self.load_seconds = 0.0
        #: which model's process died before the server did; empty while none has
        self.fallen = ""
        self._lock: int | None = None

    def _pick_ports(self) -> None:
        """A port of its own for each one that was left open (0)."""
        free = iter(pick_free(self.host, sum(port == 0 for port in self._asked.values())))
        ports = {name: port or next(free) for name, port in self._asked.items()}
        self.http_port, self.grpc_port, self.metrics_port = ports["http"], ports["grpc"], ports["metrics"]

    @property
    def http_url(self) -> str:
        """``host:port`` of the HTTP endpoint."""
        return f"{self.host}:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        """``host:port`` of the gRPC endpoint."""
        return f"{self.host}:{self.grpc_port}"

    @property
    def admin_headers(self) -> dict[str, str]:
        """Header of an HTTP request to the APIs that are closed to clients; gRPC wants it with a prefix."""
        return {KEY: self._key}

    def command(self) -> list[str]:
        """The server's command line."""
        install = self.installation
        arguments = [
            str(install.binary),
            f"--model-repository={self.repository}",
            f"--http-address={self.host}",
            f"--grpc-address={self.host}",
            f"--metrics-address={self.host}",
            f"--http-port={self.http_port}",
            f"--grpc-port={self.grpc_port}",
            f"--metrics-port={self.metrics_port}",
            f"--exit-timeout-secs={self.exit_timeout + LAST_WORDS}",
            f"--backend-config=python,shm-region-prefix-name={self._shm_prefix}",
            "--disable-auto-complete-config",
            "--exit-on-error=true",
            "--strict-readiness=true",
            *closing(self._key),
            *body_limit(install.version),
        ]
        if install.backend_directory is not None:
            arguments.append(f"--backend-directory={install.backend_directory}")
        if install.cache_directory is not None:
            arguments.append(f"--cache-directory={install.cache_directory}")
        return [*arguments, *self.extra_arguments]

    def start(self) -> None:
        """Start the process; :meth:`wait_ready` says when it serves."""
        self._begun = time.monotonic()
        remove_abandoned_shared_memory()
        self._hold_lock()
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, **self.installation.environment, NOTICE: str(self._own(_DRAIN))}
        environment.pop(OPENING_VARIABLE, None)
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                self.command(),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=UMASK,
                preexec_fn=partial(_before_exec, _stack()),
            )

    def _own(self, name: str) -> Path:
        return SHARED_MEMORY / f"{self._shm_prefix}{name}"

    def _hold_lock(self) -> None:
        if self._lock is None:
            descriptor = os.open(self._own(_LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            self._lock = descriptor

    def wait_ready(self, timeout: float = 120.0, give_up: threading.Event | None = None) -> float:
        """Seconds until every model was ready; returns early, the server not ready, when ``give_up`` is set.

        A port is picked before the server binds it, so another process can take it in between: the server is
        then started again with other ports, unless the caller named them.

        Raises:
            ForgeError: TF-LCH-002 when the server ended, TF-LCH-003 when it was not ready in time. The
                process is gone in both cases.
        """
        begin = time.monotonic()
        attempts = 1
        while time.monotonic() - begin < timeout:
            if give_up is not None and give_up.is_set():
                return time.monotonic() - begin
            if self.process is None or self.process.poll() is not None:
                code = None if self.process is None else self.process.returncode
                reason = self.log_reason()
                self.stop()
                if _PORT_TAKEN.search(reason) and 0 in self._asked.values() and attempts < _PORT_ATTEMPTS:
                    attempts += 1
                    self._pick_ports()
                    self.start()
                    continue
                raise ForgeError(
                    "TF-LCH-002",
                    "the Triton server ended before it was ready",
                    numbers={"exit": code},
                    why=reason,
                    remedies=[f"read {self.log_path}", "trtforge triton lint REPOSITORY"],
                )
            self._close_regions()
            if self.is_ready():
                self._close_regions()
                self._watch_models()
                self.load_seconds = time.monotonic() - self._begun
                return time.monotonic() - begin
            time.sleep(0.1)
        reason = self.log_reason()
        self.stop()
        raise ForgeError(
            "TF-LCH-003",
            "the Triton server was not ready in time",
            numbers={"timeout_s": timeout},
            why=reason,
            remedies=[f"read {self.log_path}", "a longer --ready-timeout"],
        )

    def _watch_models(self) -> None:
        """End the server with its models' processes, unless clients may unload models."""
        controlled = any(argument.startswith("--model-control-mode") for argument in self.extra_arguments)
        if self._watch is None and self.process is not None and not controlled:
            process = self.process
            self._watch = StubWatch(process.pid, self._note_fallen, partial(self._kill_living, process))

    def _note_fallen(self, models: list[str]) -> None:
        if self.process is not None and self.process.poll() is None:  # else the models died with the server
            self.fallen = f"the process of {', '.join(models)} died"

    def _kill_living(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            self._kill_group(process.pid)

    def is_ready(self) -> bool:
        """Whether all models are ready and this server, not another one, listens on all of its ports."""
        try:
            with urllib.request.urlopen(f"http://{self.http_url}/v2/health/ready", timeout=2) as answer:
                return answer.status == 200 and self._listens()
        except (urllib.error.URLError, OSError):
            return False

    def takes_requests(self) -> bool:
        """Whether the HTTP endpoint answers, or is merely slow.

        A server that was told to stop closes its port, or new connections to it while others are open.
        """
        connection = http.client.HTTPConnection(self.host, self.http_port, timeout=2)
        try:
            connection.request("GET", "/v2/health/live")
            connection.getresponse()
        except ConnectionError:
            return False
        except (OSError, http.client.HTTPException):
            return True
        finally:
            connection.close()
        return True

    def _listens(self) -> bool:
        """Whether the three ports are this server's: it opens them one after the other, and another may be first."""
        if self.process is None:
            return False
        wanted = {self.http_port, self.grpc_port, self.metrics_port}
        try:
            server = psutil.Process(self.process.pid)
            for process in (server, *server.children(recursive=True)):
                wanted -= {c.laddr.port for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        except psutil.AccessDenied:
            return True  # a server of another user cannot be looked into
        except psutil.Error:
            return False
        return not wanted

    def log_reason(self, lines: int = 6) -> str:
        """Which model died first, or which signal ended the server, and its last error lines, for an error's ``why``.

        Where its log names no error, a server that was ended by a signal has no other reason than that.
        """
        if not self.log_path.is_file():
            return "the server left no log"
        end, told = self.fallen or self._ended_by(), self._errors()
        if not end:
            told = told or self._lines()
        return ": ".join(filter(None, (end, " / ".join(told[-lines:])))) or "the log is empty"

    def _ended_by(self) -> str:
        code = None if self.process is None else self.process.poll()
        if code is None or code >= 0:
            return ""
        name = signal.Signals(-code).name if -code in {*signal.Signals} else f"signal {-code}"
        return ", ".join(filter(None, (f"it was ended by {name}", _SIGNAL_HINTS.get(-code))))

    def _errors(self) -> list[str]:
        return [line for line in self._lines() if _ERROR_LINE.search(line) and not _HARMLESS.search(line)]

    def _lines(self) -> list[str]:
        try:
            text = self.log_path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return []
        return [line.strip() for line in text.splitlines() if not _TABLE_LINE.match(line)]

    def stop(self, hurry: threading.Event | None = None) -> int | None:
        """Drain and end the server; safe to call twice. Returns the exit code.

        When ``hurry`` is set the drain is over: waiting requests are told so, and the server is ended after
        :data:`LAST_WORDS` seconds at the latest.
        """
        process = self.process
        if process is None:
            return None
        self._end_watch()
        if process.poll() is None:
            self._leave_notice(self.exit_timeout)
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            self._await_end(process, hurry or threading.Event())
        self._kill_group(process.pid)
        code = process.wait()
        self._remove_shared_memory()
        self.process = None
        return code

    def _leave_notice(self, seconds: float) -> None:
        with contextlib.suppress(OSError):
            leave_notice(self._own(_DRAIN), seconds)

    def _await_end(self, process: subprocess.Popen[bytes], hurry: threading.Event) -> None:
        """Wait as long as a drain may last, or a moment from when ``hurry`` is set.

        Models end their processes when their requests are done, and the server ends right after the last of them: one
        that lives on without any waits for requests that nobody will answer.
        """
        end, hurried = time.monotonic() + self.exit_timeout + LAST_WORDS + 10, False
        models = stubs_of(process.pid)
        lived = time.monotonic()
        while process.poll() is None and time.monotonic() < end:
            if not models or any(lives(model) for model in models):
                lived = time.monotonic()
            elif time.monotonic() - lived > LEFT_ALONE:
                self._note_fallen(sorted(models.values()))
                return
            if hurry.is_set() and not hurried:
                hurried = True
                self._leave_notice(0)
                end = min(end, time.monotonic() + LAST_WORDS)
            time.sleep(0.05)

    def kill(self) -> None:
        """End the server without draining (what a crash looks like)."""
        if self.process is not None:
            self._end_watch()
            self._kill_group(self.process.pid)
            self.process.wait()
            self._remove_shared_memory()
            self.process = None

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.stop()
            self._watch = None

    @staticmethod
    def _kill_group(group: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)

    def _regions(self) -> Iterator[Path]:
        """The server's shared memory: a region a Python model, made while it loads."""
        return SHARED_MEMORY.glob(f"{self._shm_prefix}*")

    def _close_regions(self) -> None:
        """Prompts and answers pass through the regions, and Triton makes them readable by all, whatever its umask."""
        for region in self._regions():
            with contextlib.suppress(OSError):
                region.chmod(0o600)

    def _remove_shared_memory(self) -> None:
        _remove(SHARED_MEMORY, self._shm_prefix)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> TritonServer:
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
