"""Reads small files of others: a pipe, a device, a huge or a bottomless file is refused, never waited for.

Only :class:`OSError` and :class:`ValueError` are raised, so that a caller needs to name no others.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

#: bytes that are read at most; an engine's config.json with calibration tables has some MB
MAX_JSON_BYTES = 64 << 20
#: the same for tokenizer.json: those of the largest vocabularies have 35 MB
MAX_TOKENIZER_BYTES = 128 << 20
#: levels of nesting: far more than any record has, few enough for whatever walks the value by recursion
MAX_DEPTH = 200


def read_bytes_file(path: Path, limit: int = MAX_JSON_BYTES) -> bytes:
    """The content of the regular file ``path``.

    Raises:
        OSError: it is missing, no regular file, or must not be read.
        ValueError: it is larger than ``limit`` bytes, or ``path`` is no path that a file can have.
    """
    # O_NONBLOCK: opening a FIFO without a writer would wait for ever
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{path.name} is {kind_of(status.st_mode)}, no regular file")
        # the size first, so that a sparse giant costs nothing; what grows while it is read is bounded too
        data = b"" if status.st_size > limit else file.read(limit + 1)
    if status.st_size > limit or len(data) > limit:
        raise ValueError(f"{path.name} has more than {limit} bytes")
    return data


def read_text_file(path: Path, limit: int = MAX_JSON_BYTES) -> str:
    """The UTF-8 text of the regular file ``path``; raises as :func:`read_bytes_file`, and ValueError on other bytes."""
    return read_bytes_file(path, limit).decode("utf-8")


def read_json_file(
    path: Path, limit: int = MAX_JSON_BYTES, *, parse_constant: Callable[[str], Any] | None = None
) -> Any:
    """The value in the regular file ``path``.

    Args:
        parse_constant: what becomes of NaN and infinities, as :func:`json.loads` takes it.

    Raises:
        OSError: it is missing, no regular file, or must not be read.
        ValueError: it is larger than ``limit`` bytes, no UTF-8, no JSON, or nested beyond what can be read.
    """
    return parse_json(read_bytes_file(path, limit), path.name, parse_constant=parse_constant)


def parse_json(
    data: bytes,
    name: str,
    *,
    parse_constant: Callable[[str], Any] | None = None,
    pairs: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """The JSON value of ``data``, which is called ``name``; raises ValueError as :func:`read_json_file`.

    Args:
        parse_constant, pairs: what becomes of NaN and infinities, and of the pairs of an object, as
            :func:`json.loads` takes them (``object_pairs_hook``).
    """
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=parse_constant, object_pairs_hook=pairs)
    except RecursionError:
        value = None
    else:
        if not _deeper_than(value, MAX_DEPTH):
            return value
    raise ValueError(f"{name} is nested too deeply")


def _deeper_than(value: Any, levels: int) -> bool:
    """Whether lists and objects stand in each other more than ``levels`` deep; without recursion."""
    layer = [value]
    for _ in range(levels + 1):
        inner = (item for item in layer if isinstance(item, (dict, list)))
        layer = [below for item in inner for below in (item.values() if isinstance(item, dict) else item)]
        if not layer:
            return False
    return True


def read_json_object(path: Path, limit: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """:func:`read_json_file` of a file that must hold an object; raises ValueError for any other value."""
    value = read_json_file(path, limit)
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} holds no JSON object")
    return value


def plain_record(record: Any) -> dict[str, Any]:
    """The fields of a dataclass as a JSON-able object, and of those in it: paths are texts, tuples lists."""
    return asdict(record, dict_factory=lambda pairs: {name: _plain(value) for name, value in pairs})


class PlainRecord:
    """A dataclass that goes out as JSON as it is."""

    def to_json(self) -> dict[str, Any]:
        """The record as a JSON-able object."""
        return plain_record(self)


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def kind_of(mode: int) -> str:
    """What a file of that ``st_mode`` is, with its article."""
    for test, name in (
        (stat.S_ISREG, "a regular file"),
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISLNK, "a symbolic link"),
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a character device"),
        (stat.S_ISBLK, "a block device"),
    ):
        if test(mode):
            return name
    return "something else"
