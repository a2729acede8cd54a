"""One request at a time: 128 new tokens, greedy, against ``transformers`` generate with the same weights.

    python -m benchmarks.single_stream [--engine DIR --engine-int4 DIR --checkpoint DIR] [--rounds 3] [--json FILE]

Bars: the bfloat16 engine at least 1.5 times, INT4 weights at least 2.5 times ``generate`` in bfloat16.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from benchmarks import common

PROMPT_TOKENS, NEW_TOKENS = 64, 128
BASELINE = "generate, bfloat16"
BARS = {"trtforge, bfloat16": 1.5, "trtforge, INT4 weights": 2.5}


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Rounds over all contenders and a profile of each engine."""
    import torch

    torch.set_num_threads(arguments.threads)
    prompt = common.token_text(arguments.engine / "tokenizer.json", PROMPT_TOKENS)
    forges = [
        common.Forge("trtforge, bfloat16", arguments.engine, arguments.threads),
        common.Forge("trtforge, INT4 weights", arguments.engine_int4, arguments.threads),
    ]
    if arguments.engine_fp8:
        forges.append(common.Forge("trtforge, FP8 weights", arguments.engine_fp8, arguments.threads))
    baselines = [common.HuggingFace(BASELINE, arguments.checkpoint, "bfloat16")]
    if arguments.float32:
        baselines.append(common.HuggingFace("generate, float32", arguments.checkpoint, "float32"))
    others = common.openvino_contenders(arguments)
    contenders: list[Any] = [*baselines, *forges, *others]
    for contender in contenders:
        contender.single(prompt, 8)  # first calls allocate and choose kernels
    samples = common.run_rounds(contenders, lambda c: c.single(prompt, NEW_TOKENS), NEW_TOKENS, arguments.rounds)
    profiles = {f.name: f.profile(lambda f=f: f.single(prompt, NEW_TOKENS)) for f in forges}  # type: ignore[misc]
    for other in others:
        other.close()
    rows = samples.table(BASELINE)
    bars = {row["name"]: row["ratio"] >= BARS[row["name"]] for row in rows if row["name"] in BARS}
    loads = {f.name: f.load_seconds for f in forges}
    return {"rows": rows, "profiles": profiles, "bars": bars, "load_seconds": loads, "threads": arguments.threads}


def report(figures: dict[str, Any]) -> None:
    """Print tables."""
    title = f"single stream: prompt {PROMPT_TOKENS}, {NEW_TOKENS} new tokens, {figures['threads']} threads"
    common.print_table(title, figures["rows"], BASELINE)
    for name, shares in figures["profiles"].items():
        common.print_profile(name, shares)
    for name, held in figures["bars"].items():
        print(f"{'holds' if held else 'MISSED'}: {name} at least {BARS[name]} times {BASELINE}")


def main() -> int:
    """Exit 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common.add_arguments(parser)
    arguments = parser.parse_args()
    common.find_models(arguments)
    figures = measure(arguments)
    report(figures)
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if all(figures["bars"].values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
