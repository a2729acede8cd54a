"""``trtforge plan`` through its parser: the report, its JSON, refusals, and that it stays light."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from tests.builder.planner.models import bare, reference
from tests.support.tiny import write_tiny_llama
from tests.trtforge.drafting import checkpoints
from tests.trtforge.drafting.checkpoints import Spec

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(run: Run) -> Run:
    return partial(run, "plan")


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
    code, out, err = run(*arguments, "--isl", "2048", "--osl", "512", "--shared-prefix", "512", "--rate", "4", "--json")
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
    arguments = (str(recipe), "--gpu", "h100", "--count", "4", "--config", str(config), "--goal", "latency")
    code, out, _ = run(*arguments, "--show", "all")
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
    assert code == 1 and "no: " in out and "too much" in out and "does not fit 1 x l4" in out
    code, out, _ = run(
        str(_recipe(tmp_path)), "--gpu", "l4", "--config", str(_config(tmp_path)), "--price", "1", "--show", "all"
    )
    assert code == 1 and "$" not in out and "tokens/s" not in out.split("Parallelism")[0]
    code, out, _ = run(str(_recipe(tmp_path)), "--gpu", "l4", "--config", str(_config(tmp_path)), "--json")
    document = json.loads(out)
    assert document["answer"] == {"fits": False}
    assert not {"speed", "cost", "speculation", "disaggregation"} & set(document["sections"])


def test_the_answer_stands_in_the_first_ten_lines(run: Run, tmp_path: Path) -> None:
    arguments = [str(_recipe(tmp_path)), "--gpu", "h200", "--count", "8", "--config", str(_config(tmp_path))]
    code, out, _ = run(*arguments, "--isl", "1000", "--osl", "200", "--price", "3.5")
    first = "\n".join(out.splitlines()[:10])
    assert code == 0 and len(out.splitlines()) < 20
    for text in ("fits ", "split ", "requests at once", "first token", "between tokens", "output tokens/s", "$"):
        assert text in first
    assert "--show memory,capacity," in out
    code, more, _ = run(*arguments, "--isl", "1000", "--osl", "200", "--show", "speed,cost")
    assert "Where a step's time goes" in more and "Weights by tensor" not in more
    assert run(*arguments, "--show", "speeed")[0] == 2


def test_long_times_keep_their_digits(run: Run, tmp_path: Path) -> None:
    arguments = [str(_recipe(tmp_path)), "--gpu", "l40s", "--count", "8", "--config", str(_config(tmp_path))]
    code, out, _ = run(*arguments, "--isl", "3500", "--osl", "200", "--show", "speed")
    first = next(line for line in out.splitlines() if line.startswith("first token"))
    assert code == 0 and float(first.split()[2].replace(",", "")) >= 1000
    assert "e+" not in out


def test_a_split_that_the_target_does_not_run_is_said(run: Run, tmp_path: Path) -> None:
    arguments = ("--gpu", "h100", "--count", "4", "--config", str(_config(tmp_path)))
    _, out, _ = run(str(_recipe(tmp_path)), *arguments)
    assert "build.target: torch runs one rank" in out and "needs build.target: trtllm-engine or trtllm-llmapi" in out
    _, out, _ = run(str(_recipe(tmp_path, build={"target": "trtllm-engine"})), *arguments)
    assert "runs one rank" not in out


def test_the_answer_s_batch_meets_the_service_levels(run: Run, tmp_path: Path) -> None:
    slo = {"slo": {"ttft_p99": "500ms", "itl_p99": "25ms"}}
    recipe = _recipe(tmp_path, bench=slo, build={"limits": {"max_batch_size": 512, "max_num_tokens": 2048}})
    arguments = [str(recipe), "--gpu", "h100", "--count", "2", "--config", str(_config(tmp_path)), "--json"]
    answer = json.loads(run(*arguments, "--isl", "1000", "--osl", "200")[1])["answer"]
    assert answer["meets_slo"] and answer["between_tokens_p99"][1] <= 0.025 and answer["first_token"][1] <= 0.5


def test_a_checkpoint_in_blocks_is_planned_as_it_is_stored(run: Run, tmp_path: Path) -> None:
    """DeepSeek's FP8 blocks under a recipe that asks for per-tensor FP8: what is stored is what is served."""
    config = _config(tmp_path, "deepseek-ai/DeepSeek-V3")
    stored = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    config.write_text(json.dumps({**json.loads(config.read_text()), "quantization_config": stored}), encoding="utf-8")
    recipe = str(_recipe(tmp_path))
    code, out, _ = run(recipe, "--gpu", "b200", "--count", "8", "--config", str(config), "--json")
    document = json.loads(out)
    assert code == 0 and document["precision"]["weights"] == "fp8_block"
    assert document["sections"]["memory"]["host"]["quantize"] == 0
    assert any("stored in fp8_block and planned so: quantize.format: fp8 is not done" in n for n in document["notes"])
    knee = document["sections"]["speed"]["knee"]
    assert knee is None or knee >= 16, "a knee that somebody would deploy"


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
        (["--gpu", "h20000"], "TF-PLN-001"),
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
        (["--gpu", "h200", "--measured", ""], "TF-CLI-016"),
        (["--gpu", "h200", "--measured", "0"], "TF-CLI-013"),
        (["--gpu", "h200", "--overwrite"], "TF-CLI-012"),
        (["--gpu", "h200", "--isl", "200000"], "TF-PLN-014"),
        (["--gpu", "h200", "--isl", "1000000000000"], "TF-PLN-005"),
        (["--gpu", "h200", "--price", "1e300"], "TF-PLN-055"),
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
    write_tiny_llama(tmp_path / "tiny", max_positions=8192)
    plain = {"format": "none", "kv_cache": "none"}
    first = _recipe(tmp_path, "a.yaml", model={"source": "tiny"}, quantize=plain)
    second = _recipe(tmp_path, "b.yaml", model={"source": "tiny"}, quantize=plain)
    code, out, _ = run(str(first), "--gpu", "l4", "--with", str(second), "--json")
    document = json.loads(out)
    shared = document["shared_gpu"]
    # every section describes what is left beside the other model
    (stage,) = document["sections"]["memory"]["stages"]
    others = [term["bytes"] for term in stage["terms"] if term["name"].startswith("other")]
    assert others == [shared[1]["fixed"] + shared[1]["pool"]]
    assert stage["pool"]["bytes"] == shared[0]["pool"] and stage["fits"]
    assert document["sections"]["capacity"]["requests"]["pool_tokens"] == stage["pool"]["tokens"]
    best = json.loads(run(str(first), "--gpu", "l4", "--with", str(second), "-o", "best.yaml", "--json")[1])
    room = best["sections"]["search"]["recommended"]["room"]
    alone = json.loads(run(str(first), "--gpu", "l4", "--search", "--json")[1])["sections"]["search"]
    assert room < alone["recommended"]["room"]
    written = yaml.safe_load((tmp_path / "best.yaml").read_text(encoding="utf-8"))
    assert written["build"]["kv_cache"]["memory"].endswith("MiB")
    assert code == 0 and [row["name"] for row in shared] == ["a", "b"]
    assert shared[0]["pool"] == shared[1]["pool"] > 2**30
    assert sum(row["fixed"] + row["pool"] for row in shared) < 23034 * 2**20


