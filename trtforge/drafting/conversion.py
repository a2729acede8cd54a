"""``trtforge draft convert``: an EAGLE-3 drafter into another dialect, tensor by tensor, in bounded memory.

Everything that could stop it is known before a byte is written; the result appears by one rename.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtforge.drafting.consumers import keeps_embedding
from trtforge.drafting.description import Eagle3
from trtforge.drafting.dialects import DIALECTS, STRUCTURAL, Dialect, parts_of, written_name
from trtforge.drafting.findings import DraftFinding
from trtforge.drafting.inspection import Inspection, inspect_folder
from trtforge.drafting.kinds import EAGLE3
from trtforge.drafting.maps import read_targets
from trtforge.drafting.pairing import same_rows
from trtforge.drafting.statements import RECORD, recorded_target, tokenizer_identity
from trtforge.drafting.writing import carried, config_of, left_out, record
from trtforge.ground.errors import ForgeError
from trtforge.ground.safetensors_header import WEIGHTS_NAME, TensorInfo, weight_files

#: what may be lost by name: the rest is a working drafter still
LOSSES = {
    "embed_tokens": "the drafter's own embedding; the target's is used",
    "norm_output": "the normed state that is fed back; the plain one is fed back, from the second drafted token on",
}
_CHUNK = 4 << 20
#: files that say something about the drafter and are copied as they are
_COMPANIONS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "LICENSE", "LICENSE.txt")


@dataclass(frozen=True)
class Part:
    """One tensor of the result: bytes of a file, or some that were made."""

    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: Path | None = None
    offset: int = 0
    made: bytes = b""

    def chunks(self) -> Iterator[bytes]:
        """The bytes, at most :data:`_CHUNK` at a time."""
        if self.file is None:
            yield self.made
            return
        left = self.nbytes
        with self.file.open("rb") as file:
            file.seek(self.offset)
            while left:
                chunk = file.read(min(left, _CHUNK))
                if not chunk:
                    raise OSError(f"{self.file.name} ended while it was read")
                left -= len(chunk)
                yield chunk


@dataclass(frozen=True)
class Conversion:
    """What was written: the folder, and what :func:`to_json` says of it."""

    folder: Path
    source: Inspection
    dialect: Dialect
    head: Eagle3
    losses: tuple[str, ...]
    copied: tuple[str, ...]
    left_out: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The conversion as one JSON-able object."""
        assert self.source.dialect is not None
        taps = self.head.taps
        return {
            "folder": str(self.folder),
            "from": self.source.dialect.name,
            "to": self.dialect.name,
            "taps": list(taps) if taps is not None else None,
            "taps_written": [tap + self.dialect.shift for tap in taps] if taps is not None else None,
            "rope_theta": self.head.rope.theta,
            "lost": list(self.losses),
            "copied_from_target": list(self.copied),
            "config_keys_left_out": list(self.left_out),
            "warnings": [item.to_json() for item in self.source.findings if item.severity == "warning"],
        }


@dataclass(frozen=True)
class Plan:
    """A conversion before anything is written: the drafter as it was found, and all that the result holds."""

    source: Inspection
    dialect: Dialect
    head: Eagle3
    losses: tuple[str, ...]
    copied: tuple[str, ...]
    config: Mapping[str, Any]
    parts: Mapping[str, Part]


