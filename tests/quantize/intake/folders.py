"""Fetching and spoiling folders, for the tests of intake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from quantize.intake import CheckpointInfo, fetch_checkpoint, inspect_source
from tests.support.refusals import refusal
from trtforge.ground.errors import ForgeError


def fetch(source: Path | str, tmp_path: Path, out: str = "out", **options: Any) -> CheckpointInfo:
    options.setdefault("base_dir", tmp_path)
    return fetch_checkpoint(str(source), tmp_path / out, cache_dir=tmp_path / "cache", **options)


def both_refuse(source: Path, tmp_path: Path, **options: Any) -> ForgeError:
    """Inspecting and fetching refuse alike, and the fetch leaves nothing behind."""
    error = refusal(inspect_source, str(source), tmp_path, **options)
    assert refusal(fetch, source, tmp_path, **options).code == error.code
    assert not (tmp_path / "out" / "checkpoint.json").exists()
    return error


def edit(path: Path, **changes: Any) -> None:
    value = json.loads(path.read_text())
    for key, new in changes.items():
        if new is ...:
            value.pop(key, None)
        else:
            value[key] = new
    path.write_text(json.dumps(value))
