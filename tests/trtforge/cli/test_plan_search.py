"""``trtforge plan``: speed, cost and the search through the parser, and the recipe that it writes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.graphs.build import build_graph
from builder.planner.calibration import calibrate
from tests.builder.planner.models import reference
from tests.support.tiny import write_tiny_llama

Run = Callable[..., tuple[int, str, str]]


def _large(folder: Path, count: str = "4", **changes: Any) -> list[str]:
    """Arguments of a plan of Llama 3.1 70B on four H200, or so many; fewer have fewer points to search."""
    data: dict[str, Any] = {
        "name": "large",
        "model": {"source": "hf:org/model"},
        "quantize": {"format": "fp8", "kv_cache": "fp8"},
        "build": {"target": "trtllm-llmapi", "limits": {"max_batch_size": 64, "max_num_tokens": 4096}},
        "triton": {"layout": "llmapi"},
        **changes,
    }
    (folder / "large.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    sizes = reference()["models"]["meta-llama/Meta-Llama-3.1-70B"]
    (folder / "config.json").write_text(json.dumps(sizes), encoding="utf-8")
    lengths = ["--isl", "1024", "--osl", "256"]
    return ["plan", str(folder / "large.yaml"), "--gpu", "h200", "--count", count, "--config", "config.json", *lengths]


def _tiny(folder: Path) -> Path:
    """A recipe over a checkpoint that is here, for the torch target."""
    write_tiny_llama(folder / "model", max_positions=2048)
    data = {
        "name": "tiny",
        "model": {"source": "model"},
        "build": {"limits": {"max_batch_size": 4, "max_num_tokens": 512, "max_seq_len": 1024}},
        "bench": {"concurrency": [1, 2], "slo": {"ttft_p99": "2s", "itl_p99": "200ms"}},
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


def test_ranges_and_sums_of_the_document(run: Run, tmp_path: Path) -> None:
    code, out, err = run(*_large(tmp_path), "--price", "3.5", "--json")
    assert (code, err) == (0, "")
    sections = json.loads(out)["sections"]
    for level in sections["speed"]["batches"]:
        slow, typical, fast = level["between_tokens"]
        assert slow >= typical >= fast > 0
        assert level["output_tokens_per_second"] == sorted(level["output_tokens_per_second"])
    for step in sections["speed"]["steps"].values():
        for index in range(3):
            assert step["total"][index] == pytest.approx(sum(values[index] for values in step["classes"].values()))
            assert step["total"][index] == pytest.approx(sum(op["seconds"][index] for op in step["ops"]))
    assert sections["speed"]["ops_from"] == "sizes"
    assert sections["cost"]["typical"]["unit"] == "$" and sections["cost"]["typical"]["deployment_hour"] == 14.0
    fitting = [row for row in sections["cost"]["precisions"] if row["fits"]]
    assert {row["weights"] for row in fitting} >= {"fp8", "bfloat16"}
    assert [row["weights"] for row in sections["cost"]["precisions"] if row["weight_only"]] == ["nvfp4"]
    assert len(sections["cost"]["sensitivity"]) >= 8
    assert {row["method"] for row in sections["speculation"]["methods"]} >= {"ngram", "eagle3"}
    assert "search" not in sections


def test_the_report_for_people(run: Run, tmp_path: Path) -> None:
    code, out, _ = run(*_large(tmp_path), "--show", "all")
    assert code == 0
    for text in (
        "to the first token on an idle replica",
        "Where a step's time goes",
        "nvfp4 (weights only)",
        "pays at batches of",
        "GPU-hours",
    ):
        assert text in out


def test_measured_acceptance_and_calibration(run: Run, tmp_path: Path) -> None:
    arguments = _large(tmp_path, speculation={"method": "eagle3", "max_draft_len": 4})
    calibration = calibrate("h200", "timed", [("linear_fp8", 1.0, 1.1), ("linear_fp8", 1.0, 1.2)])
    (tmp_path / "c.json").write_text(json.dumps(calibration.to_json()), encoding="utf-8")
    code, out, _ = run(*arguments, "--acceptance", "0.7", "--calibration", "c.json", "--json")
    sections = json.loads(out)["sections"]
    assert code == 0 and sections["speed"]["calibrated"] == ["linear_fp8"]
    (method,) = sections["speculation"]["methods"]
    assert method["measured"] and method["acceptance"] == [0.7, 0.7]
    assert method["tokens_a_round"][0] == pytest.approx((1 - 0.7**5) / 0.3)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--acceptance", "1.4"], "TF-PLN-050"),
        (["--utilization", "0"], "TF-PLN-055"),
        (["--price", "-2"], "TF-PLN-055"),
        (["--calibration", "absent.json"], "TF-PLN-052"),
        (["--graph", "absent"], "TF-PLN-054"),
    ],
)
def test_refusals(run: Run, tmp_path: Path, options: list[str], code: str) -> None:
    status, out, _ = run(*_large(tmp_path), *options, "--json")
    assert status == 2 and json.loads(out)["error"]["code"] == code


def test_levels_that_nothing_meets_name_what_binds(run: Run, tmp_path: Path) -> None:
    status, out, _ = run(*_large(tmp_path), "--search", "--set", "bench.slo.ttft_p99=5ms", "--json")
    error = json.loads(out)["error"]
    assert status == 1 and error["numbers"]["misses"] == "time to the first token"
    assert error["numbers"]["closest"]["tp"] == 4
    assert error["numbers"]["binding"] in error["numbers"]["shares"]
    assert sum(error["numbers"]["shares"].values()) == pytest.approx(1, abs=1e-3)


def test_a_graph_gives_the_ops(run: Run, tmp_path: Path) -> None:
    recipe = _tiny(tmp_path)
    build_graph(tmp_path / "model", tmp_path / "graph")
    figures = []
    for extra in ([], ["--graph", "graph"]):
        code, out, _ = run("plan", str(recipe), "--gpu", "l4", *extra, "--json")
        assert code == 0
        figures.append(json.loads(out)["sections"]["speed"])
    assert [item["ops_from"] for item in figures] == ["sizes", "graph"]
    for ours, theirs in zip(*(item["batches"] for item in figures), strict=True):
        for name, values in ours.items():
            assert theirs[name] == pytest.approx(values)


def test_the_written_recipe_passes_the_check(run: Run, tmp_path: Path) -> None:
    recipe, out_file = _tiny(tmp_path), tmp_path / "best.yaml"
    plan = ["plan", str(recipe), "--gpu", "l40s", "--count", "2", "--isl", "256", "--osl", "64"]
    code, out, err = run(*plan, "-o", str(out_file), "--json")
    assert (code, err) == (0, "")
    section = json.loads(out)["sections"]["search"]
    best = section["recommended"]
    # the torch target has one rank here, and no speculation: better points were passed over, n-gram was not tried
    assert (best["tp"], best["pp"], best["speculation"]) == (1, 1, "none")
    assert section["considered"] > 900 and section["meeting"] > 0
    written = yaml.safe_load(out_file.read_text(encoding="utf-8"))
    assert written["build"]["limits"]["max_batch_size"] == best["batch"]
    assert written["quantize"]["format"] == ("none" if best["weights"] == "bfloat16" else best["weights"])
    code, out, _ = run("check", str(out_file), "--json")
    assert code == 0 and json.loads(out)["passed"]
    # and the plan of that recipe is the point
    code, out, _ = run("plan", str(out_file), *plan[2:], "--json")
    level = json.loads(out)["sections"]["speed"]["batches"][-1]
    assert code == 0 and level["batch"] == best["batch"]
    assert level["output_tokens_per_second"] == pytest.approx(best["output_tokens_per_second"])


def test_a_model_known_by_its_config_is_checked_too(run: Run, tmp_path: Path) -> None:
    """Lengths over the model's context: every point's recipe is refused by the rule that says so."""
    arguments = _large(tmp_path, build={"target": "trtllm-llmapi", "limits": {"max_seq_len": 262_144}})
    code, out, _ = run(*arguments, "-o", "best.yaml", "--json")
    error = json.loads(out)["error"]
    assert code == 1 and error["code"] == "TF-PLN-058"
    assert any("TF-K9-001" in reason for reason in error["numbers"]["reasons"])
    assert not (tmp_path / "best.yaml").exists()


def test_a_warning_that_every_plan_has_lets_no_other_pass(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Architectures mean nothing to the torch target, whatever the plan; a quantized cache is a choice."""
    recipe = _tiny(tmp_path)
    write_tiny_llama(tmp_path / "model", max_positions=2048, architecture="Qwen2ForCausalLM")
    arguments = ["plan", str(recipe), "--gpu", "l40s", "--isl", "64", "--osl", "16", "--search", "--json"]
    monkeypatch.setattr("trtforge.models.shape.LARGE_KEY_BIAS", 0.01)
    code, out, _ = run(*arguments)
    section = json.loads(out)["sections"]["search"]
    assert code == 0 and section["recommended"]["kv"] == "bfloat16"
    monkeypatch.setattr("trtforge.models.shape.LARGE_KEY_BIAS", 16.0)
    code, out, _ = run(*arguments)
    section = json.loads(out)["sections"]["search"]
    assert code == 0 and section["recommended"]["kv"] == "fp8"


