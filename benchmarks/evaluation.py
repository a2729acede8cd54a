"""What the evaluation of a quantized checkpoint takes, over what the baseline's takes.

    python -m benchmarks.evaluation [BASELINE QUANTIZED] [--rounds 6] [--json FILE]

BASELINE is a folder that intake wrote, QUANTIZED one of quantize (both lie in the store); without them those of the
shipped FP8 recipe are made. Both models are loaded in this process as the stages load them; a round scores one more
window of ``builtin:python-topics`` with each, references kept and divergence taken as the stages do, and lets each
write one greedy answer, of as many tokens. Seconds are the processor's own, of all threads, so that what else the
machine does counts little. Exit code 1 when the median ratio is over its bar.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, run_recipe

#: the quantized checkpoint's evaluation over the baseline's
BAR = 1.3
WINDOW, STRIDE, NEW_TOKENS = 512, 256, 24
WARM = 1


@dataclass(frozen=True)
class Round:
    """Processor seconds of one round: a window and an answer, of both models."""

    window: tuple[float, float]
    answer: tuple[float, float]

    @property
    def both(self) -> tuple[float, float]:
        return self.window[0] + self.answer[0], self.window[1] + self.answer[1]


def _seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.process_time()
    made = work()
    return time.process_time() - begin, made


def _round(models: Sequence[Any], text: Sequence[int], prompt: str) -> Round:
    """One window, scored after its first part, and one answer, of both."""
    import torch

    from evals.perplexity import Window
    from evals.windows import measure_windows

    sizes: dict[str, Any] = {"window": WINDOW, "stride": STRIDE, "plan": [Window(0, len(text), WINDOW - STRIDE)]}
    before, kept = _seconds(lambda: measure_windows(models[0].logits, text, keep=True, **sizes))
    after, _ = _seconds(lambda: measure_windows(models[1].logits, text, against=kept.references, **sizes))
    asked = torch.tensor(models[0].tokenizer.encode(prompt).ids)
    first, second = (_seconds(lambda m=m: m.generate_greedy(asked, NEW_TOKENS))[0] for m in models)  # type: ignore[misc]
    return Round((before, after), (first, second))


def measure(baseline: Path, quantized: Path, rounds: int) -> list[Round]:
    """The rounds, without those that warm up."""
    from evals.generation import PROMPTS
    from evals.perplexity import plan_windows
    from quantize.corpora import corpus_tokens, load_corpus
    from quantize.reference import load_reference_model

    models = [load_reference_model(folder) for folder in (baseline, quantized)]
    for model in models:
        model.eos_token_ids = ()  # an answer that ends early would be another amount of work
    corpus = load_corpus("builtin:python-topics", Path(), "evaluation")
    tokens = corpus_tokens(corpus, models[0].tokenizer).tolist()
    plan = plan_windows(len(tokens), WINDOW, STRIDE)
    found = []
    for number in range(WARM + rounds):
        window = plan[1 + number]
        found.append(_round(models, tokens[window.begin : window.end], PROMPTS[number % len(PROMPTS)]))
    return found[WARM:]


def main() -> int:
    """Measure, say it, and hold the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("baseline", type=Path, nargs="?")
    parser.add_argument("quantized", type=Path, nargs="?")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    baseline, quantized = arguments.baseline, arguments.quantized
    if quantized is None:
        made = run_recipe(ROOT / "configs" / "smollm2-135m-fp8.yaml")
        baseline, quantized = made["intake"], made["quantize"]
    found = measure(baseline, quantized, arguments.rounds)
    figures: dict[str, Any] = {}
    for part in ("window", "answer", "both"):
        pairs = [getattr(one, part) for one in found]
        ratios = [after / before for before, after in pairs]
        seconds = [statistics.median(side) for side in zip(*pairs, strict=True)]
        figures[part] = {
            "ratio": statistics.median(ratios),
            "low": min(ratios),
            "high": max(ratios),
            "seconds": seconds,
        }
        print(
            f"{part:7} {figures[part]['ratio']:.2f} ({min(ratios):.2f}–{max(ratios):.2f}) times the baseline's "
            f"{seconds[0]:.2f} s of processor time"
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    held = figures["both"]["ratio"] <= BAR
    print(f"bar: at most {BAR} x: {'holds' if held else 'MISSED'}")
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
