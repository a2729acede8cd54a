"""Writes the checkpoint directory: weights in the recipe's type, normal configuration, tokenizer, template.

Policy: the same source and type give the same bytes. A shard whose tensors all stay as they are is copied byte for
byte; any other is rewritten. A quantized checkpoint is never converted (its scales must stay what they are). A tied
output projection is stored once: when the file stores it a second time and it differs from the embedding, the
configuration lies and the checkpoint is refused (``TF-SRC-025``).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from quantize.intake.disk import require_space
from quantize.intake.folder import (
    CHAT_TEMPLATE,
    CONFIG,
    GENERATION,
    TOKENIZER,
    TOKENIZER_CONFIG,
    Folder,
    chat_template,
    common_dtype,
    folder_info,
)
from quantize.intake.gguf_model import common_type, gguf_shape
from quantize.intake.gguf_parts import GgufFile
from quantize.intake.gguf_tokenizer import tokenizer_files
from quantize.intake.gguf_weights import read_llama3_rope, tensor_plans
from quantize.intake.hashing import CHUNK, sha256_file
from quantize.intake.info import CHECKPOINT_FILE, CheckpointInfo, FileRecord
from quantize.intake.key_bias import folder_key_bias, gguf_key_bias
from quantize.intake.model_config import normalized_config, read_json
from quantize.intake.tokenizer import check_tokenizer
from quantize.intake.tokenizer import load as load_tokenizer
from quantize.intake.writer import (
    FLOATS,
    TARGETS,
    TensorPlan,
    converted_pieces,
    index_text,
    plan_shards,
    write_safetensors,
)
from trtforge.ground.errors import ForgeError
from trtforge.ground.progress import Progress
from trtforge.ground.safetensors_header import INDEX_NAME, WEIGHTS_NAME, TensorInfo
from trtforge.models.record import Model

EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"


def write_json(path: Path, value: Any) -> None:
    """JSON in the one form that intake writes: sorted keys, two spaces, a line end."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def assemble_gguf(path: Path, out: Path, *, dtype: str, info: dict[str, Any], progress: Progress) -> CheckpointInfo:
    """Convert the GGUF file ``path``, or the parts that it is one of, into ``out``.

    ``info``: source, sha256 and origin for the record.
    """
    file = GgufFile.open(path)
    header = file.header
    config, shape = gguf_shape(header, read_llama3_rope(file))
    tokenizer, tokenizer_config, template = tokenizer_files(header, shape.max_positions)
    plans = tensor_plans(file, shape, dtype)
    total = sum(plan.nbytes for plan in plans)
    require_space(out, total, f"writing the checkpoint in {dtype}")
    out.mkdir(parents=True, exist_ok=True)
    records: list[FileRecord] = []
    progress.start(f"De-quantizing {file.name} to {dtype}", total)
    shards = plan_shards(plans)
    for name, group in shards.items():
        size, digest = write_safetensors(out / name, group, progress.advance)
        records.append(FileRecord(name=name, size=size, sha256=digest))
    if len(shards) > 1:
        (out / INDEX_NAME).write_text(index_text(shards), encoding="utf-8")
    write_json(out / CONFIG, normalized_config(config, shape, dtype=dtype, keep_remote_code=False))
    write_json(out / GENERATION, _generation(shape, config.get("pad_token_id")))
    (out / TOKENIZER).write_text(tokenizer, encoding="utf-8")
    write_json(out / TOKENIZER_CONFIG, tokenizer_config)
    if template is not None:
        (out / CHAT_TEMPLATE).write_text(template, encoding="utf-8")
    result = CheckpointInfo(
        **info,
        source_dtype=common_type(header),
        bytes=total,
        notes=[
            f"de-quantized from {common_type(header).removeprefix('gguf:')}: compare with runs of the same source only"
        ],
        model=replace(shape, dtype=dtype, key_bias=gguf_key_bias(file)),
    )
    return _finish(out, result, records)


