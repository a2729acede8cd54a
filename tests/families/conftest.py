"""One place for the checkpoints that the tests of this folder share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where each variant of each row is written once."""
    return tmp_path_factory.mktemp("decoders")
