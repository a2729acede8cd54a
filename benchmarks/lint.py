"""Seconds of ``trtforge triton lint`` on a repository of 50 models: a fresh process each round.

    python -m benchmarks.lint [--rounds 5] [--json]

The repository is ten times the five models of ``inflight_batcher_llm`` (62 inputs, 46 parameters), each chain with one
planted fault that must be found. The limit is 2 s for the median round, interpreter and imports included; torch must
not be imported.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIMIT_SECONDS = 2.0
CHAINS = 10
ENGINE = {
    "max_batch_size": 64,
    "max_num_tokens": 8192,
    "max_seq_len": 8192,
    "max_input_len": 8191,
    "max_beam_width": 1,
    "tokens_per_block": 64,
    "vocab_size": 128_256,
    "logits_dtype": "float32",
    "dtype": "float16",
    "tp": 1,
    "pp": 1,
    "speculation": "none",
    "paged_context_attention": True,
    "kv_bytes_per_token": 131_072,
}
_CHILD = """
import sys
from trtforge.cli.main import invoke
code = invoke(["triton", "lint", sys.argv[1], "--json"])
print(code, "torch" in sys.modules, file=sys.stderr)
"""


def write_repository(folder: Path) -> int:
    """Ten chains of five models, each with a misspelt parameter; returns the number of models."""
    from triton_repo.layouts.inflight_batcher_llm import emit
    from trtforge.recipe.schema import Recipe

    recipe = Recipe.model_validate(
        {
            "name": "x",
            "model": {"source": "/m"},
            "build": {"target": "trtllm-engine"},
            "triton": {"layout": "inflight_batcher_llm"},
        }
    )
    models = 0
    for chain in range(CHAINS):
        emitted = folder / f".chain-{chain}"
        emit(recipe, ENGINE, emitted)
        names = sorted(path.name for path in emitted.iterdir())
        for name in names:
            (emitted / name).rename(folder / f"{name}_{chain}")
            path = folder / f"{name}_{chain}" / "config.pbtxt"
            text = path.read_text(encoding="utf-8").replace(f'name: "{name}"', f'name: "{name}_{chain}"', 1)
            for other in names:
                text = text.replace(f'model_name: "{other}"', f'model_name: "{other}_{chain}"')
                text = text.replace(f'string_value: "{other}"', f'string_value: "{other}_{chain}"')
            path.write_text(text.replace('"normalize_log_probs"', '"normalise_log_probs"'), encoding="utf-8")
            models += 1
        emitted.rmdir()
    return models


def round_seconds(repository: Path) -> tuple[float, dict[str, Any], bool]:
    """Wall-clock seconds of one lint in a fresh process, its document, and whether torch was imported."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(repository)], cwd=ROOT, capture_output=True, text=True, check=True
    )
    seconds = time.perf_counter() - start
    return seconds, json.loads(done.stdout), done.stderr.split()[-1] == "True"


def main() -> int:
    """Measure, print, and exit with 1 when the limit is missed, a fault was overlooked or torch was imported."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    seconds: list[float] = []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as scratch:
        models = write_repository(Path(scratch))
        for _ in range(arguments.rounds):
            taken, document, torch_imported = round_seconds(Path(scratch))
            seconds.append(taken)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    found = sum(finding["code"] == "TF-TRI-182" for finding in document["findings"])
    figures: dict[str, Any] = {
        "median_seconds": statistics.median(seconds),
        "fastest": min(seconds),
        "slowest": max(seconds),
        "processor_seconds": processor / arguments.rounds,
        "models": models,
        "planted": CHAINS,
        "found": found,
        "torch_imported": torch_imported,
        "cores": os.cpu_count(),
    }
    passed = figures["median_seconds"] < LIMIT_SECONDS and found == CHAINS and not torch_imported
    if arguments.json:
        print(json.dumps(figures | {"passed": passed}))
    else:
        print(
            f"lint of {models} models: median {figures['median_seconds']:.2f} s ({figures['fastest']:.2f} to "
            f"{figures['slowest']:.2f}; limit {LIMIT_SECONDS:g}), {figures['processor_seconds']:.2f} s of processor "
            f"time, {found} of {CHAINS} planted faults found, torch "
            f"{'imported' if torch_imported else 'not imported'}: {'passed' if passed else 'FAILED'}"
        )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
