"""Addenda: what was measured on a bundle after it was sealed, sealed beside it.

``addenda/NNNN-SHA256.json`` below the bundle. The name holds the hash of the content; the content holds the hash of the
bundle's manifest, so it belongs to these bytes and no others, and the hash of the addendum before it. Files that the
bundle's own scripts made later, such as a compiled engine, are listed with their hashes. As with the manifest, a hash
shows that something changed, not who wrote it.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtforge.ground.errors import ForgeError
from trtforge.ground.files import write_text_atomic
from trtforge.ground.hashing import hash_bytes, hash_file, json_safe
from trtforge.ground.json_file import parse_json, read_bytes_file
from trtforge.store.integrity import VerifyFinding
from trtforge.store.manifest import now

FOLDER = "addenda"
SCHEMA = 1
_NAME = re.compile(r"([0-9]{4})-([0-9a-f]{64})\.json")
_MAX_BYTES = 64 * 2**20
_REMEDY = "evaluate the server again: trtforge eval --server HOST:PORT --bundle BUNDLE"


@dataclass(frozen=True)
class Addendum:
    """One of a bundle's addenda: its file, its content, and whether its gates passed."""

    path: Path
    content: Mapping[str, Any]

    @property
    def passed(self) -> bool:
        return bool(self.content["passed"])

    @property
    def sha256(self) -> str:
        return self.path.name[5:69]


def is_addendum(root: Path, name: str) -> bool:
    """Whether ``name`` below ``root`` is the empty folder of addenda, or a regular file with such a name in it."""
    status = (root / name).lstat()
    if name == FOLDER:
        return stat.S_ISDIR(status.st_mode)
    folder, _, file = name.rpartition("/")
    return folder == FOLDER and stat.S_ISREG(status.st_mode) and _NAME.fullmatch(file) is not None


def read_addenda(root: Path, manifest_sha256: str) -> tuple[list[Addendum], list[VerifyFinding]]:
    """The sound addenda of a bundle, in order, and what is wrong with the others."""
    folder = root / FOLDER
    if folder.is_symlink() or not folder.is_dir():
        return [], []
    found: list[Addendum] = []
    findings: list[VerifyFinding] = []
    before = ""
    for position, path in enumerate(sorted(p for p in folder.iterdir() if _NAME.fullmatch(p.name)), 1):
        read = _read(path, position, before, manifest_sha256)
        if isinstance(read, Addendum):
            found.append(read)
        else:
            findings.append(read)
        before = path.name[5:69]
    return found, findings


def _read(path: Path, position: int, before: str, manifest_sha256: str) -> Addendum | VerifyFinding:
    """The addendum, or what is wrong with it."""

    def fault(why: str, code: str = "TF-BND-037") -> VerifyFinding:
        return VerifyFinding(code, "error", f"{FOLDER}/{path.name}", why, _REMEDY)

    match = _NAME.fullmatch(path.name)
    assert match is not None
    try:
        raw = read_bytes_file(path, _MAX_BYTES)
        content = parse_json(raw, path.name)
    except (OSError, ValueError) as error:
        return fault(f"the addendum cannot be read ({error})")
    if hash_bytes(raw) != match.group(2):
        return fault("the addendum's content is not what its name says: it was changed after it was sealed")
    shape = {"schema": int, "bundle": str, "previous": str, "created": str, "passed": bool, "gates": list}
    if not isinstance(content, dict) or any(not isinstance(content.get(key), kind) for key, kind in shape.items()):
        return fault("the addendum lacks a part")
    parts = ("server", "figures", "left_out", "made_later", "takes_the_place_of")
    if any(not isinstance(content.get(key, {}), dict) for key in parts):
        return fault("a part of the addendum is of another kind")
    if not content["gates"]:
        return fault("the addendum has no gate: nothing was held against anything")
    if content["schema"] != SCHEMA:
        return fault(f"the addendum has schema {content['schema']}, this version reads {SCHEMA}")
    if content["passed"] != all(isinstance(gate, dict) and gate.get("passed") is True for gate in content["gates"]):
        return fault("the addendum's verdict is not what its gates say")
    if content["bundle"] != manifest_sha256:
        return fault(f"it belongs to a bundle whose manifest has SHA-256 {content['bundle'][:16]}…", "TF-BND-038")
    if int(match.group(1)) != position or content["previous"] != before:
        return fault("an addendum before it is missing or was put in another place")
    return Addendum(path, content)


def changed_since(root: Path, newest: Addendum) -> list[VerifyFinding]:
    """Files that were there when the server was evaluated and are others now; hashes every one of them."""
    findings = []
    for name, digest in dict(newest.content.get("made_later", {})).items():
        path = root / str(name)
        inside = not Path(str(name)).is_absolute() and ".." not in Path(str(name)).parts and not path.is_symlink()
        try:
            same = inside and hash_file(path) == digest
        except OSError:
            same = False
        if not same:
            said = "this file is not the one that was evaluated on the server"
            findings.append(VerifyFinding("TF-BND-039", "error", str(name), said, _REMEDY))
    return findings


def seal_addendum(root: Path, manifest_sha256: str, content: Mapping[str, Any]) -> Addendum:
    """Write an addendum beside a bundle; ``content`` says ``passed`` and ``gates``.

    Raises:
        ForgeError: TF-BND-037 or 038 an addendum that is there already is not sound; TF-BND-040 it cannot be written.
    """
    earlier, faults = read_addenda(root, manifest_sha256)
    if faults:
        raise ForgeError(
            faults[0].code,
            f"{faults[0].path}: {faults[0].message}",
            asked=str(root),
            why="A new addendum names the one before it.",
            remedies=["remove the folder addenda if what it says is not needed, and evaluate again"],
        )
    whole = {
        **content,
        "schema": SCHEMA,
        "bundle": manifest_sha256,
        "previous": earlier[-1].sha256 if earlier else "",
        "created": now(),
    }
    text = json.dumps(json_safe(whole), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"
    path = root / FOLDER / f"{len(earlier) + 1:04}-{hash_bytes(text.encode('utf-8'))}.json"
    try:
        path.parent.mkdir(exist_ok=True)
        write_text_atomic(path, text)
    except OSError as error:
        raise ForgeError(
            "TF-BND-040",
            f"the addendum cannot be written: {error.strerror or error}",
            asked=str(path),
            why="It lies in the bundle, beside what it is about.",
            remedies=["evaluate a copy of the bundle in a folder that can be written"],
        ) from error
    return Addendum(path, whole)


def verdict_of(manifest: Mapping[str, Any], addenda: Sequence[Addendum]) -> str:
    """``PASSED``, ``FAILED`` or ``INCOMPLETE``: by the run's gates, and the newest addendum for those not run."""
    if manifest.get("gates_passed") is False or (addenda and not addenda[-1].passed):
        return "FAILED"
    not_run = (manifest.get("summary") or {}).get("not_run") or {}
    unseen = any(isinstance(reason, Mapping) and reason.get("gates") for reason in not_run.values())
    return "INCOMPLETE" if unseen and not addenda else "PASSED"
