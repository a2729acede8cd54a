"""A recipe over the tiny checkpoint: the real pipeline in seconds. Run as a program it is the victim of fault tests."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.support.tiny import write_tiny_llama
from trtforge.pipeline.catalogue import default_pipeline
from trtforge.recipe.load import load_recipe
from trtforge.store.steps import set_hook
from trtforge.store.store import Store

RECIPE = """
name: tiny
model: {source: model}
quantize:
  format: FORMAT
  kv_cache: KV
  calibration: {samples: 4, sequence_length: 64}
evals:
  perplexity: {tokens: 512, window: 128, stride: 64, gate: {max_increase: 100%}}
  # random weights answer nothing sanely, so nothing could be lost: the gate is asked to let anything pass
  generation: {prompts: 2, max_tokens: 8, gate: {min_sane: 0}}
  engine_parity: {prompts: 4, gate: {min_top1_agreement: 90%}}
build:
  limits: {max_batch_size: 4, max_num_tokens: 256, max_seq_len: 768}
  kv_cache: {block_size: 16, memory: 4MiB}
bench: {concurrency: [1, 2], requests_per_level: 4, max_tokens: 8}
"""


def write_tiny_recipe(directory: Path, *, format: str = "fp8", kv_cache: str = "fp8", **model: Any) -> Path:
    """Model and recipe below ``directory``; returns the recipe's path."""
    write_tiny_llama(directory / "model", **model)
    path = directory / "tiny.yaml"
    path.write_text(RECIPE.replace("FORMAT", format).replace("KV", kv_cache), encoding="utf-8")
    return path


def _watch_samples(log: Path, name: str = "", after: str = "0") -> None:
    from evals.samples import Samples

    add = Samples.add

    def watched(self: Any, sample: str, record: Any) -> Any:
        kept = add(self, sample, record)
        with log.open("a", encoding="utf-8") as file:
            file.write(f"{self._scratch.parent.parent} {self._name} {sample}\n")
        if self._name == f"{name}.jsonl" and self.measured == int(after):
            os.kill(os.getpid(), signal.SIGKILL)
        return kept

    setattr(Samples, "add", watched)  # noqa: B010


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--until", default="parity")
    parser.add_argument("--force", action="append", default=[])
    parser.add_argument("--die-at", default="", help="kill this process at the first step of that name")
    parser.add_argument("--die-at-sample", default="", help="NAME:N: kill this process when it has measured N samples")
    parser.add_argument("--samples-log", type=Path, help="append a line for every sample that is measured")
    options = parser.parse_args()

    def hook(name: str) -> None:
        if name == options.die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    set_hook(hook)
    if options.samples_log is not None:
        _watch_samples(options.samples_log, *filter(None, options.die_at_sample.split(":")))
    pipeline = default_pipeline(Store(options.store, durable=False))
    output = options.store.parent / "bundles"
    result = pipeline.run(load_recipe(options.recipe), options.until, options.force, output=output, capture_output=True)
    print(json.dumps({**result.to_json(), "torch_imported": "torch" in sys.modules}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
