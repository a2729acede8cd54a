"""The built engine on the baseline's own measurements: perplexity and divergence, and the tasks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trtforge.pipeline.stage import StageContext
from trtforge.pipeline.stages.common import rounded
from trtforge.pipeline.stages.scoring import (
    WINDOWS,
    Taken,
    answer_tasks,
    baseline_references,
    intake_of,
    probe_long_context,
    run_harness,
)
from trtforge.pipeline.stages.subject import Subject
from trtforge.pipeline.stages.verdicts import departure, divergence_of, losses_beside


def measure_engine(context: StageContext, subject: Subject, longest: int, corpus: Sequence[int]) -> None:
    """Score the engine on the first windows of perplexity, as far as the recipe asks, let it answer the tasks and probe
    its long contexts."""
    from evals.perplexity import plan_windows
    from evals.windows import TOP, measure_windows

    evals = context.recipe.evals
    build = context.inputs["build"]
    taken = Taken(context, {"engine": build.manifest["content_hash"]})
    asked = evals.perplexity
    if some := min(evals.engine_parity.tokens, asked.tokens):
        whole = [w for w in plan_windows(asked.tokens, asked.window, asked.stride) if w.end <= some]
        if asked.window > longest + 1 or not whole:
            context.progress.note(f"perplexity of the engine: no window of {asked.window} tokens fits, it is left out")
        else:
            measure_windows(
                subject.logits,
                corpus[: whole[-1].end],
                window=asked.window,
                stride=asked.stride,
                samples=taken.open(WINDOWS, top=TOP, baseline=intake_of(context)),
                against=baseline_references(context),
                what="the engine's perplexity",
                progress=context.progress,
            )
    answer_tasks(context, subject, taken)
    run_harness(context, subject, taken)
    if evals.long_context.lengths:
        probe_long_context(context, subject, taken, corpus)


def judge_engine(baseline: Path, out: Path) -> dict[str, Any]:
    """Perplexity of the engine against the baseline on the same tokens, paired; nothing where it was not scored."""
    import numpy as np

    divergence = divergence_of(out)
    if divergence is None:
        return {}
    exact, own = losses_beside(baseline, out, WINDOWS)
    found = {"tokens": len(own), "perplexity": float(np.exp(own.mean())), **departure(exact, own, divergence)}
    return {"quality": rounded(found)}
