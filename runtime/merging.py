"""Outputs of one request joined to one: what a client would have read of all of them."""

from __future__ import annotations

from dataclasses import replace

from runtime.request import RequestOutput, SampleOutput


def own_copy(output: RequestOutput) -> RequestOutput:
    """A copy that :func:`absorb` may change; ``output`` stays as it is."""
    return replace(output, samples=[_copy(sample) for sample in output.samples])


def absorb(into: RequestOutput, later: RequestOutput) -> None:
    """Add the output that came after ``into`` to it; ``later`` stays as it is.

    Texts, tokens and log-probabilities are appended, everything that counts "so far" is the later output's.
    """
    known = {sample.index: sample for sample in into.samples}
    for sample in later.samples:
        if sample.index not in known:
            into.samples.append(_copy(sample))
            continue
        old = known[sample.index]
        old.text += sample.text
        old.token_ids += sample.token_ids
        if sample.logprobs is not None:
            old.logprobs = [*(old.logprobs or ()), *sample.logprobs]
        old.cumulative_logprob, old.num_tokens = sample.cumulative_logprob, sample.num_tokens
        old.finish_reason, old.stop_reason = sample.finish_reason, sample.stop_reason
        old.num_draft_tokens, old.num_accepted_tokens = sample.num_draft_tokens, sample.num_accepted_tokens
    into.finished, into.times, into.error = later.finished, later.times, later.error or into.error
    into.num_prompt_tokens, into.num_cached_tokens = later.num_prompt_tokens, later.num_cached_tokens
    into.max_tokens, into.num_blocks = later.max_tokens, later.num_blocks
    into.prompt_characters_removed = later.prompt_characters_removed


def _copy(sample: SampleOutput) -> SampleOutput:
    logprobs = None if sample.logprobs is None else list(sample.logprobs)
    return replace(sample, token_ids=list(sample.token_ids), logprobs=logprobs)
