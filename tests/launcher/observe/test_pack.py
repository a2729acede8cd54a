"""The pack of a monitoring system: every name is on a page, rules say what they should, whole files or none."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.observe.emit import write_pack
from launcher.observe.pack import BOARD, COUNTERS, PROMETHEUS, RULES, Places, pack
from runtime.engine import EngineCore
from tests.support.simulation import SimulatedExecutor
from trtforge.cli.app import invoke
from trtforge.ground.errors import ForgeError
from trtforge.recipe.load import recipe_from_mapping
from trtforge.recipe.schema import Recipe

ROOT = Path(__file__).resolve().parents[3]
TARGETS = {"native": "torch", "inflight_batcher_llm": "trtllm-engine", "llmapi": "trtllm-llmapi"}
NAME = re.compile(r"\b(?:trtforge|trtllm|nv|DCGM_FI)_\w+")
GPU = Places("h:8002", "h:9400")
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (apt-get install prometheus)"
)


def recipe(layout: str = "native", slo: bool = True, target: str = "") -> Recipe:
    data: dict[str, Any] = {
        "name": "tiny",
        "model": {"source": "m"},
        "build": {"target": target or TARGETS[layout]},
        "triton": {"layout": layout},
    }
    if slo:
        data["bench"] = {"slo": {"ttft_p99": "2s", "itl_p99": "200ms"}}
    return recipe_from_mapping(data, ROOT).recipe


def expressions(files: dict[str, str]) -> list[str]:
    rules = [rule["expr"] for group in yaml.safe_load(files[RULES])["groups"] for rule in group["rules"]]
    board = json.loads(files[BOARD])
    return rules + [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def alerts(files: dict[str, str]) -> set[str]:
    return {rule["alert"] for group in yaml.safe_load(files[RULES])["groups"] for rule in group["rules"]}


def native_names() -> set[str]:
    metrics = EngineCore(SimulatedExecutor()).metrics
    return {f"trtforge_{name}" for name, _, _ in [*metrics.points(), *metrics.series()]}


def documented_names() -> set[str]:
    table = yaml.safe_load((ROOT / "trtforge/tables/metrics.yaml").read_text())
    assert all(page["source"].startswith("https://") for page in table["pages"])
    return {name for page in table["pages"] for name in page["names"]}


@pytest.mark.parametrize("layout", TARGETS)
def test_every_name_is_on_a_page(layout: str) -> None:
    files = pack(recipe(layout), GPU)
    known = native_names() | documented_names()
    found = {name for expr in expressions(files) for name in NAME.findall(expr)}
    assert found - known == set()
    assert {"native": "trtforge_", "inflight_batcher_llm": "nv_trt_llm_", "llmapi": "trtllm_"}[layout] in str(found)
    listed = {line.split(",")[0] for line in files[COUNTERS].splitlines() if not line.startswith("#")}
    assert {name for name in found if name.startswith("DCGM_")} <= listed <= documented_names()


def test_what_a_cpu_serves_has_no_gpu_to_watch() -> None:
    files = pack(recipe(), Places("h:8002", None))
    assert set(files) == {PROMETHEUS, RULES, BOARD}
    assert "DCGM" not in "".join(files.values())
    assert [job["job_name"] for job in yaml.safe_load(files[PROMETHEUS])["scrape_configs"]] == ["server"]


def test_bounds_are_the_bundles_own() -> None:
    assert {"FirstTokenLate", "TokensLate"} <= alerts(pack(recipe(), GPU))
    assert not {"FirstTokenLate", "TokensLate"} & alerts(pack(recipe(slo=False), GPU))
    assert not {"FirstTokenLate", "Preemptions"} & alerts(pack(recipe("inflight_batcher_llm"), GPU))
    late = [expr for expr in expressions(pack(recipe(), GPU)) if expr.endswith(("> 2", "> 0.2"))]
    assert len(late) == 2 and all("histogram_quantile(0.99" in expr for expr in late)


def test_the_page_of_trtllm_serve_is_read_where_it_is() -> None:
    job = yaml.safe_load(pack(recipe("llmapi"), GPU)[PROMETHEUS])["scrape_configs"][0]
    assert job["metrics_path"] == "/prometheus/metrics"


@needs_promtool
@pytest.mark.parametrize("layout", TARGETS)
def test_promtool_takes_the_files(layout: str, tmp_path: Path) -> None:
    write_pack(pack(recipe(layout), GPU), tmp_path / "out")
    for what, name in (("rules", RULES), ("config", PROMETHEUS)):
        done = subprocess.run(["promtool", "check", what, name], cwd=tmp_path / "out", capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def fires(folder: Path, series: dict[str, str], name: str, labels: dict[str, str] | None, at: str = "20m") -> None:
    """``name`` fires at ``at`` with ``labels``; None: it does not."""
    severity = {
        rule["alert"]: (rule["labels"]["severity"], rule["annotations"]["summary"])
        for group in yaml.safe_load((folder / RULES).read_text())["groups"]
        for rule in group["rules"]
    }[name]
    expected = [] if labels is None else [{"exp_labels": {"severity": severity[0], **labels}}]
    test = {
        "rule_files": [RULES],
        "evaluation_interval": "15s",
        "tests": [
            {
                "interval": "15s",
                "input_series": [{"series": key, "values": values} for key, values in series.items()],
                "alert_rule_test": [{"eval_time": at, "alertname": name, "exp_alerts": expected}],
            }
        ],
    }
    (folder / "test.yml").write_text(yaml.safe_dump(test))
    done = subprocess.run(["promtool", "test", "rules", "test.yml"], cwd=folder, capture_output=True, text=True)
    told = done.stdout + done.stderr
    if labels is None:
        assert done.returncode == 0, told
        return
    # annotations, which are not expected here, make promtool print what fires
    got = told.partition("got:")[2]
    for label, value in {"alertname": name, **labels}.items():
        assert f'{label}="{value}"' in got, told


def ttft(late: int) -> dict[str, str]:
    """A request in each 15 s; of a hundred ``late`` come after two seconds."""
    name = "trtforge_time_to_first_token_seconds_bucket"
    counts = {"1.0": 100 - late, "2.5": 100 - late, "5.0": 100, "+Inf": 100}
    return {f'{name}{{model="tiny",version="1",le="{le}"}}': f"0+{count}x100" for le, count in counts.items()}


@needs_promtool
def test_rules_fire_when_they_should_and_not_else(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    write_pack(pack(recipe(), GPU), folder)
    fires(folder, ttft(late=5), "FirstTokenLate", {})
    fires(folder, ttft(late=0), "FirstTokenLate", None)
    with pytest.raises(AssertionError):
        fires(folder, ttft(late=0), "FirstTokenLate", {})
    with pytest.raises(AssertionError):
        fires(folder, ttft(late=5), "FirstTokenLate", None)
    fires(folder, {'trtforge_kv_cache_usage_perc{model="tiny"}': "0.97x100"}, "KvCacheFull", {})
    fires(folder, {'trtforge_kv_cache_usage_perc{model="tiny"}': "0.90x100"}, "KvCacheFull", None)
    fires(folder, {'trtforge_num_preemptions_total{model="tiny"}': "0+3x100"}, "Preemptions", {})
    fires(folder, {'trtforge_num_preemptions_total{model="tiny"}': "0+1x100"}, "Preemptions", None)
    done = 'trtforge_request_success_total{model="tiny",finished_reason="%s"}'
    fires(folder, {done % "stop": "0+99x100", done % "error": "0+1x100"}, "RequestsFail", {})
    fires(folder, {done % "stop": "0+99x100", done % "error": "0x100"}, "RequestsFail", None)
    fires(folder, {done % "stop": "0x100", done % "error": "0x100"}, "RequestsFail", None)
    waits = 'trtforge_num_requests_waiting{model="tiny"}'
    fires(folder, {'DCGM_FI_DEV_GPU_UTIL{gpu="0"}': "3x100", waits: "2x100"}, "GpuIdleWhileRequestsWait", {})
    fires(folder, {'DCGM_FI_DEV_GPU_UTIL{gpu="0"}': "3x100", waits: "0x100"}, "GpuIdleWhileRequestsWait", None)
    throttled = 'DCGM_FI_DEV_CLOCK_THROTTLE_REASONS{gpu="0"}'
    for bits, found in ((0x04, True), (0x80, True), (0x29, True), (0x01, False), (0x10, False), (0x43, True)):
        fires(folder, {throttled: f"{bits}x100"}, "GpuThrottled", {"gpu": "0"} if found else None)


def test_a_pack_is_whole_or_not_there(tmp_path: Path) -> None:
    files = pack(recipe(), GPU)
    out = tmp_path / "made" / "out"
    assert {path.name for path in write_pack(files, out)} == set(files)
    assert sorted(path.name for path in out.parent.iterdir()) == ["out"]
    (out / RULES).write_text("mine")
    with pytest.raises(ForgeError) as caught:
        write_pack(files, out)
    assert caught.value.code == "TF-HLT-030" and (out / RULES).read_text() == "mine"
    (out / "other").write_text("kept")
    write_pack(files, out, overwrite=True)
    assert (out / RULES).read_text() == files[RULES] and (out / "other").read_text() == "kept"
    (tmp_path / "file").write_text("")
    with pytest.raises(ForgeError) as caught:
        write_pack(files, tmp_path / "file" / "out")
    assert caught.value.code == "TF-HLT-031"


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from trtforge.pipeline.stages.bundle import write_recipe

    write_recipe(recipe(slo=False), tmp_path / "recipe.yaml")
    out = tmp_path / "watch"
    assert invoke(["observe", "emit", str(tmp_path), str(out), "--server", "gpu1:9002", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["files"] == [str(out / name) for name in (PROMETHEUS, RULES, BOARD)]
    assert len(said["left_out"]) == 2
    assert "gpu1:9002" in (out / PROMETHEUS).read_text()
    assert invoke(["observe", "emit", str(tmp_path), str(out), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "TF-HLT-030"
    assert invoke(["observe", "emit", str(tmp_path / "none"), str(out), "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "TF-HLT-032"
    assert invoke(["observe", "emit", str(tmp_path), str(out), "--server", "no address", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "TF-HLT-010"
