"""``manifest.json`` and ``COMPLETE``: what makes a directory a finished artifact.

Policy: a directory counts as finished only when ``COMPLETE`` holds the SHA-256 of ``manifest.json``;
the manifest names every file with size and SHA-256. Files (and figures) that were *measured*, such as
times, are listed and hashed like any other, and so protected, but stay out of ``content_hash``: that
hash identifies the deterministic content, is the same when a stage is run again with the same
ingredients, and is what the keys of later stages are made of. ``created``, ``seconds`` and the machine
stamps are facts about one run and stay out of it too.
"""

from __future__ import annotations

import datetime
import fnmatch
import json
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trtforge.ground.errors import ForgeError
from trtforge.ground.files import fsync_path, walk_files, write_text_atomic
from trtforge.ground.hashing import HashMemo, hash_bytes, hash_file, hash_json, json_safe
from trtforge.ground.json_file import kind_of, parse_json, read_bytes_file
from trtforge.ground.versions import is_version
from trtforge.store.artifact import GateResult
from trtforge.store.shape import is_name, manifest_fault
from trtforge.store.steps import step

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
COMPLETE = "COMPLETE"
RESERVED = (MANIFEST, COMPLETE)
#: bytes of COMPLETE that are read at most: it holds one hash
_MAX_COMPLETE = 4096


def link_stays_inside(name: str, target: str) -> bool:
    """Whether a relative symbolic link at ``name`` (posix path below the root) resolves below the root."""
    if target.startswith("/"):
        return False
    depth = name.count("/")
    for part in target.split("/"):
        if part == "..":
            depth -= 1
            if depth < 0:
                return False
        elif part not in ("", "."):
            depth += 1
    return True


def link_fault(root: Path, name: str) -> str | None:
    """A sentence when the symbolic link at ``name`` below ``root`` leads out of it; ``None`` when it stays inside.

    Both ways count: by its own words, and where it really leads, through other links.
    """
    path = root / name
    target = str(path.readlink())
    if not link_stays_inside(name, target):
        return f"a symbolic link that leaves the directory ({target})"
    try:
        real = os.path.realpath(path, strict=True)
    except FileNotFoundError:
        real = os.path.realpath(path)
    except OSError as error:
        return f"a symbolic link that leads nowhere ({(error.strerror or str(error)).lower()})"
    if not Path(real).is_relative_to(os.path.realpath(root)):
        return f"a symbolic link that leaves the directory through another link ({real})"
    return None


def list_content(
    directory: Path,
    *,
    measured: Sequence[str] = (),
    advance: Callable[[float], None] | None = None,
    memo: HashMemo | None = None,
) -> dict[str, Any]:
    """The ``files``, ``links`` and ``directories`` (empty ones) of a directory, hashed.

    Raises:
        ForgeError: TF-STO-003 on an entry that cannot be published (a link that leaves the directory, a
            socket, a file called ``manifest.json`` or ``COMPLETE``).
    """
    files: list[dict[str, Any]] = []
    links: list[dict[str, str]] = []
    directories: list[str] = []
    for name, status in walk_files(directory):
        path = directory / name
        if name in RESERVED:
            raise ForgeError(
                "TF-STO-003",
                f"a stage wrote {name}, a name that the store keeps for itself",
                asked=str(path),
                why="manifest.json and COMPLETE at the top of an artifact say that it is finished",
                remedies=["write the file below another name"],
            )
        if not is_name(name):
            raise _unpublishable(path, "its name is no UTF-8", "rename the file")
        if stat.S_ISREG(status.st_mode):
            digest = hash_file(path, advance) if memo is None else memo.file(path, advance)
            entry: dict[str, Any] = {"path": name, "size": status.st_size, "sha256": digest}
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in measured):
                entry["measured"] = True
            files.append(entry)
        elif stat.S_ISDIR(status.st_mode):
            directories.append(name)
        elif stat.S_ISLNK(status.st_mode):
            if fault := link_fault(directory, name):
                raise _unpublishable(path, f"it is {fault}")
            links.append({"path": name, "target": str(path.readlink())})
        else:
            raise _unpublishable(path, f"it is {kind_of(status.st_mode)}, no regular file")
    return {"files": files, "links": links, "directories": directories}


def _unpublishable(
    path: Path, what: str, remedy: str = "copy the file into the artifact instead of linking to it"
) -> ForgeError:
    return ForgeError(
        "TF-STO-003",
        f"{path.name!r} cannot be published: {what}",
        asked=repr(str(path)),
        why="an artifact must hold everything it needs, so that its hashes mean something on another machine",
        remedies=[remedy],
    )


