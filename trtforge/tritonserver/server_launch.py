"""What every Triton server that trtforge starts, or writes a start for, gets besides its models' own options.

Triton opens all of its APIs to every client. Four of them let a client do what no client of a model needs: read and
write the server's shared memory, load other models, and name files that the server writes. They are closed by a key
that is random at each start and that nobody is told.

Releases before 25.09 put parts of a request on the stack of the thread that reads it, so a long request kills the
server; threads with a large stack survive it.

Sources: ``docs/customization_guide/deploy.md`` and ``inference_protocols.md`` of triton-inference-server/server; the
bulletins in ``trtforge/tables/advisories.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from packaging.version import InvalidVersion, Version

from trtforge.tables.advisories import month_of

#: API -> what a client does with it when it is open
CLOSED_APIS: Mapping[str, str] = {
    "shared-memory": "reads and writes the server's memory through regions that it registers",
    "model-repository": "loads, unloads and lists models",
    "trace": "names a file that the server writes traces to",
    "logging": "names a file that the server logs to, and floods the log",
}
KEY = "admin-key"
HTTP_OPTION = "--http-restricted-api"
GRPC_OPTION = "--grpc-restricted-protocol"
BODY_OPTION = "--http-max-input-size"
#: container month whose server has BODY_OPTION (its command_line_parser.cc)
_BODY_SINCE = Version("25.06")
#: bytes of one HTTP request; a prompt of a million tokens is about 4 MB
MAX_BODY = 16 * 2**20
#: bytes of a thread's stack: a finite number, because "unlimited" gives threads 2 MiB. Address space, not memory.
STACK = 2**30
#: what a thread gets where the kernel counts address space as memory
SMALL_STACK = 64 * 2**20
#: a variable of Google's Vertex AI that opens one more endpoint, which knows no closed APIs before 26.04
OPENING_VARIABLE = "AIP_MODE"
#: files and shared-memory regions of a server are its own user's
UMASK = 0o077


def closing(key: str) -> list[str]:
    """The options that close :data:`CLOSED_APIS` on HTTP and gRPC to clients that do not send ``key``."""
    apis = ",".join(CLOSED_APIS)
    return [f"{HTTP_OPTION}={apis}:{KEY}={key}", f"{GRPC_OPTION}={apis}:{KEY}={key}"]


def limits_bodies(version: str | None) -> bool:
    """Whether a Triton release, by its own version or by its container's month, takes :data:`BODY_OPTION`."""
    try:
        return version is not None and Version(month_of(version)) >= _BODY_SINCE
    except InvalidVersion:
        return False


def body_limit(version: str | None) -> list[str]:
    """The option that limits an HTTP request's size, where the release has it."""
    return [f"{BODY_OPTION}={MAX_BODY}"] if limits_bodies(version) else []


def stack_limit(
    soft: int,
    hard: int,
    address_space: int,
    *,
    infinite: int = -1,
    overcommit: Path = Path("/proc/sys/vm/overcommit_memory"),
) -> int:
    """The soft limit of the stack in bytes to start a server with.

    Args:
        soft, hard: the limits that hold now.
        address_space: the limit of a process's address space.
        infinite: what stands for no limit.
        overcommit: the kernel's rule; 2 counts every thread's stack as memory in use.
    """
    try:
        strict = overcommit.read_text(encoding="ascii").strip() == "2"
    except OSError:
        strict = False
    wanted = SMALL_STACK if strict or address_space != infinite else STACK
    if soft != infinite:
        wanted = max(wanted, soft)
    return wanted if hard == infinite else min(wanted, hard)
