"""Sixteen requests of mixed lengths: in-flight batching against one padded static batch of ``generate``.

    python -m benchmarks.continuous_batching [--engine DIR --engine-int4 DIR --checkpoint DIR] [--json FILE]

Prompts of 32 to 512 and outputs of 16 to 256 tokens. Useful tokens are those that a request asked for; the
static batch runs until its longest member is done. Bar: at least 3 times its useful tokens a second.
"""

from __future__ import annotations

import argparse
import json
import random
from typing import Any

from benchmarks import common

REQUESTS = 16
PROMPT_RANGE, OUTPUT_RANGE = (32, 512), (16, 256)
BASELINE = "generate, static batch, bfloat16"
BARS = {"trtforge, bfloat16": 3.0}


def workload(tokens: list[int], scale: float = 1.0) -> tuple[list[list[int]], list[int]]:
    """Prompts and output lengths, the same for a seed; both extremes of each range are among them."""
    generator = random.Random(16)
    prompts = [PROMPT_RANGE[0], PROMPT_RANGE[1], *(generator.randint(*PROMPT_RANGE) for _ in range(REQUESTS - 2))]
    outputs = [OUTPUT_RANGE[1], OUTPUT_RANGE[0], *(generator.randint(*OUTPUT_RANGE) for _ in range(REQUESTS - 2))]
    starts = [generator.randrange(len(tokens) - PROMPT_RANGE[1]) for _ in range(REQUESTS)]
    texts = [tokens[s : s + max(1, int(n * scale))] for s, n in zip(starts, prompts, strict=True)]
    return texts, [max(1, int(n * scale)) for n in outputs]


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Rounds over all contenders and a profile of each engine."""
    import torch

    torch.set_num_threads(arguments.threads)
    tokens = common.token_text(arguments.engine / "tokenizer.json", 20_000)
    prompts, lengths = workload(tokens)
    forges = [
        common.Forge("trtforge, bfloat16", arguments.engine, arguments.threads),
        common.Forge("trtforge, INT4 weights", arguments.engine_int4, arguments.threads),
    ]
    if arguments.engine_fp8:
        forges.append(common.Forge("trtforge, FP8 weights", arguments.engine_fp8, arguments.threads))
    baselines = [common.HuggingFace(BASELINE, arguments.checkpoint, "bfloat16")]
    if arguments.float32:
        baselines.append(common.HuggingFace("generate, static batch, float32", arguments.checkpoint, "float32"))
    others = common.openvino_contenders(arguments)
    contenders: list[Any] = [*baselines, *forges, *others]
    for contender in contenders:
        contender.batch([p[:16] for p in prompts[:4]], [4] * 4)
    useful = sum(lengths)
    samples = common.run_rounds(contenders, lambda c: c.batch(prompts, lengths), useful, arguments.rounds)
    profiles = {f.name: f.profile(lambda f=f: f.batch(prompts, lengths)) for f in forges}  # type: ignore[misc]
    for other in others:
        other.close()
    rows = samples.table(BASELINE)
    return {
        "rows": rows,
        "profiles": profiles,
        "bars": {row["name"]: row["ratio"] >= BARS[row["name"]] for row in rows if row["name"] in BARS},
        "prompt_tokens": sum(map(len, prompts)),
        "useful_tokens": useful,
        "padded_tokens": REQUESTS * max(lengths),
        "threads": arguments.threads,
    }


def report(figures: dict[str, Any]) -> None:
    """Print tables."""
    title = (
        f"continuous batching: {REQUESTS} requests, {figures['prompt_tokens']} prompt and {figures['useful_tokens']} "
        f"useful output tokens ({figures['padded_tokens']} in the padded batch), {figures['threads']} threads"
    )
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
