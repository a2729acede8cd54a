"""``trtforge plan`` through its parser: the report, its JSON, refusals, and that it stays light."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.builder.planner.models import bare, reference
from tests.support.tiny import write_tiny_llama
from trtforge.cli.main import invoke

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRTFORGE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))

    def call(*arguments: str) -> tuple[int, str, str]:
        code = invoke(["plan", *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


def _recipe(folder: Path, name: str = "r.yaml", **changes: Any) -> Path:
    data: dict[str, Any] = {
        "name": name.removesuffix(".yaml"),
        "model": {"source": "hf:org/model"},
        "quantize": {"format": "fp8", "kv_cache": "fp8"},
        "build": {"limits": {"max_batch_size": 64, "max_num_tokens": 4096, "max_seq_len": 4096}},
    }
    for section, values in changes.items():
        data[section] = {**data.get(section, {}), **values}
    path = folder / name
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


def _config(folder: Path, model: str = "meta-llama/Meta-Llama-3.1-70B") -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(reference()["models"][model]), encoding="utf-8")
    return path


def test_the_json_document_adds_up(run: Run, tmp_path: Path) -> None:
    arguments = [str(_recipe(tmp_path)), "--gpu", "h200", "--count", "8", "--config", str(_config(tmp_path))]
    code, out, err = run(
        *arguments, "--isl", "2048", "--osl", "512", "--shared-prefix", "512", "--rate", "20", "--json"
    )
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert document["fits"] and document["count"] == 8 and document["gpu"]["name"] == "h200"
    assert document["replicas"] * document["parallel"]["tp"] * document["parallel"]["pp"] == 8
    memory = document["sections"]["memory"]
    for stage in memory["stages"]:
        assert stage["total"] == sum(term["bytes"] for term in stage["terms"])
        weights = sum(term["bytes"] for term in stage["terms"] if term["kind"] == "weights")
        tensors = sum(row["bytes_on_rank"][stage["stage"]] for row in memory["tensors"])
        assert weights == tensors
    capacity = document["sections"]["capacity"]
    assert capacity["kv_bytes_per_token"] == 163_840 and capacity["context_ceiling"] == 131_072
    assert capacity["prefix_cache"]["saved"] > 0 and capacity["fleet"]["replicas"] >= 1
    assert capacity["requests"]["running"] == 64
    splits = document["sections"]["parallelism"]["splits"]
    assert all(row["valid"] == (not row["reasons"]) for row in splits)
    assert {"latency", "throughput", "fit"} == set(document["sections"]["parallelism"]["recommended"])
    assert len(document["sections"]["disaggregation"]["conditions"]) == 3


def test_the_report_for_people(run: Run, tmp_path: Path) -> None:
    recipe, config = _recipe(tmp_path), _config(tmp_path)
    code, out, _ = run(str(recipe), "--gpu", "h100", "--count", "4", "--config", str(config), "--goal", "latency")
    assert code == 0
    for text in ("Memory of one GPU", "KV pool", "Weights by tensor", "Admission settings", "Impossible splits", "tp4"):
        assert text in out
    assert "note: lengths are assumed" in out and out.rstrip().endswith("r: fits 4 x h100-sxm as tp4 pp1")


def test_a_folder_is_read_by_its_headers(run: Run, tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "tiny")
    quantize = {"format": "none", "kv_cache": "none"}
    recipe = _recipe(tmp_path, model={"source": "tiny"}, quantize=quantize)
    code, out, _ = run(str(recipe), "--gpu", "l4", "--json")
    document = json.loads(out)
    stored = sum(row["bytes"] for row in document["sections"]["memory"]["tensors"])
    assert code == 0 and not any("headers" in note for note in document["notes"])
    assert 0 < stored < (tmp_path / "tiny" / "model.safetensors").stat().st_size


def test_a_mixture_that_nothing_here_builds_can_be_planned(run: Run, tmp_path: Path) -> None:
    config = _config(tmp_path, "deepseek-ai/DeepSeek-V3")
    recipe = _recipe(tmp_path, quantize={"format": "none", "kv_cache": "none"})
    code, out, _ = run(str(recipe), "--gpu", "b200", "--count", "8", "--config", str(config), "--json")
    assert code == 0 and json.loads(out)["sections"]["memory"]["active_parameters"] < 40e9


def test_what_does_not_fit_ends_with_one(run: Run, tmp_path: Path) -> None:
    code, out, _ = run(str(_recipe(tmp_path)), "--gpu", "l4", "--config", str(_config(tmp_path)))
    assert code == 1 and "does not fit: " in out and "does not fit 1 x l4" in out


def test_the_recipes_split_binds(run: Run, tmp_path: Path) -> None:
    config = str(_config(tmp_path))
    recipe = str(_recipe(tmp_path, build={"parallel": {"tp": 2}}))
    code, out, _ = run(recipe, "--gpu", "h200", "--count", "8", "--config", config, "--json")
    assert code == 0 and json.loads(out)["parallel"] == {"tp": 2, "pp": 1, "ep": 1}
    code, out, _ = run(recipe, "--gpu", "h200", "--count", "3", "--config", config, "--json")
    error = json.loads(out)["error"]
    assert code == 2 and error["code"] == "TF-PLN-013" and "do not divide 3" in error["message"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--gpu", "h20"], "TF-PLN-001"),
        (["--gpu", "h200", "--network", "string"], "TF-PLN-002"),
        (["--gpu", "h200", "--count", "0"], "TF-PLN-008"),
        (["--gpu", "h200", "--goal", "beauty"], "TF-CLI-011"),
        (["--gpu", "h200", "--isl", "10", "--lengths", "10+10"], "TF-CLI-012"),
        (["--gpu", "h200", "--rate", "3"], "TF-CLI-012"),
        (["--gpu", "h200", "--lengths", "10x10"], "TF-PLN-005"),
        (["--gpu", "h200", "--isl", "0"], "TF-PLN-005"),
        (["--gpu", "h200", "--isl", "10", "--shared-prefix", "11"], "TF-PLN-005"),
        (["--gpu", "h200", "--trace", "absent.txt"], "TF-PLN-005"),
        (["--gpu", "h200", "--trace", "r.yaml"], "TF-PLN-006"),
        (["--gpu", "h200", "--measured", "much"], "TF-CLI-013"),
        (["--gpu", "h200"], None),
    ],
)
def test_bad_input_has_codes(run: Run, tmp_path: Path, arguments: list[str], expected: str | None) -> None:
    recipe, config = str(_recipe(tmp_path)), str(_config(tmp_path))
    known = ["--config", config] if expected else []
    code, out, err = run(recipe, *arguments, *known, "--json")
    error = json.loads(out)["error"]
    assert code == 2 and error["code"] == (expected or "TF-PLN-009") and error["remedies"] and err == ""


def test_the_gate_on_a_measured_engine(run: Run, tmp_path: Path) -> None:
    arguments = [str(_recipe(tmp_path)), "--gpu", "h200", "--config", str(_config(tmp_path)), "--json"]
    stage = json.loads(run(*arguments)[1])["sections"]["memory"]["stages"][0]
    code, out, _ = run(*arguments, "--measured", f"{stage['total']}B")
    assert code == 0 and json.loads(out)["gate"]["passed"]
    code, out, _ = run(*arguments, "--measured", f"{stage['total'] * 2}B")
    assert code == 1 and json.loads(out)["error"]["code"] == "TF-PLN-010"


def test_several_recipes_share_a_gpu(run: Run, tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "tiny")
    plain = {"format": "none", "kv_cache": "none"}
    first = _recipe(tmp_path, "a.yaml", model={"source": "tiny"}, quantize=plain)
    second = _recipe(tmp_path, "b.yaml", model={"source": "tiny"}, quantize=plain)
    code, out, _ = run(str(first), "--gpu", "l4", "--with", str(second), "--json")
    shared = json.loads(out)["shared_gpu"]
    assert code == 0 and [row["name"] for row in shared] == ["a", "b"]
    assert shared[0]["pool"] == shared[1]["pool"] > 2**30
    assert sum(row["fixed"] + row["pool"] for row in shared) < 23034 * 2**20


def test_the_chart_is_written(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    code, _, _ = run(
        str(_recipe(tmp_path)), "--gpu", "h200", "--config", str(_config(tmp_path)), "--chart", "out/plan.svg", "-q"
    )
    assert code == 0 and "<svg" in (tmp_path / "out" / "plan.svg").read_text(encoding="utf-8")


def test_planning_imports_nothing_heavy(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(bare()), encoding="utf-8")
    program = (
        "import sys; from trtforge.cli.main import invoke; "
        f"code = invoke(['plan', {str(_recipe(tmp_path))!r}, '--gpu', 'h200', '--config', {str(config)!r}, '--json']); "
        "heavy = {'torch', 'transformers', 'onnx', 'matplotlib', 'modelopt'} & set(sys.modules); "
        "sys.exit(code or bool(heavy))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=Path.cwd(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout[-500:]