def test_the_chart_is_written(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    arguments = [str(_recipe(tmp_path)), "--gpu", "h200", "--config", str(_config(tmp_path)), "--json", "--chart"]
    code, _, _ = run(*arguments, "plan.svg")
    chart = tmp_path / "plan.svg"
    assert code == 0 and "<svg" in chart.read_text(encoding="utf-8")
    chart.write_text("precious", encoding="utf-8")
    for target, word in (("plan.svg", "exists"), ("absent/plan.svg", "no folder"), ("plan.png", ".png")):
        code, out, _ = run(*arguments, target)
        error = json.loads(out)["error"]
        assert code == 2 and error["code"] == "TF-PLN-021" and word in error["message"]
    assert chart.read_text(encoding="utf-8") == "precious" and not (tmp_path / "absent").exists()
    code, _, _ = run(*arguments, "plan.svg", "--overwrite")
    assert code == 0 and "<svg" in chart.read_text(encoding="utf-8")


@pytest.mark.parametrize(("option", "code"), [("--chart", "TF-PLN-021"), ("-o", "TF-RCP-015")])
def test_a_full_disk_leaves_no_part_of_a_file(tmp_path: Path, option: str, code: str) -> None:
    pytest.importorskip("matplotlib")
    name = "part.svg" if option == "--chart" else "part.yaml"
    script = (
        "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "from trtforge.cli.main import invoke; import builder.planner.chart, matplotlib.figure; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (128, 128)); "
        f"sys.exit(invoke(['plan', {str(_recipe(tmp_path))!r}, '--gpu', 'h200', {option!r}, {name!r}, "
        f"'--config', {str(_config(tmp_path))!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and code in done.stderr, done.stderr
    assert not [path.name for path in tmp_path.iterdir() if "part" in path.name]


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


@pytest.mark.parametrize(("rate", "count", "code"), [("20", "1", 1), ("20", "4", 0), ("9", "1", 0)])
def test_a_fleet_that_is_too_small_ends_with_one(run: Run, tmp_path: Path, rate: str, count: str, code: int) -> None:
    """Speed, the fleet and the search judge a rate by the same figures."""
    config = str(_config(tmp_path, "meta-llama/Meta-Llama-3.1-8B"))
    recipe = str(_recipe(tmp_path, bench={"slo": {"ttft_p99": "1s", "itl_p99": "50ms"}}))
    load = ["--isl", "2048", "--osl", "512", "--rate", rate]
    status, out, _ = run(recipe, "--gpu", "h200", "--count", count, "--config", config, *load, "--json")
    document = json.loads(out)
    fleet = document["sections"]["capacity"]["fleet"]
    assert (status, fleet["enough"], bool(document["missed"])) == (code, code == 0, code == 1)
    speed = document["sections"]["speed"]["batches"][-1]
    assert fleet["typical"]["requests"] * int(count) == pytest.approx(speed["requests_per_second"][1])
    assert fleet["replicas"] == -(-float(rate) * 1.2 // fleet["typical"]["requests"])
    assert fleet["slow"]["replicas"] >= fleet["replicas"]


def test_a_tight_level_needs_more_replicas(run: Run, tmp_path: Path) -> None:
    config = str(_config(tmp_path, "meta-llama/Meta-Llama-3.1-8B"))
    needs = []
    for level in ("200ms", "25ms", "1ms"):
        recipe = str(_recipe(tmp_path, bench={"slo": {"itl_p99": level}}))
        load = ["--isl", "2048", "--osl", "512", "--rate", "9", "--json"]
        fleet = json.loads(run(recipe, "--gpu", "h200", "--config", config, *load)[1])["sections"]["capacity"]["fleet"]
        needs.append(fleet["replicas"])
    assert needs[0] < needs[1] and needs[2] is None


def test_lengths_over_the_recipes_limit_are_not_served(run: Run, tmp_path: Path) -> None:
    arguments = [str(_recipe(tmp_path)), "--gpu", "h200", "--count", "4", "--config", str(_config(tmp_path))]
    code, out, _ = run(*arguments, "--isl", "5000", "--osl", "100")
    assert code == 1 and "exceed max_seq_len 4,096" in out and "does not serve the load" in out
    code, _, _ = run(*arguments, "--isl", "5000", "--osl", "100", "--set", "build.limits.max_seq_len=5100")
    assert code == 0


def test_prefill_is_one_figure_everywhere(run: Run, tmp_path: Path) -> None:
    config = str(_config(tmp_path, "Qwen/Qwen3-30B-A3B"))
    (tmp_path / "c.json").write_text(
        json.dumps({"version": 1, "gpu": "H200-SXM", "source": "t", "ratios": {"experts": {"ratio": 3.0}}}),
        encoding="utf-8",
    )
    found = []
    for extra in ([], ["--calibration", "c.json"]):
        code, out, _ = run(
            str(_recipe(tmp_path)), "--gpu", "h200", "--count", "2", "--config", config, "--json", *extra
        )
        sections = json.loads(out)["sections"]
        assert code == 0
        assert sections["disaggregation"]["recompute"] == pytest.approx(sections["speed"]["first_token_idle"][1])
        found.append(sections["disaggregation"]["recompute"])
    assert found[1] > found[0]


@pytest.mark.parametrize("price", ["0", "3.5"])
def test_a_price_of_nothing_has_a_sensitivity(run: Run, tmp_path: Path, price: str) -> None:
    arguments = [str(_recipe(tmp_path)), "--gpu", "h200", "--config", str(_config(tmp_path)), "--json"]
    code, out, _ = run(*arguments, "--price", price)
    rows = json.loads(out)["sections"]["cost"]["sensitivity"]
    assert code == 0 and all(row["ratio"] > 0 for row in rows)


def test_the_prefix_cache_that_the_recipe_leaves_off_is_named(run: Run, tmp_path: Path) -> None:
    recipe = str(_recipe(tmp_path, build={"target": "trtllm-llmapi"}))
    arguments = [recipe, "--gpu", "h200", "--count", "2", "--config", str(_config(tmp_path))]
    load = ["--isl", "2048", "--osl", "128", "--shared-prefix", "1024"]
    code, out, _ = run(*arguments, *load)
    assert code == 0 and "build.trtllm.kv_reuse=true" in out
    assert "kv_reuse" not in run(*arguments, *load, "--set", "build.trtllm.kv_reuse=true")[1]


def test_an_eagle3_head_counts_in_memory_and_in_time(run: Run, tmp_path: Path) -> None:
    """One layer's cache a token in the target's element type, the head's tables, and the lengths that pay."""
    spec = Spec("specforge", target_width=4096, own_embedding=False)
    sizes = {"WIDTH": 4096, "FFN": 64, "HEADS": 32, "KV_HEADS": 8, "SIZE": 128, "VOCAB": 512, "DRAFT_VOCAB": 128}
    with patch.multiple(checkpoints, **sizes):
        head = checkpoints.write(tmp_path / "head", spec)
    speculation = {"method": "eagle3", "draft": str(head), "max_draft_len": 4}
    recipe, config = _recipe(tmp_path, speculation=speculation), _config(tmp_path, "meta-llama/Meta-Llama-3.1-8B")
    given = ("--gpu", "h200", "--count", "1", "--config", str(config), "--acceptance", "0.7", "--json")
    _, out, _ = run(str(recipe), *given)
    document = json.loads(out)
    (memory,) = document["sections"]["memory"]["stages"]
    terms = {term["kind"]: term for term in memory["terms"]}
    assert terms["draft"]["bytes"] > 0
    assert "+ 4,096 of the draft" in terms["kv"]["formula"]
    (method,) = document["sections"]["speculation"]["methods"]
    assert method["best_length_one"][0] >= 4
    assert method["best_length_running"][0] <= method["best_length_one"][0]
    assert method["speedup_one"][0] > 1.5
