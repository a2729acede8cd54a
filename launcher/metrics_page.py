"""A server's metrics page, as far as it is the engine's."""

from __future__ import annotations

import urllib.request

PREFIX = "trtforge_"


def read_figures(url: str, timeout: float = 10.0) -> dict[str, float]:
    """The engine's counters and gauges by name without the prefix, summed over their labels.

    Args:
        url: HOST:PORT of the page.

    Raises:
        OSError: nobody answers there.
    """
    with urllib.request.urlopen(f"http://{url}/metrics", timeout=timeout) as answer:
        text = answer.read().decode()
    figures: dict[str, float] = {}
    for line in text.splitlines():
        name = line.split("{", 1)[0]
        if name.startswith(PREFIX):
            inner = name.removeprefix(PREFIX)
            figures[inner] = figures.get(inner, 0.0) + float(line.rsplit(" ", 1)[1])
    return figures
