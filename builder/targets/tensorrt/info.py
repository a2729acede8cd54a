"""What an engine of the ``tensorrt`` target holds, and whether this machine could load it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from builder.targets.tensorrt import machine
from builder.targets.tensorrt.versions import release


def engine_info(artifact: Path, engine: dict[str, Any], capability: str | None = None) -> dict[str, Any]:
    """engine.json without hashes, and ``findings``: what keeps it from being loaded here.

    ``capability`` is the processor's and says nothing here.
    """
    stamp = engine["tensorrt"]
    wanted_version, wanted_abi = stamp["version"], stamp["plugins"]["abi"]
    findings = []
    try:
        installed = release(version("tensorrt"))
    except PackageNotFoundError:
        installed = None
    if installed != wanted_version:
        findings.append(f"the engine needs TensorRT {wanted_version}, here is {installed or 'none'}")
    library = machine.library_or_none()
    abi = None if library is None else library.abi
    if abi != wanted_abi:
        findings.append(f"the engine needs plugins of ABI {wanted_abi}, here is {abi or 'none'}")
    kept = {key: value for key, value in engine.items() if key not in ("sha256", "memory_plan")}
    return {**kept, "findings": findings}
