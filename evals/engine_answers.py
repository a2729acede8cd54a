"""What the built engine itself writes: greedy answers of its own, each token held against the reference.

Teacher-forced parity feeds the engine whole prompts and never lets it go on by itself: its kernels for few rows, its
cache, its scheduler and its end of an answer stay unseen. Here it answers alone, to the questions that the baseline
answered and to prompts of a few tokens. Then the reference reads each answer once and says at every token whether it
would have chosen it, up to near ties (:func:`runtime.determinism.near_tie_bound`). An engine that loops, or goes on in
rubbish after a right beginning, is the first to disagree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from evals.generation import Answer, inspect_answer
from evals.samples import Samples
from evals.statistics import wilson
from runtime.determinism import near_tie_bound
from trtforge.ground.hashing import hash_json
from trtforge.ground.progress import Progress, SilentProgress
from trtforge.store.artifact import GateResult

if TYPE_CHECKING:
    import torch

#: lengths of the short prompts, in tokens: decode kernels and all but empty contexts
SHORT_PROMPTS = (1, 2, 3, 5)
#: differences that a result names
NAMED = 3


@dataclass(frozen=True)
class Question:
    """A prompt by name; ``baseline``: the unquantized model answered it too."""

    name: str
    token_ids: tuple[int, ...]
    baseline: bool


@dataclass(frozen=True)
class Parted:
    """A token that the reference would not have chosen: where, what, and how far below its best."""

    prompt: str
    position: int
    token: str
    best: str
    gap: float
    bound: float

    def __str__(self) -> str:
        return (
            f"{self.prompt!r} at token {self.position}: {self.token!r} lies {self.gap:.3g} logits below {self.best!r}, "
            f"the near-tie bound is {self.bound:.3g}"
        )


@dataclass(frozen=True)
class EngineAnswers:
    """Attributes:
    answers: one a question.
    tokens: tokens of all answers.
    agreed: of them, how many are the reference's best or a near tie of it.
    parted: the first differences.
    """

    questions: tuple[Question, ...]
    answers: tuple[Answer, ...]
    tokens: int
    agreed: int
    parted: tuple[Parted, ...]

    def to_baseline(self) -> list[Answer]:
        """The answers to the questions that the baseline answered, in their order."""
        return [a for q, a in zip(self.questions, self.answers, strict=True) if q.baseline]

    def to_record(self) -> dict[str, Any]:
        """Everything, as :meth:`of_record` reads it back."""
        return asdict(self)

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> EngineAnswers:
        """The inverse of :meth:`to_record`; raises KeyError or TypeError for a record that lacks a part."""
        questions = (Question(q["name"], tuple(q["token_ids"]), q["baseline"]) for q in record["questions"])
        answers = tuple(Answer.of_json(one) for one in record["answers"])
        parted = tuple(Parted(**one) for one in record["parted"])
        return cls(tuple(questions), answers, int(record["tokens"]), int(record["agreed"]), parted)

    def to_json(self) -> dict[str, Any]:
        return {
            "answers": len(self.answers),
            "sane": sum(not answer.problems for answer in self.answers),
            "tokens": self.tokens,
            "agreed": self.agreed,
            "parted": [asdict(parted) for parted in self.parted],
        }


def answer_questions(
    generate: Callable[[Sequence[int], int], Sequence[int]],
    reference_logits: Callable[[torch.Tensor], torch.Tensor],
    questions: Sequence[Question],
    *,
    decode: Callable[[Sequence[int]], str],
    max_tokens: int,
    activations: str,
    noise: float,
    samples: Samples | None = None,
    progress: Progress | None = None,
) -> EngineAnswers:
    """Let the engine answer and the reference read.

    Args:
        generate: prompt tokens and a number → the engine's greedy continuation, at most that many tokens.
        reference_logits: int64 [S] → float32 [S, V] of the quantized checkpoint.
        decode: tokens to text.
        activations, noise: as for :func:`runtime.determinism.near_tie_bound`.
        samples: answers that are there already, and where new ones are kept.
    """
    report = progress or SilentProgress()
    report.start(f"the engine's own answers to {len(questions)} prompts", total=len(questions))
    answers: list[Answer] = []
    parted: list[Parted] = []
    tokens = agreed = 0
    names = [hash_json([question.name, question.token_ids])[:24] for question in questions]
    for name, question in zip(names, questions, strict=True):
        record = samples.get(name) if samples is not None else None
        if record is None:
            record = _read_answer(generate, reference_logits, question, max_tokens)
            if samples is not None:
                record = samples.add(name, record)
        answer: list[int] = record["answer"]
        answers.append(inspect_answer(question.name, answer, decode(answer)))
        read = zip(record["best"], record["gaps"], record["largest"], strict=True)
        for position, (best, gap, largest) in enumerate(read):
            bound = near_tie_bound(largest, activations, noise)
            tokens += 1
            if gap <= bound:
                agreed += 1
            elif len(parted) < NAMED:
                words = decode([answer[position]]), decode([best])
                parted.append(Parted(question.name, position, *words, gap, bound))
        report.advance()
    if samples is not None:
        samples.finish(names)
    return EngineAnswers(tuple(questions), tuple(answers), tokens, agreed, tuple(parted))


def _read_answer(
    generate: Callable[[Sequence[int], int], Sequence[int]],
    reference_logits: Callable[[torch.Tensor], torch.Tensor],
    question: Question,
    max_tokens: int,
) -> dict[str, Any]:
    """A question's sample: the answer, and of each token the reference's best, how far above it, the largest logit."""
    import torch

    ids = list(question.token_ids)
    answer = [int(token) for token in generate(ids, max_tokens)]
    if not answer:
        return {"answer": [], "best": [], "gaps": [], "largest": []}
    rows = reference_logits(torch.tensor([*ids, *answer[:-1]]))[len(ids) - 1 :].float()
    best = rows.max(-1)
    chosen = rows.gather(1, torch.tensor(answer)[:, None])[:, 0]
    return {
        "answer": answer,
        "best": best.indices.tolist(),
        "gaps": (best.values - chosen).tolist(),
        "largest": rows.abs().amax(-1).tolist(),
    }


def agreement_gate(found: EngineAnswers, min_agreement: float) -> GateResult:
    """The reference would have written what the engine wrote.

    The sample is small, so it is the upper bound of the interval that has to reach the limit: the claim itself is
    proved on the long prompts, this gate finds what they cannot see.
    """
    share = wilson(found.agreed, found.tokens) if found.tokens else None
    high = 0.0 if share is None else share.high
    detail = (
        f"{found.agreed} of {found.tokens} tokens of {len(found.answers)} answers are what the quantized model would "
        f"choose, upper bound {high:.4g} {'>=' if high >= min_agreement else '<'} {min_agreement:.4g}"
    )
    if found.parted:
        detail += "; " + "; ".join(str(parted) for parted in found.parted)
    return GateResult("engine_answers", high >= min_agreement, high, min_agreement, detail)


def short_questions(tokens: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[Question]:
    """Prompts of :data:`SHORT_PROMPTS` tokens from different places of ``tokens``."""
    found = []
    for i, length in enumerate(SHORT_PROMPTS):
        first = len(tokens) * i // len(SHORT_PROMPTS)
        ids = tuple(int(token) for token in tokens[first : first + length])
        found.append(Question(f"{length} tokens: {decode(ids)}", ids, False))
    return found
