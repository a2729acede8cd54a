"""From logits to tokens: parameters, processing, choice, stop and bad words. Torch is imported by ``sampler`` only."""

from runtime.sampling.params import GuidedDecoding, SamplingParams

__all__ = ["GuidedDecoding", "SamplingParams"]
