"""What is measured: the reference model of a checkpoint, or a built engine, behind the same few functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from trtforge.ground.progress import Progress

if TYPE_CHECKING:
    import torch

    from evals.harness import HarnessModel
    from evals.tasks import Item
    from quantize.reference import ReferenceModel
    from runtime.offline import Engine
    from runtime.tokenizer import EngineTokenizer
    from trtforge.pipeline.stages.engine_process import Ask

REFERENCE_DTYPE: Final = "float32"
#: tokens of a sequence that the harness may give a model which says no limit of its own
LONGEST = 2048


@dataclass(frozen=True)
class Subject:
    """A model to measure.

    Attributes:
        tokenizer: its tokenizer.
        logits: token ids int64 [S] → the last ``n`` rows, float32 [n, V]; all rows with 0.
        write: items → the greedy texts for them.
        answer: prompt tokens and a number → the greedy continuation, at most that many tokens.
        longest: tokens of the longest prompt; None: no limit of its own.
    """

    tokenizer: EngineTokenizer
    logits: Callable[[torch.Tensor, int], torch.Tensor]
    write: Callable[[Sequence[Item]], list[str]]
    answer: Callable[[Sequence[int], int], Sequence[int]]
    longest: int | None = None


class LazyReference:
    """The reference model of a checkpoint, loaded when something has to be measured: what is cached needs no model."""

    def __init__(self, checkpoint: Path, progress: Progress) -> None:
        from runtime.tokenizer import EngineTokenizer

        self._checkpoint, self._progress = checkpoint, progress
        self._tokenizer = EngineTokenizer.load(checkpoint)

    @functools.cached_property
    def model(self) -> ReferenceModel:
        from quantize.reference import load_reference_model

        self._progress.note("loading the reference model")  # within the step that asks for it
        return load_reference_model(self._checkpoint, dtype=REFERENCE_DTYPE)

    def rounded(self, ids: torch.Tensor) -> torch.Tensor:
        """Its logits with every module's result rounded to bfloat16: as far apart as right implementations may be."""
        return self.model.rounded_logits(ids, "bfloat16")

    def subject(self) -> Subject:
        tokenizer = self._tokenizer

        def write(items: Sequence[Item]) -> list[str]:
            return [self._written(item, tokenizer) for item in items]

        def answer(ids: Sequence[int], max_tokens: int) -> Sequence[int]:
            import torch

            return self.model.generate_greedy(torch.tensor(list(ids)), max_tokens)

        return Subject(tokenizer, lambda ids, last: self.model.logits(ids, last), write, answer)

    def _written(self, item: Item, tokenizer: EngineTokenizer) -> str:
        import torch

        def line_ended(made: list[int]) -> bool:
            return "\n" in tokenizer.decode(made).lstrip("\n")

        ids = torch.tensor(item_tokens(tokenizer, item))
        made = self.model.generate_greedy(ids, item.max_tokens, line_ended if item.one_line else None)
        return tokenizer.decode(made)


def engine_subject(ask: Ask, tokenizer: EngineTokenizer, longest: int) -> Subject:
    """A running engine; items go to it together, so that it batches them."""
    import torch

    def logits(ids: torch.Tensor, last: int) -> torch.Tensor:
        return torch.from_numpy(ask(_logits, ids.tolist(), last))

    def write(items: Sequence[Item]) -> list[str]:
        asked = [(item_tokens(tokenizer, item), item.max_tokens) for item in items]
        return [tokenizer.decode(made) for made in ask(_generate, asked)]

    def answer(ids: Sequence[int], max_tokens: int) -> Sequence[int]:
        return cast("list[list[int]]", ask(_generate, [(list(ids), max_tokens)]))[0]

    return Subject(tokenizer, logits, write, answer, longest)


def harness_model(subject: Subject) -> HarnessModel:
    """A subject as the LM Evaluation Harness is given it."""
    import numpy as np
    import torch

    from evals.harness import HarnessModel

    tokenizer = subject.tokenizer

    def log_probs(ids: Sequence[int], scored: int) -> tuple[np.ndarray, np.ndarray]:
        wanted = torch.tensor(list(ids))
        rows_LV = subject.logits(wanted, scored + 1)[:-1].double()
        targets_L = wanted[-scored:]
        values_L = rows_LV.log_softmax(-1).gather(1, targets_L[:, None])[:, 0]
        return values_L.numpy(), (rows_LV.argmax(-1) == targets_L).numpy()

    end = tokenizer.special_tokens.get("bos_token") or tokenizer.special_tokens.get("eos_token") or ""
    ids = tokenizer.encode(end, add_special_tokens=False)
    return HarnessModel(
        lambda text, special: tokenizer.encode(text, add_special_tokens=special),
        tokenizer.decode,
        log_probs,
        subject.answer,
        lambda messages: tokenizer.render_chat(list(messages)),
        subject.longest or LONGEST,
        ids[0] if ids else 0,
    )


def item_tokens(tokenizer: Any, item: Item) -> list[int]:
    """An item's prompt as the model is given it."""
    return prompt_tokens(tokenizer, item.prompt) if item.chat else list(tokenizer.encode(item.prompt))


def prompt_tokens(tokenizer: Any, prompt: str) -> list[int]:
    """A question as the model expects it: through its chat template when it has one, else as plain text."""
    if tokenizer.chat_template is None:
        return list(tokenizer.encode(prompt))
    text = tokenizer.render_chat([{"role": "user", "content": prompt}])
    return list(tokenizer.encode(text, add_special_tokens=False))


# What the engine is asked, in the process that holds it.


def _logits(engine: Engine, progress: Progress, ids: list[int], last: int) -> Any:
    rows = engine.logits(ids)
    return rows[-last:] if last else rows


def _generate(engine: Engine, progress: Progress, asked: list[tuple[list[int], int]]) -> list[list[int]]:
    from runtime.sampling.params import SamplingParams

    params = [SamplingParams(max_tokens=most, temperature=0.0) for _, most in asked]
    return [list(result.token_ids) for result in engine.generate([ids for ids, _ in asked], params)]
