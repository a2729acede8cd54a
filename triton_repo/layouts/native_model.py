"""Triton Python-backend model of the ``native`` layout; copied into the repository as ``1/model.py``.

Decoupled: ``execute`` hands each request to the runtime's stepping thread and returns at once, so
requests join and leave the batch token by token. A chat waits for its template in a thread of its own, and nothing
else waits for it. A watcher thread asks Triton every
``POLL_SECONDS`` which clients have gone and cancels their requests, which frees their blocks; it also
copies the engine's figures to Triton's metrics page, and ends this process when its engine is dead.
"""

import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils  # provided by Triton

import plugins.host
from runtime.request import Request, RequestOutput
from runtime.serving import AsyncEngine
from runtime.triton_channel import Channel
from runtime.triton_frontend import request_from_tensors, tensors_from_output
from trtforge.chat_workers import MOST
from trtforge.errors import ForgeError

POLL_SECONDS = 0.05
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


def _answering(client: Channel, work: Callable[[], None]) -> None:
    """Do ``work``; whatever goes wrong, the client gets an answer."""
    try:
        work()
    except ForgeError as error:
        client.fail(error.to_json())
    except Exception as error:
        client.fail({"code": "TF-RUN-199", "message": f"{type(error).__name__}: {error}"})


class TritonPythonModel:
    """The engine behind one Triton model."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the engine that the configuration names and hold its limits against the configuration's."""
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        self._inputs = [tensor["name"] for tensor in config["input"]]
        self._exclude_default = parameters["exclude_input_in_output"] == "true"
        engine_dir = (Path(args["model_repository"]) / parameters["engine_dir"]).resolve()
        self._engine = AsyncEngine.load(engine_dir)
        self._eos = tuple(self._engine.eos_token_ids)
        self._check_limits(parameters)
        self._live: set[Channel] = set()
        self._lock = threading.Lock()
        self._chats = ThreadPoolExecutor(MOST, "chats")
        tokenizer = self._engine.core.tokenizer
        if tokenizer is not None:
            tokenizer.prepare_chats()
        self._closing = threading.Event()
        self._gauges = _Gauges(args["model_name"], args["model_version"])
        self._gauges.update(self._engine.stats())
        self._watcher = threading.Thread(target=self._watch_clients, name="client-watcher", daemon=True)
        self._watcher.start()
        pb_utils.Logger.log_info(f"engine ready: {engine_dir}")

    def _check_limits(self, parameters: dict[str, str]) -> None:
        limits = self._engine.limits
        for name in ("max_batch_size", "max_num_tokens", "max_seq_len", "max_input_len"):
            if int(parameters[name]) != getattr(limits, name):
                raise pb_utils.TritonModelException(
                    f"TF-TRI-010: {name} is {parameters[name]} in the configuration and {getattr(limits, name)} in "
                    "the engine; emit the repository again from this engine"
                )

    def execute(self, requests: list[Any]) -> None:
        """Submit every request; answers go through each request's own response sender."""
        for request in requests:
            client = Channel(request.get_response_sender(), pb_utils)
            _answering(client, partial(self._submit, request, client))

    def _submit(self, request: Any, client: Channel) -> None:
        tensors = {}
        for name in self._inputs:
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            if tensor is not None:
                tensors[name] = tensor.as_numpy()
        exclude = tensors.pop("exclude_input_in_output", None)
        exclude = self._exclude_default if exclude is None else bool(exclude.reshape(-1)[0])
        log_probs = "return_log_probs" in tensors and bool(tensors["return_log_probs"].reshape(-1)[0])
        parsed = request_from_tensors(tensors, eos_token_ids=self._eos)
        prefix = "" if exclude or parsed.prompt is None else parsed.prompt
        state = {"prefix": prefix}
        wanted = set(request.requested_output_names())

        def deliver(output: RequestOutput) -> None:
            if output.error is not None:
                client.fail(output.error)
                return
            text_prefix, state["prefix"] = state["prefix"], ""
            arrays = tensors_from_output(output, prefix=text_prefix, log_probs=log_probs)
            response = pb_utils.InferenceResponse(
                output_tensors=[pb_utils.Tensor(name, array) for name, array in arrays.items() if name in wanted]
            )
            if output.finished:
                client.end(response)
            else:
                client.send(response)  # raises when the client is gone: the engine then cancels the request

        start = partial(self._start, parsed, deliver, client)
        if parsed.messages is None:
            start()
        else:
            self._chats.submit(_answering, client, start)

    def _start(self, request: Request, deliver: Callable[[RequestOutput], None], client: Channel) -> None:
        client.key = self._engine.submit(request, deliver)
        with self._lock:
            self._live.add(client)

    def _watch_clients(self) -> None:
        while not self._closing.wait(POLL_SECONDS):
            try:
                # asked first: an engine that is dead now has taken in all its clients before
                alive = self._engine.alive
                with self._lock:
                    self._live = {client for client in self._live if not client.ended}
                    live = list(self._live)
                if not alive:
                    self._leave_with_the_engine(live)
                for client in live:
                    if client.gone():
                        self._engine.cancel(client.key)
                self._gauges.update(self._engine.stats())
            except Exception as error:  # one bad answer of Triton must not end all cancellation
                pb_utils.Logger.log_warn(f"client watcher: {type(error).__name__}: {error}")

    def _leave_with_the_engine(self, live: list[Channel]) -> None:
        """End this process: its engine is dead, and Triton would go on sending it requests.

        The engine tells its clients why; they get a moment to hear it.
        """
        end = time.monotonic() + FAREWELL_SECONDS
        while time.monotonic() < end and not all(client.ended for client in live):
            time.sleep(POLL_SECONDS)
        if not self._closing.is_set():
            pb_utils.Logger.log_error(f"the engine is dead, so its process ends: {self._engine.death}")
            os._exit(1)

    def finalize(self) -> None:
        """Stop the stepping thread once Triton has drained."""
        self._closing.set()
        self._watcher.join(timeout=5)
        self._chats.shutdown()
        self._engine.shutdown()
        self._gauges.close()


class _Gauges:
    """The engine's counters and gauges on Triton's own metrics page, under their ``trtforge_`` names.

    Only figures that changed are sent: an idle model then says nothing to Triton, and a call that is
    under way when Triton unloads the model would hold the unloading up.
    """

    def __init__(self, model: str, version: str) -> None:
        self._labels = {"model": model, "version": version}
        self._metrics: dict[str, tuple[Any, Any]] = {}
        self._sent: dict[str, float] = {}

    def update(self, stats: dict[str, Any]) -> None:
        for name, value in stats.items():
            if isinstance(value, (int, float)) and self._sent.get(name) != value:
                if name not in self._metrics:
                    family = pb_utils.MetricFamily(
                        name=f"trtforge_{name}", description=name.replace("_", " "), kind=pb_utils.MetricFamily.GAUGE
                    )
                    # the family must outlive its metric
                    self._metrics[name] = (family, family.Metric(labels=self._labels))
                self._metrics[name][1].set(float(value))
                self._sent[name] = value

    def close(self) -> None:
        """Let go of the metrics while Triton still answers, each before its family."""
        while self._metrics:
            _, pair = self._metrics.popitem()
            family, metric = pair
            del pair, metric
            del family
