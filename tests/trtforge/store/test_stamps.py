"""Stamps: each mismatch between a bundle and a machine has its own finding, error or warning by what it would do."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from trtforge.ground.hashing import hash_bytes
from trtforge.machine.gpus import Gpu
from trtforge.machine.processor import Processor, processor
from trtforge.machine.record import Machine
from trtforge.store.artifact import Artifact, GateResult, StageResult
from trtforge.store.made_on import machine_stamps
from trtforge.store.stamps import Loader, check_stamps, loader_here
from trtforge.store.store import Store
from trtforge.store.verify import verify_bundle

TOKENIZER = b'{"a tokenizer": 1}'
STAMPS: dict[str, Any] = {
    "target": "torch",
    "isa": ["avx2", "avx512f"],
    "gpu_architectures": [],
    "host_abi": 1,
    "ops_version": 1,
    "triton": "2.51.0",
    "numpy": ">=1.26,<2",
    "python": ">=3.11,<3.13",
    "tokenizer_sha256": hash_bytes(TOKENIZER),
}
MADE_ON = {"arch": "x86_64", "isa": ["avx2", "avx512f", "fma"], "plugin_library_sha256": "a" * 64}
HERE = Loader(
    machine=Machine(
        memory_total=24 << 30,
        memory_available=20 << 30,
        cores=2,
        arch="x86_64",
        python="3.11",
        processor=Processor("x", frozenset({"avx2", "fma", "avx512f"})),
        gpus=(Gpu("NVIDIA H100 80GB HBM3", 80 << 30, "sm_90"),),
    ),
    numpy="1.26.4",
    host_abi=1,
    plugin_library_sha256="a" * 64,
)


def elsewhere(loader: Loader = HERE, *, isa: tuple[str, ...] | None = None, **changes: Any) -> Loader:
    """``loader`` with changes of itself or of its machine."""
    if isa is not None:
        changes["processor"] = Processor("y", frozenset(isa))
    of_machine = {name: changes.pop(name) for name in [*changes] if name in {item.name for item in fields(Machine)}}
    return replace(loader, machine=replace(loader.machine, **of_machine), **changes)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "tokenizer.json").write_bytes(TOKENIZER)
    return tmp_path


def findings(root: Path, here: Loader = HERE, **stamps: Any) -> list[tuple[str, str]]:
    manifest = {"stamps": {**STAMPS, **stamps}, "machine": MADE_ON}
    return [(f.code, f.severity) for f in check_stamps(root, manifest, here)]


def test_the_machine_that_made_it_fits(root: Path) -> None:
    assert findings(root) == []


@pytest.mark.parametrize(
    ("here", "stamps", "expected"),
    [
        ({"arch": "aarch64"}, {}, ("TF-BND-020", "warning")),
        ({"arch": "aarch64"}, {"target": "tensorrt"}, ("TF-BND-020", "error")),
        ({"isa": ("avx2", "fma")}, {}, ("TF-BND-021", "warning")),
        ({"python": "3.10"}, {}, ("TF-BND-022", "error")),
        ({"host_abi": 2}, {}, ("TF-BND-023", "error")),
        ({}, {"ops_version": 9}, ("TF-BND-024", "error")),
        ({"numpy": "2.1.0"}, {}, ("TF-BND-025", "error")),
        ({"numpy": None}, {}, ("TF-BND-025", "error")),
        ({}, {"tokenizer_sha256": "0" * 64}, ("TF-BND-026", "error")),
        ({}, {"target": "tensorrt", "gpu_architectures": ["sm_89"]}, ("TF-BND-027", "error")),
        ({"plugin_library_sha256": "b" * 64}, {}, ("TF-BND-028", "warning")),
        ({"host_abi": None, "plugin_library_sha256": None}, {}, ("TF-BND-029", "warning")),
    ],
)
def test_each_mismatch(root: Path, here: dict[str, Any], stamps: dict[str, Any], expected: tuple[str, str]) -> None:
    assert findings(root, elsewhere(**here), **stamps) == [expected]


def test_an_older_abi_of_the_same_ops_does(root: Path) -> None:
    """Only how arguments are handed over has changed between the two, and library and package agree about that."""
    assert findings(root, replace(HERE, host_abi=4), host_abi=3) == []


def test_matching_gpu_of_a_compiled_engine(root: Path) -> None:
    assert findings(root, target="tensorrt", gpu_architectures=["sm_90", "sm_89"], host_abi=None) == []


def test_artifacts_without_stamps_have_no_findings(root: Path) -> None:
    assert check_stamps(root, {"stamps": {}, "machine": MADE_ON}, HERE) == []


def test_this_machine_and_its_stamps() -> None:
    here = loader_here()
    stamps = machine_stamps()
    assert (stamps["arch"], stamps["python"]) == (here.machine.arch, here.machine.python)
    assert tuple(stamps["isa"]) == here.machine.processor.isa == processor().isa
    assert here.numpy is not None
    assert stamps["plugin_library_sha256"] == here.plugin_library_sha256


def publish(store: Store, gate: bool = True) -> Artifact:
    out = store.begin("bundle", "a" * 64)
    (out / "engine").mkdir()
    (out / "engine" / "tokenizer.json").write_bytes(TOKENIZER)
    result = StageResult(stamps=STAMPS, gates=[GateResult("g", gate, 1.0, 1.0, "detail")])
    return store.publish(out, stage="bundle", key="a" * 64, ingredients={}, inputs={}, result=result, seconds=0)


def test_verify_checks_content_first_then_stamps(tmp_path: Path) -> None:
    bundle = publish(Store(tmp_path, durable=False)).path
    other = elsewhere(python="3.9")
    assert [f.code for f in verify_bundle(bundle, loader=other).findings if f.severity == "error"] == ["TF-BND-022"]
    assert verify_bundle(bundle, loader=other, stamps=False).ok
    (bundle / "engine" / "tokenizer.json").write_bytes(TOKENIZER[::-1])
    assert [f.code for f in verify_bundle(bundle, loader=other).findings] == ["TF-BND-005"]


def test_a_kept_failure_does_not_verify(tmp_path: Path) -> None:
    report = verify_bundle(publish(Store(tmp_path, durable=False), gate=False).path, stamps=False)
    assert [f.code for f in report.findings] == ["TF-BND-010"]
    assert not report.ok
