"""Reads JSON files of others: a pipe, a device, a huge or a bottomless file is refused, never waited for.

Only :class:`OSError` and :class:`ValueError` are raised, so that a caller needs to name no others.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

#: bytes that are read at most; an engine's config.json with calibration tables has some MB
MAX_JSON_BYTES = 64 << 20


def read_json_file(path: Path, limit: int = MAX_JSON_BYTES) -> Any:
    """The value in the regular file ``path``.

    Raises:
        OSError: it is missing, no regular file, or must not be read.
        ValueError: it is larger than ``limit`` bytes, no UTF-8, no JSON, or nested beyond what can be read.
    """
    # O_NONBLOCK: opening a FIFO without a writer would wait for ever
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{path.name} is no regular file")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise ValueError(f"{path.name} has more than {limit} bytes")
    try:
        return json.loads(data.decode("utf-8"))
    except RecursionError:
        raise ValueError(f"{path.name} is nested too deeply") from None
