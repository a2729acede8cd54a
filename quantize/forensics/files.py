"""The files of a checkpoint as the audit reads them: names, small files, headers, and values of scales.

Headers are read file by file, so that one that is damaged hides nothing of the others. The folder may hold less than
the whole checkpoint: of one that was brought by ranges, weights are holes, and :class:`Partial` says which values lie
there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import MAX_TOKENIZER_BYTES, read_json_file
from trtforge.ground.safetensors_header import INDEX_NAME, WEIGHTS_NAME, TensorInfo, read_header, require_regular

#: weights in other layouts beside the model, which no loader of the model reads
_BESIDE = ("consolidated",)
_REMEDY = "put the file itself into the folder, where its reader may read it"


class Partial(Protocol):
    """Who fills a folder that was brought by ranges."""

    def bring(self, infos: Sequence[TensorInfo]) -> None:
        """Fetch the values of these tensors; those beyond its bounds are left out."""

    def holds(self, info: TensorInfo) -> bool:
        """Whether a tensor's values lie in the folder."""


@dataclass
class Weights:
    """Attributes:
    files: the weight files that a loader opens, sorted.
    tensors: every tensor of theirs by name; the first file wins.
    twice: tensor → the files that hold it, where there is more than one.
    index: tensor → file of the index, None without one; bad_index: why it cannot be read.
    missing: files that are named and not there; extra: weight files that nothing names.
    damaged: file → what is wrong with it.
    """

    files: list[str] = field(default_factory=list)
    tensors: dict[str, TensorInfo] = field(default_factory=dict)
    twice: dict[str, list[str]] = field(default_factory=dict)
    index: dict[str, str] | None = None
    bad_index: str | None = None
    missing: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    damaged: dict[str, ForgeError] = field(default_factory=dict)

    @property
    def incomplete(self) -> bool:
        """Whether tensors may be where they cannot be read: what is not among the others is then not missing."""
        return bool(self.missing or self.damaged)


class Files:
    """The folder of a checkpoint.

    Args:
        folder: where the files lie.
        shown: what the user called it.
        partial: who fetches the values that the folder lacks; None where all is there.
    """

    def __init__(self, folder: Path, shown: str | None = None, partial: Partial | None = None) -> None:
        self.folder, self.shown, self.partial = folder, shown or str(folder), partial
        self._json: dict[str, Mapping[str, Any]] = {}

    def place(self, name: str) -> str:
        """A file of the folder as the user would call it."""
        return f"{self.shown}/{name}" if self.partial is not None else str(self.folder / name)

    def has(self, name: str) -> bool:
        """Whether the folder holds a file of its own of that name."""
        path = self.folder / name
        try:
            return path.is_file() and self._own(path)
        except (OSError, RuntimeError):
            return False

    def _own(self, path: Path) -> bool:
        folder = self.folder.resolve()
        root = folder.parents[1] if folder.parent.name == "snapshots" else folder
        return path.resolve().is_relative_to(root)

    def json(self, name: str) -> Mapping[str, Any]:
        """The JSON object in ``name``; empty when there is none that can be read."""
        if name not in self._json:
            value: Any = {}
            if self.has(name):
                try:
                    value = read_json_file(self.folder / name, MAX_TOKENIZER_BYTES)
                except (OSError, ValueError):
                    value = {}
            self._json[name] = value if isinstance(value, dict) else {}
        return self._json[name]

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """config.json; of a model with several parts, its text part over the rest."""
        config = self.json("config.json")
        text = config.get("text_config")
        return {**config, **text} if isinstance(text, dict) else config

    def text(self, name: str) -> str:
        """The text of ``name``; empty when there is none that can be read."""
        path = self.folder / name
        try:
            if not self.has(name) or path.stat().st_size > MAX_TOKENIZER_BYTES:
                return ""
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the folder's files, sorted."""
        return tuple(sorted(path.name for path in self.folder.iterdir() if path.is_file()))

    @cached_property
    def weights(self) -> Weights:
        """The headers of everything that a loader opens."""
        found = Weights()
        # whatever they are: a folder, a pipe or a link to nothing in a weight file's place is no absent one
        present = sorted(path.name for path in self.folder.iterdir() if path.name.endswith(".safetensors"))
        model = [name for name in present if not name.startswith((*_BESIDE, "adapter_"))]
        if INDEX_NAME in self.names:
            self._read_index(found)
        if found.index is not None:
            named = sorted(set(found.index.values()))
            found.files = [name for name in named if name in present]
            found.missing = [name for name in named if name not in present]
            found.extra = [name for name in model if name not in named]
        elif WEIGHTS_NAME in present:
            found.files, found.extra = [WEIGHTS_NAME], [name for name in model if name != WEIGHTS_NAME]
        else:
            found.files = model
        for name in found.files:
            try:
                require_regular(self.folder / name)
                if not self.has(name):
                    raise ForgeError("TF-SRC-003", f"{name} is a link that leaves the folder")
                header, _ = read_header(self.folder / name, name)
            except ForgeError as error:
                found.damaged[name] = error
                continue
            except OSError as error:
                found.damaged[name] = ForgeError(
                    "TF-SRC-032", f"{name} cannot be read: {error.strerror or error}", remedies=[_REMEDY]
                )
                continue
            for tensor, info in header.items():
                if tensor in found.tensors and not name.startswith("rank"):
                    found.twice.setdefault(tensor, [found.tensors[tensor].file]).append(name)
                else:
                    key = tensor if tensor not in found.tensors else f"{tensor}@{name.removesuffix('.safetensors')}"
                    found.tensors[key] = info
        return found

    def _read_index(self, found: Weights) -> None:
        weight_map = self.json(INDEX_NAME).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            found.bad_index = "it has no weight_map"
            return
        if not all(isinstance(value, str) and "/" not in value and "\\" not in value for value in weight_map.values()):
            found.bad_index = "its weight_map names something else than files of the folder"
            return
        found.index = dict(weight_map)

    def read(self, info: TensorInfo, begin: int = 0, size: int | None = None) -> bytes:
        """Bytes of a tensor."""
        with (self.folder / info.file).open("rb") as file:
            file.seek(info.offset + begin)
            return file.read(info.nbytes - begin if size is None else size)
