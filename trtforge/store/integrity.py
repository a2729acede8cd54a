"""Checks a published directory byte by byte: any flipped, missing, added or redirected file is found.

Used for artifacts in the store and for bundles anywhere. Every finding has a stable code (TF-BND-001 …
TF-BND-009), so that a caller can tell a truncated copy from a tampered file.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trtforge.ground.files import walk_files
from trtforge.ground.hashing import HashMemo, hash_files
from trtforge.ground.json_file import PlainRecord, kind_of, plain_record
from trtforge.ground.progress import Progress, SilentProgress
from trtforge.store.manifest import COMPLETE, MANIFEST, RESERVED, link_fault, read_sealed


@dataclass(frozen=True)
class VerifyFinding(PlainRecord):
    """One thing that is wrong (``error``) or worth knowing (``warning``) about a published directory."""

    code: str
    severity: Literal["error", "warning"]
    path: str
    message: str
    remedy: str


@dataclass
class VerifyReport:
    """What a verification looked at and found."""

    path: Path
    files: int = 0
    bytes: int = 0
    manifest: dict[str, Any] | None = None
    #: SHA-256 of manifest.json, which stands for every byte of the directory when nothing was found
    manifest_sha256: str | None = None
    findings: list[VerifyFinding] = field(default_factory=list)
    #: what its gates and addenda say: PASSED, FAILED or INCOMPLETE; None for what is no bundle
    verdict: str | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing of severity ``error`` was found."""
        return not any(finding.severity == "error" for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """The report as a JSON-able object; the manifest is the directory's own."""
        document = {**plain_record(self), "ok": self.ok}
        del document["manifest"]
        return document


_COPY_AGAIN = "copy the directory again from where it was published, or rebuild it: trtforge run RECIPE --full-check"
_CHECK_DISK = f"check permissions and the disk (dmesg, smartctl); then {_COPY_AGAIN}"


#: a file of at least so many bytes …
_LARGE = 1 << 30
#: … with less than this part of them on the disk is a hole; no file system compresses weights so far
_FILLED = 1000


def _is_hollow(status: os.stat_result) -> bool:
    """Whether a file is a sparse giant, whose zeros would take hours to hash and hold nothing."""
    return status.st_size >= _LARGE and status.st_blocks * 512 * _FILLED < status.st_size


def _is_folder(root: Path, name: str) -> bool:
    """Whether a directory is there under its own name, not through a link."""
    return (root / name).is_dir() and os.path.realpath(root / name) == os.path.realpath(root) + f"/{name}"


def verify_directory(path: Path, *, progress: Progress | None = None, memo: HashMemo | None = None) -> VerifyReport:
    """Compare a published directory with its manifest, every byte of it.

    Follows no symbolic link inside the directory; ``path`` itself may be one. ``memo`` knows what this run hashed.
    """
    root = path.resolve()
    report = VerifyReport(root)

    def error(code: str, name: str, message: str, remedy: str = _COPY_AGAIN) -> None:
        report.findings.append(VerifyFinding(code, "error", name, message, remedy))

    if not root.is_dir():
        error("TF-BND-001", str(path), "there is no directory of that name", "check the path")
        return report
    sealed = read_sealed(root)
    if isinstance(sealed, str):
        code = "TF-BND-001" if "COMPLETE is missing" in sealed else "TF-BND-002"
        error(code, COMPLETE if code == "TF-BND-001" else MANIFEST, sealed)
        return report
    manifest, report.manifest_sha256 = sealed
    report.manifest = manifest
    listed = {entry["path"]: entry for entry in manifest["files"]}
    links = {entry["path"]: entry["target"] for entry in manifest["links"]}
    directories = set(manifest["directories"])
    report.bytes = sum(entry["size"] for entry in listed.values())

    bar = progress or SilentProgress()
    bar.start(f"verifying {root.name}", float(report.bytes))
    try:
        present = dict(walk_files(root))
    except OSError as unread:  # no permission, or taken away meanwhile
        named = str(unread.filename or root).removeprefix(f"{root}/")
        error("TF-BND-008", named, f"it cannot be read ({unread.strerror or unread})", _CHECK_DISK)
        return report
    sound: dict[str, Path] = {}
    for name, entry in sorted(listed.items()):
        status = present.get(name)
        if status is None:
            error("TF-BND-003", name, "the file is missing")
            continue
        if not stat.S_ISREG(status.st_mode):
            error("TF-BND-007", name, f"the manifest lists a regular file, here is {kind_of(status.st_mode)}")
            continue
        report.files += 1
        if status.st_size != entry["size"]:
            error("TF-BND-004", name, f"the file has {status.st_size} bytes, the manifest says {entry['size']}")
            continue
        if _is_hollow(status):
            error("TF-BND-036", name, f"the file has {status.st_size} bytes and {status.st_blocks * 512} on the disk")
            continue
        sound[name] = root / name
    for name, digest in sorted(hash_files(sound, bar.advance, memo).items()):
        published = listed[name]["sha256"]
        if isinstance(digest, OSError):
            error("TF-BND-008", name, f"the file cannot be read ({digest.strerror or digest})", _CHECK_DISK)
        elif digest != published:
            error("TF-BND-005", name, f"the content changed: SHA-256 {digest[:16]}…, published {published[:16]}…")
    for name, target in sorted(links.items()):
        status = present.get(name)
        if status is None:
            error("TF-BND-003", name, "the symbolic link is missing")
        elif not stat.S_ISLNK(status.st_mode) or str((root / name).readlink()) != target:
            error("TF-BND-007", name, f"the manifest lists a symbolic link to {target}, not what is there")
        elif fault := link_fault(root, name):
            error("TF-BND-007", name, f"it is {fault}")
    for name in sorted(directories):
        status = present.get(name)
        if status is None and not _is_folder(root, name):
            error("TF-BND-003", name, "the (empty) directory is missing")
        elif status is not None and not stat.S_ISDIR(status.st_mode):
            error("TF-BND-007", name, "the manifest lists a directory, the directory holds something else")
    known = set(listed) | set(links) | directories | set(RESERVED)
    for name in sorted(set(present) - known):
        error("TF-BND-006", name, "the manifest does not know this file", "remove it, or publish the directory again")
    return report
