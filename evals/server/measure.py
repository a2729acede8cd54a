"""What a live server is asked, and its gates: agreement with the quantized model, sanity, tasks, perplexity, load.

The server gives text, no logits. Up to the first token on which two greedy answers differ both were written after the
same tokens, so every one of these is a fair trial of "would choose the same token"; what comes after it is not counted.
"""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from evals.gates import at_most
from evals.generation import Answer, common_prefix, compare, inspect_answer, sanity_gate
from evals.long_context import NEEDLES_GATE
from evals.perplexity import plan_windows
from evals.server.clients import TextServer
from evals.speed.load import Drafts, run_levels
from evals.speed.sweep import Sweep, slo_gates
from evals.statistics import Interval, block_mean, growth, wilson
from evals.tasks import Answered, Item, answer_items, compare_tasks, drop_gate, judge_answers
from trtforge.ground.errors import ForgeError
from trtforge.ground.progress import Progress
from trtforge.recipe.schema import Recipe
from trtforge.store.artifact import GateResult

PREFIX = "server_"
#: clients at once in the smoke test, and windows of perplexity that are asked for
CLIENTS, WINDOWS = 8, 4


@dataclass(frozen=True)
class OnRecord:
    """What the bundle knows of its model.

    Attributes:
        answers, baseline_answers: greedy answers of the quantized and the unquantized model to the same prompts.
        tasks, baseline_tasks: their answers to the items.
        items: the items themselves.
        needles, baseline_needles: items of the long-context probe, and the unquantized model's answers to them.
        tokens: token ids that perplexity was measured on; empty: not to be had here.
        nll, baseline_nll: losses of tokens 1 … of both.
    """

    answers: Sequence[Answer]
    baseline_answers: Sequence[Answer]
    items: Sequence[Item] = ()
    tasks: Sequence[Answered] = ()
    baseline_tasks: Sequence[Answered] = ()
    tokens: Sequence[int] = ()
    nll: np.ndarray | None = None
    baseline_nll: np.ndarray | None = None
    needles: Sequence[Item] = ()
    baseline_needles: Sequence[Answered] = ()


@dataclass(frozen=True)
class Texts:
    """Between text and tokens: prompts as the server is to be sent them."""

    prompt: Callable[[str], str]
    item: Callable[[Item], str]
    encode: Callable[[str], Sequence[int]]


@dataclass
class Found:
    """Figures, gates, and what could not be asked with the reason."""

    figures: dict[str, Any] = field(default_factory=dict)
    gates: list[GateResult] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


def evaluate_server(
    server: TextServer,
    record: OnRecord,
    texts: Texts,
    recipe: Recipe,
    progress: Progress,
    *,
    load: Sequence[str] = (),
    no_load: str = "not asked for",
) -> Found:
    """Everything in turn; ``load`` are the prompts of the load test, none leaves it out for the reason ``no_load``.

    Raises:
        ForgeError: TF-EVL-019 the server refuses what it must answer.
    """
    found = Found()
    answers = _answers(server, record, texts, recipe, progress)
    _hold_answers(answers, record, texts, recipe, found)
    _hold_tasks(server, record, texts, recipe, progress, found)
    _hold_needles(server, record, texts, recipe, progress, found)
    _hold_perplexity(server, record, recipe, progress, found)
    _smoke(server, [texts.prompt(answer.prompt) for answer in record.answers], recipe, progress, found)
    if load:
        _load(server, load, recipe, progress, found)
    else:
        found.left_out["bench"] = no_load
    if recipe.bench.arrivals is not None or recipe.bench.trace is not None:
        found.left_out["arrivals"] = "trtforge bench BUNDLE --url HOST:PORT --model NAME measures them"
    return found


def _answers(server: TextServer, record: OnRecord, texts: Texts, recipe: Recipe, progress: Progress) -> list[Answer]:
    progress.start(f"answers to {len(record.answers)} prompts", total=len(record.answers))
    answers = []
    for expected in record.answers:
        text = server.complete(texts.prompt(expected.prompt), recipe.evals.generation.max_tokens)
        answers.append(inspect_answer(expected.prompt, texts.encode(text), text))
        progress.advance()
    return answers


def agreement(expected: Sequence[int], got: Sequence[int]) -> tuple[int, int]:
    """Tokens that agree before the first difference, and trials: those and the one that differs."""
    agreed = common_prefix(expected, got)
    return agreed, agreed + (agreed < max(len(expected), len(got)))


def _whole(text: str) -> str:
    """A text without a character that the token limit cut."""
    return text.rstrip("\ufffd")


