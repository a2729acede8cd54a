"""Reference times of aiconfigurator for the planner's tests: prefill, decode and mixed steps, side by side with ours.

Runs in an environment of its own, as ``aiconfigurator_compare.py`` says, and imports nothing of trtforge:

    /tmp/aic/bin/python benchmarks/aiconfigurator_times.py tests/builder/planner/aiconfigurator_times.json

Three figures a configuration: ``static_ctx`` with one prompt (static modes count the prefill of the whole batch at
once, so a batch there is no time to the first token), ``static_gen`` at the batch, and ``agg`` with a budget of
8,192 prompt tokens a step. Times are seconds, per-op times too. ``trtforge``'s side of the table is printed by

    PYTHON benchmarks/aiconfigurator_times.py tests/builder/planner/aiconfigurator_times.json --compare
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib import metadata, resources
from pathlib import Path
from typing import Any

VERSION = "current"
BUDGET = 8192
#: model, system, tp, pp, moe_tp, moe_ep, gemm, moe, kv, isl, osl, batch
CASES: tuple[tuple[Any, ...], ...] = (
    ("meta-llama/Meta-Llama-3.1-8B", "h100_sxm", 1, 1, None, None, "bfloat16", None, "bfloat16", 2048, 128, 1),
    ("meta-llama/Meta-Llama-3.1-8B", "h200_sxm", 1, 1, None, None, "bfloat16", None, "bfloat16", 2048, 256, 64),
    ("meta-llama/Meta-Llama-3.1-8B", "h200_sxm", 1, 1, None, None, "fp8", None, "fp8", 2048, 256, 64),
    ("meta-llama/Meta-Llama-3.1-8B", "l40s", 1, 1, None, None, "fp8", None, "fp8", 1024, 256, 16),
    ("meta-llama/Meta-Llama-3.1-70B", "h200_sxm", 4, 1, None, None, "bfloat16", None, "bfloat16", 1024, 512, 64),
    ("meta-llama/Meta-Llama-3.1-70B", "h100_sxm", 8, 1, None, None, "fp8", None, "fp8", 4096, 512, 32),
    ("meta-llama/Meta-Llama-3.1-70B", "h200_sxm", 4, 1, None, None, "fp8", None, "fp8", 1024, 256, 8),
    ("meta-llama/Meta-Llama-3.1-70B", "h200_sxm", 4, 2, None, None, "fp8", None, "fp8", 1024, 256, 32),
    ("meta-llama/Meta-Llama-3.1-70B", "b200_sxm", 2, 1, None, None, "nvfp4", None, "fp8", 1024, 256, 64),
    ("meta-llama/Meta-Llama-3.1-405B", "b200_sxm", 8, 1, None, None, "fp8", None, "fp8", 2048, 512, 64),
    ("Qwen/Qwen3-8B", "a100_sxm", 1, 1, None, None, "bfloat16", None, "bfloat16", 1024, 256, 16),
    ("Qwen/Qwen3-32B", "h200_sxm", 2, 1, None, None, "bfloat16", None, "bfloat16", 4096, 1024, 32),
    ("Qwen/Qwen3-32B", "h200_sxm", 2, 1, None, None, "fp8", None, "fp8", 4096, 1024, 128),
    ("Qwen/Qwen3-30B-A3B", "h200_sxm", 2, 1, 1, 2, "bfloat16", "bfloat16", "bfloat16", 1024, 256, 32),
    ("Qwen/Qwen3-235B-A22B", "h200_sxm", 8, 1, 1, 8, "fp8_block", "fp8_block", "fp8", 2048, 512, 64),
)
MODES = ("static_ctx", "static_gen", "agg")


def measure(case: tuple[Any, ...]) -> dict[str, Any]:
    """The three figures of one configuration, in seconds and tokens a second."""
    from aiconfigurator.cli.api import cli_estimate

    model, system, tp, pp, moe_tp, moe_ep, gemm, moe, kv, isl, osl, batch = case
    arguments = {
        "tp_size": tp,
        "pp_size": pp,
        "moe_tp_size": moe_tp,
        "moe_ep_size": moe_ep,
        "gemm_quant_mode": gemm,
        "moe_quant_mode": moe,
        "kvcache_quant_mode": kv,
        "isl": isl,
        "osl": osl,
        "batch_size": batch,
    }
    found = {}
    for mode in MODES:
        ours = {**arguments, "batch_size": 1} if mode == "static_ctx" else arguments
        budget = {"ctx_tokens": BUDGET} if mode == "agg" else {}
        found[mode] = cli_estimate(model, system, mode=mode, backend_version=VERSION, **ours, **budget)
    ops = found["agg"].per_ops_data or {}
    return {
        "model": model,
        "system": system,
        "arguments": arguments,
        "prefill": found["static_ctx"].ttft / 1e3,
        "decode": found["static_gen"].tpot / 1e3,
        "output": float(found["agg"].raw["tokens/s"]),
        "mixed_itl": float(found["agg"].tpot) / 1e3,
        "decode_ops": {name: float(value) / 1e3 for name, value in ops.get("genonly_step", {}).items()},
        "mixed_ops": {name: float(value) / 1e3 for name, value in ops.get("mix_step", {}).items()},
        "scheduling": {name: float(value) for name, value in ops.get("scheduling", {}).items()},
    }


def sizes(model: str) -> dict[str, Any]:
    """The model's config.json as aiconfigurator ships it: numbers, switches and names, no nested sections."""
    name = model.replace("/", "--") + "_config.json"
    config = json.loads((resources.files("aiconfigurator_core") / "model_configs" / name).read_text(encoding="utf-8"))
    keep = {key: value for key, value in config.items() if isinstance(value, (int, float, bool)) or key == "model_type"}
    return {"architectures": config["architectures"], **keep}


