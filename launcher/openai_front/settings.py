"""How a front is run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEFAULT_PORT = 9000
#: bytes of a body at most, as everything that trtforge starts takes them
BODY_BYTES = 16 * 2**20
IN_FLIGHT = 256
#: tokens of an answer at most where its client does not say
ANSWER_TOKENS = 4096


@dataclass(frozen=True)
class FrontSettings:
    """Settings of the endpoint.

    Attributes:
        host, port: where it listens; port 0 picks a free one.
        keys: file of API keys; None lets everybody in who reaches the port.
        name: what clients call the model; None: see :func:`~launcher.openai_front.deployment.read_deployment`.
        tool_parser: format of tool calls; None: by the chat template.
        in_flight: requests for answers that run at once.
        answer_tokens: tokens of an answer at most where its client does not say.
        timeout: seconds after which an answer is cut; None: never.
        body_bytes: bytes of a request's body at most.
        log: file that gets a line of JSON a request; None: none.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    keys: Path | None = None
    name: str | None = None
    tool_parser: str | None = None
    in_flight: int = IN_FLIGHT
    answer_tokens: int = ANSWER_TOKENS
    timeout: float | None = None
    body_bytes: int = BODY_BYTES
    log: Path | None = None
