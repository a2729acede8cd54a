"""``trtforge verify``: every byte of a bundle (or artifact), then its stamps against this machine.

Stamps are looked at only when the content is what was published: a changed stamp would prove nothing.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path

from trtforge.ground.hashing import HashMemo
from trtforge.ground.progress import Progress
from trtforge.store.addendum import FOLDER, changed_since, is_addendum, read_addenda, verdict_of
from trtforge.store.integrity import VerifyFinding, VerifyReport, verify_directory
from trtforge.store.stamps import Loader, check_stamps
from trtforge.targets import TARGETS

__all__ = ["VerifyFinding", "VerifyReport", "verify_bundle", "verify_content", "verify_directory"]


#: the folders that a bundle's scripts fill on the GPU machine, after the bundle was sealed: the engine, and one that
#: drafts for it
_BUILT_LATER = ("engine/trtllm", "engine/draft/trtllm")
#: what that script puts there, and the tokenizer's description that guided decoding reads
_BUILT_FILES = re.compile(r"config\.json|rank(0|[1-9][0-9]*)\.engine|model\.cache|xgrammar_tokenizer_info\.json")


def _accept_engine_built_later(report: VerifyReport) -> None:
    """An engine that the bundle's own script compiled is no foreign file; that nobody sealed it is said.

    Anything else in its folder stays foreign, file by file.
    """
    stamps = (report.manifest or {}).get("stamps") or {}
    target = TARGETS.get(str(stamps.get("target")))
    if target is None or not target.trtllm_build or stamps.get("compiled", True):
        return
    later = [f for f in report.findings if f.code == "TF-BND-006" and _is_built_later(report.path, f.path)]
    report.findings[:] = [finding for finding in report.findings if finding not in later]
    for folder in _BUILT_LATER:
        files = [finding.path for finding in later if finding.path.rpartition("/")[0] == folder]
        if not files:
            continue
        report.findings.append(
            VerifyFinding(
                "TF-BND-030",
                "warning",
                folder,
                f"{len(files)} files of an engine that was compiled after the bundle was published: no hash seals them",
                "trtforge engine info BUNDLE compares the engine with what was asked",
            )
        )


def _is_built_later(root: Path, name: str) -> bool:
    """A regular file that the script writes, or its folder while that is still empty."""
    status = (root / name).lstat()
    if name in _BUILT_LATER:
        return stat.S_ISDIR(status.st_mode)
    folder, _, file = name.rpartition("/")
    return folder in _BUILT_LATER and stat.S_ISREG(status.st_mode) and _BUILT_FILES.fullmatch(file) is not None


def verify_content(path: Path, *, progress: Progress | None = None, memo: HashMemo | None = None) -> VerifyReport:
    """Every byte of a published directory; an engine that the bundle's own script compiled there is no fault."""
    report = verify_directory(path, progress=progress, memo=memo)
    _accept_engine_built_later(report)
    _read_addenda(report)
    return report


def made_later(report: VerifyReport) -> list[str]:
    """Files of an engine that was compiled into the bundle after it was published."""
    folders = [finding.path for finding in report.findings if finding.code == "TF-BND-030"]
    return sorted(
        f"{folder}/{path.name}" for folder in folders for path in (report.path / folder).iterdir() if path.is_file()
    )


def _read_addenda(report: VerifyReport) -> None:
    """Addenda are no foreign files: they are read, and what they say decides what the run left open."""
    if report.manifest is None or report.manifest_sha256 is None or report.manifest.get("stage") != "bundle":
        return
    report.findings[:] = [
        finding
        for finding in report.findings
        if finding.code != "TF-BND-006" or not is_addendum(report.path, finding.path)
    ]
    addenda, findings = read_addenda(report.path, report.manifest_sha256)
    report.findings.extend(findings)
    if addenda:
        report.findings.extend(changed_since(report.path, addenda[-1]))
    report.verdict = verdict_of(report.manifest, addenda)


def verify_bundle(
    path: Path, *, progress: Progress | None = None, loader: Loader | None = None, stamps: bool = True
) -> VerifyReport:
    """Verify a published directory; ``report.ok`` is False when anything would fail or cannot be trusted.

    Args:
        path: a bundle, an artifact, or a link to one.
        progress: told the bytes that were hashed.
        loader: hold the stamps against this one instead of the machine at hand.
        stamps: False leaves the stamps out (to check a copy on a machine that will not serve it).
    """
    report = verify_content(path, progress=progress)
    if report.ok and report.manifest is not None:
        if stamps:
            report.findings.extend(check_stamps(report.path, report.manifest, loader))
        if report.manifest.get("gates_passed") is False:
            report.findings.append(
                VerifyFinding(
                    "TF-BND-010",
                    "error",
                    "manifest.json",
                    "a gate was missed when this was made: it was kept for inspection, not published as passed",
                    "see the gates in manifest.json",
                )
            )
        elif report.verdict == "FAILED":
            report.findings.append(
                VerifyFinding(
                    "TF-BND-041",
                    "error",
                    FOLDER,
                    "a gate was missed when the server of this bundle was evaluated",
                    "see the newest addendum; mend the server (serve --no-verify starts it) and evaluate again",
                )
            )
    return report
