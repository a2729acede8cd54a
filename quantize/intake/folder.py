"""A checkpoint directory, judged from its names, small files and headers: no tensor is read.

Policy: only safetensors are ever read. Pickle weights beside safetensors are ignored and do not travel; pickle
weights alone are refused, because loading them runs code. Python files and ``auto_map`` are refused unless the
recipe allows remote code. Every file that will be read must lie inside the directory (links into the blob store
of the same Hugging Face cache entry count as inside). The tensors must be exactly those that config.json
promises; buffers that old exporters stored are left out with a note.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantize.intake.info import CheckpointInfo
from quantize.intake.model_config import check_config, read_json, require_architecture
from quantize.intake.prefixes import renaming
from quantize.intake.prequantized import Prequantized, is_quantization_tensor, recognize
from quantize.intake.source import resolved
from quantize.intake.tokenizer import check_template
from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import MAX_TOKENIZER_BYTES, read_bytes_file
from trtforge.ground.safetensors_header import INDEX_NAME, TensorInfo, read_headers, refuse_pointer, weight_files
from trtforge.models.folder_kind import FolderKind, kind_of
from trtforge.models.record import Model, expected_tensors
from trtforge.templates import template_places
from trtforge.templates.other_tokenizers import other_tokenizers, tokenizer_remedies

if TYPE_CHECKING:
    from quantize.forensics.record import Record
    from quantize.intake.foreign import Conversion

#: the longest templates have some 20 kB
MAX_TEMPLATE_BYTES = 4 << 20
CONFIG = "config.json"
GENERATION = "generation_config.json"
TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
CHAT_TEMPLATE = template_places.JINJA
#: small files that travel with a checkpoint when they are there
COMPANIONS = (
    CONFIG,
    GENERATION,
    TOKENIZER,
    TOKENIZER_CONFIG,
    CHAT_TEMPLATE,
    "chat_template.json",
    "processor_config.json",
    "special_tokens_map.json",
    "hf_quant_config.json",
)
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_STALE_BUFFERS = re.compile(r"(\.rotary_emb\.inv_freq|\.attention\.bias|\.masked_bias|\.rotary_emb\.(cos|sin)_cached)$")
DTYPE_NAMES = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}


@dataclass(frozen=True)
class Folder:
    """A checked directory: its configuration, tensors and the files that will be read."""

    path: Path
    config: dict[str, Any]
    generation: dict[str, Any] | None
    shape: Model
    tensors: dict[str, TensorInfo]
    prequantized: Prequantized | None
    companions: tuple[str, ...]
    code_files: tuple[str, ...]
    dropped: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    conversion: Conversion | None = None

    @property
    def kept(self) -> dict[str, TensorInfo]:
        """The tensors that travel."""
        return {name: info for name, info in self.tensors.items() if name not in self.dropped}

    def files(self) -> list[str]:
        """Every file whose content decides the checkpoint, sorted."""
        index = [INDEX_NAME] if (self.path / INDEX_NAME).is_file() else []
        read = self.conversion.sources if self.conversion is not None else [i.file for i in self.tensors.values()]
        return sorted({*self.companions, *self.code_files, *index, *read})


def files_of(path: Path) -> list[str]:
    """Names of the files whose content identifies the checkpoint in ``path``, without judging it further."""
    _refuse_no_checkpoint(path)
    names = [name for name in COMPANIONS if (path / name).is_file()]
    names += [INDEX_NAME] if (path / INDEX_NAME).is_file() else []
    names += weight_files(path)
    names += [file.relative_to(path).as_posix() for file in _python_files(path)]
    for name in names:
        _require_inside(path, name)
    _refuse_giants(path, names)
    return sorted(set(names))


def inspect_folder(path: Path, *, allow_remote_code: bool) -> Folder:
    """Judge the checkpoint in ``path``; every refusal is a coded :class:`~trtforge.ground.errors.ForgeError`."""
    _refuse_no_checkpoint(path)
    companions = tuple(name for name in COMPANIONS if (path / name).is_file())
    for name in companions:
        _require_inside(path, name)
        refuse_pointer(path / name)
    _refuse_giants(path, companions)
    config = read_json(path / CONFIG)
    generation = read_json(path / GENERATION) if GENERATION in companions else None
    tokenizer_config = read_json(path / TOKENIZER_CONFIG) if TOKENIZER_CONFIG in companions else {}
    code_files = _check_remote_code(path, config, tokenizer_config, allow_remote_code)
    require_architecture(config)
    prequantized, foreign = _quantization(path, config)
    shape = check_config(config, generation)
    for name in _require_weights(path):
        _require_inside(path, name)
    tensors = read_headers(path)
    conversion = None
    if foreign is not None:
        from quantize.intake.foreign import convert_checkpoint

        biases = frozenset(name for name in expected_tensors(shape) if name.endswith(".bias"))
        conversion = convert_checkpoint(path, foreign, tensors, biases)
        prequantized, tensors = conversion.target, conversion.tensors
        config = _converted(config, conversion)
    _require_tokenizer(path)
    template = chat_template(path, companions, tokenizer_config)
    if template is not None:
        check_template(template)
    dropped, notes = _compare(tensors, shape, prequantized)
    if conversion is not None:
        notes = [conversion.note, *notes]
    return Folder(
        path,
        config,
        generation,
        shape,
        tensors,
        prequantized,
        companions,
        code_files,
        tuple(dropped),
        tuple(notes),
        conversion,
    )


def _beside(path: Path, name: str) -> dict[str, Any] | None:
    file = path / name
    return read_json(file) if file.is_file() else None


def _quantization(path: Path, config: dict[str, Any]) -> tuple[Prequantized | None, Record | None]:
    """The format of a checkpoint that goes on as it is, or what another tool than ModelOpt says of its own."""
    quant_config = _beside(path, "hf_quant_config.json")
    if quant_config is None:
        from quantize.forensics.record import read_record

        def values(name: str) -> dict[str, Any]:
            return config if name == CONFIG else _beside(path, name) or {}

        record = read_record(values, lambda name: (path / name).is_file())
        if record is not None and record.tool != "modelopt":
            return None, record
    return recognize(config, quant_config), None


def _converted(config: dict[str, Any], conversion: Conversion) -> dict[str, Any]:
    """config.json with what the converted weights are."""
    kept = {key: value for key, value in config.items() if key != "quantization_config"}
    if conversion.record is None:
        return kept
    return {**kept, "quantization_config": {"quant_method": "modelopt", **conversion.record["quantization"]}}


def is_bare(path: Path) -> bool:
    """Whether a folder has a configuration and no weights of any kind, yet."""
    if not (path / CONFIG).is_file():
        return False
    return not any(file.name == INDEX_NAME or file.suffix in (".safetensors", *_PICKLES) for file in path.iterdir())


def bare_info(path: Path, source: str, *, allow_remote_code: bool) -> CheckpointInfo:
    """The record of a folder without weights, by its configuration alone.

    Raises:
        ForgeError: what :func:`inspect_folder` refuses of the small files; a tokenizer is not asked for.
    """
    _refuse_no_checkpoint(path)
    config = read_json(path / CONFIG)
    _check_remote_code(path, config, _beside(path, TOKENIZER_CONFIG) or {}, allow_remote_code)
    require_architecture(config)
    quantized, foreign = _quantization(path, config)
    if foreign is not None:
        from quantize.intake.foreign import convert_checkpoint

        quantized = convert_checkpoint(path, foreign, {}, frozenset()).target
    shape = check_config(config, _beside(path, GENERATION))
    stated = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    return CheckpointInfo(
        source=source,
        sha256=None,
        source_dtype=str(stated),
        bytes=2 * shape.parameters,
        notes=["judged by its configuration alone: there are no weights"],
        model=replace(
            shape,
            dtype=str(stated),
            prequantized=quantized.format if quantized else None,
            prequantized_kv_cache=quantized.kv_cache if quantized else None,
        ),
    )


def _refuse_giants(path: Path, names: Iterable[str]) -> None:
    """``TF-SRC-021`` for a file beside the weights that would be read for ever; a sparse one costs no disk space."""
    for name in names:
        size = (path / name).stat().st_size
        if not name.endswith(".safetensors") and size > MAX_TOKENIZER_BYTES:
            raise ForgeError(
                "TF-SRC-021",
                f"{name} cannot be used: it has {size} bytes",
                asked=name,
                numbers={"bytes": size, "at_most": MAX_TOKENIZER_BYTES},
                why="The files beside the weights are small: the largest tokenizers have 35 MB.",
                remedies=[f"download {name} again from the model's publisher"],
            )


def chat_template(path: Path, companions: tuple[str, ...], tokenizer_config: dict[str, Any]) -> str | None:
    """The default chat template, from any of the places where transformers has kept it."""

    def values(name: str) -> dict[str, Any]:
        if name == TOKENIZER_CONFIG:
            return tokenizer_config
        return read_json(path / name) if name in companions else {}

    def text(name: str) -> str | None:
        if name not in companions:
            return None
        try:
            return read_bytes_file(path / name, MAX_TEMPLATE_BYTES).decode("utf-8", errors="surrogateescape")
        except ValueError as error:
            raise ForgeError(
                "TF-SRC-021",
                f"the chat template cannot be used: {error}",
                asked=name,
                remedies=["download the tokenizer's files again from the model's publisher"],
            ) from None

    found = template_places.default_template(template_places.chat_templates(text, values))
    return _as_text(found.text) if found is not None else None


def _as_text(template: str) -> str:
    try:
        template.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ForgeError(
            "TF-SRC-021",
            f"the chat template is no UTF-8 text ({error.reason})",
            asked=CHAT_TEMPLATE,
            remedies=["download the tokenizer's files again from the model's publisher"],
        ) from None
    return template


def folder_info(folder: Folder, source: str, key_bias: float | None) -> CheckpointInfo:
    """The record of ``folder`` as it lies there, without hashes; ``key_bias`` was read of its values."""
    shape, kept = folder.shape, folder.kept
    stored = common_dtype(kept)
    quantized = folder.prequantized
    return CheckpointInfo(
        source=source,
        sha256=None,
        source_dtype=stored,
        bytes=sum(info.nbytes for info in kept.values()),
        notes=list(folder.notes),
        model=replace(
            shape,
            dtype=stored,
            key_bias=key_bias,
            prequantized=quantized.format if quantized else None,
            prequantized_kv_cache=quantized.kv_cache if quantized else None,
        ),
    )


def common_dtype(tensors: dict[str, TensorInfo]) -> str:
    """The type that holds most bytes, in the recipe's spelling where it has one."""
    sizes: dict[str, int] = {}
    for info in tensors.values():
        sizes[info.dtype] = sizes.get(info.dtype, 0) + info.nbytes
    most = max(sorted(sizes), key=lambda name: sizes[name])
    return DTYPE_NAMES.get(most, most)


