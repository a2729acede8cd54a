"""The plugin library in real TensorRT plugin registries (lean 10.16 and 11.4)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from builder import opset
from builder.targets.tensorrt.plugin_fields import FIELDS
from trtforge.native.plugin_library import plugin_library as ask

ATTENTION = [["num_heads", "INT32", 8], ["num_kv_heads", "INT32", 2], ["head_size", "INT32", 64]]
GOOD: dict[str, Any] = {
    "PagedAttention": [*ATTENTION, ["scale", "FLOAT32", 0.125], ["has_tree_mask", "INT32", 1]],
    "EagleTreeBuild": [[name, "INT32", value] for name, value in
                       {"top_k": 4, "expand": 4, "levels": 3, "total": 16, "level": 1}.items()],
    "EagleAccept": [["total", "INT32", 16]],
    "PagedKVMove": [["num_kv_heads", "INT32", 2], ["head_size", "INT32", 64], ["num_pools", "INT32", 3]],
}  # fmt: skip
BAD: list[list[Any]] = [
    ["PagedAttention", [*ATTENTION[:2], ["head_size", "INT32", 60]]],
    ["PagedAttention", [["num_heads", "FLOAT32", 8], *ATTENTION[1:]]],
    ["PagedAttention", [*ATTENTION, ["window", "INT32", 1]]],
    ["PagedKVMove", GOOD["PagedKVMove"][:2]],
]
VERSIONS = dict.fromkeys(GOOD, "1") | {"PagedAttention": str(opset.SINCE["PagedAttention"][-1])}
OUTPUTS = {"PagedAttention": 2, "EagleTreeBuild": 10, "EagleAccept": 4, "PagedKVMove": 3}


def test_a_real_registry_takes_the_library(lean: tuple[str, Path], plugin_library: Path) -> None:
    release, packages = lean
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("registry_probe.py")), str(plugin_library),
         json.dumps({"good": GOOD, "bad": BAD, "versions": VERSIONS})],
        env={**os.environ, "PYTHONPATH": str(packages)}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["version"] == release and said["loaded"]
    assert said["other_namespace"] and said["other_version"]
    for op, answer in said["ops"].items():
        version = VERSIONS[op]
        assert answer["creator"] == ["IPluginCreatorV3One", op, version, "trtforge"]
        assert answer["plugin"]["build"] == "IPluginV3OneBuildV2", "aliased inputs need the second build interface"
        assert answer["plugin"]["runtime"] == "IPluginV3OneRuntime"
        assert answer["plugin"]["core"] == "IPluginV3OneCore"
        assert answer["plugin"]["outputs"] == OUTPUTS[op]
        assert answer["plugin"]["timing_cache_id"].startswith(f"{op}/{version}:")
        assert answer["at_run_time"]
    assert said["refused"] == [True] * len(BAD)
    for words in ("head_size' is 60", "num_heads' is FLOAT32", "'window' is unknown", "num_pools' is missing"):
        assert words in done.stderr


def test_fields_of_the_registry_are_the_builders_table(lean: tuple[str, Path], plugin_library: Path) -> None:
    probe = str(Path(__file__).with_name("registry_probe.py"))
    done = subprocess.run(
        [sys.executable, probe, str(plugin_library), json.dumps({"good": GOOD, "bad": [], "versions": VERSIONS})],
        env={**os.environ, "PYTHONPATH": str(lean[1])}, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    for op, table in FIELDS.items():
        fields = json.loads(done.stdout)["ops"][op]["fields"]
        assert fields == {name: field.kind.upper() for name, field in table.items()}


def test_the_contract_is_the_builders_table(plugin_library: Path) -> None:
    """Required fields and standard values, as the library states and hashes them."""
    lines = ask(plugin_library).contract.splitlines()
    for op, table in FIELDS.items():
        start = lines.index(f"op {op} version {VERSIONS[op]}") + 1
        stated = [line.split() for line in lines[start:] if line.startswith("field")][: len(table)]
        for words, (name, field) in zip(stated, table.items(), strict=True):
            assert words[1:3] == [name, field.kind]
            assert (words[3] == "required") == (field.standard is None)


def test_no_symbol_of_tensorrt_is_undefined(plugin_library: Path) -> None:
    undefined = subprocess.run(
        ["nm", "-D", "--undefined-only", str(plugin_library)], capture_output=True, text=True, check=True
    ).stdout
    assert not [line for line in undefined.splitlines() if "nvinfer" in line or "getPluginRegistry" in line]
    defined = subprocess.run(
        ["nm", "-D", "--defined-only", str(plugin_library)], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split()[-1] for line in defined.splitlines()}
    assert {"getCreators", "setLoggerFinder", "trtforge_plugin_abi", "trtforge_plugin_version"} <= names
    assert all(name.startswith("trtforge_plugin_") for name in names - {"getCreators", "setLoggerFinder"})
