"""Runs the front: beside a server in a thread of the launcher, or alone in a process."""

from __future__ import annotations

import logging
import socket
import threading
from pathlib import Path

from launcher.openai_front.deployment import Deployment, read_deployment
from launcher.openai_front.settings import FrontSettings
from launcher.ports import require_address, require_free
from trtforge.ground.errors import EnvironmentLacks, ForgeError

START_SECONDS = 60.0
#: connections that wait to be accepted
_BACKLOG = 2048


class FrontServer:
    """One front over one Triton server.

    Raises:
        EnvironmentLacks: TF-OAI-024.
        ForgeError: TF-LCH-001 (port taken), TF-LCH-004 (no address), and those of
            :class:`~launcher.openai_front.front.Front`.
    """

    def __init__(self, deployment: Deployment, settings: FrontSettings) -> None:
        require_packages()
        import uvicorn

        from launcher.openai_front.app import build_app
        from launcher.openai_front.backend import Triton
        from launcher.openai_front.front import Front
        from launcher.openai_front.protocol import LimitedProtocol

        if settings.port:
            require_free(settings.host, {"openai": settings.port})
        else:
            require_address(settings.host, settings.port, "openai")
        self.settings = settings
        self._triton = Triton(deployment)
        self._front = Front(deployment, self._triton, settings)
        self.model = deployment.name
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # what clients send wrong is theirs to be told
        self._server = uvicorn.Server(
            uvicorn.Config(
                build_app(self._front),
                http=LimitedProtocol,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=True,
                timeout_keep_alive=30,
                backlog=_BACKLOG,
                proxy_headers=False,
            )
        )
        self._socket: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._fault: BaseException | None = None

    @property
    def address(self) -> str:
        """``host:port`` where it listens."""
        assert self._socket is not None
        host, port = self.settings.host, self._socket.getsockname()[1]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def start(self, address: str, metrics: str | None = None) -> None:
        """Listen, and serve in a thread.

        Args:
            address: ``HOST:PORT`` of Triton's gRPC endpoint.
            metrics: URL of Triton's metrics page; None: not known.

        Raises:
            ForgeError: TF-LCH-001 when the port is taken meanwhile, TF-OAI-029 when it does not start.
        """
        self._triton.address, self._triton.metrics = address, metrics
        self._listen()
        self._thread = threading.Thread(target=self._run, name="openai-front", daemon=True)
        self._thread.start()
        waited = threading.Event()
        for _ in range(int(START_SECONDS / 0.02)):
            if self._server.started:
                return
            if not self._thread.is_alive():
                break
            waited.wait(0.02)
        raise self._dead()

    def require_alive(self) -> None:
        """Refuse to go on with a front that ended by itself.

        Raises:
            ForgeError: TF-OAI-029.
        """
        if self._thread is not None and not self._thread.is_alive():
            raise self._dead()

    def drain(self) -> None:
        """Refuse new requests; those under way go on."""
        self._front.flight.draining = True

    def stop(self, timeout: float = 5.0) -> None:
        """Close the connections whose answers are complete, wait for the others up to ``timeout`` seconds, and end."""
        self.drain()
        thread, self._thread = self._thread, None
        if thread is not None:
            self._server.config.timeout_graceful_shutdown = max(1, int(timeout))
            self._server.should_exit = True
            thread.join(timeout + 5)
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _listen(self) -> None:
        host, port = self.settings.host, self.settings.port
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # named as TCP: else asyncio leaves Nagle's algorithm on, and every stream waits 40 ms for an acknowledgement
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, port))
        except OSError:
            listening.close()
            require_free(host, {"openai": port})
            raise
        self._socket = listening

    def _run(self) -> None:
        try:
            self._server.run(sockets=[self._socket] if self._socket else None)
        except BaseException as error:
            self._fault = error

    def _dead(self) -> ForgeError:
        why = "it ended without an error" if self._fault is None else f"{type(self._fault).__name__}: {self._fault}"
        return ForgeError(
            "TF-OAI-029",
            "the OpenAI endpoint does not run",
            why=why,
            remedies=["start it again", "serve without --openai-port"],
        )


def require_packages() -> None:
    """Refuse where the endpoint's packages are missing.

    Raises:
        EnvironmentLacks: TF-OAI-024.
    """
    import importlib.util

    needed = ("starlette", "uvicorn", "httptools", "tritonclient", "grpc", "prometheus_client", "tokenizers", "jinja2")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        raise EnvironmentLacks(
            "TF-OAI-024",
            f"the OpenAI endpoint needs packages that are not installed: {', '.join(missing)}",
            why="They belong to the extra of serving.",
            remedies=["pip install 'trtforge[serve]'"],
        )


def front_of(repository: Path, settings: FrontSettings, *, bundle: Path | None = None) -> FrontServer:
    """A front for the models of ``repository``; raises what :func:`read_deployment` and :class:`FrontServer` do."""
    require_packages()
    return FrontServer(read_deployment(repository, name=settings.name, bundle=bundle), settings)
