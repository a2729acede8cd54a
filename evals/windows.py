"""Teacher-forced figures of sliding windows: losses, and how far a model is from the baseline at every position.

The baseline keeps its ``TOP`` most likely tokens of each position with their log-probabilities; a candidate is held
against them, with everything else as one more outcome. The divergence of such merged outcomes is never above the whole
one (data-processing inequality), and with 64 tokens it lacks little of it; logits of a whole vocabulary would take a
hundred times the space.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from evals.perplexity import Scores, Window, plan_windows, tokens_digest
from evals.samples import Samples, packed, unpacked
from trtforge.ground.errors import ForgeError
from trtforge.ground.progress import Progress, SilentProgress

if TYPE_CHECKING:
    import torch

    LogitsFn = Callable[[torch.Tensor, int], torch.Tensor]

#: tokens of a position whose probability the baseline keeps
TOP = 64


@dataclass(frozen=True)
class Reference:
    """What the baseline keeps of L positions: token ids and log-probabilities [L, K] of the likeliest, best first."""

    ids: np.ndarray
    log_probs: np.ndarray

    @property
    def best(self) -> np.ndarray:
        """The baseline's choice at each position, int32 [L]."""
        best: np.ndarray = self.ids[:, 0]
        return best


@dataclass(frozen=True)
class Divergence:
    """A candidate against the baseline, a figure a scored position: KL in nats (float64), same best token (bool)."""

    kl: np.ndarray
    same: np.ndarray


@dataclass(frozen=True)
class Measured:
    """All windows of one model.

    Attributes:
        scores: the losses.
        references: of each window, what later candidates are held against; empty for a candidate.
        divergence: for a candidate that was given references; None otherwise.
    """

    scores: Scores
    references: tuple[Reference, ...] = ()
    divergence: Divergence | None = None


def window_id(tokens: Sequence[int], window: Window) -> str:
    """A window's name: by the tokens that it feeds and where it begins to score, wherever it lies in a text."""
    return f"{tokens_digest(tokens[window.begin : window.end])[:24]}-{window.score_from - window.begin}"


def measure_windows(
    logits_fn: LogitsFn,
    tokens: Sequence[int],
    *,
    window: int,
    stride: int,
    samples: Samples | None = None,
    against: Sequence[Reference] | None = None,
    keep: bool = False,
    plan: Sequence[Window] | None = None,
    what: str = "perplexity",
    progress: Progress | None = None,
    prepare: Callable[[Sequence[torch.Tensor]], None] | None = None,
) -> Measured:
    """Losses of ``tokens`` under a model, and its divergence from the baseline.

    Args:
        logits_fn: int64 [S] and n → float32 [≥ n, V], the last n rows at least; row i of [S, V] predicts token i + 1.
            A window's last token is scored and not fed: a model of S positions scores windows of S + 1 tokens.
        tokens: the sequence, at least two tokens.
        window: tokens a forward pass sees.
        stride: tokens scored a window.
        samples: what was measured before, and where new windows are kept.
        against: the baseline's references, one a window; may cover the first windows only when ``tokens`` are fewer.
        keep: make references.
        plan: other windows than those that score every token once.
        what: the word for the progress.
        progress: told once a window.
        prepare: given the ids int64 [S] of every window that will be asked for, before the first is.

    Raises:
        ForgeError: TF-EVL-001 (windows), TF-EVL-002 (too few tokens), TF-EVL-003 (loss is not finite).
    """
    import torch

    if len(tokens) < 2:
        raise ForgeError(
            "TF-EVL-002",
            "perplexity needs at least two tokens",
            numbers={"tokens": len(tokens)},
            remedies=["evals.perplexity.tokens: 2048"],
        )
    report = progress or SilentProgress()
    windows = list(plan) if plan is not None else plan_windows(len(tokens), window, stride)
    if against is not None and len(against) < len(windows):
        raise ValueError(f"{len(against)} references for {len(windows)} windows")
    ids = torch.as_tensor(list(tokens), dtype=torch.int64)
    report.start(f"{what} over {len(tokens) - 1} tokens", total=len(windows))
    names, records = [window_id(tokens, item) for item in windows], []
    fed = [ids[item.begin : item.end - 1] for item in windows]
    open_ = [i for i, name in enumerate(names) if samples is None or samples.get(name) is None]
    if prepare is not None and open_:
        prepare([fed[i] for i in open_])
    for index, (name, item) in enumerate(zip(names, windows, strict=True)):
        record = samples.get(name) if samples is not None else None
        if record is None:
            scored = item.end - item.score_from
            rows_LV = logits_fn(fed[index], scored)[-scored:].float()
            reference = against[index] if against is not None else None
            record = _figures(rows_LV, ids[item.score_from : item.end], reference, keep)
            if samples is not None:
                record = samples.add(name, record)
        records.append(record)
        report.advance()
    if samples is not None:
        samples.finish(names)
    return _gathered(records, tokens, window, stride, against is not None)