def test_an_existing_file_is_kept(run: Run, tmp_path: Path) -> None:
    recipe, out_file = _tiny(tmp_path), tmp_path / "best.yaml"
    out_file.write_text("mine", encoding="utf-8")
    arguments = ["plan", str(recipe), "--gpu", "l40s", "--isl", "64", "--osl", "16", "-o", str(out_file)]
    code, out, _ = run(*arguments, "--json")
    assert code == 2 and json.loads(out)["error"]["code"] == "TF-RCP-015"
    assert out_file.read_text(encoding="utf-8") == "mine"
    code, out, _ = run(*arguments, "--overwrite", "--quiet")
    assert code == 0 and "recommended: weights" in out and out_file.read_text(encoding="utf-8") != "mine"


def test_the_search_stays_light(tmp_path: Path) -> None:
    arguments = _large(tmp_path)
    arguments[1] = "large.yaml"
    probe = (
        "import sys; from trtforge.cli.main import invoke; "
        f"code = invoke({[*arguments, '--search', '--quiet']!r}); "
        "heavy = {'torch', 'transformers', 'onnx', 'matplotlib', 'modelopt'} & set(sys.modules); "
        "assert code == 0 and not heavy, (code, heavy)"
    )
    done = subprocess.run([sys.executable, "-c", probe], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("card", "arch"), [("b200", "sm_100"), ("a100", "sm_80")])
