"""A bundle's stack against what is loaded, and an engine that was compiled after the bundle was sealed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.trtforge.store.test_stamps import HERE, MADE_ON, TOKENIZER, elsewhere
from trtforge.ground.hashing import hash_bytes
from trtforge.machine.gpus import Gpu
from trtforge.stack.probe import Loaded
from trtforge.store.artifact import StageResult
from trtforge.store.stamps import UNSERVABLE, Loader, check_stamps, unservable
from trtforge.store.store import Store
from trtforge.store.verify import verify_bundle
from trtforge.tables import Component, stack_table

ROW = stack_table().row("trtllm-1.2.1")
assert ROW is not None
STAMPS: dict[str, Any] = {
    "target": "trtllm-engine",
    "compiled": False,
    "isa": [],
    "stack": ROW.name,
    "serves_with": [item.model_dump(exclude_none=True) for item in ROW.components if item.serving],
    "gpu_architectures": ["sm_89"],
    "tokenizer_sha256": hash_bytes(TOKENIZER),
}


def machine(change: dict[str, Loaded] | None = None) -> Loader:
    """A machine that loads exactly the stack, but for ``change``."""

    def ask(component: Component) -> Loaded:
        exact = Loaded(component.version.lstrip(">="), "/opt/x", None)
        return (change or {}).get(component.name, exact)

    return replace(HERE, ask=ask)


def findings(tmp_path: Path, here: Loader, **stamps: Any) -> list[tuple[str, str]]:
    (tmp_path / "engine").mkdir(exist_ok=True)
    (tmp_path / "engine" / "tokenizer.json").write_bytes(TOKENIZER)
    manifest = {"stamps": {**STAMPS, **stamps}, "machine": MADE_ON}
    return [(f.code, f.severity) for f in check_stamps(tmp_path, manifest, here)]


def test_the_loaded_stack_fits(tmp_path: Path) -> None:
    assert findings(tmp_path, machine()) == []


@pytest.mark.parametrize(
    ("name", "loaded", "expected"),
    [
        ("TensorRT", Loaded("10.13.3.9", "/wheel", None), [("TF-BND-031", "error")]),
        ("TensorRT-LLM", Loaded("1.3.0rc22", "/x", None), [("TF-BND-031", "error")]),
        ("tritonserver", Loaded("26.03", "/x", None), [("TF-BND-031", "error")]),
        ("driver", Loaded("470.82", "/x", None), [("TF-BND-031", "warning")]),
        ("CUDA", Loaded(None), [("TF-BND-032", "warning")]),
        ("TensorRT", Loaded("10.14.1.48", "/lib", "10.13.3.9"), [("TF-BND-033", "warning")]),
    ],
)
def test_what_loads_decides_not_what_pip_says(
    tmp_path: Path, name: str, loaded: Loaded, expected: list[tuple[str, str]]
) -> None:
    assert findings(tmp_path, machine({name: loaded})) == expected


def test_a_bundle_without_an_engine_is_bound_to_no_gpu_and_no_processor(tmp_path: Path) -> None:
    here = elsewhere(machine(), gpus=(), arch="aarch64")
    assert findings(tmp_path, here) == [("TF-BND-020", "warning")]
    assert findings(tmp_path, here, compiled=True) == [("TF-BND-020", "warning"), ("TF-BND-027", "warning")]
    other = elsewhere(machine(), gpus=(Gpu("T4", 16 << 30, "sm_75"),), arch="aarch64")
    assert findings(tmp_path, other, compiled=True) == [("TF-BND-020", "error"), ("TF-BND-027", "error")]


@pytest.mark.parametrize("target", ["tensorrt", "tensorrt-rtx", "trtllm-engine", "trtllm-llmapi"])
def test_without_a_gpu_a_sound_bundle_is_a_warning_that_serving_refuses(tmp_path: Path, target: str) -> None:
    here = elsewhere(machine({"TensorRT": Loaded("9.0", "/x", None), "CUDA": Loaded(None)}), gpus=())
    stamps = {**STAMPS, "target": target, "compiled": True, "plugin_abi": "0" * 16}
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "tokenizer.json").write_bytes(TOKENIZER)
    manifest = {"stamps": stamps, "machine": MADE_ON}
    found = check_stamps(tmp_path, manifest, here)
    assert {item.severity for item in found} == {"warning"}
    stopped = {item.code for item in unservable(manifest, found)}
    assert {"TF-BND-031", "TF-BND-032", "TF-BND-034"} <= stopped <= UNSERVABLE
    damaged = {**manifest, "stamps": {**stamps, "tokenizer_sha256": "0" * 64}}
    assert "error" in {item.severity for item in check_stamps(tmp_path, damaged, here)}


def test_a_bundle_of_the_torch_target_is_served_on_another_processor(tmp_path: Path) -> None:
    manifest = {"stamps": {"target": "torch"}, "machine": MADE_ON}
    found = check_stamps(tmp_path, manifest, elsewhere(machine(), arch="aarch64"))
    assert [item.code for item in found] == ["TF-BND-020"] and unservable(manifest, found) == []


def test_an_engine_built_by_the_bundle_s_own_script_is_no_foreign_file(tmp_path: Path) -> None:
    store = Store(tmp_path, durable=False)
    out = store.begin("bundle", "a" * 64)
    (out / "engine").mkdir()
    (out / "engine" / "tokenizer.json").write_bytes(TOKENIZER)
    result = StageResult(stamps=STAMPS)
    bundle = store.publish(out, stage="bundle", key="a" * 64, ingredients={}, inputs={}, result=result, seconds=0).path
    (bundle / "engine" / "trtllm").mkdir()
    (bundle / "engine" / "trtllm" / "rank0.engine").write_bytes(b"plan")
    report = verify_bundle(bundle, loader=machine())
    assert report.ok and [f.code for f in report.findings] == ["TF-BND-030"]
    (bundle / "engine" / "other.so").write_bytes(b"?")
    report = verify_bundle(bundle, loader=machine())
    assert not report.ok and sorted(f.code for f in report.findings) == ["TF-BND-006", "TF-BND-030"]
