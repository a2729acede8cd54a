"""Seconds of ``trtforge check`` on a 70B recipe, cold: a fresh process, nothing imported before.

    python -m benchmarks.preflight [--rounds 5] [--warm] [--json]

The model is Llama-3-70B's configuration over sparse safetensors shards (real headers, holes for data) beside a
tokenizer.json with 128,256 tokens, a draft model and a LoRA adapter, so that every rule has something to look at.
Unless ``--warm`` is given each round first drops the files from the page cache (``posix_fadvise``; no privileges).
The limit is 2 s for the median round, imports and interpreter included; torch must not be imported.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

from benchmarks.fresh_process import figures_of, measure
from benchmarks.graph_70b import write_sparse_checkpoint

LIMIT_SECONDS = 2.0
VOCABULARY = 128_256
RECIPE = """\
name: llama-3-70b-awq
model: {source: model, dtype: float16}
quantize: {format: int4_awq, group_size: 64, calibration: {samples: 128}}
build:
  target: trtllm-engine
  architectures: [sm_90]
  limits: {max_batch_size: 16, max_num_tokens: 8192, max_seq_len: 8192}
  kv_cache: {free_fraction: 90%}
  parallel: {tp: 8}
  trtllm:
    kv_reuse: true
    lora: {adapters: {one: adapter}, max_rank: 16}
speculation: {method: lookahead, lookahead: {window: 4, ngram: 3, verification: 4}}
triton: {layout: inflight_batcher_llm, parameters: {normalize_log_probs: "true"}}
"""


def write_folder(folder: Path) -> Path:
    """The recipe and everything it names; returns the recipe's path."""
    model, adapter = folder / "model", folder / "adapter"
    write_sparse_checkpoint(model)
    vocabulary = {f"token{number}": number for number in range(VOCABULARY - 256)}
    added = [{"id": VOCABULARY - 256 + index, "content": f"<|reserved_{index}|>"} for index in range(256)]
    tokenizer = {"model": {"type": "BPE", "vocab": vocabulary, "merges": []}, "added_tokens": added}
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    (model / "tokenizer_config.json").write_text("{}")
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"r": 16, "target_modules": ["q_proj"]}))
    header = {
        f"base_model.model.model.layers.{layer}.self_attn.q_proj.lora_A.weight": {
            "dtype": "F16",
            "shape": [16, 8192],
            "data_offsets": [layer * 262_144, (layer + 1) * 262_144],
        }
        for layer in range(80)
    }
    text = json.dumps(header).encode()
    with (adapter / "adapter_model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + 80 * 262_144)
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE)
    return recipe


def drop_cached(folder: Path) -> None:
    """Ask the kernel to forget the folder's pages, so that the next round reads them from the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def main() -> int:
    """Measure, print, and exit with 1 when the limit is missed or torch was imported."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm", action="store_true", help="leave the files in the page cache")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rounds = []
    with tempfile.TemporaryDirectory() as scratch:
        recipe = write_folder(Path(scratch))
        for _ in range(arguments.rounds):
            if not arguments.warm:
                drop_cached(Path(scratch))
            rounds.append(measure("check", str(recipe)))
    document = rounds[-1].document
    figures = figures_of(rounds) | {
        "rules": document["rules"],
        "skipped": document["skipped"],
        "findings": sorted({finding["code"] for finding in document["findings"]}),
    }
    passed = figures["median_seconds"] < LIMIT_SECONDS and not figures["torch_imported"]
    if arguments.json:
        print(json.dumps(figures | {"passed": passed}))
    else:
        print(
            f"check of a 70B recipe, {figures['rules']} rules, {len(figures['skipped'])} skipped: median "
            f"{figures['median_seconds']:.2f} s ({figures['fastest']:.2f} to {figures['slowest']:.2f}; limit "
            f"{LIMIT_SECONDS:g}), torch {'imported' if figures['torch_imported'] else 'not imported'}, found "
            f"{', '.join(figures['findings']) or 'nothing'}: {'passed' if passed else 'FAILED'}"
        )
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