def assemble_folder(
    folder: Folder, out: Path, *, dtype: str, info: dict[str, Any], progress: Progress
) -> CheckpointInfo:
    """Copy or convert the checked ``folder`` into ``out``. ``info``: source, sha256 and origin for the record."""
    _refuse_untied(folder)
    _refuse_faulty(folder)
    target = None if folder.prequantized else TARGETS[dtype]
    kept = folder.kept
    total = sum(_nbytes(tensor, target) for tensor in kept.values())
    require_space(out, total, f"writing the checkpoint in {dtype}")
    out.mkdir(parents=True, exist_ok=True)
    records: list[FileRecord] = []
    progress.start(f"Writing the checkpoint in {dtype if target else 'its own format'}", total)
    written: dict[str, list[TensorPlan]] = {}
    for file in sorted({tensor.file for tensor in folder.tensors.values()}):
        plans = [_plan(folder, name, tensor, target) for name, tensor in kept.items() if tensor.file == file]
        if not plans:
            continue  # a shard of nothing but left-out tensors
        written[file] = plans
    single = len(written) == 1
    for file, plans in written.items():
        name = WEIGHTS_NAME if single else file
        if _stays(folder, file, plans):
            size, digest = _copy(folder.path / file, out / name, progress.advance)
        else:
            size, digest = write_safetensors(out / name, plans, progress.advance)
        records.append(FileRecord(name=name, size=size, sha256=digest))
    if not single:
        (out / INDEX_NAME).write_text(index_text(written), encoding="utf-8")
    _companions(
        folder, out, dtype if target else folder.config.get("dtype") or folder.config.get("torch_dtype") or dtype
    )
    base = folder_info(folder, info["source"], folder_key_bias(folder.path, kept))
    model = replace(base.model, dtype=dtype if target else _plain_dtype(kept, base.model.dtype))
    result = base.model_copy(update={**info, "bytes": total, "model": model})
    return _finish(out, result, records)


def _companions(folder: Folder, out: Path, dtype: str) -> None:
    keep_code = bool(folder.code_files)
    write_json(out / CONFIG, normalized_config(folder.config, folder.shape, dtype=dtype, keep_remote_code=keep_code))
    if folder.generation is not None:
        write_json(out / GENERATION, {k: v for k, v in folder.generation.items() if k != "transformers_version"})
    else:
        write_json(out / GENERATION, _generation(folder.shape, folder.config.get("pad_token_id")))
    _copy(folder.path / TOKENIZER, out / TOKENIZER, None)
    if TOKENIZER_CONFIG in folder.companions:
        tokenizer_config = read_json(folder.path / TOKENIZER_CONFIG)
    else:
        tokenizer_config = _tokenizer_config(folder)
    if not keep_code:
        tokenizer_config.pop("auto_map", None)
    template = chat_template(folder.path, folder.companions, tokenizer_config)
    if template is not None:
        # In both places: older readers look into tokenizer_config.json only, newer ones prefer the file.
        tokenizer_config["chat_template"] = template
        (out / CHAT_TEMPLATE).write_text(template, encoding="utf-8")
    write_json(out / TOKENIZER_CONFIG, tokenizer_config)
    for name in ("special_tokens_map.json", "hf_quant_config.json"):
        if name in folder.companions:
            write_json(out / name, read_json(folder.path / name))
    if folder.conversion is not None and folder.conversion.record is not None:
        write_json(out / "hf_quant_config.json", folder.conversion.record)
    for name in folder.code_files:
        _copy(folder.path / name, out / name, None)