def plan(source: Inspection, to: str, *, allow_loss: Collection[str] = (), asked: str = "", whole: bool = True) -> Plan:
    """What a conversion of ``source`` to the dialect ``to`` writes; everything that stops it is raised here.

    Args:
        whole: whether an embedding is compared with the target's in all its bytes; otherwise in some rows, which
            is enough to refuse another one.

    Raises:
        ForgeError: every ``TF-DRF`` error that ``source`` has, and ``TF-DRF-002``, ``TF-DRF-016``, ``TF-DRF-020``,
            ``TF-DRF-025``, ``TF-DRF-026`` of :func:`convert`.
    """
    dialect = _dialect(to, allow_loss)
    folder = source.folder
    asked = asked or f"trtforge draft convert {folder} --to {to}"
    if source.kind is not EAGLE3:
        raise ForgeError(
            "TF-DRF-002",
            f"{folder.name} holds {source.kind.title}, which has one form only",
            asked=asked,
            numbers={"kind": source.kind.name},
            why="Dialects are ways to write an EAGLE-3 drafter; this one has other parts, and no other form.",
            remedies=["serve it with what it was made for", f"trtforge draft inspect {folder}"],
        )
    for finding in source.errors:
        if not _repaired(finding, source.head, allow_loss):
            raise finding.refusal(asked)
    head, losses = _reduced(source, dialect, allow_loss, asked, whole)
    parts, copied = _parts(source, head, dialect, asked)
    head = replace(head, own_head=head.own_head or "lm_head.weight" in copied)
    verifier = source.target.config if source.target is not None else None
    config = config_of(head, dialect, carried(source.config), verifier)
    return Plan(source, dialect, head, losses, copied, config, parts)


def convert(
    folder: Path, to: str, output: Path, *, target: Path | None = None, allow_loss: Collection[str] = ()
) -> Conversion:
    """Write the EAGLE-3 drafter in ``folder`` as a folder ``output`` of the dialect ``to``.

    Args:
        to: a name of :data:`~trtforge.drafting.dialects.DIALECTS`.
        target: folder of the target, to hold the drafter against it and to copy what the dialect wants stored.
        allow_loss: names of :data:`LOSSES` that may be lost.

    Raises:
        ForgeError: every ``TF-DRF`` error of :func:`~trtforge.drafting.inspection.inspect_folder`, and ``TF-DRF-002``
            a kind that has no dialects, ``TF-DRF-016`` a part that the dialect has not, ``TF-DRF-020`` a loss that was
            not allowed, ``TF-DRF-024`` the output is there already, ``TF-DRF-025`` an unknown name, ``TF-DRF-026``
            the target is needed, ``TF-DRF-027`` it cannot be written.
    """
    _dialect(to, allow_loss)
    asked = f"trtforge draft convert {folder} --to {to}"
    _refuse_output(folder, output, asked)
    return write(plan(inspect_folder(folder, target), to, allow_loss=allow_loss), output, asked=asked)


def write(found: Plan, output: Path, *, asked: str) -> Conversion:
    """Write a planned conversion as the folder ``output``, which must be new; it appears whole or not at all.

    Raises:
        ForgeError: ``TF-DRF-024``, ``TF-DRF-027``.
    """
    source = found.source
    result = Conversion(
        output, source, found.dialect, found.head, found.losses, found.copied, tuple(left_out(source.config))
    )
    try:
        _publish(result, found.config, found.parts)
    except OSError as error:
        raise ForgeError(
            "TF-DRF-027",
            f"{output} cannot be written: {error.strerror or error}",
            asked=asked,
            numbers={"bytes": sum(part.nbytes for part in found.parts.values())},
            why="What was written of it is removed again.",
            remedies=["-o DIR on a disk with room, in a folder that may be written"],
        ) from error
    return result


def _repaired(finding: DraftFinding, head: Eagle3 | None, allow_loss: Collection[str]) -> bool:
    """Whether what a finding names is left out: an embedding that was never loaded."""
    return finding.code == "TF-DRF-013" and head is not None and head.own_embedding and "embed_tokens" in allow_loss


def _dialect(to: str, allow_loss: Collection[str]) -> Dialect:
    asked: list[tuple[str, str, Collection[str]]] = [("dialect", to, DIALECTS)]
    for what, name, known in [*asked, *(("loss", name, LOSSES) for name in allow_loss)]:
        if name not in known:
            raise ForgeError(
                "TF-DRF-025",
                f"{name!r} is no {what} that is known",
                asked=f"--{'to' if what == 'dialect' else 'allow-loss'} {name}",
                numbers={"known": sorted(known)},
                remedies=[f"one of {', '.join(known)}"],
            )
    return DIALECTS[to]


