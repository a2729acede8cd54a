"""Gates of the stages that a target without a runner leaves out."""

from __future__ import annotations

from collections.abc import Mapping

from trtforge.targets.base import NotRun

#: gates of a running engine against the quantized model
AGREEMENT = ("top1_agreement", "engine_kl", "engine_answers")
#: gates of an engine that speculates against itself without, by their keys in ``evals.speculation.gate``
SPECULATION = {
    "speculation_greedy": "max_differing",
    "speculation_distribution": "alpha",
    "speculation_accepted_length": "min_accepted_length",
    "speculation_speedup": "min_speedup",
}


def left_to_tensorrt_llm(why: str) -> Mapping[str, NotRun]:
    """What TensorRT-LLM's targets leave out, whose network is its own and whose runtime the pipeline does not run."""
    return {
        "graph": NotRun("TensorRT-LLM makes its own network from the checkpoint"),
        "parity": NotRun(why, (*AGREEMENT, "engine_sanity")),
        "speculation": NotRun(why, tuple(SPECULATION)),
        "smoke": NotRun(why, ("smoke",)),
        "bench": NotRun(why, ("failed_requests", "slo")),
    }
