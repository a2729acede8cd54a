"""Serve a bundle: start Triton on it, say how to talk to it, drain when told to stop.

A bundle holds ``engine/`` and ``repository/``; the server reads it where it lies. SIGTERM, SIGINT and SIGHUP drain: no
new requests, those in flight are answered (up to the exit timeout), then everything ends; a second signal ends the
drain. A server that dies by itself, or one of whose models does, or that another process stops, ends the command with
an error; nothing is restarted behind the user's back.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from launcher.commands import program
from launcher.local import TritonServer
from triton_repo.configs import read_config
from triton_repo.validate import require_valid
from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.ground.json_file import read_json_file
from trtforge.targets import TARGETS, names

if TYPE_CHECKING:
    from launcher.openai_front.server import FrontServer
    from launcher.openai_front.settings import FrontSettings

DEFAULT_PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}
#: curl says "form" by itself, and a form is what older servers copy onto their stack
JSON_HEADER = "-H 'Content-Type: application/json'"


@dataclass(frozen=True)
class Endpoints:
    """Where a running server listens, and ready-made requests; ``openai`` is empty without that endpoint."""

    model: str
    http: str
    grpc: str
    metrics: str
    openai: str = ""
    openai_model: str = ""

    def curl(self, prompt: str = "What is the capital of France?", max_tokens: int = 32) -> str:
        """A curl command that asks one question through the chat template."""
        body = f'{{"text_input": "{prompt}", "max_tokens": {max_tokens}, "chat": true}}'
        return f"curl -s {JSON_HEADER} http://{self.http}/v2/models/{self.model}/generate -d '{body}'"

    def curl_stream(self, prompt: str = "What is the capital of France?", max_tokens: int = 32) -> str:
        """The same as a stream of server-sent events."""
        body = f'{{"text_input": "{prompt}", "max_tokens": {max_tokens}, "chat": true, "stream": true}}'
        return f"curl -sN {JSON_HEADER} http://{self.http}/v2/models/{self.model}/generate_stream -d '{body}'"

    def tritonclient(self) -> str:
        """A command that streams an answer over gRPC through tritonclient."""
        return f"{program('python')} -m trtforge.cli.ask {self.grpc} {self.model} 'What is the capital of France?'"

    def curl_openai(self, prompt: str = "What is the capital of France?", max_tokens: int = 32) -> str:
        """A curl command that asks one question as a client of OpenAI's does."""
        message = f'{{"role": "user", "content": "{prompt}"}}'
        body = f'{{"model": "{self.openai_model}", "messages": [{message}], "max_tokens": {max_tokens}}}'
        return f"curl -s {JSON_HEADER} http://{self.openai}/v1/chat/completions -d '{body}'"

    def to_json(self) -> dict[str, Any]:
        own = {"openai": f"http://{self.openai}/v1", "curl_openai": self.curl_openai()} if self.openai else {}
        return {
            **own,
            "model": self.model,
            "http": f"http://{self.http}",
            "grpc": self.grpc,
            "metrics": f"http://{self.metrics}/metrics",
            "curl": self.curl(),
            "curl_stream": self.curl_stream(),
            "tritonclient": self.tritonclient(),
        }


def find_repository(bundle: Path) -> tuple[Path, str]:
    """The bundle's repository and its model's name.

    Raises:
        ForgeError: TF-LCH-030 when this is no bundle; TF-LCH-032 when no server loads its engines, TF-LCH-033 when
            its engine is not compiled yet; TF-TRI-021 when the repository is faulty.
    """
    repository = bundle / "repository"
    engine = _engine(bundle)
    if engine is not None:
        _require_loadable(bundle, engine)
    if engine is None or not repository.is_dir():
        raise _no_bundle(bundle, "a bundle holds engine/engine.json and repository/")
    require_valid(repository)
    models = sorted(p.name for p in repository.iterdir() if (p / "config.pbtxt").is_file())
    if not models:
        raise _no_bundle(bundle, "its repository holds no model with a config.pbtxt")
    # the native model by its own name, rather than one that only hands requests on to it
    configs = [read_config(repository / name / "config.pbtxt") for name in models]
    own = [config for config in configs if "engine_dir" in config.parameters]
    return repository, (own or configs)[0].name


def _no_bundle(bundle: Path, why: str) -> ForgeError:
    return ForgeError(
        "TF-LCH-030",
        "this is no bundle",
        asked=str(bundle),
        why=why,
        remedies=["trtforge run RECIPE prints the bundle's path", "trtforge artifacts list"],
    )


