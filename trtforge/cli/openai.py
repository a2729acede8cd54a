"""``trtforge openai``: OpenAI's API before a Triton server that runs elsewhere; and the options of that API."""

from __future__ import annotations

import re
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from trtforge.cli import common
from trtforge.ground.errors import ForgeError

if TYPE_CHECKING:
    from launcher.openai_front.settings import FrontSettings
    from trtforge.ground.console import Console

#: HOST:PORT, [IPV6]:PORT among them
_ADDRESS = re.compile(
    r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):"
    r"([1-9]\d{0,3}|[1-5]\d{4}|6[0-4]\d{3}|65[0-4]\d\d|655[0-2]\d|6553[0-5])"
)
IN_FLIGHT = 256
MAX_TOKENS = 4096

Keys = Annotated[
    Path | None, typer.Option(metavar="FILE", help="API keys, one a line; without, whoever reaches the port is let in.")
]
Model = Annotated[str | None, typer.Option(metavar="NAME", help="What clients call the model; default: its own name.")]
Log = Annotated[Path | None, typer.Option(metavar="FILE", help="File that gets a line of JSON a request.")]
InFlight = Annotated[int, typer.Option(min=1, help="Requests that run at once; more are refused with 429.")]
Timeout = Annotated[float | None, typer.Option(min=0.001, help="Seconds after which an answer is cut.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Tokens of an answer at most when its client does not say.")]
ToolParser = Annotated[
    str | None,
    typer.Option(
        metavar="NAME", help="Format of tool calls (llama3, mistral, hermes, pythonic); default: by template."
    ),
]


def settings_of(
    *,
    port: int | None,
    host: str,
    keys: Path | None,
    name: str | None,
    log: Path | None,
    in_flight: int,
    timeout: float | None,
    answer_tokens: int,
    tool_parser: str | None,
) -> FrontSettings | None:
    """The options as settings; None without a port.

    Raises:
        ForgeError: TF-OAI-030 when another option of the endpoint came without a port.
    """
    from launcher.openai_front.settings import FrontSettings

    if port is None:
        others = {
            "--openai-keys": keys is not None,
            "--openai-model": name is not None,
            "--openai-log": log is not None,
            "--openai-timeout": timeout is not None,
            "--openai-in-flight": in_flight != IN_FLIGHT,
            "--openai-max-tokens": answer_tokens != MAX_TOKENS,
            "--tool-parser": tool_parser is not None,
        }
        given = [option for option, there in others.items() if there]
        if given:
            raise ForgeError(
                "TF-OAI-030",
                f"{', '.join(given)} without --openai-port",
                asked=" ".join(given),
                why="They are of OpenAI's API, which is served only where it is asked for.",
                remedies=["--openai-port 9000", f"leave {' and '.join(given)} out"],
            )
        return None
    return FrontSettings(
        host=host,
        port=port,
        keys=keys,
        name=name,
        tool_parser=tool_parser,
        in_flight=in_flight,
        answer_tokens=answer_tokens,
        timeout=timeout,
        log=log,
    )


def warn_open(console: Console, settings: FrontSettings) -> None:
    """Say when everybody in the network may use the model."""
    if settings.keys is None and settings.host not in ("127.0.0.1", "::1", "localhost"):
        console.warning(f"OpenAI's API listens on {settings.host} without keys: whoever reaches it is let in")


@common.forge_command
def openai(
    console: Console,
    server: Annotated[str, typer.Option(metavar="HOST:PORT", help="gRPC address of the Triton server.")],
    bundle: Annotated[Path | None, typer.Option(metavar="DIR", help="The bundle that it serves.")] = None,
    repository: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The model repository that it serves, instead of a bundle.")
    ] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Its metrics port, to be passed on at /metrics.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")] = 9000,
    keys: Keys = None,
    model: Model = None,
    log: Log = None,
    in_flight: InFlight = IN_FLIGHT,
    timeout: Timeout = None,
    max_tokens: MaxTokens = MAX_TOKENS,
    tool_parser: ToolParser = None,
    drain: Annotated[int, typer.Option(help="Seconds that running answers get when it is stopped.")] = 30,
) -> None:
    """Serve OpenAI's API before a Triton server that runs already, until SIGINT or SIGTERM."""
    from launcher.openai_front.server import front_of

    if (bundle is None) == (repository is None):
        raise ForgeError(
            "TF-OAI-031",
            "name the bundle or the repository that the server serves, one of them",
            asked=f"trtforge openai --server {server}",
            why="The tokenizer, the chat template and the limits are read from it.",
            remedies=["--bundle BUNDLE", "--repository DIR"],
        )
    for option, given in {"--server": server, "--metrics": metrics}.items():
        if given is not None and not _ADDRESS.fullmatch(given):
            raise ForgeError(
                "TF-OAI-035",
                f"{option} is no address",
                asked=f"{option} {given[:200]}",
                why="An address is a host and a port from 1 to 65535, without a scheme.",
                remedies=[f"{option} 127.0.0.1:{8001 if option == '--server' else 8002}"],
            )
    settings = settings_of(
        port=port,
        host=host,
        keys=keys,
        name=model,
        log=log,
        in_flight=in_flight,
        timeout=timeout,
        answer_tokens=max_tokens,
        tool_parser=tool_parser,
    )
    assert settings is not None
    front = front_of(repository or Path(bundle or ".") / "repository", settings, bundle=bundle)
    stop = threading.Event()

    def ask_to_stop(number: int, frame: FrameType | None) -> None:
        stop.set()

    previous = {number: signal.signal(number, ask_to_stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        front.start(server, None if metrics is None else f"http://{metrics}/metrics")
        warn_open(console, settings)
        console.result({"openai": f"http://{front.address}/v1", "model": front.model, "server": server})
        console.print(f"  OpenAI   http://{front.address}/v1  (model {front.model}, before {server})")
        console.print("Stop it with Ctrl-C or SIGTERM: running answers are finished.")
        if console.mode == "quiet":
            console.value(f"http://{front.address}/v1")
        while not stop.wait(0.5):
            front.require_alive()
    finally:
        front.stop(drain)
        for number, handler in previous.items():
            signal.signal(number, handler)
