"""TCP ports on the loopback interface."""

from __future__ import annotations

import socket

from trtforge.ground.errors import ForgeError

MOST_PORT = 65535


def require_address(host: str, port: int, name: str = "port") -> None:
    """Refuse a number that is no port, and a host that is no address of this machine.

    Args:
        port: 0 stands for any free one.
        name: what the port is for.

    Raises:
        ForgeError: TF-LCH-004.
    """
    why = f"ports are 0 (any free one) to {MOST_PORT}"
    remedy = f"a {name} port from 1024 to {MOST_PORT}"
    if 0 <= port <= MOST_PORT:
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.bind((host, 0))
            return
        except (OSError, UnicodeError, ValueError) as error:  # a name may be unknown, too long, or hold a NUL
            why, remedy = f"nothing can listen there: {error}", "--host 127.0.0.1"
    raise ForgeError(
        "TF-LCH-004",
        f"{name} cannot listen on {host[:100]} port {port}",
        asked=f"{host[:100]}: {name} {port}",
        why=why,
        remedies=[remedy],
    )


def is_free(host: str, port: int) -> bool:
    """Whether ``port`` can be bound on ``host`` now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def pick_free(host: str, count: int) -> list[int]:
    """``count`` different ports that were free a moment ago."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sockets = [socket.socket(family, socket.SOCK_STREAM) for _ in range(count)]
    try:
        for one in sockets:
            one.bind((host, 0))
        return [int(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def require_free(host: str, ports: dict[str, int]) -> None:
    """Refuse ports that are taken, all of them in one error.

    Raises:
        ForgeError: TF-LCH-001; what :func:`require_address` raises.
    """
    for name, port in ports.items():
        require_address(host, port, name)
    taken = {name: port for name, port in ports.items() if not is_free(host, port)}
    if taken:
        suggestion = pick_free(host, len(taken))
        raise ForgeError(
            "TF-LCH-001",
            "a port is taken: " + ", ".join(f"{name} {port}" for name, port in taken.items()),
            asked=f"{host}: " + ", ".join(f"{name} {port}" for name, port in ports.items()),
            numbers=dict(taken),
            why="another process listens there",
            remedies=[f"--{name}-port {port}" for name, port in zip(taken, suggestion, strict=True)],
        )
