"""What a library's fat binaries hold: the machine code that nvcc put there."""

from __future__ import annotations

import struct

FATBIN = struct.pack("<I", 0xBA55ED50)


def machine_code(library: bytes) -> set[int]:
    """Architectures of the machine code in a library's fat binaries.

    A fat binary begins with a magic number and the sizes of header and content; each entry of the content says its
    kind (2: machine code), its sizes and its architecture.
    """
    found, at = set(), library.find(FATBIN)
    while at >= 0:
        header, size = struct.unpack_from("<HQ", library, at + 6)
        entry, end = at + header, at + header + size
        while header == 16 and entry < end:
            kind, _, length, content = struct.unpack_from("<HHIQ", library, entry)
            assert kind == 2, "no PTX: nothing is compiled on the first call"
            (architecture,) = struct.unpack_from("<I", library, entry + 28)
            found.add(architecture)
            entry += length + content
        at = library.find(FATBIN, max(end, at + 4))
    return found
