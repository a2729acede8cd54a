"""Intake's tests never touch the user's own cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiny import write_tiny_llama


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("TRTFORGE_CACHE", str(folder))
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "model")
