"""Verifies a bundle as a whole: its bytes and stamps, and the engine that was compiled into it.

The store knows hashes and stamps only; what an engine of TensorRT-LLM says of itself is read by its target. An
engine that build.sh compiled after the bundle was published has no hash, so this is the one check that it gets.
"""

from __future__ import annotations

from pathlib import Path

from trtforge.ground.errors import ForgeError
from trtforge.ground.progress import Progress
from trtforge.store.integrity import VerifyFinding, VerifyReport
from trtforge.store.stamps import Loader
from trtforge.store.verify import verify_bundle
from trtforge.targets import TARGETS

_SEALED = "build it again: trtforge run RECIPE --force build"
_BUILT_LATER = "remove that folder and compile the engine again: sh BUNDLE/engine/container.sh"


def verify_published(
    path: Path, *, progress: Progress | None = None, loader: Loader | None = None, stamps: bool = True
) -> VerifyReport:
    """:func:`~trtforge.store.verify.verify_bundle`, and the compiled engine against what was asked (TF-BND-035)."""
    report = verify_bundle(path, progress=progress, loader=loader, stamps=stamps)
    recorded = (report.manifest or {}).get("stamps") or {}
    target = TARGETS.get(str(recorded.get("target")))
    if target is not None and target.trtllm_build:
        sealed = recorded.get("compiled", True)
        for artifact in ("engine", "engine/draft"):
            report.findings.extend(_engine_findings(report.path / artifact, _SEALED if sealed else _BUILT_LATER))
    return report


def _engine_findings(artifact: Path, remedy: str) -> list[VerifyFinding]:
    from builder.targets import read_engine
    from builder.targets.trtllm.readback import has_engine
    from builder.targets.trtllm.script import ENGINE_DIR
    from builder.targets.trtllm_engine.info import check_engine

    if not has_engine(artifact / ENGINE_DIR):
        return []
    try:
        said = [(f.code, f.message) for f in check_engine(artifact, read_engine(artifact))]
    except ForgeError as error:
        said = [(error.code, error.message)]
    place = f"{'engine/' if artifact.parent.name == 'engine' else ''}{artifact.name}/{ENGINE_DIR}"
    return [VerifyFinding("TF-BND-035", "error", place, f"{code}: {message}", remedy) for code, message in said]