def _refuse_output(folder: Path, output: Path, asked: str) -> None:
    place = output.resolve()
    inside = place.is_relative_to(folder.resolve())
    if not output.exists() and not output.is_symlink() and not inside:
        return
    raise ForgeError(
        "TF-DRF-024",
        f"{output} {'lies inside the drafter itself' if inside else 'is there already'}",
        asked=f"{asked} -o {output}",
        why="A conversion writes a new folder and changes no old one.",
        remedies=["-o DIR that does not exist, beside the drafter's folder"],
    )


def _reduced(
    source: Inspection, dialect: Dialect, allow_loss: Collection[str], asked: str, whole: bool
) -> tuple[Eagle3, tuple[str, ...]]:
    """The head as the dialect can say it, and what is lost by that.

    Raises:
        ForgeError: ``TF-DRF-016``, ``TF-DRF-020``.
    """
    head = source.head
    assert head is not None
    without = sorted(parts_of(head) - dialect.expresses)
    if without:
        others = [row.name for row in DIALECTS.values() if parts_of(head) <= row.expresses]
        raise ForgeError(
            "TF-DRF-016",
            f"{dialect.title} has no {' and no '.join(STRUCTURAL[part] for part in without)}",
            asked=asked,
            numbers={"parts": without, "dialects_that_have_them": others},
            why="The same weights would compute something else than the drafter was trained for; hardly a token "
            "would be accepted.",
            remedies=[f"--to {name}" for name in others] or ["serve the drafter with what it was made for"],
        )
    losses = []
    drops = head.own_embedding and (not keeps_embedding(dialect, head) or "embed_tokens" in allow_loss)
    if drops and not _is_targets(source, whole):
        losses.append("embed_tokens")
    if head.norm_output and "norm_output" not in dialect.expresses:
        losses.append("norm_output")
    refused = [name for name in losses if name not in allow_loss]
    if refused:
        raise ForgeError(
            "TF-DRF-020",
            f"in {dialect.title} is lost: {'; '.join(LOSSES[name] for name in refused)}",
            asked=asked,
            numbers={"lost": refused},
            why="The result drafts otherwise than the drafter does.",
            remedies=[
                " ".join(f"--allow-loss {name}" for name in refused),
                *(["--target DIR: an embedding that is the target's is no loss"] if "embed_tokens" in refused else []),
            ],
        )
    changes: dict[str, Any] = {"own_embedding": head.own_embedding and not drops}
    if "norm_output" in losses:
        changes["norm_output"] = False
    return replace(head, **changes), tuple(losses)


def _is_targets(source: Inspection, whole: bool) -> bool:
    """Whether the drafter's embedding is its target's: byte for byte, or in some rows where not the whole is asked."""
    own = source.tensor("embed_tokens.weight")
    target = source.target
    theirs = target.embedding if target is not None else None
    if own is None or target is None or theirs is None:
        return False
    if (own.dtype, own.shape) != (theirs.dtype, theirs.shape):
        return False
    if not whole:
        return same_rows(source.folder, own, target.folder, theirs)
    pairs = zip(stored_part(source.folder, own).chunks(), stored_part(target.folder, theirs).chunks(), strict=True)
    return all(one == other for one, other in pairs)


def stored_part(folder: Path, info: TensorInfo) -> Part:
    return Part(info.dtype, info.shape, info.nbytes, folder / info.file, info.offset)