def _refuse_no_checkpoint(path: Path) -> None:
    """``TF-SRC-028`` for a folder without config.json, and for one of another kind than a Hugging Face checkpoint."""
    if (path / CONFIG).is_file():
        _require_inside(path, CONFIG)
        refuse_pointer(path / CONFIG)
        kind = kind_of(path, read_json(path / CONFIG))
        if kind is not None:
            raise _other_kind(path, kind)
        return
    kind = kind_of(path, {})
    if kind is not None:
        raise _other_kind(path, kind)
    raise ForgeError(
        "TF-SRC-028",
        f"{path} holds no checkpoint: there is no {CONFIG}",
        asked=str(path),
        numbers={"files": ", ".join(sorted(file.name for file in path.iterdir())[:8])},
        remedies=_below(path) or ["name the folder that holds config.json"],
    )


def _below(path: Path) -> list[str]:
    """The checkpoints that lie one or two folders deeper (training steps, a cache's revisions), the last first."""
    found = [config.parent for pattern in (f"*/{CONFIG}", f"*/*/{CONFIG}") for config in path.glob(pattern)]
    return [f"name the folder that holds {CONFIG}: {folder}" for folder in sorted(found, reverse=True)[:3]]


def _other_kind(path: Path, kind: FolderKind) -> ForgeError:
    remedies = list(kind.remedies)
    if kind.name == "gguf":
        remedies = [f"name the GGUF file itself: {next(iter(sorted(path.glob('*.gguf'))))}"]
    elif kind.name == "hub-cache":
        remedies = [*_below(path), *remedies[-1:]] if _below(path) else remedies
    return ForgeError(
        "TF-SRC-028",
        f"{path} is {kind.title}, no Hugging Face checkpoint",
        asked=str(path),
        numbers={"kind": kind.name, "files": ", ".join(sorted(file.name for file in path.iterdir())[:8])},
        why="Intake reads config.json, tokenizer and safetensors as Hugging Face's models have them.",
        remedies=remedies,
    )


