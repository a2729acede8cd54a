"""What an artifact of the ``tensorrt-rtx`` target holds, and whether its engines are those that were built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtforge.ground.hashing import hash_file


def engine_info(artifact: Path, engine: dict[str, Any], capability: str | None = None) -> dict[str, Any]:
    """engine.json, and for each RTX engine whether its file is there and the one that was built (``intact``).

    ``capability`` is the processor's and says nothing here.
    """
    found = []
    for item in engine["engines"]:
        path = artifact / Path(item["file"]).name
        intact = path.is_file() and path.stat().st_size == item["bytes"] and hash_file(path) == item["sha256"]
        found.append({**item, "intact": intact})
    return {**engine, "engines": found}
