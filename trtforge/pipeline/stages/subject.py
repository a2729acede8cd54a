"""What is measured: the reference model of a checkpoint, or a built engine, behind the same few functions."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from trtforge.ground.progress import Progress
from trtforge.models.loading import Loading, Mode

if TYPE_CHECKING:
    import torch

    from evals.harness import HarnessModel
    from evals.layers import Step
    from evals.tasks import Item
    from quantize.by_layer.reference import LayeredReference
    from quantize.reference import ReferenceModel
    from runtime.offline import Engine
    from runtime.tokenizer import EngineTokenizer
    from trtforge.pipeline.stages.engine_process import Ask

    Done = Callable[[list[int]], bool]

REFERENCE_DTYPE: Final = "float32"
#: items of a batch where the weights are read once for all of them
_ALL = 1 << 20
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
        prepare: given all sequences before their logits are asked for; None: it makes no difference.
        prepare_answers: given all prompts of ``answer`` before the first; None: it makes no difference.
        batch: how many items are best given to ``write`` at once; None: it makes no difference.
    """

    tokenizer: EngineTokenizer
    logits: Callable[[torch.Tensor, int], torch.Tensor]
    write: Callable[[Sequence[Item]], list[str]]
    answer: Callable[[Sequence[int], int], Sequence[int]]
    longest: int | None = None
    prepare: Callable[[Sequence[torch.Tensor]], None] | None = None
    prepare_answers: Callable[[Sequence[tuple[Sequence[int], int]]], None] | None = None
    batch: Callable[[], int] | None = None


class LazyReference:
    """The reference model of a checkpoint, loaded when something has to be measured: what is cached needs no model."""

    def __init__(
        self,
        checkpoint: Path,
        progress: Progress,
        loading: Loading = "auto",
        work: Path | None = None,
        *,
        models: int = 1,
    ) -> None:
        """Open it later.

        Args:
            loading: the recipe's ``model.loading``.
            work: a folder of this very checkpoint and work that survives a kill.
            models: how many such models the work needs at once.
        """
        from runtime.tokenizer import EngineTokenizer

        self._checkpoint, self._progress, self._loading, self._work = checkpoint, progress, loading, work
        self._models = models
        self._tokenizer = EngineTokenizer.load(checkpoint)
        self._answers: dict[tuple[tuple[int, ...], int], list[int]] = {}

    @functools.cached_property
    def mode(self) -> Mode:
        """Whether the model is loaded whole or taken layer by layer; said when it is decided."""
        from quantize.loading import choose, told

        mode = choose(self._loading, self._checkpoint, self._models)
        self._progress.note(told(mode))
        return mode

    @functools.cached_property
    def model(self) -> ReferenceModel | LayeredReference:
        # within the step that asks for it
        return open_reference(self._checkpoint, self.mode, self._work, self._progress)

    def rounded(self, ids: torch.Tensor) -> torch.Tensor:
        """Its logits with every module's result rounded to bfloat16: as far apart as right implementations may be."""
        return self.model.rounded_logits(ids, "bfloat16")

    def prepare(self, sequences: Sequence[torch.Tensor]) -> None:
        """Before :meth:`Subject.logits` of many sequences: layers are read once for all of them."""
        if self.mode == "by_layer":
            cast("LayeredReference", self.model).prepare(sequences)

    def prepare_rounded(self, sequences: Sequence[torch.Tensor]) -> None:
        """Before :meth:`rounded` of many sequences."""
        if self.mode == "by_layer":
            from quantize.by_layer.reference import rounding

            cast("LayeredReference", self.model).prepare(sequences, rounding("bfloat16"))

    def steps(self, ids: torch.Tensor) -> Iterator[Step]:
        """The parts of the model that are in memory at a time, over int64 [S]."""
        from evals.layers import Step, whole_step

        if self.mode == "by_layer":
            yield from (Step(*step) for step in cast("LayeredReference", self.model).walk(ids))
        else:
            yield whole_step(cast("ReferenceModel", self.model).model, ids)

    def subject(self) -> Subject:
        tokenizer = self._tokenizer

        from evals.tasks import BATCH

        def write(items: Sequence[Item]) -> list[str]:
            return self._written(items, tokenizer)

        def answer(ids: Sequence[int], max_tokens: int) -> Sequence[int]:
            known = self._answers.pop((tuple(ids), max_tokens), None)
            return self._generated([(ids, max_tokens, None)])[0] if known is None else known

        return Subject(
            tokenizer,
            lambda ids, last: self.model.logits(ids, last),
            write,
            answer,
            prepare=self.prepare,
            prepare_answers=self._prepare_answers,
            batch=lambda: _ALL if self.mode == "by_layer" else BATCH,
        )

    def _prepare_answers(self, asked: Sequence[tuple[Sequence[int], int]]) -> None:
        if self.mode == "by_layer":
            made = self._generated([(ids, most, None) for ids, most in asked])
            self._answers = {(tuple(ids), most): ids_made for (ids, most), ids_made in zip(asked, made, strict=True)}

    def _generated(self, asked: Sequence[tuple[Sequence[int], int, Done | None]]) -> list[list[int]]:
        """Greedy continuations; together where a layer is read for all of them."""
        import torch

        prompts = [(torch.tensor(list(ids)), most, done) for ids, most, done in asked]
        if self.mode == "by_layer":
            return cast("LayeredReference", self.model).generate_together(prompts)
        return [self.model.generate_greedy(*prompt) for prompt in prompts]

    def _written(self, items: Sequence[Item], tokenizer: EngineTokenizer) -> list[str]:
        def line_ended(made: list[int]) -> bool:
            return "\n" in tokenizer.decode(made).lstrip("\n")

        asked = [
            (item_tokens(tokenizer, item), item.max_tokens, line_ended if item.one_line else None) for item in items
        ]
        return [tokenizer.decode(made) for made in self._generated(asked)]


def open_reference(
    checkpoint: Path, mode: Mode, work: Path | None, progress: Progress
) -> ReferenceModel | LayeredReference:
    """The reference model of a checkpoint, whole or layer by layer; both compute the same."""
    progress.note("loading the reference model")
    if mode == "by_layer":
        from quantize.by_layer.reference import LayeredReference

        return LayeredReference(checkpoint, dtype=REFERENCE_DTYPE, work=work, progress=progress)
    from quantize.reference import load_reference_model

    return load_reference_model(checkpoint, dtype=REFERENCE_DTYPE)


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
