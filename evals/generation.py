"""Generation sanity: greedy answers to fixed prompts, checked for rubbish.

A model can keep its perplexity and still write loops or nothing at all; these checks look at what it
writes. An answer is degenerate when it is empty, when it is nearly all one repeated phrase, or when it
does not decode to clean text. The candidate is held against the baseline: a prompt on which the
baseline is degenerate too says nothing about quantization.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evals.gates import at_least
from trtforge.pipeline.stage import GateResult
from trtforge.progress import Progress, SilentProgress

PROMPTS: tuple[str, ...] = (
    "What is the capital of France?",
    "Explain in two sentences why the sky is blue.",
    "Write a Python function that adds two numbers.",
    "List three fruits and their colours.",
    "Translate 'good morning' into Spanish.",
    "What does a database index do?",
    "Give one reason to write unit tests.",
    "Summarize the water cycle in one sentence.",
)
#: shares of distinct 4-grams below this are loops; ordinary prose stays above 0.6 at 48 tokens
MIN_DISTINCT = 0.25
NGRAM = 4


@dataclass(frozen=True)
class Answer:
    """One prompt's greedy answer with what the checks saw."""

    prompt: str
    token_ids: tuple[int, ...]
    text: str
    distinct_share: float
    problems: tuple[str, ...]


def distinct_share(token_ids: Sequence[int], order: int = NGRAM) -> float:
    """Distinct n-grams over all n-grams; 1.0 for answers shorter than ``order``."""
    grams = [tuple(token_ids[i : i + order]) for i in range(len(token_ids) - order + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0


def inspect_answer(prompt: str, token_ids: Sequence[int], text: str) -> Answer:
    """Apply the checks to one answer."""
    share = distinct_share(token_ids)
    problems = []
    if not text.strip():
        problems.append("empty")
    if len(token_ids) >= 3 * NGRAM and share < MIN_DISTINCT:
        problems.append("repeats itself")
    if "�" in text[:-1]:  # the last character may be cut by the token limit
        problems.append("does not decode")
    return Answer(prompt, tuple(int(t) for t in token_ids), text, share, tuple(problems))


def answer_prompts(
    generate: Callable[[str, int], tuple[Sequence[int], str]],
    *,
    prompts: Sequence[str],
    max_tokens: int,
    progress: Progress | None = None,
) -> list[Answer]:
    """Greedy answers; ``generate(prompt, max_tokens)`` returns the new token ids and their text."""
    report = progress or SilentProgress()
    report.start(f"generation sanity on {len(prompts)} prompts", total=len(prompts))
    answers = []
    for prompt in prompts:
        token_ids, text = generate(prompt, max_tokens)
        answers.append(inspect_answer(prompt, token_ids, text))
        report.advance()
    return answers


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Tokens before the first difference."""
    length = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        length += 1
    return length


def compare(baseline: Sequence[Answer], candidate: Sequence[Answer]) -> tuple[dict[str, Any], GateResult]:
    """Summary and gate: at least half of the prompts on which the baseline is sane stay sane."""
    sane = [i for i, answer in enumerate(baseline) if not answer.problems]
    kept = [i for i in sane if not candidate[i].problems]
    share = len(kept) / len(sane) if sane else 1.0
    prefixes = [common_prefix(b.token_ids, c.token_ids) for b, c in zip(baseline, candidate, strict=True)]
    summary = {
        "prompts": len(baseline),
        "baseline_sane": len(sane),
        "candidate_sane_of_those": len(kept),
        "mean_common_prefix_tokens": sum(prefixes) / len(prefixes) if prefixes else 0.0,
    }
    return summary, at_least("generation_sanity", share, 0.5)


def answers_to_json(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    return [asdict(answer) for answer in answers]