def content_hash(content: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """SHA-256 over the deterministic part of an artifact: paths and hashes of unmeasured files, links, summary."""
    return hash_json(
        {
            "files": [[f["path"], f["sha256"]] for f in content["files"] if not f.get("measured")],
            "links": content["links"],
            "directories": content["directories"],
            "summary": summary,
        }
    )


def measured_hash(content: Mapping[str, Any], measurements: Mapping[str, Any]) -> str:
    """SHA-256 over the measured part of an artifact; says whether a copy of its measurements is up to date."""
    files = [[f["path"], f["sha256"]] for f in content["files"] if f.get("measured")]
    return hash_json({"files": files, "measurements": measurements})


#: of a gate, what JSON may hold as the text of an infinity
_FIGURES = ("measured", "bound", "limit", "baseline", "candidate", "low", "high")


def gates_to_json(gates: Iterable[GateResult]) -> list[dict[str, Any]]:
    """Gates as JSON-able objects."""
    return [json_safe(asdict(gate)) for gate in gates]


def gates_from_json(gates: Iterable[Mapping[str, Any]]) -> list[GateResult]:
    """The inverse of :func:`gates_to_json`."""
    found = []
    for gate in gates:
        figures = {name: float(gate[name]) for name in _FIGURES if gate.get(name) is not None}
        found.append(GateResult(name=gate["name"], passed=gate["passed"], detail=gate["detail"], **figures))
    return found


def now() -> str:
    """The present time in UTC, ISO 8601; microseconds tell artifacts of one key apart that were made in turn."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds")


def seal(directory: Path, manifest: Mapping[str, Any], *, durable: bool = True) -> str:
    """Second phase of publishing: ``manifest.json``, flush everything, ``COMPLETE``; returns the manifest's hash.

    A crash at any moment leaves a directory without a valid ``COMPLETE``.
    """
    text = json.dumps(manifest, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    if durable:
        for name, status in walk_files(directory):
            if not stat.S_ISLNK(status.st_mode):
                fsync_path(directory / name)
    step("seal.files_flushed")
    write_text_atomic(directory / MANIFEST, text, durable=durable)
    step("seal.manifest_written")
    digest = hash_bytes(text.encode("utf-8"))
    write_text_atomic(directory / COMPLETE, digest + "\n", durable=durable)
    step("seal.complete_written")
    return digest


def read_sealed(directory: Path) -> tuple[dict[str, Any], str] | str:
    """The manifest and its hash when the directory is finished; else a sentence that says what is wrong.

    Reads two small files; the artifact's own files are not looked at.
    """
    for name in RESERVED:
        # what lies elsewhere is not the directory's own, and may change under it
        if (directory / name).is_symlink():
            return f"{name} is a symbolic link, no regular file"
    try:
        complete = read_bytes_file(directory / COMPLETE, _MAX_COMPLETE)
    except FileNotFoundError:
        return "COMPLETE is missing"
    except (OSError, ValueError) as error:
        return f"COMPLETE cannot be read ({error})"
    try:
        raw = read_bytes_file(directory / MANIFEST)
    except FileNotFoundError:
        return "manifest.json is missing"
    except (OSError, ValueError) as error:
        return f"manifest.json cannot be read ({error})"
    digest = hash_bytes(raw)
    if complete != digest.encode("ascii") + b"\n":
        return "manifest.json does not match the hash in COMPLETE"
    try:
        manifest = parse_json(raw, MANIFEST, parse_constant=_no_constant)
    except ValueError:
        return "manifest.json is not JSON"
    if not isinstance(manifest, dict) or not is_version(manifest.get("schema"), SCHEMA_VERSION):
        found = manifest.get("schema") if isinstance(manifest, dict) else None
        return f"manifest.json has schema {str(found)[:40]!r}, this version reads {SCHEMA_VERSION}"
    fault = manifest_fault(manifest)
    return f"manifest.json is of another shape ({fault})" if fault else (manifest, digest)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def self_contradiction(manifest: Mapping[str, Any]) -> str | None:
    """A sentence when figures or listing of a manifest are not those that its hashes were made of."""
    for name, part, digest in (
        ("content_hash", "summary", content_hash(manifest, manifest["summary"])),
        ("measured_hash", "measurements", measured_hash(manifest, manifest["measurements"])),
    ):
        if manifest[name] != digest:
            return f"manifest.json contradicts itself: {name} is not the hash of its files and {part}"
    return None


def cheap_damage(directory: Path, manifest: Mapping[str, Any]) -> str | None:
    """A sentence when a listed file is missing or is not what was sealed; ``None`` when all is well.

    Sizes are compared. Only a file that was written to since the manifest was is hashed, so the check stays
    cheap for artifacts that nobody touched.
    """
    try:
        sealed_at = (directory / MANIFEST).stat().st_mtime_ns
    except OSError:
        return f"{MANIFEST} is missing"
    for folder in sorted({str(above) for entry in manifest["files"] for above in Path(entry["path"]).parents}):
        if folder != "." and (directory / folder).is_symlink():
            return f"{folder} is a symbolic link, no folder"
    for entry in manifest["files"]:
        try:
            status = (directory / entry["path"]).lstat()
        except OSError:
            return f"{entry['path']} is missing"
        if status.st_size != entry["size"]:
            return f"{entry['path']} has {status.st_size} bytes, the manifest says {entry['size']}"
        if not stat.S_ISREG(status.st_mode):
            return f"{entry['path']} is {kind_of(status.st_mode)}, no regular file"
        # not only later: a change within one tick of the file system's clock has the manifest's own time
        if status.st_mtime_ns >= sealed_at:
            try:
                digest = hash_file(directory / entry["path"])
            except OSError as error:
                return f"{entry['path']} cannot be read ({error})"
            if digest != entry["sha256"]:
                return f"{entry['path']} was changed after it was published"
    return None