def _require_inside(path: Path, name: str) -> None:
    """``TF-SRC-003`` when ``name`` is a link that leads out of ``path`` (or out of its Hugging Face cache entry)."""
    root = resolved(path)
    target = resolved(path / name)
    if target.is_relative_to(root):
        return
    entry = root.parent.parent
    if root.parent.name == "snapshots" and entry.name.startswith("models--") and target.is_relative_to(entry / "blobs"):
        return
    raise ForgeError(
        "TF-SRC-003",
        f"{name} is a link that leaves the checkpoint's folder",
        asked=str(path / name),
        numbers={"leads_to": str(target)},
        why="A checkpoint may only bring its own files; a link could read or publish foreign data.",
        remedies=["replace the link by a copy of the file, if it belongs to the model"],
    )


def _python_files(path: Path) -> list[Path]:
    return sorted(file for file in path.glob("*.py") if file.is_file())


def _check_remote_code(
    path: Path, config: dict[str, Any], tokenizer_config: dict[str, Any], allowed: bool
) -> tuple[str, ...]:
    files = tuple(file.name for file in _python_files(path))
    mapped = [name for name, value in ((CONFIG, config), (TOKENIZER_CONFIG, tokenizer_config)) if value.get("auto_map")]
    if (files or mapped) and not allowed:
        found = [*files[:8], *(f"auto_map in {name}" for name in mapped)]
        raise ForgeError(
            "TF-SRC-010",
            f"the checkpoint brings its own code: {', '.join(found)}",
            asked=str(path),
            numbers={"files": len(files)},
            why="Such code runs with your rights wherever the checkpoint is loaded.",
            remedies=[
                "use a checkpoint without code (the supported architectures need none)",
                "read the code, then set model.allow_remote_code: true",
            ],
        )
    for name in files:
        _require_inside(path, name)
    return files


