"""What an engine of the ``tensorrt`` target holds, and whether this machine could load it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builder.targets.description import Description, Table, limit_rows, missing_files
from builder.targets.pool import pool_text, report_rows
from builder.targets.tensorrt import machine
from builder.targets.tensorrt.versions import release
from trtforge.ground.units import format_size
from trtforge.machine.software import installed

__all__ = ["describe", "engine_info", "report_rows"]


def engine_info(artifact: Path, engine: dict[str, Any], capability: str | None = None) -> dict[str, Any]:
    """engine.json without hashes, ``findings``: what keeps it from being loaded here, and ``missing`` files.

    ``capability`` is the processor's and says nothing here.
    """
    stamp = engine["tensorrt"]
    wanted_version, wanted_abi = stamp["version"], stamp["plugins"]["abi"]
    findings = []
    found = installed("tensorrt")
    here = None if found is None else release(found)
    if here != wanted_version:
        findings.append(f"the engine needs TensorRT {wanted_version}, here is {here or 'none'}")
    library = machine.library_or_none()
    abi = None if library is None else library.abi
    if abi != wanted_abi:
        findings.append(f"the engine needs plugins of ABI {wanted_abi}, here is {abi or 'none'}")
    kept = {key: value for key, value in engine.items() if key not in ("sha256", "memory_plan")}
    return {**kept, "findings": findings, "missing": missing_files(artifact, engine.get("sha256", ()))}


def describe(document: dict[str, Any]) -> Description:
    """A TensorRT plan: what it was built with, and what of that this machine lacks."""
    stamp, cache = document["tensorrt"], document["kv_cache"]
    options = ", ".join(f"{key} {value}" for key, value in stamp["options"].items() if value not in (False, None))
    rows = [
        ["TensorRT", stamp["version"]],
        ["plugins", f"ABI {stamp['plugins']['abi']}, trtforge {stamp['plugins']['version']}"],
        *limit_rows(document),
        ["KV pool", pool_text(cache)],
        ["decode buckets", ", ".join(map(str, stamp["decode_buckets"]))],
        ["options", options],
        ["plan", format_size(stamp["plan_bytes"])],
    ]
    found = [f"cannot be loaded here: {finding}" for finding in document["findings"]]
    target = document["target"]
    return Description(
        f"{document['name']}: target {target}, {document['quant_format']}, for {stamp['gpu_architecture']}",
        Table("Engine", ["what", "value"], rows),
        verdicts=tuple(found) or ("TensorRT and the plugin library of this machine are the engine's",),
    )
