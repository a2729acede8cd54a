"""What several end-to-end tests serve."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from triton_repo.layouts.native import emit


@pytest.fixture(scope="module")
def bundle(tiny_engine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny engine with a native repository, as a bundle holds them."""
    folder = tmp_path_factory.mktemp("bundle")
    shutil.copytree(tiny_engine, folder / "engine")
    emit(folder / "engine", folder / "repository", name="tiny")
    return folder