def write(out: Path) -> int:
    """The fixture."""
    rows, failed = [], []
    for case in CASES:
        try:
            rows.append(measure(case))
        except Exception as error:  # the package has no error class of its own for a missing table
            failed.append(f"{case[0]} on {case[1]}: {type(error).__name__}: {error}")
    document = {
        "tool": "aiconfigurator",
        "version": metadata.version("aiconfigurator"),
        "backend": "trtllm",
        "backend_version": VERSION,
        "prompt_budget": BUDGET,
        "command": "python benchmarks/aiconfigurator_times.py OUT",
        "call": "cli.api.cli_estimate(model, system, mode=…, backend_version=…, **arguments)",
        "models": {model: sizes(model) for model in sorted({row["model"] for row in rows})},
        "rows": rows,
    }
    out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    for line in failed:
        print(f"left out {line}", file=sys.stderr)
    print(f"{len(rows)} configurations in {out}")
    return 1 if failed else 0


def compare(fixture: Path) -> int:
    """The table of ``docs/planner.md``: their figure, ours with its range, and the ratio."""
    from tests.builder.planner.reference_times import compared

    print("| model | GPU | split | format | load | prefill ms | decode ms | tokens/s |")
    print("|---|---|---|---|---|---|---|---|")
    for row in compared(json.loads(fixture.read_text(encoding="utf-8"))):
        cells = [row.model, row.gpu, row.split, row.precision, row.load]
        for figure, factor in ((row.prefill, 1e3), (row.decode, 1e3), (row.output, 1.0)):
            low, typical, high = sorted(value * factor for value in figure.ours)
            theirs = figure.theirs * factor
            cells.append(f"{theirs:.4g} / {typical:.4g} ({low:.4g} – {high:.4g}), {typical / theirs - 1:+.0%}")
        print("| " + " | ".join(cells) + " |")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("fixture", type=Path, help="the JSON file to write, or to compare with")
    parser.add_argument("--compare", action="store_true", help="print the planner's figures beside the file's")
    arguments = parser.parse_args()
    return compare(arguments.fixture) if arguments.compare else write(arguments.fixture)


if __name__ == "__main__":
    sys.exit(main())