def _require_weights(path: Path) -> list[str]:
    files = weight_files(path)
    if files:
        return files
    pickles = sorted(file.name for file in path.iterdir() if file.suffix in _PICKLES)
    if pickles:
        raise ForgeError(
            "TF-SRC-011",
            f"the weights are pickle files: {', '.join(pickles[:8])}",
            asked=str(path),
            numbers={"files": len(pickles)},
            why="Unpickling runs whatever code the file holds, so such weights are never loaded.",
            remedies=[
                "use the safetensors revision of the model (most publishers have one)",
                "convert on a machine you can lose: AutoModelForCausalLM.from_pretrained(dir).save_pretrained(new_dir)",
            ],
        )
    raise ForgeError(
        "TF-SRC-028",
        f"{path} holds a configuration and no weights",
        asked=str(path),
        remedies=[
            "download model.safetensors (or all shards and the index) into it",
            "trtforge plan RECIPE --gpu NAME, which takes a configuration alone",
        ],
    )


def _require_tokenizer(path: Path) -> None:
    if (path / TOKENIZER).is_file():
        return
    found = other_tokenizers(lambda name: (path / name).exists())
    raise ForgeError(
        "TF-SRC-008",
        f"the checkpoint has no {TOKENIZER}" + (f", only {', '.join(found)}" if found else ""),
        asked=str(path),
        why="Tokenizer and weights belong together: with another one the model reads and writes the wrong words.",
        remedies=tokenizer_remedies(found),
    )