def _tokenizer_config(folder: Folder) -> dict[str, Any]:
    """What tokenizer_config.json must say when the source has none: the special tokens by name."""
    try:
        tokenizer = load_tokenizer(folder.path / TOKENIZER)
    except ForgeError:
        return {}  # the tokenizer check that follows says what is wrong with it
    config: dict[str, Any] = {
        "clean_up_tokenization_spaces": False,
        "model_max_length": folder.shape.max_positions,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    eos = folder.shape.eos_token_ids[0] if folder.shape.eos_token_ids else None
    for key, index in (("bos_token", folder.shape.bos_token_id), ("eos_token", eos)):
        token = None if index is None else tokenizer.id_to_token(index)
        if token is not None:
            config[key] = token
    return config


def _generation(shape: Model, pad: int | None) -> dict[str, Any]:
    """generation_config.json when the source has none: the special tokens only, so that nothing is invented."""
    eos: Any = list(shape.eos_token_ids) if len(shape.eos_token_ids) > 1 else next(iter(shape.eos_token_ids), None)
    values = {"bos_token_id": shape.bos_token_id, "eos_token_id": eos, "pad_token_id": pad}
    return {key: value for key, value in values.items() if value is not None}


def _plain_dtype(tensors: dict[str, TensorInfo], fallback: str) -> str:
    """The type of a quantized checkpoint's embedding and norms, which is the type that it computes in."""
    plain = {name: tensor for name, tensor in tensors.items() if name in (EMBEDDING, "model.norm.weight")}
    return common_dtype(plain) if plain else fallback


def _nbytes(tensor: TensorInfo, target: str | None) -> int:
    return tensor.nbytes if target is None else tensor.elements * (4 if target == "F32" else 2)


def _values(path: Path, tensor: TensorInfo) -> npt.NDArray[Any]:
    """The flat values of ``tensor``, mapped, not read (raw bytes for types that numpy lacks)."""
    if tensor.nbytes == 0:
        return np.empty(0, dtype=np.uint8)
    raw = np.memmap(path / tensor.file, dtype=np.uint8, mode="r", offset=tensor.offset, shape=(tensor.nbytes,))
    return raw.view(FLOATS[tensor.dtype]) if tensor.dtype in FLOATS else raw


def _plan(folder: Folder, name: str, tensor: TensorInfo, target: str | None) -> TensorPlan:
    dtype = tensor.dtype if target is None else target
    made = folder.conversion.plan(name, dtype) if folder.conversion is not None else None
    if made is not None:
        return made

    def pieces() -> Iterator[npt.NDArray[Any]]:
        return converted_pieces(_values(folder.path, tensor), tensor.dtype, dtype, name)

    return TensorPlan(name, dtype, tensor.shape, pieces)


def _stays(folder: Folder, file: str, plans: list[TensorPlan]) -> bool:
    """Whether every tensor of ``file`` travels unchanged, so that the file can be copied."""
    if folder.conversion is not None:
        return False
    stored = {name: tensor.dtype for name, tensor in folder.tensors.items() if tensor.file == file}
    return stored == {plan.name: plan.dtype for plan in plans}


def _copy(source: Path, target: Path, on_bytes: Callable[[int], None] | None) -> tuple[int, str]:
    """Copy with the hash taken on the way: (size, SHA-256). Links become files."""
    digest, size = hashlib.sha256(), 0
    with source.open("rb", buffering=0) as reader, target.open("wb") as writer:
        while piece := reader.read(CHUNK):
            digest.update(piece)
            writer.write(piece)
            size += len(piece)
            if on_bytes is not None:
                on_bytes(len(piece))
    return size, digest.hexdigest()


def _refuse_untied(folder: Folder) -> None:
    """``TF-SRC-025`` when a tied checkpoint stores an output projection of its own."""
    if not folder.shape.tied or OUTPUT not in folder.tensors:
        return
    output, embedding = folder.tensors[OUTPUT], folder.tensors[EMBEDDING]
    same = output.dtype == embedding.dtype and output.shape == embedding.shape
    if same:
        left, right = _values(folder.path, output), _values(folder.path, embedding)
        step = 1 << 24
        same = all(
            np.array_equal(left[start : start + step].view(np.uint8), right[start : start + step].view(np.uint8))
            for start in range(0, left.size, step)
        )
    if not same:
        raise ForgeError(
            "TF-SRC-025",
            f"config.json ties the output to the embedding, but {OUTPUT} is stored and differs from it",
            asked="tie_word_embeddings: true",
            why="Which of the two the model was trained with decides every answer; the file does not say.",
            remedies=[
                "set tie_word_embeddings: false in config.json, if lm_head.weight is the trained projection",
                "remove lm_head.weight, if the embedding is",
            ],
        )


def _refuse_faulty(folder: Folder) -> None:
    """``TF-SRC-051`` when a checkpoint that arrives quantized has an error that the audit finds."""
    if folder.prequantized is None and folder.conversion is None:
        return
    from quantize.audit import audit_checkpoint

    report = audit_checkpoint(folder.path, full=False)
    faults = [finding for finding in report.findings if finding.blocks]
    if faults:
        raise ForgeError(
            "TF-SRC-051",
            f"the quantized checkpoint is faulty: {'; '.join(f'{one.code} {one.headline}' for one in faults[:3])}"
            + (f" and {len(faults) - 3} more" if len(faults) > 3 else ""),
            asked=str(folder.path),
            numbers={"errors": len(faults), "codes": sorted({one.code for one in faults})},
            why=faults[0].why,
            remedies=[f"trtforge audit {folder.path} shows everything", *faults[0].remedies],
        )


def _finish(out: Path, info: CheckpointInfo, records: list[FileRecord]) -> CheckpointInfo:
    """Check the tokenizer, hash what is not hashed yet and write ``checkpoint.json``."""
    check_tokenizer(out / TOKENIZER, vocab=info.model.vocab, eos_token_ids=info.model.eos_token_ids)
    known = {record.name for record in records}
    for path in sorted(out.iterdir()):
        if path.is_file() and path.name not in known and path.name != CHECKPOINT_FILE:
            records.append(FileRecord(name=path.name, size=path.stat().st_size, sha256=sha256_file(path)))
    info = info.model_copy(update={"files": sorted(records, key=lambda record: record.name)})
    write_json(out / CHECKPOINT_FILE, info.model_dump(mode="json"))
    return info