def _parts(source: Inspection, head: Eagle3, dialect: Dialect, asked: str) -> tuple[dict[str, Part], tuple[str, ...]]:
    """The tensors of the result under their written names, and the names of those that come from the target.

    Raises:
        ForgeError: ``TF-DRF-026``.
    """
    parts: dict[str, Part] = {}
    for canonical, stored in (source.names or {}).items():
        if canonical in ("d2t", "t2d") or (canonical == "embed_tokens.weight" and not head.own_embedding):
            continue
        parts[written_name(canonical, dialect, head.layers)] = stored_part(source.folder, source.headers[stored])
    parts |= _maps(source, head, dialect)
    if head.own_head or not dialect.needs_head:
        return parts, ()
    info = source.target.head if source.target is not None else None
    if source.target is None or info is None or info.shape != (head.vocab_size, head.hidden_size):
        raise ForgeError(
            "TF-DRF-026",
            f"{dialect.title} stores lm_head [{head.vocab_size}, {head.hidden_size}], and the drafter has none",
            asked=asked,
            numbers={"target_head": list(info.shape) if info is not None else None},
            why="The drafter uses its target's output head; a dialect that stores one needs a copy of it.",
            remedies=["--target DIR of the target, with its weights"],
        )
    parts["lm_head.weight"] = stored_part(source.target.folder, info)
    return parts, ("lm_head.weight",)


def _maps(source: Inspection, head: Eagle3, dialect: Dialect) -> dict[str, Part]:
    d2t = source.tensor("d2t")
    if d2t is None:
        return {}
    import numpy as np

    targets = read_targets(source.folder, d2t)
    offsets = targets - np.arange(targets.size)
    made = offsets.astype("<i4" if dialect.map_dtype == "I32" else "<i8").tobytes()
    maps = {"d2t": Part(dialect.map_dtype, (targets.size,), len(made), made=made)}
    if dialect.has_t2d:
        kept = np.zeros(head.vocab_size, dtype=np.uint8)
        kept[targets] = 1
        maps["t2d"] = Part("BOOL", (head.vocab_size,), head.vocab_size, made=kept.tobytes())
    return maps


def _publish(result: Conversion, config: Mapping[str, Any], parts: Mapping[str, Part]) -> None:
    """Write everything into a folder beside the output, then rename it into place."""
    output, source = result.folder, result.source
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{output.name}.partial-", dir=output.parent))
    try:
        write_weights(partial / WEIGHTS_NAME, parts)
        _write_json(partial / "config.json", config)
        for name in _COMPANIONS:
            if (source.folder / name).is_file() and not (source.folder / name).is_symlink():
                shutil.copyfile(source.folder / name, partial / name)
        assert source.dialect is not None
        origin = {
            "folder": source.folder.resolve().name,
            "dialect": source.dialect.name,
            "config": dict(source.config),
            "files": {name: _sha256(source.folder / name) for name in ("config.json", *weight_files(source.folder))},
        }
        target = None
        if source.target is not None:
            target = {
                "folder": source.target.folder.resolve().name,
                "config_sha256": _sha256(source.target.folder / "config.json"),
                "tokenizer": tokenizer_identity(source.target.folder),
            }
        else:
            target = recorded_target(source.folder)
        changes = {
            "to": result.dialect.name,
            "lost": list(result.losses),
            "copied_from_target": list(result.copied),
            "config_keys_left_out": list(result.left_out),
        }
        _write_json(partial / RECORD, record(origin, target, changes))
        partial.chmod(0o755)
        if output.exists():
            _refuse_output(source.folder, output, f"--to {result.dialect.name}")
        partial.rename(output)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def write_weights(path: Path, parts: Mapping[str, Part]) -> None:
    """One safetensors file, tensors in the order of their names and aligned to eight bytes by the header's padding."""
    # wide types first, so that every tensor starts at a multiple of its own size
    order = sorted(parts, key=lambda name: (-_width(parts[name]), name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name in order:
        part = parts[name]
        header[name] = {"dtype": part.dtype, "shape": list(part.shape), "data_offsets": [offset, offset + part.nbytes]}
        offset += part.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            for chunk in parts[name].chunks():
                file.write(chunk)
        file.flush()
        os.fsync(file.fileno())


def _width(part: Part) -> int:
    count = 1
    for size in part.shape:
        count *= size
    return part.nbytes // count if count else 0


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
        file.flush()
        with contextlib.suppress(OSError):
            os.fsync(file.fileno())


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
