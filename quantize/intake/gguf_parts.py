"""A GGUF model in one file or in several, read as one.

Two kinds of parts are published: shards of ``gguf-split`` (``NAME-00001-of-00003.gguf``, each with a header of its
own that says ``split.count``), and a file that was cut into pieces of bytes (``NAME.gguf.part1`` …,
``NAME.gguf-split-a`` …). A recipe names any of them.

Policy: nothing is joined on disk. Parts lie in one address space, one behind the other; a tensor is mapped where it
lies in one part and read where it crosses a border. Parts are regular files of one folder, all there, in order.

Source: https://github.com/ggml-org/llama.cpp/tree/master/tools/gguf-split
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantize.intake.gguf_header import GgufHeader, read_gguf, read_gguf_stream
from trtforge.ground.errors import ForgeError
from trtforge.ground.safetensors_header import require_regular

if TYPE_CHECKING:
    import numpy.typing as npt

_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")
#: what follows ``.gguf`` in a piece's name: a word perhaps, and a number or letters that count
_PIECE = re.compile(r"(?P<stem>.+\.gguf[._-]?(?:(?:part|split|chunk|piece)[._-]?)?)(?P<place>\d{1,4}|[a-z]{1,2})", re.I)


def is_gguf_name(name: str) -> bool:
    """Whether a file of that name is a GGUF file or a piece of one."""
    return name.endswith(".gguf") or _PIECE.fullmatch(name) is not None


def parts_of(path: Path) -> tuple[Path, ...]:
    """The files of the model that ``path`` names a part of, in order; ``path`` alone where it is whole.

    Raises:
        ForgeError: ``TF-SRC-050`` a part is missing, ``TF-SRC-032`` one is no regular file.
    """
    if shard := _SHARD.fullmatch(path.name):
        count = int(shard["count"])
        found = [path.with_name(f"{shard['stem']}-{number:05d}-of-{count:05d}.gguf") for number in range(1, count + 1)]
        missing = [part.name for part in found if not part.exists()]
    elif piece := _PIECE.fullmatch(path.name):
        found, missing = _pieces(path, piece)
    else:
        return (path,)
    if missing or not found:
        raise ForgeError(
            "TF-SRC-050",
            f"{path.name} is one part of a model, and {len(missing)} others are missing: {', '.join(missing[:8])}",
            asked=str(path),
            numbers={"parts": len(found) or None, "missing": missing[:64]},
            why="The tensors are spread over all parts, which lie beside each other.",
            remedies=["download the missing parts into the same folder"],
        )
    for part in found:
        require_regular(part)
    return tuple(found)


def _pieces(path: Path, named: re.Match[str]) -> tuple[list[Path], list[str]]:
    """The pieces beside ``path``, in order, and the names that would close the gaps between them."""
    places: dict[int, Path] = {}
    letters = not named["place"].isdecimal()
    for other in sorted(path.parent.iterdir()):
        match = _PIECE.fullmatch(other.name)
        if match is None or match["stem"] != named["stem"] or match["place"].isdecimal() == letters:
            continue
        if len(match["place"]) == len(named["place"]) or not letters:
            places[_number(match["place"])] = other
    first = min(places)
    start = first if first in (0, 1) else 0
    missing = [number for number in range(start, max(places)) if number not in places]
    return [places[number] for number in sorted(places)], [f"number {number}" for number in missing]


def _number(place: str) -> int:
    if place.isdecimal():
        return int(place)
    value = 0
    for letter in place.lower():
        value = value * 26 + ord(letter) - ord("a")
    return value


@dataclass(frozen=True)
class GgufFile:
    """A model's parts, opened.

    Attributes:
        parts: the files, in order.
        starts: where each begins in the common address space, in bytes.
        header: metadata of the first part and the tensors of all, with common offsets.
    """

    parts: tuple[Path, ...]
    starts: tuple[int, ...]
    header: GgufHeader

    @classmethod
    def open(cls, path: Path) -> GgufFile:
        """Read the headers.

        Raises:
            ForgeError: what :func:`parts_of` and :func:`~quantize.intake.gguf_header.read_gguf` refuse, ``TF-SRC-050``
                shards that do not belong together.
        """
        parts = parts_of(path)
        sizes = [part.stat().st_size for part in parts]
        starts = tuple(accumulate(sizes, initial=0))[:-1]
        if len(parts) == 1:
            header = read_gguf(parts[0])
            refuse_lone_shard(header, path.name)
            return cls(parts, starts, header)
        if _SHARD.fullmatch(path.name):
            return cls(parts, starts, _joined(parts, starts, sum(sizes)))
        reader = _Reader(parts)
        try:
            header = read_gguf_stream(reader.read, sum(sizes), f"{parts[0].name} and {len(parts) - 1} pieces")
        finally:
            reader.close()
        return cls(parts, starts, header)

    @property
    def name(self) -> str:
        return self.parts[0].name if len(self.parts) == 1 else f"{self.parts[0].name} and {len(self.parts) - 1} more"

    def bytes_of(self, offset: int, count: int) -> npt.NDArray[Any]:
        """``count`` bytes from ``offset`` on, uint8 [count]: mapped, or read where they lie in several parts."""
        import numpy as np

        pieces = []
        for part, start in zip(self.parts, self.starts, strict=True):
            size = part.stat().st_size
            begin, end = max(offset, start), min(offset + count, start + size)
            if begin < end:
                shape = (end - begin,)
                pieces.append(np.memmap(part, dtype=np.uint8, mode="r", offset=begin - start, shape=shape))
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def refuse_lone_shard(header: GgufHeader, name: str) -> None:
    """``TF-SRC-050`` for a shard whose name does not lead to the others, or that lies in an archive."""
    count = header.get("split.count", int, 1)
    if count > 1:
        raise ForgeError(
            "TF-SRC-050",
            f"{name} is one of {count} shards, and its name does not say where the others are",
            asked=name,
            numbers={"parts": count},
            why="gguf-split names shards NAME-00001-of-00003.gguf, and they are found by that.",
            remedies=["put all shards into one folder under their own names", "merge them: gguf-split --merge"],
        )


class _Reader:
    """Bytes of pieces, one after the other."""

    def __init__(self, parts: tuple[Path, ...]) -> None:
        self._left = list(parts)
        self._file: Any = None

    def read(self, count: int) -> bytes:
        while True:
            if self._file is None:
                if not self._left:
                    return b""
                self._file = self._left.pop(0).open("rb")
            if data := self._file.read(count):
                return bytes(data)
            self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _joined(parts: tuple[Path, ...], starts: tuple[int, ...], size: int) -> GgufHeader:
    """The header of all shards: the first has the model's metadata, each the table of its own tensors."""
    headers = [read_gguf(part) for part in parts]
    tensors = {}
    for number, (part, start, header) in enumerate(zip(parts, starts, headers, strict=True)):
        said = (header.get("split.no", int, 0), header.get("split.count", int, 1))
        if said != (number, len(parts)):
            raise _foreign(part, f"it calls itself number {said[0]} of {said[1]}", number=number, parts=len(parts))
        for name, tensor in header.tensors.items():
            if name in tensors:
                raise _foreign(part, f"the tensor {name} is in an earlier shard too")
            tensors[name] = replace(tensor, offset=start + tensor.offset)
    stated = headers[0].get("split.tensors.count", int, len(tensors))
    if stated != len(tensors):
        raise _foreign(parts[0], f"it states {stated} tensors, the shards have {len(tensors)}")
    return GgufHeader(headers[0].version, headers[0].metadata, tensors, size)


def _foreign(part: Path, reason: str, **numbers: Any) -> ForgeError:
    return ForgeError(
        "TF-SRC-050",
        f"{part.name} does not belong to its neighbours: {reason}",
        asked=str(part),
        numbers=numbers,
        why="Shards of different models or quantizations under one name make a model that nobody published.",
        remedies=["download all shards again, of one release"],
    )
