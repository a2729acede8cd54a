"""Generation sanity: greedy answers to fixed prompts, checked for rubbish.

A model can keep its perplexity and still write loops or nothing at all; these checks look at what it
writes. An answer is degenerate when it is empty, when it is nearly all one repeated phrase, or when it
does not decode to clean text. The candidate is held against the baseline: a prompt on which the
baseline is degenerate too says nothing about quantization.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from evals.gates import at_least
from evals.samples import Samples
from trtforge.ground.progress import Progress, SilentProgress
from trtforge.store.artifact import GateResult

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
#: characters of a degenerate answer that a gate's detail shows
SHOWN = 60


@dataclass(frozen=True)
class Answer:
    """One prompt's greedy answer with what the checks saw."""

    prompt: str
    token_ids: tuple[int, ...]
    text: str
    distinct_share: float
    problems: tuple[str, ...]

    @classmethod
    def of_json(cls, record: Mapping[str, Any]) -> Answer:
        """The answer of a record of :func:`answers_to_json`; raises KeyError, TypeError or ValueError for another."""
        return cls(
            record["prompt"],
            tuple(record["token_ids"]),
            record["text"],
            float(record["distinct_share"]),
            tuple(record["problems"]),
        )


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
    samples: Samples | None = None,
    progress: Progress | None = None,
    prepare: Callable[[Sequence[str], int], None] | None = None,
) -> list[Answer]:
    """Greedy answers; ``generate(prompt, max_tokens)`` returns the new token ids and their text.

    ``samples``: answers that are there already, and where new ones are kept; ``prepare`` is given the prompts that will
    be asked, before the first is.
    """
    report = progress or SilentProgress()
    report.start(f"generation sanity on {len(prompts)} prompts", total=len(prompts))
    answers, names = [], [f"{max_tokens}: {prompt}" for prompt in prompts]
    open_ = [
        prompt for name, prompt in zip(names, prompts, strict=True) if samples is None or samples.get(name) is None
    ]
    if prepare is not None and open_:
        prepare(open_, max_tokens)
    for name, prompt in zip(names, prompts, strict=True):
        known = samples.get(name) if samples is not None else None
        if known is None:
            token_ids, text = generate(prompt, max_tokens)
            known = {"token_ids": [int(token) for token in token_ids], "text": text}
            if samples is not None:
                samples.add(name, known)
        answers.append(inspect_answer(prompt, known["token_ids"], known["text"]))
        report.advance()
    if samples is not None:
        samples.finish(names)
    return answers


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Tokens before the first difference."""
    length = 0
    for a, b in zip(left, right, strict=False):
        if a != b:
            break
        length += 1
    return length


def edit_distance(left: Sequence[int], right: Sequence[int]) -> int:
    """Tokens to insert, delete or replace until one is the other (Levenshtein 1966)."""
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        above, row[0] = row[0], i
        for j, b in enumerate(right, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (a != b))
    return row[-1]


@dataclass(frozen=True)
class Comparison:
    """The candidate's answers against the baseline's.

    Attributes:
        prompts: how many were answered.
        baseline_sane: of them, how many the baseline answers sanely.
        lost: the candidate's answers to those that are degenerate.
        mean_common_prefix_tokens: tokens before the first difference, on average.
        same: answers that are the baseline's, token by token.
        mean_edit_share: edit distance over the longer answer's tokens, on average; 0 for the same answer.
        prefixes: tokens before the first difference, an answer each.
    """

    prompts: int
    baseline_sane: int
    lost: tuple[Answer, ...]
    mean_common_prefix_tokens: float
    same: int = 0
    mean_edit_share: float = 0.0
    prefixes: tuple[int, ...] = ()

    @property
    def kept_share(self) -> float:
        """Share of the baseline's sane answers that stay sane; 1 when it has none."""
        return 1 - len(self.lost) / self.baseline_sane if self.baseline_sane else 1.0

    def to_json(self) -> dict[str, Any]:
        return {
            "prompts": self.prompts,
            "baseline_sane": self.baseline_sane,
            "candidate_sane_of_those": self.baseline_sane - len(self.lost),
            "mean_common_prefix_tokens": self.mean_common_prefix_tokens,
            "same": self.same,
            "mean_edit_share": self.mean_edit_share,
            "common_prefix_tokens": list(self.prefixes),
            "lost": [{"prompt": answer.prompt, "problems": list(answer.problems)} for answer in self.lost],
        }


def compare(baseline: Sequence[Answer], candidate: Sequence[Answer]) -> Comparison:
    """Answers of both to the same prompts, in the same order."""
    sane = [i for i, answer in enumerate(baseline) if not answer.problems]
    pairs = [(b.token_ids, c.token_ids) for b, c in zip(baseline, candidate, strict=True)]
    prefixes = [common_prefix(b, c) for b, c in pairs]
    edits = [edit_distance(b, c) / max(len(b), len(c), 1) for b, c in pairs]
    return Comparison(
        len(baseline),
        len(sane),
        tuple(candidate[i] for i in sane if candidate[i].problems),
        sum(prefixes) / len(prefixes) if prefixes else 0.0,
        sum(b == c for b, c in pairs),
        sum(edits) / len(edits) if edits else 0.0,
        tuple(prefixes),
    )


def sanity_gate(found: Comparison, min_sane: float, name: str = "generation_sanity") -> GateResult:
    """At least ``min_sane`` of the prompts on which the baseline is sane stay sane; the detail names the others.

    Missed where the baseline answers no prompt sanely, unless ``min_sane`` is 0: nothing shows what is lost.
    """
    share = found.kept_share
    if not found.baseline_sane and min_sane > 0:
        detail = (
            f"the baseline answers none of {found.prompts} prompts sanely: no answer could be lost, nothing is shown"
        )
        return GateResult(name, False, 0.0, min_sane, detail)
    kept = f"{found.baseline_sane - len(found.lost)} of {found.baseline_sane}"
    detail = f"{kept} answers that were sane stay sane, {share:.4g} {'>=' if share >= min_sane else '<'} {min_sane:.4g}"
    if found.lost:
        detail += "; lost: " + "; ".join(_lost(answer) for answer in found.lost)
    return at_least(name, share, min_sane, detail)


def _lost(answer: Answer) -> str:
    text = " ".join(answer.text.split())
    shown = f": {text[:SHOWN]!r}{'…' if len(text) > SHOWN else ''}" if text else ""
    return f"{answer.prompt!r} ({', '.join(answer.problems)}{shown})"


def answers_to_json(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    return [asdict(answer) for answer in answers]