def _hold_answers(answers: Sequence[Answer], record: OnRecord, texts: Texts, recipe: Recipe, found: Found) -> None:
    counts = [
        agreement(texts.encode(_whole(a.text)), texts.encode(_whole(b.text)))
        for a, b in zip(record.answers, answers, strict=True)
    ]
    agreed, trials = (sum(column) for column in zip(*counts, strict=True))
    against = compare(record.baseline_answers, answers)
    found.figures["answers"] = {
        "answers": len(answers),
        "agreed": agreed,
        "tokens": trials,
        "same": sum(a.text == b.text for a, b in zip(record.answers, answers, strict=True)),
        "against_baseline": against.to_json(),
        "texts": [{"prompt": answer.prompt, "text": answer.text} for answer in answers],
    }
    if (gate := recipe.evals.engine_parity.gate) is not None:
        share = wilson(agreed, trials) if trials else Interval(0.0, 0.0, 0.0)
        passed = share.high >= gate.min_top1_agreement
        detail = (
            f"{agreed} of {trials} tokens up to each answer's first difference are the quantized model's, upper bound "
            f"{share.high:.4g} {'>=' if passed else '<'} {gate.min_top1_agreement:.4g}"
        )
        name = f"{PREFIX}agreement"
        found.gates.append(
            GateResult(
                name, passed, share.value, gate.min_top1_agreement, detail, share.high, low=share.low, high=share.high
            )
        )
    if (sane := recipe.evals.generation.gate) is not None:
        found.gates.append(sanity_gate(against, sane.min_sane, f"{PREFIX}sanity"))


def _hold_tasks(
    server: TextServer, record: OnRecord, texts: Texts, recipe: Recipe, progress: Progress, found: Found
) -> None:
    items = [item for item in record.items if item.scorer.kind != "code"]
    if len(items) < len(record.items):
        found.left_out["tasks scored by code"] = "a bundle does not make this machine run what a model writes"
    if not items:
        found.left_out.setdefault("tasks", "the bundle has none on record: its recipe asks for no evals.suite")
        return
    answered = _answered(server, items, texts, progress)
    names = {answer.name for answer in answered}
    before = [answer for answer in record.baseline_tasks if answer.name in names]
    asked_of = tuple(one for one in recipe.evals.custom if one.scorer != "code")
    figures, gates = judge_answers(before, answered, recipe.evals.model_copy(update={"custom": asked_of}), PREFIX)
    found.figures |= figures
    found.gates += gates
    quantized = {answer.name: answer.text.strip() for answer in record.tasks}
    same = sum(quantized.get(answer.name) == answer.text.strip() for answer in answered)
    found.figures["same_task_texts"] = {"same": same, "of": len(answered)}


def _answered(server: TextServer, items: Sequence[Item], texts: Texts, progress: Progress) -> list[Answered]:
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:

        def write(batch: Sequence[Item]) -> list[str]:
            return list(pool.map(lambda item: server.complete(texts.item(item), item.max_tokens), batch))

        return answer_items(write, items, progress=progress)


def _hold_needles(
    server: TextServer, record: OnRecord, texts: Texts, recipe: Recipe, progress: Progress, found: Found
) -> None:
    """The long-context probe's needles, as long as the server takes them."""
    asked, limits = recipe.evals.long_context, recipe.build.limits
    if not asked.lengths:
        return
    longest = limits.max_input_len or limits.max_seq_len - 1
    # one token more is the beginning that a server adds
    sizes = [(item, len(texts.encode(item.prompt)) + 1) for item in record.needles]
    items = [i for i, size in sizes if size <= longest and size + i.max_tokens <= limits.max_seq_len]
    if not items:
        why = (
            "the bundle has none on record" if not record.needles else f"all are over the {longest} tokens of a prompt"
        )
        found.left_out["long contexts"] = why
        return
    if len(items) < len(record.needles):
        over = f"{len(record.needles) - len(items)} of {len(record.needles)} needles"
        found.left_out["long contexts"] = f"{over}: their prompts are over the {longest} tokens of one"
    answered = _answered(server, items, texts, progress)
    names = {answer.name for answer in answered}
    compared = compare_tasks([one for one in record.baseline_needles if one.name in names], answered).overall
    found.figures["needles"] = compared.to_json()
    if asked.gate is not None and asked.gate.max_drop is not None:
        found.gates.append(drop_gate(f"{PREFIX}{NEEDLES_GATE}", compared, asked.gate.max_drop))


def _hold_perplexity(server: TextServer, record: OnRecord, recipe: Recipe, progress: Progress, found: Found) -> None:
    asked = recipe.evals.perplexity
    if not len(record.tokens) or record.baseline_nll is None or record.nll is None:
        found.left_out["perplexity"] = "the bundle's corpus or losses are not at hand here"
        return
    windows = plan_windows(len(record.tokens), asked.window, asked.stride)[:WINDOWS]
    progress.start(f"perplexity over {len(windows)} windows", total=len(windows))
    losses: list[float] = []
    for window in windows:
        said = server.prompt_log_probs(record.tokens[window.begin : window.end])
        if said is None:
            found.left_out["perplexity"] = f"a server of kind {server.kind} gave no log-probabilities of a prompt"
            return
        losses += [-value for value in said[-(window.end - window.score_from) :]]
        progress.advance()
    own = np.asarray(losses)
    increases = {
        name: growth(block_mean(own - reference[: len(own)]))
        for name, reference in (("baseline", record.baseline_nll), ("quantized", record.nll))
    }
    found.figures["perplexity"] = {
        "tokens": len(own),
        "perplexity": float(np.exp(own.mean())),
        "increase": increases["baseline"].to_json(),
        "against_quantized": increases["quantized"].to_json(),
    }
    if asked.gate is not None:
        pair = float(np.exp(record.baseline_nll[: len(own)].mean())), float(np.exp(own.mean()))
        name = f"{PREFIX}perplexity_increase"
        found.gates.append(at_most(name, increases["baseline"], asked.gate.max_increase, pair=pair))


