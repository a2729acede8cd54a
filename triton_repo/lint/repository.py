"""What lint knows of a repository: its models, their configurations, version folders and engines.

Reading never raises on a faulty repository: what cannot be read becomes a :class:`Problem`, and the rules go
on with the rest.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from triton_repo.lint.files import Unreadable, entries, inside, not_utf8, read_bytes, read_text, there
from triton_repo.lint.schema import Config, parse_config
from trtforge.ground.errors import ForgeError
from trtforge.ground.paths import real_path

CONFIG = "config.pbtxt"
#: files by which Triton's auto-complete finds the backend, and the backend that it takes
#: (https://github.com/triton-inference-server/core, AutoCompleteBackendFields)
MODEL_FILES: Mapping[str, str] = {
    "model.savedmodel": "tensorflow",
    "model.graphdef": "tensorflow",
    "model.plan": "tensorrt",
    "model.onnx": "onnxruntime",
    "model.xml": "openvino",
    "model.pt": "pytorch",
    "model.pt2": "pytorch",
    "model.py": "python",
}
#: platforms that Triton knows, and the backend that goes with each
PLATFORMS: Mapping[str, str] = {
    "tensorrt_plan": "tensorrt",
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "torch_aoti": "pytorch",
    "libtorch": "pytorch",
    "tensorflow_savedmodel": "tensorflow",
    "tensorflow_graphdef": "tensorflow",
}
HOLE = re.compile(r"\$\{[^}]*\}?|\{\{[^{}\n]{0,200}\}\}")
#: a version folder that Triton loads: a number without leading zeros
VERSION = re.compile(r"0|[1-9]\d{0,17}")
MAX_MODELS = 5000


@dataclass(frozen=True)
class Problem:
    """A file or folder that could not be read, or (``harmless``) one that Triton reads in spite of it."""

    path: Path
    reason: str
    outside: bool
    harmless: bool = False


@dataclass
class Version:
    """One version folder: its number, and its entries by name (None when the folder cannot be listed)."""

    number: int
    folder: Path
    names: frozenset[str] | None


@dataclass
class Model:
    """One model folder."""

    name: str
    folder: Path
    root: Path
    config: Config | None
    versions: list[Version]
    odd_folders: list[Path]
    problems: list[Problem] = field(default_factory=list)

    @property
    def message(self) -> Any:
        """The configuration's message; an empty one where there is no configuration."""
        if self.config is not None:
            return self.config.message
        return _empty()

    @property
    def path(self) -> Path:
        """The configuration file."""
        return self.folder / CONFIG

    @property
    def readable(self) -> bool:
        """Whether there is a configuration and its message can be judged."""
        return self.config is not None and "" not in self.config.unknown

    @property
    def is_ensemble(self) -> bool:
        return self.readable and (self.message.platform == "ensemble" or self.message.HasField("ensemble_scheduling"))

    def knows(self, *path: str) -> bool:
        """Whether the field is as the message says (it was not a placeholder and not of a wrong type)."""
        return self.readable and self.config is not None and not self.config.is_unknown(*path)

    def states(self, *path: str | int) -> bool:
        """Whether the configuration states the field, as against the message's default."""
        return self.config is not None and self.config.states(*path)

    @cached_property
    def backend(self) -> str:
        """The backend, stated or as auto-complete would find it; empty when nothing tells."""
        message = self.message
        if message.backend:
            return str(message.backend)
        if message.platform:
            return PLATFORMS.get(message.platform, "")
        if message.default_model_filename in MODEL_FILES:
            return MODEL_FILES[message.default_model_filename]
        for version in self.versions:
            for file, backend in MODEL_FILES.items():
                if version.names is not None and file in version.names:
                    return backend
        return ""

    def parameter(self, name: str) -> str | None:
        """A parameter's text; None when it is missing, empty or an unfilled placeholder."""
        if not self.readable or name not in self.message.parameters:
            return None
        text = self.message.parameters[name].string_value.strip()
        return None if not text or HOLE.search(text) else text

    def raw_parameter(self, name: str) -> str | None:
        """A parameter's text as it stands; None when it is missing."""
        if not self.readable or name not in self.message.parameters:
            return None
        return str(self.message.parameters[name].string_value)

    @cached_property
    def _source(self) -> bytes | Problem | None:
        """``model.py`` of the first version that has one, or what keeps it from being read."""
        name = self.message.default_model_filename or "model.py"
        for version in self.versions:
            if version.names is not None and name in version.names:
                try:
                    return read_bytes(version.folder / name, self.root)
                except Unreadable as error:
                    return Problem(version.folder / name, error.reason, error.outside)
        return None

    @property
    def source(self) -> bytes | None:
        """``model.py`` of the first version that has one and can be read."""
        return self._source if isinstance(self._source, bytes) else None

    def unread(self) -> list[Problem]:
        """What of it could not be read: what rules came upon, and ``model.py`` where a server would run it."""
        runs = self.config is None or self.backend == "python"
        return [*self.problems, *([self._source] if runs and isinstance(self._source, Problem) else [])]

    @cached_property
    def code(self) -> str | None:
        """``model.py`` as text, to look for names; what it means :attr:`syntax` says."""
        return self.source.decode("utf-8", errors="replace") if self.source is not None else None

    @cached_property
    def syntax(self) -> ast.Module | SyntaxError | None:
        """``model.py`` as Python reads it, in the encoding that it states, or why it does not; None without one."""
        return parse_python(self.source) if self.source is not None else None

    def configuration(self, path: Path) -> str | None:
        """``config.pbtxt`` with its byte order mark, if it has one; bytes that are no UTF-8 stay what they are.

        The server reads bytes: it refuses a mark, and takes any other byte in a string or a comment.
        """
        try:
            data = read_bytes(path, self.root)
        except Unreadable as error:
            self.problems.append(Problem(path, error.reason, error.outside))
            return None
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            self.problems.append(Problem(path, not_utf8(error), outside=False, harmless=True))
            return data.decode("latin-1")

    def read(self, path: Path) -> str | None:
        """A text file of this model; None, and a problem, when it cannot be read."""
        try:
            return read_text(path, self.root)
        except Unreadable as error:
            self.problems.append(Problem(path, error.reason, error.outside))
            return None

    def has(self, name: str) -> bool:
        """Whether the model's folder has an entry of that name, a link to anything among them."""
        return there(self.folder / name)

    def here(self, text: str) -> Path | None:
        """The file or folder that a parameter names, when it lies in the repository or exists on this machine.

        A relative path counts from the model's folder, or from the one that holds the repository: a bundle's server
        is started there.
        """
        for start in (self.folder, self.root.parent):  # an absolute path stays what it is
            place = start / text
            try:
                if place.exists():
                    return place
            except (OSError, ValueError):
                continue
        return None

    @cached_property
    def engine(self) -> Engine | None:
        """``config.json`` of the TensorRT-LLM engine that ``gpt_model_path`` names, when it can be reached."""
        stated = self.parameter("gpt_model_path")
        folder = self.here(stated) if stated is not None else None
        return read_trtllm_engine(folder) if folder is not None else None


