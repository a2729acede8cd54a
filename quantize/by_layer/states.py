"""What goes from layer to layer, on the disk: the states of every sequence before the next layer.

One file a boundary; the file of the next boundary is written beside it and takes its place when the layer is done, with
the number of finished layers. A kill at any time leaves the last whole boundary. States are read and written by plain
reads: a mapping of the file would count as memory.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import torch

from trtforge.ground.hashing import hash_json


class LayerStates:
    """The states of sequences in ``folder``, and how many layers they have gone through.

    Args:
        folder: survives a kill; made when it is not there.
        identity: everything that decides the states.
        shapes: [B, S] of each batch of sequences.
        width: D.
        streams: how many versions of the states there are: an algorithm that runs the text twice has two.

    Attributes:
        done: layers that are finished; None: not even the embeddings are there.
    """

    def __init__(
        self, folder: Path, identity: Any, shapes: Sequence[tuple[int, int]], width: int, dtype: torch.dtype
    ) -> None:
        self._folder, self._shapes, self._width, self._dtype = folder, list(shapes), width, dtype
        self._identity = hash_json([identity, self._shapes, width, str(dtype)])
        folder.mkdir(parents=True, exist_ok=True)
        self.streams = 1
        self.done = self._read_place()
        self._written: dict[int, BinaryIO] = {}

    @property
    def nbytes(self) -> int:
        """Bytes of one stream at one boundary."""
        return sum(rows * length for rows, length in self._shapes) * self._width * self._dtype.itemsize

    def read(self, batch: int, stream: int = 0) -> torch.Tensor:
        """States of a batch before the next layer, [B, S, D]."""
        rows, length = self._shapes[batch]
        values = torch.empty(rows, length, self._width, dtype=self._dtype)
        with self._path(self.done or 0, min(stream, self.streams - 1)).open("rb") as file:
            file.seek(self._offset(batch))
            wanted = values.view(torch.uint8).numpy().reshape(-1)
            if file.readinto(wanted.data) != values.nbytes:
                raise EOFError(f"states of batch {batch} end early")
        return values

    def write(self, batch: int, states: torch.Tensor, stream: int = 0) -> None:
        """States of a batch behind the layer that is being computed (or of the embeddings)."""
        if stream not in self._written:
            self._written[stream] = self._path(self._next, stream).with_suffix(".partial").open("wb")
        file = self._written[stream]
        file.seek(self._offset(batch))
        file.write(states.to("cpu", self._dtype).contiguous().view(torch.uint8).numpy().reshape(-1).data)

    def commit(self) -> None:
        """The layer is finished: what was written is what the next one reads."""
        for stream, file in self._written.items():
            file.close()
            partial = self._path(self._next, stream).with_suffix(".partial")
            partial.replace(partial.with_suffix(".bin"))
        before, streams = self.done, max(len(self._written), 1)
        self._written = {}
        place = {"identity": self._identity, "done": self._next, "streams": streams}
        partial = self._folder / "place.partial"
        partial.write_text(json.dumps(place), encoding="utf-8")
        partial.replace(self._folder / "place.json")
        old = self.streams if before is not None else 0
        self.done, self.streams = self._next, streams
        for stream in range(old):
            self._path(before or 0, stream).unlink(missing_ok=True)

    @property
    def _next(self) -> int:
        return 0 if self.done is None else self.done + 1

    def _path(self, boundary: int, stream: int) -> Path:
        return self._folder / f"states-{boundary}-{stream}.bin"

    def _offset(self, batch: int) -> int:
        return sum(rows * length for rows, length in self._shapes[:batch]) * self._width * self._dtype.itemsize

    def _read_place(self) -> int | None:
        """Where a run that was killed had come to; None where it was another one's, or lacks a file."""
        try:
            place = json.loads((self._folder / "place.json").read_text(encoding="utf-8"))
            if place["identity"] != self._identity:
                return None
            done, streams = int(place["done"]), int(place["streams"])
            if any(self._path(done, stream).stat().st_size != self.nbytes for stream in range(streams)):
                return None
        except (OSError, ValueError, KeyError, TypeError):
            return None
        self.streams = streams
        return done