def _smoke(server: TextServer, prompts: Sequence[str], recipe: Recipe, progress: Progress, found: Found) -> None:
    """Facts about the server, each a gate."""
    tokens = min(24, recipe.evals.generation.max_tokens)
    steps: tuple[tuple[str, Callable[[], str]], ...] = (
        ("a joined stream is the whole answer", lambda: _stream_joins(server, prompts, tokens)),
        (f"{CLIENTS} clients at once are answered", lambda: _clients(server, prompts, tokens)),
        ("a client that goes away does no harm", lambda: _vanishes(server, prompts[0], tokens)),
        ("faulty requests are refused, not left hanging", lambda: _faults(server, prompts[0], recipe)),
    )
    progress.start("smoke test of the server", total=len(steps))
    for name, step in steps:
        try:
            passed, detail = True, step()
        except (AssertionError, ForgeError) as error:
            passed, detail = False, f"{error} {error.why or ''}" if isinstance(error, ForgeError) else str(error)
        found.gates.append(GateResult(f"{PREFIX}smoke: {name}", passed, float(passed), 1.0, detail.strip()))
        progress.advance()


def _expect(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _stream_joins(server: TextServer, prompts: Sequence[str], tokens: int) -> str:
    pieces = 0
    for prompt in prompts:
        whole, parts = server.complete(prompt, tokens), list(server.stream(prompt, tokens))
        _expect("".join(parts) == whole, f"{prompt!r}: the stream says {''.join(parts)!r}, the whole answer {whole!r}")
        pieces += len(parts)
    return f"{len(prompts)} prompts, {pieces} pieces"


def _clients(server: TextServer, prompts: Sequence[str], tokens: int) -> str:
    alone = {prompt: server.complete(prompt, tokens) for prompt in prompts}
    asked = [prompts[i % len(prompts)] for i in range(2 * CLIENTS)]
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(lambda prompt: server.complete(prompt, tokens), asked))
    empty = [prompt for prompt, answer in zip(asked, answers, strict=True) if not answer and alone[prompt]]
    _expect(not empty, f"{len(empty)} answers are empty, the first to {empty[:1]}")
    same = sum(alone[prompt] == answer for prompt, answer in zip(asked, answers, strict=True))
    return f"{len(asked)} answers, {same} of them as when asked alone"


def _vanishes(server: TextServer, prompt: str, tokens: int) -> str:
    before = server.complete(prompt, tokens)
    stream = server.stream(prompt, max(tokens, 256))
    next(stream, None)
    _close(stream)
    after = server.complete(prompt, tokens)
    _expect(after == before, f"the next client got {after!r}, before it was {before!r}")
    return "the next client was answered as before"


def _close(stream: Iterator[str]) -> None:
    close = getattr(stream, "close", None)
    if close is not None:
        close()


def _faults(server: TextServer, prompt: str, recipe: Recipe) -> str:
    limit = recipe.build.limits.max_input_len or recipe.build.limits.max_seq_len - 1
    cases: tuple[tuple[str, str, Any], ...] = (
        ("over-long prompt", "word " * (limit + 8), 4),
        ("max_tokens as text", prompt, "many"),
        ("negative max_tokens", prompt, -1),
    )
    for name, text, tokens in cases:
        try:
            answer = server.complete(text, tokens)
        except ForgeError as error:
            _expect(error.code == "TF-EVL-019", f"{name}: {error}")
            continue
        raise AssertionError(f"{name}: accepted and answered {answer[:60]!r}")
    _expect(bool(server.complete(prompt, 8)), "after the faulty requests a good one got nothing")
    return f"{len(cases)} faulty requests refused"


class _OverHttp:
    """A server as the target of the load test; a piece of a stream counts as a token."""

    def __init__(self, server: TextServer) -> None:
        self._server = server

    def submit(
        self,
        prompt: str,
        max_tokens: int,
        on_tokens: Callable[[int], None],
        on_done: Callable[[str | None, Drafts], None],
    ) -> None:
        def ask() -> None:
            failed = None
            try:
                for piece in self._server.stream(prompt, max_tokens):
                    if piece:
                        on_tokens(1)
            except ForgeError as error:
                failed = f"{error} {error.why or ''}"
            on_done(failed, None)

        threading.Thread(target=ask, daemon=True).start()


def _load(server: TextServer, prompts: Sequence[str], recipe: Recipe, progress: Progress, found: Found) -> None:
    asked = recipe.bench
    target, begin = _OverHttp(server), time.time()
    sweep = Sweep(f"{server.kind} server over HTTP", run_levels(target, prompts, asked, progress))
    found.figures["bench"] = {**sweep.to_json(), "seconds": time.time() - begin, "counts": "pieces of streams"}
    found.gates += [replace(gate, name=f"{PREFIX}{gate.name}") for gate in slo_gates(sweep, asked.slo)]