@dataclass(frozen=True)
class Engine:
    """What rules use of a TensorRT-LLM engine's ``config.json``."""

    folder: Path
    build: Mapping[str, Any]
    plugins: Mapping[str, Any]
    mapping: Mapping[str, Any]
    pretrained: Mapping[str, Any]

    def limit(self, name: str) -> int | None:
        value = self.build.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    @property
    def world_size(self) -> int | None:
        tp, pp = self.mapping.get("tp_size"), self.mapping.get("pp_size", 1)
        if isinstance(tp, int) and isinstance(pp, int):
            return tp * pp
        return None


@dataclass
class Repository:
    """A repository: where it is, its models by folder name, and what could not be read.

    ``launch_files`` are scripts and manifests that may start a server on it, ``named_launch_files`` those of them that
    the user named.
    """

    root: Path
    models: dict[str, Model]
    problems: list[Problem]
    engine_dir: Path | None = None
    launch_files: tuple[Path, ...] = ()
    named_launch_files: tuple[Path, ...] = ()

    def configured(self) -> Iterator[tuple[Model, Config]]:
        """The models that have a configuration, readable or not, and what stands in it."""
        for model in self.models.values():
            if model.config is not None:
                yield model, model.config

    def get(self, name: str) -> Model | None:
        """The model that clients and ensembles reach as ``name``."""
        return self.models.get(name)