def _other_rows(tensors: dict[str, TensorInfo], expected: dict[str, tuple[int, ...]], wrong: list[str]) -> int | None:
    """The rows of embedding and head where they alone differ, and only in their rows: tokens were added or cut."""
    found = {
        tensors[name].shape[0]
        for name in ("model.embed_tokens.weight", "lm_head.weight")
        if name in expected and name in tensors and tensors[name].shape[1:] == expected[name][1:]
    }
    tables = sum(name in expected for name in ("model.embed_tokens.weight", "lm_head.weight"))
    return next(iter(found)) if len(found) == 1 and len(wrong) == tables else None


def _other_layers(missing: list[str], unexpected: list[str], stated: int) -> int | None:
    """The number of layers that the weights have, where whole layers at the end are all that is missing or too many."""
    odd = missing or unexpected
    found = [match for name in odd if (match := _LAYER.match(name))]
    if (missing and unexpected) or not odd or len(found) != len(odd):
        return None
    numbers = {int(match[1]) for match in found}
    first, last = (min(numbers), stated) if missing else (stated, max(numbers) + 1)
    kinds = {name[match.end() :] for name, match in zip(odd, found, strict=True)}
    whole = numbers == set(range(first, last)) and len(odd) == len(kinds) * len(numbers)
    return (first if missing else last) if whole and "input_layernorm.weight" in kinds else None


def _compare(
    tensors: dict[str, TensorInfo], shape: Model, prequantized: Prequantized | None
) -> tuple[list[str], list[str]]:
    """What to leave out, and notes; ``TF-SRC-022`` when the tensors are not what the configuration promises."""
    expected = expected_tensors(shape)
    dropped = [name for name in tensors if name not in expected and _STALE_BUFFERS.search(name)]
    notes = [f"left out {len(dropped)} stored buffers that the model computes itself"] if dropped else []
    if shape.tied and "lm_head.weight" in tensors:
        dropped.append("lm_head.weight")
        notes.append("left out lm_head.weight, which is tied to the embedding")
    missing = [name for name in expected if name not in tensors]
    unexpected = [
        name
        for name in tensors
        if name not in expected and name not in dropped and not (prequantized and is_quantization_tensor(name))
    ]
    wrong = [
        f"{name} is {list(tensors[name].shape)}, not {list(dimensions)}"
        for name, dimensions in expected.items()
        if name in tensors and tensors[name].shape != dimensions and not (prequantized and len(dimensions) == 2)
    ]
    foreign = [
        f"{name} has the type {info.dtype}"
        for name, info in tensors.items()
        if prequantized is None and name not in dropped and info.dtype not in DTYPE_NAMES
    ]
    problems = {"missing": missing, "unexpected": unexpected, "wrong shape": wrong, "wrong type": foreign}
    if any(problems.values()):
        text = "; ".join(
            f"{len(found)} {kind}: {', '.join(found[:4])}{' …' if len(found) > 4 else ''}"
            for kind, found in problems.items()
            if found
        )
        remedies = ["download config.json and weights of one revision again"]
        if missing == ["lm_head.weight"]:
            remedies.insert(
                0, "set tie_word_embeddings: true in config.json, if the model ties its output to the embedding"
            )
        rows = _other_rows(tensors, expected, wrong)
        if rows is not None:
            remedies.insert(0, f"set vocab_size: {rows} in config.json, the rows that the embedding has")
        layers = _other_layers(missing, unexpected, shape.layers) if not wrong else None
        if layers is not None:
            remedies.insert(0, f"set num_hidden_layers: {layers} in {CONFIG}, the layers that the weights have")
        named = renaming(tensors, expected)
        if named is not None:
            text, remedies = named.message, named.remedies
        raise ForgeError(
            "TF-SRC-022",
            f"the tensors are not those of a {shape.architecture} with this config.json ({text})",
            asked=CONFIG,
            numbers={kind.replace(" ", "_"): len(found) for kind, found in problems.items()},
            why="A model with tensors missing or left over loads in some tools and answers wrongly.",
            remedies=remedies,
        )
    return dropped, notes
