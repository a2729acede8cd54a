"""Fixtures of the op library's conformance suite: one run per instruction set that this machine can execute."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from plugins.host import load
from plugins.host.library import HostLibrary
from trtforge.errors import EnvironmentLacks


def _available() -> list[str]:
    try:
        return [str(name) for name in load().info()["isas_available"]]
    except EnvironmentLacks:
        # Collected, and failing in the fixture with the reason, instead of vanishing.
        return ["missing"]


@pytest.fixture(scope="session")
def host() -> HostLibrary:
    """The host library as it was built; a missing library fails the suite with the remedy."""
    return load()


@pytest.fixture(params=_available())
def library(request: pytest.FixtureRequest, host: HostLibrary) -> Iterator[HostLibrary]:
    """The host library on each instruction set in turn."""
    host.select_isa(request.param)
    yield host
    host.select_isa(None)
    host.set_threads(0)
