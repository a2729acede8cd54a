"""The trtllm-engine target: scripts where nothing can be compiled, trtllm-build in place where it can."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from builder.targets import engine_info, read_engine
from builder.targets.trtllm.runner import why_not_here
from builder.targets.trtllm_engine import target as engine_target
from tests.builder.targets.trtllm.deshard import load_ranks
from tests.builder.targets.trtllm.fake_trtllm import install, program
from tests.builder.targets.trtllm.test_checkpoint import make
from tests.support.nvml import H100, show
from trtforge.ground.errors import ForgeError
from trtforge.recipe.schema import Build, Speculation

BUILD = {"target": "trtllm-engine", "limits": {"max_batch_size": 4, "max_num_tokens": 256, "max_seq_len": 768}}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint") / "model"
    make(folder, "fp8")
    return folder


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine that has TensorRT-LLM and a GPU, as far as our code can see."""
    environment = install(tmp_path / "machine")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(environment["PYTHONPATH"])
    show(monkeypatch, H100)
    yield tmp_path / "machine"


def build(checkpoint: Path, out: Path, change: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    return engine_target.build_engine(
        checkpoint, out, name="tiny", build=Build.model_validate({**BUILD, **(change or {})}), **options
    )


def test_without_tensorrt_llm_nothing_is_pretended(checkpoint: Path, tmp_path: Path) -> None:
    engine = build(checkpoint, tmp_path / "out", {"parallel": {"tp": 2}})
    out = tmp_path / "out"
    assert engine["compiled"] is False and "not installed" in engine["not_compiled"]
    assert not (out / "trtllm").exists() and not list(out.glob("*.engine"))
    assert engine == read_engine(out)
    assert engine["stack"] == "trtllm-1.2.1" and engine["tensorrt_llm"] == "1.2.1"
    config, ranks = load_ranks(out / "checkpoint")
    assert len(ranks) == 2 and config["mapping"]["tp_size"] == 2
    assert (out / "tokenizer.json").is_file()
    assert os.access(out / "build.sh", os.X_OK) and os.access(out / "container.sh", os.X_OK)
    info = engine_info(out)
    assert info["engine"] is None and info["findings"] == []


def test_build_sh_compiles_what_engine_json_says(checkpoint: Path, tmp_path: Path) -> None:
    """Run for real against a stand-in for the command; then the artifact's engine is read back and compared."""
    out = tmp_path / "an out"  # with a blank
    build(checkpoint, out, {"trtllm": {"lora": {"max_rank": 4, "target_modules": ["attn_q"]}}})
    environment = {**os.environ, **install(tmp_path / "machine")}
    done = subprocess.run(["sh", str(out / "build.sh")], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (out / "trtllm").iterdir()) == ["config.json", "model.cache", "rank0.engine"]
    info = engine_info(out)
    assert info["findings"] == [] and info["engine"]["settings"]["max_batch_size"] == 4
    assert info["engine"]["settings"]["lora_target_modules"] == ["attn_q"]
    assert info["compiled"] is False  # of what was published; the engine came later
    again = subprocess.run(["sh", str(out / "build.sh")], env=environment, capture_output=True, text=True, check=False)
    assert again.returncode == 2 and "holds an engine already" in again.stderr


@pytest.mark.parametrize(("version", "fail", "code"), [("1.3.0", "", 3), ("1.2.1", "1", 7)])
def test_build_sh_refuses_another_version_and_leaves_no_half_engine(
    checkpoint: Path, tmp_path: Path, version: str, fail: str, code: int
) -> None:
    build(checkpoint, tmp_path / "out")
    environment = {**os.environ, **install(tmp_path / "machine", version), "FAKE_FAIL": fail}
    command = ["sh", str(tmp_path / "out" / "build.sh"), str(tmp_path / "engine")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    left = list((tmp_path / "engine").rglob("*")) if (tmp_path / "engine").exists() else []
    assert left == []
    if code == 3:
        assert "needs TensorRT-LLM 1.2.1, found 1.3.0" in done.stderr


def test_build_sh_without_tensorrt_llm_says_so(checkpoint: Path, tmp_path: Path) -> None:
    build(checkpoint, tmp_path / "out")
    done = subprocess.run(["sh", str(tmp_path / "out" / "build.sh")], capture_output=True, text=True, check=False)
    assert done.returncode == 3 and "No module named 'tensorrt_llm'" in done.stderr
    assert not (tmp_path / "out" / "trtllm").exists()


def test_a_package_that_does_not_import_is_told_by_its_error(checkpoint: Path, tmp_path: Path, installed: Path) -> None:
    """By build.sh, and by a build in place, which then writes scripts."""
    package = installed / "packages" / "tensorrt_llm" / "__init__.py"
    package.write_text("print('[TensorRT-LLM] loading', end='')\nraise ImportError('libnvinfer.so.10: not found')\n")
    reason = str(why_not_here("1.2.1"))
    assert "libnvinfer.so.10: not found" in reason and "cannot be imported" in reason
    assert build(checkpoint, tmp_path / "out")["not_compiled"] == reason
    done = subprocess.run(["sh", str(tmp_path / "out" / "build.sh")], capture_output=True, text=True, check=False)
    assert done.returncode == 3 and "libnvinfer.so.10: not found" in done.stderr
    assert "needs TensorRT-LLM 1.2.1, and importing it failed" in done.stderr


def test_container_sh_has_no_network_and_mounts_the_checkpoint_read_only(checkpoint: Path, tmp_path: Path) -> None:
    build(checkpoint, tmp_path / "out")
    programs = tmp_path / "bin"
    programs.mkdir()
    program(programs / "docker", '#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    command = ["sh", str(tmp_path / "out" / "container.sh"), str(tmp_path / "engine")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    words = done.stdout.splitlines()
    assert words[words.index("--network") + 1] == "none"
    assert words[words.index("--cap-drop") + 1] == "ALL"
    assert words[words.index("--user") + 1] == f"{os.getuid()}:{os.getgid()}"
    assert {"USER=trtforge", "HOME=/tmp"} <= set(words)  # a user without an entry in the image's passwd
    mounts = [words[place + 1] for place, word in enumerate(words) if word == "--mount"]
    assert mounts == [
        f"type=bind,src={tmp_path / 'out'},dst=/engine,readonly",
        f"type=bind,src={tmp_path / 'engine'},dst=/out",
    ]
    assert words[-4:] == ["nvcr.io/nvidia/tritonserver:25.12-trtllm-python-py3", "sh", "/engine/build.sh", "/out"]


def test_in_place_the_engine_is_compiled_read_back_and_logged(
    checkpoint: Path, tmp_path: Path, installed: Path
) -> None:
    assert why_not_here("1.2.1") is None
    cache = tmp_path / "kernels.cache"
    cache.write_bytes(b"earlier timings")
    engine = build(checkpoint, tmp_path / "out", {"parallel": {"tp": 2, "pp": 3}}, timing_cache=cache)
    out = tmp_path / "out"
    assert engine["compiled"] is True and engine["not_compiled"] is None
    assert len(list((out / "trtllm").glob("rank*.engine"))) == 6
    log = (out / "build.log").read_text()
    words = json.loads(log.splitlines()[0].removeprefix("args "))
    assert words[words.index("--input_timing_cache") + 1] == str(out / "timing.cache")
    assert (out / "model.cache").read_bytes() == b"timings"
    assert engine_info(out)["findings"] == []


def test_a_failed_build_in_place_is_told_by_its_last_lines(
    checkpoint: Path, tmp_path: Path, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FAIL", "1")
    with pytest.raises(ForgeError) as caught:
        build(checkpoint, tmp_path / "out")
    assert caught.value.code == "TF-BLD-051" and "out of memory, 12 GiB" in str(caught.value.why)
    assert caught.value.numbers == {"exit_code": 7}
    assert not (tmp_path / "out" / "trtllm").exists() and not (tmp_path / "out" / "engine.json").exists()


def test_an_engine_that_ignores_a_setting_is_refused(
    checkpoint: Path, tmp_path: Path, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_BATCH", "2")
    with pytest.raises(ForgeError) as caught:
        build(checkpoint, tmp_path / "out")
    assert caught.value.code == "TF-BLD-052"
    assert [item["code"] for item in caught.value.numbers["findings"]] == ["TF-BLD-063"]


def drafted(checkpoint: Path, out: Path, draft: Path | None, **change: Any) -> dict[str, Any]:
    spoken = Speculation(method="draft_target", draft="draft", max_draft_len=4)
    return build(checkpoint, out, {"trtllm": {"kv_reuse": True}, **change}, speculation=spoken, draft=draft)


def test_a_draft_model_is_an_engine_of_its_own(checkpoint: Path, tmp_path: Path) -> None:
    draft, out = tmp_path / "draft", tmp_path / "out"
    make(draft, "none", layers=1)
    engine = drafted(checkpoint, out, draft, parallel={"tp": 2})
    own = read_engine(out / "draft")
    assert engine["draft"] == own and own["parallel"]["world_size"] == 1 and own["limits"] == engine["limits"]
    assert own["settings"]["speculative_decoding_mode"] is None and own["quant_format"] == "none"
    words = engine["arguments"]
    assert words[words.index("--speculative_decoding_mode") + 1] == "draft_tokens_external"
    assert words[words.index("--max_draft_len") + 1] == "4"
    assert {"build.sh", "container.sh", "draft/build.sh", "draft/container.sh"} == set(engine["scripts"])
    assert len(load_ranks(out / "draft" / "checkpoint")[1]) == 1 and len(load_ranks(out / "checkpoint")[1]) == 2
    environment = {**os.environ, **install(tmp_path / "machine")}
    for name in ("build.sh", "draft/build.sh"):
        subprocess.run(["sh", str(out / name)], env=environment, capture_output=True, check=True)
    info = engine_info(out)
    assert info["findings"] == [] and info["draft"]["engine"]["ranks"] == {"0": len("plan of rank 0")}
    (out / "draft" / "trtllm" / "rank0.engine").unlink()
    assert [item["message"] for item in engine_info(out)["findings"]] == ["draft: rank0.engine is missing"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"vocab": 512}, "512 tokens, the target 515"),
        ({"max_positions": 512}, "512 positions, build.limits.max_seq_len is 768"),
        (None, "read from a directory"),
    ],
)
def test_a_draft_that_is_no_pair_is_refused(
    checkpoint: Path, tmp_path: Path, options: dict[str, Any] | None, says: str
) -> None:
    if options is not None:
        make(tmp_path / "draft", "none", layers=1, **options)
    with pytest.raises(ForgeError, match=says) as caught:
        drafted(checkpoint, tmp_path / "out", tmp_path / "draft" if options is not None else None)
    assert caught.value.code == "TF-BLD-068" and not (tmp_path / "out" / "engine.json").exists()


def test_why_not_here_names_what_is_missing(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "is not the stack's 1.2.0" in str(why_not_here("1.2.0"))
    show(monkeypatch)
    assert "no GPU" in str(why_not_here("1.2.1"))
    (installed / "bin" / "trtllm-build").unlink()
    assert "not installed" in str(why_not_here("1.2.1"))


def test_converted_ranks_survive_a_kill(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"

    def die(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine_target, "copy_tokenizer", die)
        patch.setattr(engine_target.shutil, "move", die)
        with pytest.raises(KeyboardInterrupt):
            build(checkpoint, tmp_path / "one", {"parallel": {"tp": 2}}, scratch=scratch)
    kept = {path.name: path.stat().st_ino for path in (scratch / "checkpoint").glob("rank*")}
    assert len(kept) == 2
    build(checkpoint, tmp_path / "two", {"parallel": {"tp": 2}}, scratch=scratch)
    assert {path.name: path.stat().st_ino for path in (tmp_path / "two" / "checkpoint").glob("rank*")} == kept


@pytest.mark.parametrize(
    ("change", "options", "code"),
    [
        ({"parallel": {"ep": 2}}, {}, "TF-BLD-036"),
        ({"parallel": {"tp": 3}}, {}, "TF-BLD-034"),
        ({}, {"speculation": Speculation(method="eagle", max_draft_len=63)}, "TF-BLD-037"),
        ({}, {"speculation": Speculation(method="medusa", max_draft_len=3)}, "TF-BLD-038"),
        ({}, {"speculation": Speculation(method="ngram", max_draft_len=3)}, "TF-BLD-041"),
        ({}, {"stack": "trtllm-1.3"}, "TF-BLD-043"),
        ({}, {"stack": "torch-2.13"}, "TF-BLD-043"),
        ({}, {"stack": "no-such"}, "TF-BLD-043"),
    ],
)
def test_what_cannot_be_built_is_refused(
    checkpoint: Path, tmp_path: Path, change: dict[str, Any], options: dict[str, Any], code: str
) -> None:
    with pytest.raises(ForgeError) as caught:
        build(checkpoint, tmp_path / "out", change, **options)
    assert caught.value.code == code and caught.value.remedies
    assert not (tmp_path / "out" / "engine.json").exists()
