"""What was measured, sample by sample: kept, so that nothing is measured twice.

A file of JSON lines for each measurement: the first line says what decides the samples (the *identity*: checkpoint,
arithmetic, parameters), each further one is a sample with its id. Samples are appended to a folder that survives a kill
and put into the artifact in order when the measurement is whole. What an earlier artifact holds under the same identity
is taken over: another gate, more tokens or one task more measures what is new and judges the rest from here.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from trtforge.ground.hashing import hash_json

FOLDER = "samples"
_DTYPES = ("<f4", "<f8", "<i4", "|b1")


def packed(array: np.ndarray) -> dict[str, Any]:
    """An array as JSON: its type, shape and bytes."""
    small = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return {
        "dtype": small.dtype.str,
        "shape": list(small.shape),
        "base64": base64.b64encode(small.tobytes()).decode("ascii"),
    }


def unpacked(value: Any) -> np.ndarray:
    """The inverse of :func:`packed`; raises ValueError on anything else."""
    try:
        dtype, shape = str(value["dtype"]), [int(size) for size in value["shape"]]
        if dtype not in _DTYPES:
            raise ValueError(f"{dtype!r} is no type of samples")
        return np.frombuffer(base64.b64decode(value["base64"], validate=True), dtype=dtype).reshape(shape)
    except (KeyError, TypeError, binascii.Error) as error:
        raise ValueError(f"no packed array ({error})") from error


class Samples:
    """The samples of one measurement; ``with`` it, or :meth:`finish` and :meth:`close`.

    Args:
        name: file name without ending.
        identity: everything that decides what a sample of a given id is.
        out: the artifact's folder.
        scratch: a folder that survives a kill.
        earlier: artifacts that may hold samples already.
    """

    def __init__(
        self, name: str, identity: Mapping[str, Any], *, out: Path, scratch: Path, earlier: Sequence[Path] = ()
    ) -> None:
        self._name = f"{name}.jsonl"
        self._identity = hash_json(dict(identity))
        self._out = out / FOLDER / self._name
        self._scratch = scratch / FOLDER / self._name
        self._found: dict[str, dict[str, Any]] = {}
        self._file: TextIO | None = None
        #: samples that were measured by this object
        self.measured = 0
        for folder in earlier:
            for sample in _read(folder / FOLDER / self._name, self._identity):
                self._found.setdefault(sample["id"], sample)
        self._found.update((sample["id"], sample) for sample in _read(self._scratch, self._identity))

    def get(self, name: str) -> dict[str, Any] | None:
        """The sample of that id, if it was measured before."""
        return self._found.get(name)

    def add(self, name: str, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Keep a sample; it is on the disk when this returns. Returns it as it will be read back."""
        record: dict[str, Any] = {"id": name, **sample}
        line = json.dumps(record, sort_keys=True, allow_nan=False)
        if self._file is None:
            self._file = self._open()
        self._file.write(line + "\n")
        self._file.flush()
        self.measured += 1
        self._found[name] = json.loads(line)
        return self._found[name]

    def finish(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """Write the samples of ``names``, all there, in that order into the artifact; returns them."""
        self.close()
        chosen = [self._found[name] for name in names]
        self._out.parent.mkdir(parents=True, exist_ok=True)
        _write(self._out, self._identity, chosen)
        return chosen

    def close(self) -> None:
        """Close the file of finished samples; may be repeated."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> TextIO:
        """The scratch file, open for the next sample: what a kill tore, or another identity left, is written anew."""
        self._scratch.parent.mkdir(parents=True, exist_ok=True)
        kept = _read(self._scratch, self._identity)
        fresh = self._scratch.with_suffix(".new")
        _write(fresh, self._identity, kept)
        fresh.replace(self._scratch)
        return self._scratch.open("a", encoding="utf-8")


def _write(path: Path, identity: str, samples: Sequence[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        for record in ({"identity": identity}, *samples):
            file.write(json.dumps(record, sort_keys=True, allow_nan=False) + "\n")


def _read(path: Path, identity: str) -> list[dict[str, Any]]:
    """Whole samples of a file of that identity; none where there is no such file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)  # JSON escapes other line ends
    except (OSError, UnicodeDecodeError):
        return []
    samples: list[dict[str, Any]] = []
    for position, line in enumerate(lines):
        try:
            record = json.loads(line) if line.endswith("\n") else None  # else torn by a kill
        except ValueError:
            break
        if not isinstance(record, dict):
            break
        if position == 0:
            if record.get("identity") != identity:
                return []
        elif isinstance(record.get("id"), str):
            samples.append(record)
    return samples


def read_samples(directory: Path, name: str) -> list[dict[str, Any]]:
    """The samples that an artifact holds under ``name``; none where it has none. Raises ValueError for a torn file."""
    return read_samples_file(directory / FOLDER / f"{name}.jsonl")


def read_samples_file(path: Path) -> list[dict[str, Any]]:
    """As :func:`read_samples`, of a file that was copied elsewhere."""
    if not path.is_file():
        return []
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    if not records or not all(isinstance(record, dict) for record in records):
        raise ValueError(f"{path.name} holds no samples")
    return records[1:]
