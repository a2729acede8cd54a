"""``make bench`` runs every benchmark that has a bar and needs neither a GPU nor packages that trtforge does not."""

from pathlib import Path

from benchmarks.run_all import OTHERS

ROOT = Path(__file__).resolve().parents[2]
#: module of ``benchmarks`` → why it is not among them
ELSEWHERE = {
    "common": "no benchmark",
    "fresh_process": "no benchmark",
    "run_all": "runs the others",
    "single_stream": "run_all measures it itself",
    "continuous_batching": "run_all measures it itself",
    "openvino_setup": "makes an environment",
    "openvino_worker": "runs in that environment",
    "cuda_attention": "needs a GPU",
    "planner_calibrate": "measures a machine, without a bar",
    "planner_efficiency": "reads a table of another package",
    "aiconfigurator_times": "needs another package",
    "aiconfigurator_compare": "needs another package",
    "by_layer": "needs 11 GB of disk, and minutes",
    "kv_cache": "reports figures, without a bar",
    "speculation": "needs an engine that speculates, and minutes",
    "soak": "needs an engine that speculates, and minutes",
    "rtx_build": "reports figures, without a bar",
    "rtx_graph": "reports figures, without a bar",
}


def test_every_benchmark_is_run_or_has_a_reason() -> None:
    run = {module.removeprefix("benchmarks.") for module, _, _ in OTHERS}
    there = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - {"__init__"}
    assert run | set(ELSEWHERE) == there
    assert not run & set(ELSEWHERE)
