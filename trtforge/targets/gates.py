"""Gates of the stages that a target without a runner leaves out."""

from __future__ import annotations

#: gates of a running engine against the quantized model
AGREEMENT = ("top1_agreement", "engine_kl", "engine_answers")
#: gates of an engine that speculates against itself without, by their keys in ``evals.speculation.gate``
SPECULATION = {
    "speculation_greedy": "max_differing",
    "speculation_distribution": "alpha",
    "speculation_accepted_length": "min_accepted_length",
    "speculation_speedup": "min_speedup",
}
