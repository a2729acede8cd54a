"""The training loop: batches of one order, a schedule, checkpoints, and an end by steps or by the clock.

Most steps draft one token from each position, the last ones several: what is learned about the next token is the same,
at a third of the cost, and only then what comes of states that were fed back. The learning rate warms up, stays, and
falls to nothing over the last part of the steps. How many steps there are comes from the epochs or a number; with a
time budget the speed of the first steps fixes how many of them fit. A run of that many steps without a budget is the
same run.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from quantize.speculative.acceptance import Acceptance, judge, merged
from quantize.speculative.checkpoints import latest, save
from quantize.speculative.draft_module import DraftModule
from quantize.speculative.rollout import roll_out
from quantize.speculative.states import States, Text, grouped
from trtforge.ground.progress import Progress

#: texts that are sorted by length together; batches of them are shuffled again
_WINDOW = 512
_WARM_UP = 30
#: the part of the steps over which the learning rate falls
FALL = 0.35
#: the part of the steps that draft one token only
SINGLE = 0.7
#: the part of a budget after which the number of steps is fixed, and the part of it that they may take
_MEASURED, _USED = 0.3, 0.93
#: what a step costs beside its roll-out, in drafts
_BESIDE = 0.3
_CLIP = 1.0


@dataclass(frozen=True)
class Settings:
    """How a head is trained.

    Attributes:
        epochs: passes over the text, where ``steps`` is not given.
        time_budget: seconds of training at most, over all resumptions; None: as many as it takes.
        draft_steps: drafts of the roll-out of the last steps; as many as will be drafted, or one less.
        held: texts that are kept out to watch the training by.
        every: seconds between checkpoints.
    """

    seed: int = 0
    epochs: float = 8.0
    steps: int | None = None
    time_budget: float | None = None
    batch_tokens: int = 1024
    learning_rate: float = 2e-3
    draft_steps: int = 4
    decay: float = 0.9
    held: int = 64
    every: float = 300.0


@dataclass
class State:
    """Where a training is.

    Attributes:
        step: steps made.
        total: steps in all; None until the clock has fixed it.
        seconds: spent in all runs of this training.
        loss: of the last steps, smoothed.
        best: accepted length of the best held-out measurement, at ``best_step``.
    """

    step: int = 0
    total: int | None = None
    seconds: float = 0.0
    loss: float | None = None
    best: float = 0.0
    best_step: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)


def split(texts: Sequence[Text], held: int, seed: int) -> tuple[list[Text], list[Text]]:
    """(held out, training); greedy answers only are held out, at most a tenth of all texts."""
    order = list(texts)
    random.Random(f"{seed}/split").shuffle(order)
    out = [text for text in order if text.greedy][: min(held, len(order) // 10)]
    chosen = {id(text) for text in out}
    return out, [text for text in order if id(text) not in chosen]


def epoch(texts: Sequence[Text], number: int, seed: int, tokens: int) -> list[list[Text]]:
    """The batches of epoch ``number``: always the same ones, of texts of like length."""
    made = random.Random(f"{seed}/epoch/{number}")
    order = list(texts)
    made.shuffle(order)
    batches: list[list[Text]] = []
    for begin in range(0, len(order), _WINDOW):
        window = sorted(order[begin : begin + _WINDOW], key=lambda text: (text.length, text.file, text.begin))
        groups = grouped([text.length for text in window], tokens)
        batches += [[window[place] for place in group] for group in groups]
    made.shuffle(batches)
    return batches


def batches_from(texts: Sequence[Text], settings: Settings, step: int) -> Iterator[list[Text]]:
    """Batches without end, beginning with that of step ``step`` (from 0)."""
    number = 0
    while True:
        made = epoch(texts, number, settings.seed, settings.batch_tokens)
        yield from made[step:]
        step = max(0, step - len(made))
        number += 1


def rate(settings: Settings, step: int, total: int | None) -> float:
    """The learning rate of step ``step`` (from 0)."""
    warm = min(1.0, (step + 1) / _WARM_UP)
    if total is None:
        return settings.learning_rate * warm
    return settings.learning_rate * min(warm, max(0.0, (total - step) / max(1.0, FALL * total)))


def drafts(settings: Settings, step: int, total: int | None) -> int:
    """Drafts of the roll-out of step ``step``."""
    return settings.draft_steps if total is not None and step >= SINGLE * total else 1


def fixed_steps(settings: Settings, planned: int, step: int, seconds: float) -> int | None:
    """How many steps there are, once that is known; None before: it depends on what the first ones take."""
    if settings.time_budget is None or step >= _MEASURED * planned:
        return planned
    if seconds < _MEASURED * settings.time_budget:
        return None
    longer = (settings.draft_steps + _BESIDE) / (1 + _BESIDE)
    fitting = step / seconds * settings.time_budget * _USED / (SINGLE + (1 - SINGLE) * longer)
    return min(planned, max(step + 1, round(fitting)))


def train(
    draft: DraftModule,
    states: States,
    settings: Settings,
    scratch: Path,
    progress: Progress,
    clock: Callable[[], float] = time.monotonic,
) -> State:
    """Train ``draft`` in place, from the last checkpoint in ``scratch``; it ends with the best weights.

    The same settings, states and threads give the same weights, however often it was stopped in between (with a time
    budget: the same where the clock fixed the same number of steps).
    """
    held, texts = split(states.texts, settings.held, settings.seed)
    optimizer = torch.optim.AdamW(draft.parameters().values(), betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    state = State()
    if (found := latest(scratch)) is not None:
        state = State(**found.record)
        draft.load(found.weights)
        found.into(optimizer, draft.parameters())
    best = found.best if found is not None else {}
    an_epoch = len(epoch(texts, 0, settings.seed, settings.batch_tokens))
    planned = settings.steps or max(1, round(settings.epochs * an_epoch))
    progress.start("training", float(state.total or planned))
    progress.advance(state.step)
    began, saved = clock() - state.seconds, clock()

    def watch() -> None:
        nonlocal best
        figures = measure(draft, states, held, settings)
        state.history.append({"step": state.step, "loss": round(state.loss or 0.0, 4), **figures.to_json()})
        progress.note(
            f"step {state.step}: loss {state.loss or 0.0:.3f}, accepted length {figures.length:.3f} on held-out text"
        )
        if figures.length >= state.best:
            state.best, state.best_step = figures.length, state.step
            best = {name: value.detach().clone() for name, value in draft.parameters().items()}

    draft.module.train()
    for batch in batches_from(texts, settings, state.step):
        state.seconds = clock() - began
        if state.total is None:
            state.total = fixed_steps(settings, planned, state.step, state.seconds)
            if state.total not in (None, planned):
                progress.start("training", float(state.total or 0))
                progress.advance(state.step)
        over = settings.time_budget is not None and state.seconds >= settings.time_budget
        if over or (state.total is not None and state.step >= state.total):
            break
        for group in optimizer.param_groups:
            group["lr"] = rate(settings, state.step, state.total)
        rolled = roll_out(
            draft,
            states.batch(batch, draft.allowed),
            drafts(settings, state.step, state.total),
            settings.decay,
            dtype=torch.bfloat16,
        )
        rolled.loss.backward()
        torch.nn.utils.clip_grad_norm_(draft.parameters().values(), _CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        newest = rolled.loss.detach().item()
        state.loss = newest if state.loss is None else 0.95 * state.loss + 0.05 * newest
        state.step += 1
        progress.advance()
        if clock() - saved >= settings.every:
            watch()
            state.seconds = clock() - began
            save(scratch, asdict(state), draft.parameters(), optimizer, best)
            saved = clock()
    watch()
    draft.load(best)
    return state


@torch.no_grad()
def measure(draft: DraftModule, states: States, texts: Sequence[Text], settings: Settings) -> Acceptance:
    """Accepted lengths on texts that were written greedily, as a chain of ``draft_steps`` drafts would have them."""
    every = torch.ones_like(draft.allowed)
    ordered = sorted(texts, key=lambda text: text.length)
    found: list[Acceptance] = []
    for group in grouped([text.length for text in ordered], settings.batch_tokens):
        batch = states.batch([ordered[place] for place in group], every)
        rolled = roll_out(draft, batch, settings.draft_steps, settings.decay, dtype=torch.bfloat16)
        found += judge(draft, batch, rolled)
    return merged(found, settings.draft_steps)