def _engine(bundle: Path) -> Mapping[str, Any] | None:
    """engine.json of a bundle; None when there is none that can be read."""
    try:
        found = read_json_file(bundle / "engine" / "engine.json")
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _require_loadable(bundle: Path, engine: Mapping[str, Any]) -> None:
    """Refuse engines that no server loads, and one that is still to be compiled."""
    target, place = TARGETS.get(str(engine.get("target"))), bundle / "engine"
    if target is not None and not target.layouts:
        named = engine.get("architectures")
        architectures = ", ".join(map(str, named)) if isinstance(named, list) and named else "its architecture"
        files = sorted(path.name for path in place.glob("*.rtx"))
        served = names(lambda other: other.cuda_plugins and bool(other.layouts))
        raise ForgeError(
            "TF-LCH-032",
            "this bundle holds RTX engines, which no backend of Triton loads",
            asked=str(bundle),
            numbers={"engines": files, "tensorrt_rtx": engine.get("tensorrt_rtx")},
            why="TensorRT for RTX is for applications on a PC: they load the engine with its runtime themselves.",
            remedies=[
                f"load {place}/*.rtx in an application with TensorRT for RTX {engine.get('tensorrt_rtx')}, on a GPU of "
                f"{architectures}",
                f"build.target: {' or '.join(served)}, for an engine that Triton serves",
            ],
        )
    if target is not None and target.trtllm_build and not engine.get("compiled", True):
        draft = engine.get("draft")
        folders = [place, *([place / "draft"] if isinstance(draft, dict) else [])]
        missing = [folder for folder in folders if not (folder / "trtllm" / "config.json").is_file()]
        if not missing:
            return  # the bundle's own scripts compiled it after the bundle was published
        raise EnvironmentLacks(
            "TF-LCH-033",
            "the bundle's engine is not compiled yet",
            asked=str(bundle),
            numbers={"tensorrt_llm": engine.get("tensorrt_llm"), "container": engine.get("container")},
            why=f"When it was made: {engine.get('not_compiled') or 'no reason given'}.",
            remedies=[
                f"on the machine that will serve it: sh {folder / name}"
                for folder in missing
                for name in ("container.sh", "build.sh")
                if (folder / name).is_file()
            ],
        )


def _died(server: TritonServer, code: int | None, why: str) -> ForgeError:
    return ForgeError(
        "TF-LCH-031",
        "the Triton server, or a model of it, died while serving",
        numbers={"exit": code},
        why=why,
        remedies=["start it again", f"read {server.log_path}"],
    )


def serve(
    bundle: Path,
    *,
    host: str = "127.0.0.1",
    http_port: int = DEFAULT_PORTS["http"],
    grpc_port: int = DEFAULT_PORTS["grpc"],
    metrics_port: int = DEFAULT_PORTS["metrics"],
    log_path: Path,
    ready_timeout: float = 120.0,
    exit_timeout: int = 30,
    openai: FrontSettings | None = None,
    on_ready: Callable[[Endpoints], None] = lambda endpoints: None,
    on_drain: Callable[[int], None] = lambda seconds: None,
) -> int:
    """Run until told to stop; returns the server's exit code.

    Args:
        openai: also serve OpenAI's API, before the server.

    Raises:
        ForgeError: TF-LCH-001 (port taken), TF-LCH-002/003 (start), TF-LCH-030 (no bundle), TF-LCH-031
            (the server died while serving), and those of the OpenAI endpoint (TF-OAI).
    """
    repository, model = find_repository(bundle)
    front = None if openai is None else _front(repository, bundle, openai)
    server = TritonServer(
        repository,
        log_path=log_path,
        host=host,
        http_port=http_port,
        grpc_port=grpc_port,
        metrics_port=metrics_port,
        exit_timeout=exit_timeout,
    )
    stop, hurry = threading.Event(), threading.Event()

    def ask_to_stop(number: int, frame: FrameType | None) -> None:
        (hurry if stop.is_set() else stop).set()

    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup: the terminal may go
        numbers.append(signal.SIGHUP)
    previous = {number: signal.signal(number, ask_to_stop) for number in numbers}
    try:
        server.start()
        server.wait_ready(ready_timeout, give_up=stop)
        if not stop.is_set():
            on_ready(_endpoints(server, model, front))
        refusals = 0
        while not stop.wait(0.5):
            if front is not None:
                front.require_alive()
            if server.process is not None and server.process.poll() is not None:
                raise _died(server, server.process.returncode, server.log_reason())
            refusals = 0 if server.takes_requests() else refusals + 1
            if refusals > 1:  # one may be the moment before a dead server is seen as one
                # whoever stopped it left no notice for its clients, and Triton may hang at such a drain's end
                on_drain(exit_timeout)
                raise _died(server, server.stop(hurry), "another process told it to stop")
        on_drain(exit_timeout)
        if front is not None:
            front.drain()
        code = server.stop(hurry) or 0
        if server.fallen or code not in (0, -signal.SIGKILL):  # a drain that lasts too long is ended by SIGKILL
            raise _died(server, code, server.fallen or f"it ended with code {code} while it was drained")
        return code
    finally:
        server.stop()
        if front is not None:
            front.stop()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _front(repository: Path, bundle: Path, settings: FrontSettings) -> FrontServer:
    from launcher.openai_front.server import front_of

    return front_of(repository, settings, bundle=bundle)


def _endpoints(server: TritonServer, model: str, front: FrontServer | None) -> Endpoints:
    """Where everything listens; the front begins to."""
    metrics = f"{server.host}:{server.metrics_port}"
    if front is None:
        return Endpoints(model, server.http_url, server.grpc_url, metrics)
    front.start(server.grpc_url, f"http://{metrics}/metrics")
    return Endpoints(model, server.http_url, server.grpc_url, metrics, front.address, front.model)
