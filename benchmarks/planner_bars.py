"""The planner's bars: a whole ``trtforge plan`` under 1 s without torch, a search of 5,000 points under 10 s, also
where the load is a trace of 20,000 random lengths (there the whole command is timed, with the default space).

    python benchmarks/planner_bars.py

Plans are timed as commands, from the start of the interpreter to its exit; the search in this process. All are of
Llama-3.1-70B's sizes on eight H200. Medians of five runs.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

RUNS = 5
PLAN_SECONDS, SEARCH_SECONDS, POINTS, LENGTHS = 1.0, 10.0, 5000, 20_000
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}
RECIPE = "name: bars\nmodel: {source: 'hf:org/model'}\nquantize: {format: fp8, kv_cache: fp8}\n"


def trace_seconds(folder: Path) -> float:
    """Seconds of a whole search over a trace of :data:`LENGTHS` random lengths."""
    random.seed(1)
    rows = (f"{random.randint(16, 6000)},{random.randint(1, 2000)}" for _ in range(LENGTHS))
    (folder / "trace.csv").write_text("\n".join(rows), encoding="utf-8")
    return plan_seconds(folder, "--trace", "trace.csv", "--search")


def plan_seconds(folder: Path, *extra: str) -> float:
    """Seconds of the whole command; fails when it does, or when it imports torch."""
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (folder / "r.yaml").write_text(RECIPE, encoding="utf-8")
    arguments = ["plan", "r.yaml", "--gpu", "h200", "--count", "8", "--config", "config.json", "--json", *extra]
    code = (
        "import sys; from trtforge.cli.main import invoke; "
        f"code = invoke({arguments!r}); sys.exit(code or int('torch' in sys.modules))"
    )
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def search_seconds() -> tuple[float, int]:
    """Seconds of a search of at least :data:`POINTS` points, and how many they were."""
    from builder.planner import workload
    from builder.planner.hardware import gpu
    from builder.planner.model import from_config
    from builder.planner.search import default_space, evaluate
    from builder.planner.types import Precision, Serving
    from builder.planner.weights import groups_from_facts

    model, card, serving = from_config(CONFIG), gpu("h200"), Serving(64, 8192, 8192)
    formats = {"fp8": (), "int4_awq": (128, 64, 32), "nvfp4": (16,)}
    space = default_space(model, Precision(), card, 8, serving, formats=formats)
    space = replace(space, step_tokens=(8192,), speculating=space.speculating[:2])
    groups = groups_from_facts(model)
    start = time.perf_counter()
    evaluate(model, groups, space, card, 8, serving, workload.fixed(2048, 512))
    return time.perf_counter() - start, space.size


def main() -> int:
    """Print both and say whether they hold."""
    with tempfile.TemporaryDirectory() as folder:
        plans = [plan_seconds(Path(folder)) for _ in range(RUNS)]
        traces = [trace_seconds(Path(folder)) for _ in range(RUNS)]
    searches = [search_seconds() for _ in range(RUNS)]
    plan, points = statistics.median(plans), searches[0][1]
    search = statistics.median(seconds for seconds, _ in searches)
    print(f"plan: {plan:.2f} s ({min(plans):.2f} to {max(plans):.2f}), bar {PLAN_SECONDS:g} s")
    print(f"search of {points:,} points: {search:.2f} s, bar {SEARCH_SECONDS:g} s for {POINTS:,}")
    trace = statistics.median(traces)
    print(
        f"search with a trace of {LENGTHS:,} lengths: {trace:.2f} s ({min(traces):.2f} to {max(traces):.2f}), bar 10 s"
    )
    return int(plan > PLAN_SECONDS or points < POINTS or max(search, trace) > SEARCH_SECONDS)


if __name__ == "__main__":
    sys.exit(main())