def test_the_recipe_is_for_the_planned_gpu(run: Run, tmp_path: Path, card: str, arch: str) -> None:
    """Written for Hopper, planned for another: its checks and its formats are the planned GPU's."""
    arguments = _large(tmp_path, "2", build={"target": "trtllm-llmapi", "architectures": ["sm_90"]})
    arguments[arguments.index("h200")] = card
    code, out, _ = run(*arguments, "-o", "best.yaml", "--json")
    section = json.loads(out)["sections"]["search"]
    written = yaml.safe_load((tmp_path / "best.yaml").read_text(encoding="utf-8"))
    assert code == 0 and written["build"]["architectures"] == [arch]
    best = section["recommended"]
    if card == "b200":
        assert best["weights"] == "nvfp4" and not any("sm_90" in reason for reason in section["passed_over"])
    if card == "a100":
        assert (best["weights"] in ("bfloat16", "int4_awq"), best["kv"]) == (True, "bfloat16")
        assert written["quantize"]["kv_cache"] == "none"


def test_a_prefix_that_is_counted_is_switched_on(run: Run, tmp_path: Path) -> None:
    arguments = [*_large(tmp_path, "2"), "--shared-prefix", "512", "-o", "best.yaml", "--quiet"]
    assert run(*arguments)[0] == 0
    assert yaml.safe_load((tmp_path / "best.yaml").read_text(encoding="utf-8"))["build"]["trtllm"]["kv_reuse"] is True
    assert run(*_large(tmp_path, "2"), "-o", "other.yaml", "--quiet")[0] == 0
    assert "trtllm" not in yaml.safe_load((tmp_path / "other.yaml").read_text(encoding="utf-8"))["build"]


