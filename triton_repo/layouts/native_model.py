"""Triton Python-backend model of the ``native`` layout; copied into the repository as ``1/model.py``.

``execute`` hands each request to the runtime's stepping thread and returns at once, so requests join and leave the
batch token by token; chats wait for their template elsewhere. A watcher thread asks Triton every ``POLL_SECONDS`` which
clients have gone and cancels their requests, which frees their blocks; it tells the requests that a drain leaves
unanswered so, copies the engine's figures to Triton's metrics page, and ends this process when its engine is dead.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils  # provided by Triton

import trtforge  # noqa: F401  before the others, which are found through it and through nothing else

# isort: split
import plugins.host
from runtime.frontend.request_log import RequestLog
from runtime.frontend.server_log import write_to
from runtime.frontend.service import Service
from runtime.frontend.settings import Settings
from runtime.metrics import help_of, is_counter
from runtime.serving import AsyncEngine
from runtime.speculation.draft import Point
from trtforge.drafting.record import read_speculation
from trtforge.ground.drain_notice import NOTICE
from trtforge.ground.json_file import read_json_file

POLL_SECONDS = 0.05
#: how old the histograms on the metrics page may be: a step changes a hundred of their series
SERIES_SECONDS = 1.0
#: for the clients of an engine that died
FAREWELL_SECONDS = 5.0


def _leave_with_the_server() -> None:
    """End this process once the server is gone.

    A server that is killed does not tell the process that runs this file, which would keep the engine in
    memory for ever. A signal at the parent's death would not do: it follows the thread that started the
    process, and that thread may end while the server goes on. Nor would a loop in Python: some calls into
    Triton wait for the server's answer with the GIL held, and a server that died meanwhile never answers.
    """
    server = os.getppid()
    try:
        lives = Path(f"/proc/{server}/comm").read_text().startswith("triton")
    except OSError:
        lives = False
    if not lives:
        os._exit(1)  # it died before, and another process has taken this one over
    plugins.host.load().leave_with_parent(server)


threading.Thread(target=_leave_with_the_server, name="server-watcher", daemon=True).start()


class TritonPythonModel:
    """The engine behind one Triton model."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the engine that the configuration names and hold its limits against the configuration's."""
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        engine_dir = (Path(args["model_repository"]) / parameters["engine_dir"]).resolve()
        write_to(pb_utils.Logger)
        settings = Settings.read(parameters)
        self._engine = AsyncEngine.load(engine_dir, config=settings.engine)
        self._check(parameters, engine_dir)
        self._service = Service(
            self._engine,
            pb_utils,
            inputs=[tensor["name"] for tensor in config["input"]],
            decoupled=bool(config["model_transaction_policy"]["decoupled"]),
            defaults=settings.defaults,
            request_log=None if settings.request_log is None else RequestLog(settings.request_log),
        )
        tokenizer = self._engine.core.tokenizer
        if tokenizer is not None:
            tokenizer.prepare_chats()
        self._closing = threading.Event()
        self._figures = _Figures(args["model_name"], args["model_version"])
        self._figures.update(self._engine.points())
        self._watcher = threading.Thread(target=self._watch_clients, name="client-watcher", daemon=True)
        self._watcher.start()
        pb_utils.Logger.log_info(f"engine ready: {engine_dir}")

    def _check(self, parameters: dict[str, str], engine_dir: Path) -> None:
        limits = self._engine.limits
        for name in ("max_batch_size", "max_num_tokens", "max_seq_len", "max_input_len"):
            if int(parameters[name]) != getattr(limits, name):
                raise pb_utils.TritonModelException(
                    f"TF-TRI-010: {name} is {parameters[name]} in the configuration and {getattr(limits, name)} in "
                    "the engine; emit the repository again from this engine"
                )
        record = read_speculation(read_json_file(engine_dir / "engine.json"))
        stated, found = parameters.get("speculation", "none"), "none" if record is None else record.method
        if stated != found:
            raise pb_utils.TritonModelException(
                f"TF-TRI-010: speculation is {stated} in the configuration and {found} in the engine; emit the "
                "repository again from this engine"
            )

    def execute(self, requests: list[Any]) -> None:
        """Submit every request; answers go through each request's own response sender."""
        for request in requests:
            self._service.take(request)

    def _watch_clients(self) -> None:
        series_at = 0.0
        while not self._closing.wait(POLL_SECONDS):
            try:
                # asked first: an engine that is dead now has taken in all its clients before
                alive = self._engine.alive
                self._service.watch()
                if not alive:
                    self._leave_with_the_engine()
                self._figures.update(self._engine.points())
                if time.monotonic() >= series_at:
                    self._figures.update(self._engine.core.metrics.series())
                    series_at = time.monotonic() + SERIES_SECONDS
            except Exception as error:  # one bad answer of Triton must not end all cancellation
                pb_utils.Logger.log_warn(f"client watcher: {type(error).__name__}: {error}")

    def _leave_with_the_engine(self) -> None:
        """End this process: its engine is dead, and Triton would go on sending it requests.

        The engine tells its clients why; they get a moment to hear it. Triton would stay ready without this process: a
        launcher of ours ends the server then, and where there is none the server is told to end here.
        """
        end = time.monotonic() + FAREWELL_SECONDS
        while time.monotonic() < end and not self._service.idle():
            time.sleep(POLL_SECONDS)
        if not self._closing.is_set():
            pb_utils.Logger.log_error(f"the engine is dead, so its process ends: {self._engine.death}")
            if NOTICE not in os.environ:
                os.kill(os.getppid(), signal.SIGTERM)
            os._exit(1)

    def finalize(self) -> None:
        """Stop the stepping thread once Triton has drained."""
        self._closing.set()
        self._watcher.join(timeout=5)
        self._service.close()
        self._engine.shutdown()
        self._service.flush()
        self._figures.close()


class _Figures:
    """The engine's counters and gauges on Triton's own metrics page, under their ``trtforge_`` names.

    Only figures that changed are sent: an idle model then says nothing to Triton, and a call that is
    under way when Triton unloads the model would hold the unloading up.
    """

    def __init__(self, model: str, version: str) -> None:
        self._labels = {"model": model, "version": version}
        self._families: dict[str, Any] = {}
        self._metrics: dict[tuple[str, ...], Any] = {}
        self._sent: dict[tuple[str, ...], float] = {}

    def update(self, points: Iterable[Point]) -> None:
        for name, labels, value in points:
            key = (name, *labels.values())
            if self._sent.get(key) == value:
                continue
            counter = is_counter(name)
            if key not in self._metrics:
                self._metrics[key] = self._family(name, counter).Metric(labels=self._labels | labels)
            if counter:
                self._metrics[key].increment(float(value - self._sent.get(key, 0)))
            else:
                self._metrics[key].set(float(value))
            self._sent[key] = value

    def _family(self, name: str, counter: bool) -> Any:
        if name not in self._families:
            kind = pb_utils.MetricFamily.COUNTER if counter else pb_utils.MetricFamily.GAUGE
            self._families[name] = pb_utils.MetricFamily(name=f"trtforge_{name}", description=help_of(name), kind=kind)
        return self._families[name]

    def close(self) -> None:
        """Let go of the metrics while Triton still answers, before their families."""
        while self._metrics:
            self._metrics.popitem()
        while self._families:
            self._families.popitem()
