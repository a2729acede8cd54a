"""Milliseconds to write and to check a whole repository of each layout of TensorRT-LLM.

    python -m benchmarks.triton_repository [--quick]

Every round is a fresh process that is told to import first; what counts is writing and checking, the first time in
that process. Medians of the rounds count. Exit code 1 when writing and checking together take 300 ms or more.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import common

LIMIT_MS = 300.0
ENGINE = {
    "max_batch_size": 64,
    "max_num_tokens": 8192,
    "max_seq_len": 8192,
    "max_input_len": 8191,
    "max_beam_width": 1,
    "tokens_per_block": 32,
    "vocab_size": 128256,
    "logits_dtype": "float32",
    "dtype": "bfloat16",
    "tp": 8,
    "pp": 1,
}


def once(layout: str) -> dict[str, float]:
    """Milliseconds of writing and of checking, here and now."""
    from triton_repo.layouts import inflight_batcher_llm, llmapi
    from triton_repo.validate import require_valid
    from trtforge.recipe.schema import Recipe

    target = {"inflight_batcher_llm": "trtllm-engine", "llmapi": "trtllm-llmapi"}[layout]
    build = {"target": target, "parallel": {"tp": ENGINE["tp"]}}
    document = {"name": "x", "model": {"source": "/m"}, "build": build, "triton": {"layout": layout}}
    recipe = Recipe.model_validate(document)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "repository"
        begin = time.perf_counter()
        if layout == "llmapi":
            llmapi.emit(recipe, out)
        else:
            inflight_batcher_llm.emit(recipe, ENGINE, out)
        written = time.perf_counter()
        require_valid(out)
        return {"write": (written - begin) * 1e3, "check": (time.perf_counter() - written) * 1e3}


def main() -> int:
    """Print the table; 1 when a layout is over the limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three rounds instead of eleven")
    parser.add_argument("--once", metavar="LAYOUT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.once:
        print(json.dumps(once(options.once)))
        return 0
    missed = False
    for layout in ("inflight_batcher_llm", "llmapi"):
        command = [sys.executable, "-m", "benchmarks.triton_repository", "--once", layout]
        rounds = []
        for _ in range(3 if options.quick else 11):
            done = subprocess.run(command, cwd=common.ROOT, check=True, capture_output=True, text=True)
            rounds.append(json.loads(done.stdout))
        median = {step: statistics.median(item[step] for item in rounds) for step in ("write", "check")}
        total = sum(median.values())
        missed = missed or total >= LIMIT_MS
        print(f"{layout:22} write {median['write']:4.0f} ms, check {median['check']:4.0f} ms, limit {LIMIT_MS:.0f} ms")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
