"""Seconds of ``trtforge triton lint`` on a repository of 50 models: a fresh process each round.

    python -m benchmarks.lint [--rounds 5] [--json]

The repository is ten times the five models of ``inflight_batcher_llm`` (62 inputs, 46 parameters), each chain with one
planted fault that must be found. The limit is 2 s for the median round, interpreter and imports included; torch must
not be imported.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.fresh_process import figures_of, measure

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


def main() -> int:
    """Measure, print, and exit with 1 when the limit is missed, a fault was overlooked or torch was imported."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        models = write_repository(Path(scratch))
        rounds = [measure("triton", "lint", scratch) for _ in range(arguments.rounds)]
    found = sum(finding["code"] == "TF-TRI-182" for finding in rounds[-1].document["findings"])
    figures = figures_of(rounds) | {"models": models, "planted": CHAINS, "found": found}
    passed = figures["median_seconds"] < LIMIT_SECONDS and found == CHAINS and not figures["torch_imported"]
    if arguments.json:
        print(json.dumps(figures | {"passed": passed}))
    else:
        print(
            f"lint of {models} models: median {figures['median_seconds']:.2f} s ({figures['fastest']:.2f} to "
            f"{figures['slowest']:.2f}; limit {LIMIT_SECONDS:g}), {figures['processor_seconds']:.2f} s of processor "
            f"time, {found} of {CHAINS} planted faults found, torch "
            f"{'imported' if figures['torch_imported'] else 'not imported'}: {'passed' if passed else 'FAILED'}"
        )
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
