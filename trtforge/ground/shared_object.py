"""Opens shared libraries whose files may be damaged.

Policy: the loader maps what a file's headers promise, so a file that was cut short ends the process by SIGBUS and not
by an error. Whether the file reaches as far as its headers say is looked at first.
"""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
#: ELF of 64 bits, little-endian: all that our libraries are built for
_MAGIC = b"\x7fELF\x02\x01"


def open_library(path: Path) -> ctypes.CDLL:
    """The opened library.

    Raises:
        OSError: it is no library of this machine, or its file was cut short.
    """
    check_whole(path)
    return ctypes.CDLL(str(path))


def check_whole(path: Path) -> None:
    """Whether a library's file is as long as its headers say; what is no such file is left to the loader.

    Raises:
        OSError: the file cannot be read, or was cut short.
    """
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        head = file.read(_HEADER.size)
        if not head.startswith(_MAGIC):
            return
        end = _HEADER.size
        if len(head) == _HEADER.size:
            fields = _HEADER.unpack(head)
            segments, sections, segment_size, count, section_size, section_count = (
                fields[5], fields[6], fields[9], fields[10], fields[11], fields[12],
            )  # fmt: skip
            end = max(segments + segment_size * count, sections + section_size * section_count)
            for index in range(count):
                file.seek(min(segments + index * segment_size, size))
                row = file.read(_SEGMENT.size)
                if len(row) == _SEGMENT.size:
                    _, _, offset, _, _, in_file, _, _ = _SEGMENT.unpack(row)
                    end = max(end, offset + in_file)
    if size < end:
        raise OSError(f"{path.name} has {size} bytes of {end}: it was cut short")
