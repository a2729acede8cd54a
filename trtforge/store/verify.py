"""``trtforge verify``: every byte of a bundle (or artifact), then its stamps against this machine.

Stamps are looked at only when the content is what was published: a changed stamp would prove nothing.
"""

from __future__ import annotations

from pathlib import Path

from trtforge.progress import Progress
from trtforge.store.integrity import VerifyFinding, VerifyReport, verify_directory
from trtforge.store.stamps import Machine, check_stamps

__all__ = ["VerifyFinding", "VerifyReport", "verify_bundle", "verify_directory"]


#: the folder that a bundle's build.sh fills on the GPU machine, after the bundle was sealed
_BUILT_LATER = "engine/trtllm/"


def _accept_engine_built_later(report: VerifyReport) -> None:
    """An engine that the bundle's own script compiled is no foreign file; that nobody sealed it is said."""
    stamps = (report.manifest or {}).get("stamps") or {}
    if stamps.get("target") != "trtllm-engine" or stamps.get("compiled", True):
        return
    later = [f for f in report.findings if f.code == "TF-BND-006" and f.path.startswith(_BUILT_LATER)]
    if later:
        report.findings[:] = [finding for finding in report.findings if finding not in later]
        report.findings.append(
            VerifyFinding(
                "TF-BND-030",
                "warning",
                _BUILT_LATER.rstrip("/"),
                f"{len(later)} files of an engine that was compiled after the bundle was published: no hash seals them",
                "trtforge engine info BUNDLE compares the engine with what was asked",
            )
        )


def verify_bundle(
    path: Path, *, progress: Progress | None = None, machine: Machine | None = None, stamps: bool = True
) -> VerifyReport:
    """Verify a published directory; ``report.ok`` is False when anything would fail or cannot be trusted.

    Args:
        path: a bundle, an artifact, or a link to one.
        progress: told the bytes that were hashed.
        machine: hold the stamps against this one instead of the machine at hand.
        stamps: False leaves the stamps out (to check a copy on a machine that will not serve it).
    """
    report = verify_directory(path, progress=progress)
    _accept_engine_built_later(report)
    if report.ok and report.manifest is not None:
        if stamps:
            report.findings.extend(check_stamps(report.path, report.manifest, machine))
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
    return report
