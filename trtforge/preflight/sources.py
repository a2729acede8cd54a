"""What the folder of a model, a draft or an adapter says by itself: small files and headers, no tensor but scalars.

Policy: reading is lenient, because a rule reports what is wrong with a folder in its own words; nothing here
follows a path out of the folder, opens a pickle, or reads more of a tensor than one scalar. Refusals of the
model's own folder are intake's and come first.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from trtforge.ground.errors import ForgeError
from trtforge.ground.safetensors_header import (
    PARTIAL_MARK,
    TensorInfo,
    is_pointer_file,
    plain_floats,
    read_header,
    read_headers,
)
from trtforge.models.folder_kind import FolderKind, kind_of
from trtforge.templates.template_places import NAMED, PlacedTemplate, chat_templates, default_template

#: a text beside a model is at most this long; tokenizer.json of the largest vocabularies has 35 MB
MAX_TEXT_BYTES = 128 * 2**20
#: intake's codes for the same faults, so that a finding can name them
_LEAVES, _DAMAGED = "TF-SRC-003", "TF-SRC-005"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
#: tokens that end a turn of a chat; a template that writes one expects the model to answer with it
TURN_ENDS = (
    "<|eot_id|>",
    "<|im_end|>",
    "<end_of_turn>",
    "<|end|>",
    "<|eom_id|>",
    "<|END_OF_TURN_TOKEN|>",
    "<|return|>",
)


@dataclass(frozen=True)
class Located:
    """Where a source lies. ``folder`` and ``problem`` are both None for one that is not here or is no folder."""

    source: str
    folder: Path | None = None
    problem: str | None = None
    remedies: tuple[str, ...] = ()
    fetched: bool = False

    @property
    def absent(self) -> bool:
        """Whether it has to be fetched first, so that nothing can be said yet."""
        return self.fetched and self.folder is None and self.problem is None


_T = TypeVar("_T")
#: (source as a recipe writes it, the recipe's folder) → where it lies
Locate = Callable[[str, Path], Located]


class SourceFiles:
    """The small files and the headers of one folder, read when they are asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._made: dict[str, Any] = {}

    def once(self, name: str, make: Callable[[], _T]) -> _T:
        """What ``make`` gives, made once a folder: rules are run again for every remedy that is tried."""
        if name not in self._made:
            self._made[name] = make()
        made: _T = self._made[name]
        return made

    def text(self, name: str) -> str:
        """The text of ``name``; empty when it is missing, no regular file, a link out of the folder, or too long."""
        path = self.folder / name
        try:
            if not self._is_own(path) or path.stat().st_size > MAX_TEXT_BYTES:
                return ""
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""

    def json(self, name: str) -> Mapping[str, Any]:
        """The JSON object in ``name``; empty when :meth:`text` is or holds no object."""
        try:
            value = json.loads(self.text(name) or "{}")
        except (ValueError, RecursionError):
            return {}
        return value if isinstance(value, dict) else {}

    def has(self, name: str) -> bool:
        """Whether the folder holds a file of that name."""
        return self._is_own(self.folder / name)

    @cached_property
    def _root(self) -> Path:
        """What links may lead to: the folder, or the repository of the Hugging Face cache that the snapshot is of."""
        folder = self.folder.resolve()
        return folder.parents[1] if folder.parent.name == "snapshots" else folder

    def _is_own(self, path: Path) -> bool:
        try:
            return path.is_file() and path.resolve().is_relative_to(self._root)
        except (OSError, RuntimeError):
            return False

    @cached_property
    def config(self) -> Mapping[str, Any]:
        """config.json."""
        return self.json("config.json")

    @cached_property
    def generation(self) -> Mapping[str, Any]:
        """generation_config.json."""
        return self.json("generation_config.json")

    @cached_property
    def tokenizer_config(self) -> Mapping[str, Any]:
        """tokenizer_config.json."""
        return self.json("tokenizer_config.json")

    @cached_property
    def tokenizer(self) -> Mapping[str, Any]:
        """tokenizer.json."""
        return self.json("tokenizer.json")

    @cached_property
    def adapter(self) -> Mapping[str, Any]:
        """adapter_config.json of a PEFT adapter."""
        return self.json(ADAPTER_CONFIG)

    @cached_property
    def quantization(self) -> Mapping[str, Any]:
        """The description that ModelOpt writes: hf_quant_config.json, else quantization_config of config.json."""
        given = self.json("hf_quant_config.json") or self.config.get("quantization_config") or {}
        inner = given.get("quantization", given) if isinstance(given, dict) else {}
        return inner if isinstance(inner, dict) else {}

    @cached_property
    def _headers(self) -> tuple[Mapping[str, TensorInfo], ForgeError | None]:
        foreign = [path.name for path in self.folder.glob("*.safetensors") if path.is_file() and not self._is_own(path)]
        if foreign:
            return {}, ForgeError(
                _LEAVES,
                f"{foreign[0]} is a link that leaves {self.folder.name}",
                remedies=["replace the link by the file itself"],
            )
        try:
            if self.has(ADAPTER_WEIGHTS):
                return read_header(self.folder / ADAPTER_WEIGHTS)[0], None
            return read_headers(self.folder), None
        except ForgeError as error:
            return {}, error
        except OSError as error:
            return {}, ForgeError(_DAMAGED, f"{self.folder.name} cannot be read: {error.strerror}")

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor by name; empty when the weights cannot be read."""
        return self._headers[0]

    @property
    def weights_error(self) -> ForgeError | None:
        """Why the weights cannot be read."""
        return self._headers[1]

    @cached_property
    def pointers(self) -> tuple[str, ...]:
        """Weight files that are Git-LFS pointers."""
        found = []
        for path in sorted(self.folder.glob("*.safetensors")):
            try:
                if is_pointer_file(path):
                    found.append(path.name)
            except (ForgeError, OSError):
                continue
        return tuple(found)

    def scalar(self, name: str) -> float | None:
        """The value of a one-element tensor of a type that is not quantized; None for any other, and for a hole."""
        info = self.tensors.get(name)
        if info is None or info.elements != 1 or self.has(PARTIAL_MARK):
            return None
        try:
            with (self.folder / info.file).open("rb") as file:
                file.seek(info.offset)
                raw = file.read(info.nbytes)
        except OSError:
            return None
        found = plain_floats(info.dtype, raw)
        return found[0] if found else None

    def scalars(self, suffixes: tuple[str, ...]) -> Iterator[tuple[str, float]]:
        """Name and value of the one-element tensors whose name ends in one of ``suffixes``."""
        for name in self.tensors:
            if name.endswith(suffixes):
                value = self.scalar(name)
                if value is not None:
                    yield name, value

    @cached_property
    def added_tokens(self) -> Mapping[str, int]:
        """Content → id of the tokens that stand outside the model of the tokenizer."""
        result: dict[str, int] = {}
        for row in self.tokenizer.get("added_tokens") or ():
            if isinstance(row, dict) and isinstance(row.get("content"), str) and isinstance(row.get("id"), int):
                result[row["content"]] = row["id"]
        return result

    @cached_property
    def largest_token(self) -> int | None:
        """The largest token id of tokenizer.json, or None when it names none."""
        model = self.tokenizer.get("model")
        vocabulary = model.get("vocab") if isinstance(model, dict) else None
        ids = list(self.added_tokens.values())
        if isinstance(vocabulary, dict):
            ids += [value for value in vocabulary.values() if isinstance(value, int)]
        elif isinstance(vocabulary, list):
            ids.append(len(vocabulary) - 1)
        return max(ids, default=None)

    @cached_property
    def chat_templates(self) -> Sequence[PlacedTemplate]:
        """Every chat template of the folder, wherever it stands."""
        named = self.folder / NAMED
        try:
            files = [path.name for path in named.iterdir()] if named.is_dir() else []
        except OSError:
            files = []
        return chat_templates(self.text, self.json, files)

    @cached_property
    def chat_template(self) -> PlacedTemplate | None:
        """The default chat template; None when there is none."""
        return default_template(self.chat_templates)

    @cached_property
    def kind(self) -> FolderKind | None:
        """What the folder is, where it is no Hugging Face checkpoint."""
        return kind_of(self.folder, self.config)

    def eos_ids(self) -> tuple[int, ...]:
        """The ids at which generation ends: generation_config.json, else config.json."""
        for source in (self.generation, self.config):
            value = source.get("eos_token_id")
            if isinstance(value, int) and not isinstance(value, bool):
                return (value,)
            if isinstance(value, list):
                return tuple(item for item in value if isinstance(item, int))
        return ()


def is_bad_scale(value: float) -> bool:
    """A scale that no calibration gives: zero, negative, infinite or no number."""
    return not math.isfinite(value) or value <= 0
