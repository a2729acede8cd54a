"""``trtforge stack`` and ``trtforge engine info`` for TensorRT-LLM, as commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from builder.targets.trtllm_engine import target as engine_target
from tests.builder.targets.trtllm.fake_trtllm import write_engine
from tests.builder.targets.trtllm.test_checkpoint import make
from tests.trtforge.cli.test_commands import cli  # noqa: F401 (a fixture)
from trtforge.recipe.schema import Build
from trtforge.stack import check
from trtforge.stack.probe import Loaded


def test_stack_lists_all_or_one(cli: Any) -> None:  # noqa: F811
    assert cli("stack", "--quiet").out == cli("stack", "list", "--quiet").out
    assert cli("stack", "list", "trtllm-1.2.1", "--quiet").out.split() == ["trtllm-1.2.1"]
    shown = cli("stack", "list", "trtllm-1.2.1")
    assert shown.code == 0 and "25.12-trtllm-python-py3" in shown.out and "10.14.1.48" in shown.out
    document = json.loads(cli("stack", "list", "trtllm-1.2.1", "--json").out)
    assert [row["name"] for row in document["rows"]] == ["trtllm-1.2.1"]
    for action in ("list", "check"):
        refused = cli("stack", action, "trtllm-9")
        assert refused.code == 2 and "TF-STK-010" in refused.err


def test_stack_check_shows_what_loads_beside_what_pip_says(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    def ask(component: Any, server: Any) -> Loaded:
        wrong = component.name == "TensorRT"
        version = "10.13.3" if wrong else component.version.lstrip("<>=").split(",")[0]
        return Loaded("1.26.4" if component.name == "numpy" else version, "/lib/x", "10.14.1.48" if wrong else None)

    monkeypatch.setattr(check, "probe", ask)
    done = cli("stack", "check", "trtllm-1.2.1")
    assert done.code == 1
    assert "TF-STK-001: TensorRT 10.13.3 loads from /lib/x, the stack needs 10.14.1.48" in done.out
    assert "TF-STK-003: pip says TensorRT 10.14.1.48, but 10.13.3 loads" in done.out
    pieces = json.loads(cli("stack", "check", "trtllm-1.2.1", "--json").out)["pieces"]
    assert [piece["name"] for piece in pieces if piece["verdict"] != "ok" and piece["findings"]] == ["TensorRT"]
    assert cli("stack", "check", "trt-10.16").code == 1
    monkeypatch.setattr(check, "probe", lambda component, server: Loaded(component.version.lstrip(">=").split(",")[0]))
    assert cli("stack", "check", "trt-10.16", "--quiet").out.strip() == "fits"


def test_engine_info_reads_a_folder_of_trtllm_build(cli: Any, tmp_path: Path) -> None:  # noqa: F811
    write_engine(tmp_path / "engine", ranks=2)
    shown = cli("engine", "info", str(tmp_path / "engine"))
    assert shown.code == 0 and "TensorRT-LLM 1.2.1, 2 ranks" in shown.out
    document = json.loads(cli("engine", "info", str(tmp_path / "engine"), "--json").out)
    assert document["settings"]["max_num_tokens"] == 2048
    (tmp_path / "empty").mkdir()
    refused = cli("engine", "info", str(tmp_path / "empty"))
    assert refused.code == 2 and "TF-BLD-020" in refused.err


def test_engine_info_compares_an_artifact_with_what_was_asked(cli: Any, tmp_path: Path) -> None:  # noqa: F811
    make(tmp_path / "model", "none")
    out = tmp_path / "bundle" / "engine"
    engine_target.build_engine(
        tmp_path / "model", out, name="tiny", build=Build.model_validate({"target": "trtllm-engine"})
    )
    shown = cli("engine", "info", str(tmp_path / "bundle"))
    assert shown.code == 0 and "NOT compiled" in shown.out and "container.sh" in shown.out
    config = json.loads((out / "checkpoint" / "config.json").read_text())
    asked = {"pretrained_config": config, "build_config.max_batch_size": 31}
    write_engine(out / "trtllm", asked)
    different = cli("engine", "info", str(tmp_path / "bundle"))
    assert different.code == 1 and "TF-BLD-063" in different.out
    write_engine(out / "trtllm", {"pretrained_config": config})
    same = cli("engine", "info", str(tmp_path / "bundle"), "--quiet")
    assert same.code == 0 and same.out.strip() == "0 differences from what was asked"
    (out / "checkpoint" / "rank0.safetensors").unlink()
    gone = cli("engine", "info", str(tmp_path / "bundle"), "--quiet")
    assert gone.code == 1 and "files of the engine are gone: checkpoint/rank0.safetensors" in gone.out


@pytest.mark.parametrize(
    ("ranks", "change", "said"),
    [
        ([], {}, "rank0.engine is missing"),
        ([0], {"pretrained_config.mapping": {"world_size": 2, "tp_size": 2}}, "rank1.engine is missing"),
        ([0, 5], {}, "rank5.engine is of no rank"),
        ([0], {"pretrained_config.mapping": {"world_size": 1, "tp_size": 2, "pp_size": 2}}, "makes 4"),
        ([0], {"pretrained_config.mapping": {"world_size": "two"}}, "no count"),
        ([0], {"pretrained_config.mapping": "x"}, "no object"),
        ([0], {"pretrained_config.quantization": "FP8"}, "no object"),
    ],
)
def test_engine_info_fails_on_a_broken_engine(
    cli: Any,  # noqa: F811
    tmp_path: Path,
    ranks: list[int],
    change: dict[str, Any],
    said: str,
) -> None:
    folder = write_engine(tmp_path / "engine", change, ranks=0)
    for rank in ranks:
        (folder / f"rank{rank}.engine").write_bytes(b"plan")
    if not change:
        config = json.loads((folder / "config.json").read_text())
        config["pretrained_config"]["mapping"] = {"world_size": 1, "tp_size": 1, "pp_size": 1}
        (folder / "config.json").write_text(json.dumps(config))
    done = cli("engine", "info", str(folder), "--json")
    assert done.code == 1
    assert any(said in item["message"] for item in json.loads(done.out)["findings"])


def test_engine_info_reports_an_empty_plan(cli: Any, tmp_path: Path) -> None:  # noqa: F811
    (write_engine(tmp_path / "engine") / "rank0.engine").write_bytes(b"")
    done = cli("engine", "info", str(tmp_path / "engine"))
    assert done.code == 1 and "TF-BLD-061" in done.out and "1 fault\n" in done.out