def read_repository(folder: Path, engine_dir: Path | None = None) -> Repository:
    """Read a repository.

    Args:
        folder: the model repository.
        engine_dir: engine that a ``native`` model will serve, where its own reference does not reach it yet.

    Raises:
        ForgeError: TF-TRI-100 when there is no such folder or it cannot be listed.
    """
    try:
        root = folder.resolve(strict=True)
        listing = entries(root)
    except (OSError, RuntimeError, Unreadable) as error:
        reason = error.reason if isinstance(error, Unreadable) else getattr(error, "strerror", None) or str(error)
        raise _no_repository(folder, reason) from None
    repository = Repository(folder, {}, [], engine_dir)
    folders = [entry for entry in listing if not entry.name.startswith(".") and _is_folder(entry)]
    if len(folders) > MAX_MODELS:
        why = "It has more folders than any repository; another folder was probably meant."
        raise _no_repository(folder, why, folders=len(folders), maximum=MAX_MODELS)
    for entry in folders:
        path = folder / entry.name
        try:
            inside(path, root)
            repository.models[entry.name] = _read_model(path, root)
        except Unreadable as error:
            repository.problems.append(Problem(path, error.reason, error.outside))
    return repository


def _no_repository(folder: Path, why: str, **numbers: int) -> ForgeError:
    return ForgeError(
        "TF-TRI-100",
        f"{folder} cannot be read as a model repository",
        asked=str(folder),
        numbers=numbers,
        why=why,
        remedies=["name the folder that holds one folder a model"],
    )


def _is_folder(entry: Any) -> bool:
    """A folder, or a link that may be one (its target is looked at later, inside the repository only)."""
    try:
        return bool(entry.is_dir(follow_symlinks=False) or entry.is_symlink())
    except OSError:
        return True


def _read_model(folder: Path, root: Path) -> Model:
    model = Model(folder.name, folder, root, None, [], [])
    for entry in entries(folder):
        path = folder / entry.name
        if entry.name == CONFIG:
            text = model.configuration(path)
            model.config = parse_config(path, text) if text is not None else None
        elif _is_folder(entry):
            if VERSION.fullmatch(entry.name):
                model.versions.append(_read_version(model, path))
            else:
                model.odd_folders.append(path)
    model.versions.sort(key=lambda version: version.number)
    return model


def _read_version(model: Model, path: Path) -> Version:
    names: frozenset[str] | None = None
    try:
        inside(path, model.root)
        names = frozenset(entry.name for entry in entries(path))
    except Unreadable as error:
        model.problems.append(Problem(path, error.reason, error.outside))
    return Version(int(path.name), path, names)


def read_trtllm_engine(folder: Path) -> Engine | None:
    """The engine in ``folder``; None when its ``config.json`` is missing or is not one."""
    try:
        document = json.loads(read_text(folder / "config.json", real_path(folder)))
    except (Unreadable, ValueError, OSError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    build = _mapping(document.get("build_config"))
    pretrained = _mapping(document.get("pretrained_config"))
    if not build:
        return None
    return Engine(folder, build, _mapping(build.get("plugin_config")), _mapping(pretrained.get("mapping")), pretrained)


@lru_cache(maxsize=256)  # models of one repository share their code
def parse_python(code: bytes) -> ast.Module | SyntaxError:
    """A source as Python reads it, or why it does not."""
    try:
        return ast.parse(code)
    except SyntaxError as error:
        return error
    except (ValueError, RecursionError, MemoryError) as error:
        return SyntaxError(str(error) or "nested too deeply")


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _empty() -> Any:
    from tritonclient.grpc import model_config_pb2 as pb

    return pb.ModelConfig()
