"""What an artifact of the ``tensorrt-rtx`` target holds, and whether its engines are those that were built."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.targets.description import Description, Rows, Table, Use, limit_rows
from trtforge.ground.hashing import hash_file
from trtforge.ground.units import format_size


def engine_info(artifact: Path, engine: dict[str, Any], capability: str | None = None) -> dict[str, Any]:
    """engine.json, and for each RTX engine whether its file is there and the one that was built (``intact``).

    ``capability`` is the processor's and says nothing here.
    """
    found = []
    for item in engine["engines"]:
        path = artifact / Path(item["file"]).name
        intact = path.is_file() and path.stat().st_size == item["bytes"] and hash_file(path) == item["sha256"]
        found.append({**item, "intact": intact})
    return {**engine, "engines": found}


def describe(document: dict[str, Any]) -> Description:
    """RTX engines: what each is for, whether its file is the one that was built; broken when one is not."""
    cache, engines = document["kv_cache"], document["engines"]
    rows = [
        ["loads in", document["loads_in"]],
        *limit_rows(document),
        ["KV cache", f"linear, {cache['format']}, {format_size(cache['bytes_per_request'])} a request"],
        *([f"profile {p['name']}", f"batch {p['batch']}, row {p['row']}"] for p in document["profiles"]),
    ]
    files = [[e["architecture"], e["file"], format_size(e["bytes"]), "yes" if e["intact"] else "NO"] for e in engines]
    damaged = [item["file"] for item in engines if not item["intact"]]
    return Description(
        f"{document['name']}: RTX engines, {document['quant_format']}, {document['dtype']}",
        Table("Asked", ["what", "value"], rows),
        (Table("RTX engines", ["architecture", "file", "size", "intact"], files),),
        verdicts=(f"{len(engines)} RTX engines, {len(damaged)} damaged",),
        broken=bool(damaged),
    )


def report_rows(engine: Mapping[str, Any]) -> Rows:
    """RTX engines, one an architecture; where they load stands first."""
    cache = engine["kv_cache"]
    return (
        ("loads in", engine["loads_in"]),
        *((f"RTX engine {item['architecture']}", format_size(item["bytes"])) for item in engine["engines"]),
        ("profiles", "; ".join(f"{p['name']}: batch {p['batch']}, row {p['row']}" for p in engine["profiles"])),
        (
            "KV cache",
            f"linear, {cache['format']}, {cache['capacity']} tokens, "
            f"{format_size(cache['bytes_per_request'])} a request",
        ),
        ("reproducible", engine["reproducible"]),
    )


def use(engine: Mapping[str, Any]) -> Use:
    """An application loads the engines; nothing here serves them."""
    text = (
        f"An RTX engine loads in {engine['loads_in']}. Inputs, profiles and the caches that the caller owns are "
        "described in engine/engine.json and in docs/targets.md."
    )
    commands = ["trtforge engine info BUNDLE/engine", f"pip install tensorrt-rtx=={engine['tensorrt_rtx']}"]
    return Use("Use it", text, ("\n".join(commands),))