@pytest.mark.parametrize(
    "levels",
    [
        ["--set", "bench.slo.itl_p99=1ms"],
        ["--set", "bench.slo.ttft_p99=1ms", "--set", "bench.slo.itl_p99=1ms"],
        ["--set", "bench.slo.itl_p99=50ms", "--rate", "5000"],
    ],
)
def test_the_remedy_of_levels_that_nothing_meets_works(run: Run, tmp_path: Path, levels: list[str]) -> None:
    arguments = [*_large(tmp_path, "2"), "--search", "--json"]
    code, out, _ = run(*arguments, *levels)
    error = json.loads(out)["error"]
    assert code == 1 and error["code"] == "TF-PLN-056"
    assert len(error["numbers"]["missed"]) == error["message"].count(" ms, asked") + error["message"].count(" /s of")
    code, out, _ = run(*arguments, *levels, *error["remedies"][0].split())
    assert code == 0 and json.loads(out)["sections"]["search"]["meeting"] > 0


def test_a_search_counts_with_the_headroom_of_the_fleet(run: Run, tmp_path: Path) -> None:
    code, out, _ = run(*_large(tmp_path, "2"), "--search", "--rate", "4", "--json")
    best = json.loads(out)["sections"]["search"]["recommended"]
    assert code == 0 and best["requests_per_second"][1] >= 4.8


@pytest.mark.parametrize(("target", "tried"), [("trtllm-llmapi", True), ("trtllm-engine", False)])
def test_drafts_that_the_target_does_not_have_are_not_searched(
    run: Run, tmp_path: Path, target: str, tried: bool
) -> None:
    arguments = _large(tmp_path, "2", build={"target": target}, triton={})
    code, out, _ = run(*arguments, "--search", "--goal", "latency", "--json")
    front = json.loads(out)["sections"]["search"]["front"]
    assert code == 0 and ("ngram" in {point["speculation"] for point in front}) == tried


def test_both_choices_stay_inside_the_node(run: Run, tmp_path: Path) -> None:
    arguments = _large(tmp_path)
    arguments[arguments.index("h200")] = "h100-pcie"
    arguments[arguments.index("4")] = "8"
    code, out, _ = run(*arguments, "--goal", "latency", "--search", "--json")
    document = json.loads(out)
    assert code == 0 and document["parallel"]["tp"] == document["sections"]["search"]["recommended"]["tp"] == 8


def test_a_folder_that_lacks_a_checkpoint_says_what_is_missing(run: Run, tmp_path: Path) -> None:
    arguments = _large(tmp_path, "2", model={"source": "sizes"})
    (tmp_path / "sizes").mkdir()
    (tmp_path / "config.json").rename(tmp_path / "sizes" / "config.json")
    at = arguments.index("--config")
    del arguments[at : at + 2]
    code, out, _ = run(*arguments, "-o", "best.yaml", "--json")
    error = json.loads(out)["error"]
    assert code == 1 and error["code"] == "TF-PLN-058" and "tokenizer.json" in error["message"]
    assert any("without -o" in text for text in error["remedies"]) and not (tmp_path / "best.yaml").exists()
    assert run(*arguments, "--search", "--quiet")[0] == 0


def test_an_architecture_that_the_chain_refuses_gets_no_recipe(run: Run, tmp_path: Path) -> None:
    arguments = _large(tmp_path, "2")
    sizes = reference()["models"]["Qwen/Qwen3-30B-A3B"]
    (tmp_path / "config.json").write_text(json.dumps(sizes), encoding="utf-8")
    code, out, _ = run(*arguments, "-o", "best.yaml", "--json")
    error = json.loads(out)["error"]
    assert code == 2 and error["code"] == "TF-SRC-009" and any("without -o" in text for text in error["remedies"])
    assert not (tmp_path / "best.yaml").exists()
    assert run(*arguments, "--search", "--quiet")[0] == 0


def test_a_long_trace_is_searched(run: Run, tmp_path: Path) -> None:
    rows = [f"{100 + index % 977},{20 + index % 331}" for index in range(20_000)]
    (tmp_path / "trace.csv").write_text("\n".join(rows), encoding="utf-8")
    arguments = _large(tmp_path, "2")
    at = arguments.index("--isl")
    code, out, _ = run(*arguments[:at], "--trace", "trace.csv", "--search", "--json")
    assert code == 0 and json.loads(out)["workload"]["kind"] == "trace"