def _figures(rows_LV: torch.Tensor, targets_L: torch.Tensor, against: Reference | None, keep: bool) -> dict[str, Any]:
    """One window's sample; refuses logits that are not finite."""
    import torch

    lse_L = rows_LV.logsumexp(-1)
    nll_L = (lse_L - rows_LV.gather(1, targets_L[:, None])[:, 0]).double()
    bad = int((~torch.isfinite(nll_L)).sum())
    if bad:
        raise ForgeError(
            "TF-EVL-003",
            "the model's loss is not finite",
            numbers={"tokens": len(nll_L), "not_finite": bad},
            why="NaN or infinite logits: a broken checkpoint, a zero scale or an overflow",
            remedies=["run the checkpoint audit", "compare with quantize.format: none"],
        )
    record: dict[str, Any] = {"nll": packed(nll_L.numpy())}
    if keep:
        best = rows_LV.topk(min(TOP, rows_LV.shape[1]), dim=-1)
        record["ids"] = packed(best.indices.to(torch.int32).numpy())
        record["log_probs"] = packed((best.values - lse_L[:, None]).float().numpy())
    if against is not None:
        log_q_LK = rows_LV.gather(1, torch.from_numpy(against.ids.astype(np.int64))) - lse_L[:, None]
        record["kl"] = packed(merged_kl(against.log_probs, log_q_LK.numpy()))
        record["same"] = packed(rows_LV.argmax(-1).numpy() == against.best)
    return record


def merged_kl(log_p: np.ndarray, log_q: np.ndarray) -> np.ndarray:
    """KL(P ‖ Q) in nats, float64 [L], over K named outcomes and one more that holds the rest; both are [L, K]."""
    p, q = np.exp(log_p.astype(np.float64)), np.exp(log_q.astype(np.float64))
    named = (p * (log_p.astype(np.float64) - log_q.astype(np.float64))).sum(axis=1)
    rest_p, rest_q = (np.maximum(1.0 - x.sum(axis=1), 1e-12) for x in (p, q))
    return np.maximum(0.0, named + rest_p * np.log(rest_p / rest_q))


def _gathered(
    records: Sequence[dict[str, Any]], tokens: Sequence[int], window: int, stride: int, compared: bool
) -> Measured:
    nll = np.concatenate([unpacked(record["nll"]) for record in records])
    scores = Scores(nll, tokens_digest(tokens), window, stride)
    references = tuple(references_of(records)) if "ids" in records[0] else ()
    if not compared:
        return Measured(scores, references)
    kl, same = (np.concatenate([unpacked(record[name]) for record in records]) for name in ("kl", "same"))
    return Measured(scores, references, Divergence(kl, same))


def references_of(records: Sequence[dict[str, Any]]) -> list[Reference]:
    """What the baseline's samples keep; raises ValueError where one keeps nothing."""
    try:
        return [Reference(unpacked(record["ids"]), unpacked(record["log_probs"])) for record in records]
    except KeyError as error:
        raise ValueError(f"a window without {error}") from error
