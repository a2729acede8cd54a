"""Bundles that cannot be served are refused at once, with what can be done with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.serve import find_repository
from triton_repo.layouts.native import emit
from trtforge.ground.errors import ExitCode, ForgeError


def bundle(root: Path, engine: Any, *files: str) -> Path:
    (root / "engine").mkdir(parents=True)
    (root / "engine" / "engine.json").write_text(json.dumps(engine), encoding="utf-8")
    for name in files:
        path = root / "engine" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x", encoding="utf-8")
    return root


def refused(path: Path) -> ForgeError:
    with pytest.raises(ForgeError) as caught:
        find_repository(path)
    return caught.value


def test_an_rtx_bundle_says_what_it_is_and_where_it_runs(tmp_path: Path) -> None:
    engine = {"target": "tensorrt-rtx", "architectures": ["sm_89"], "tensorrt_rtx": "1.7.1.116"}
    error = refused(bundle(tmp_path / "b", engine, "sm_89.rtx"))
    assert error.code == "TF-LCH-032" and "RTX engines" in error.message
    assert error.numbers["engines"] == ["sm_89.rtx"]
    assert "TensorRT for RTX 1.7.1.116" in error.remedies[0] and "sm_89" in error.remedies[0]


def test_an_engine_that_is_not_compiled_names_its_script(tmp_path: Path) -> None:
    engine = {"target": "trtllm-engine", "compiled": False, "not_compiled": "no GPU here", "tensorrt_llm": "1.2.1"}
    path = bundle(tmp_path / "b", engine, "container.sh", "build.sh")
    (path / "repository").mkdir()
    error = refused(path)
    assert error.code == "TF-LCH-033" and error.exit_code == ExitCode.ENVIRONMENT
    assert "container.sh" in error.remedies[0] and "no GPU here" in str(error.why)


def test_an_engine_that_its_script_compiled_later_is_no_longer_refused_for_that(tmp_path: Path) -> None:
    engine = {"target": "trtllm-engine", "compiled": False}
    path = bundle(tmp_path / "b", engine, "build.sh", "trtllm/config.json")
    assert refused(path).code == "TF-LCH-030", "it has no repository"


@pytest.mark.parametrize("engine", [[], "text", 3, None])
def test_what_is_no_engine_is_no_bundle(tmp_path: Path, engine: Any) -> None:
    assert refused(bundle(tmp_path / "b", engine)).code == "TF-LCH-030"
    assert refused(tmp_path / "absent").code == "TF-LCH-030"


def test_a_native_bundle_is_asked_by_its_own_name(tmp_path: Path) -> None:
    limits = {"max_batch_size": 8, "max_num_tokens": 256, "max_seq_len": 512, "max_input_len": 511}
    path = bundle(tmp_path / "b", {"version": 1, "limits": limits})
    emit(path / "engine", path / "repository", name="zebra", client_names=True)
    assert find_repository(path) == (path / "repository", "zebra")


def test_half_an_rtx_description_is_no_crash(tmp_path: Path) -> None:
    assert refused(bundle(tmp_path / "b", {"target": "tensorrt-rtx"})).code == "TF-LCH-032"
    for number, odd in enumerate((None, 5, True, [], {"a": 1}, "sm_80")):
        engine = {"target": "tensorrt-rtx", "architectures": odd}
        assert refused(bundle(tmp_path / f"b{number}", engine)).code == "TF-LCH-032"


def test_a_record_nested_beyond_reading_is_no_bundle(tmp_path: Path) -> None:
    path = bundle(tmp_path / "b", {})
    (path / "engine" / "engine.json").write_text("[" * 100_000)
    assert refused(path).code == "TF-LCH-030"
