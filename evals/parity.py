"""Parity: does the engine compute what the quantized checkpoint means?

Both sides are teacher-forced over the same prompts and compared at every position. Two correct
implementations still differ: another order of summation moves a value by a rounding error, and where
activations are quantized a moved value falls on another step of the grid, which the next layers
amplify. How far is a property of the checkpoint and of the type of the engine's activations, so it is
*measured*: the reference is run a second time with rounding added (every module's result rounded to the
engine's 16-bit type; for engines with float32 activations its embeddings perturbed by the rounding error of
the model's dtype), and the distance of the reference to itself is the noise floor that the engine is held
against.

* The engine *agrees* at a position when its choice is the reference's best token or a near tie of it by
  :func:`runtime.determinism.near_tie_bound`, with the measured RMS change of the gap between the reference's two
  best logits under the perturbation as the noise. A choice farther away counts against the engine at every
  position. The raw share of equal choices is reported beside it, and so is the reference's with itself.
* The engine's mean KL divergence must stay within ``MAX_KL_RATIO`` of the floor's. A wrong scale, a
  wrong kernel or a dropped rounding moves the distribution far more than rounding noise does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from evals.perplexity import tokens_digest
from evals.samples import Samples, packed, unpacked
from evals.statistics import Interval, wilson
from runtime.determinism import near_tie_bound
from trtforge.ground.errors import ForgeError
from trtforge.ground.progress import Progress, SilentProgress

if TYPE_CHECKING:
    import torch

#: the engine's KL over the floor's; two independent perturbations are about equally far from the reference
MAX_KL_RATIO = 2.0
#: nats; differences below it are rounding of the logits themselves
KL_ALLOWANCE = 1e-3


@dataclass(frozen=True)
class ParityResult:
    """Figures over all positions of all prompts.

    ``agreement`` counts choices within the noise of the best (``near_tie_flips`` of them are not the best
    itself); ``raw_agreement`` only the best. ``near_tie_share`` is the share of positions at which the
    reference's second-best lies within the noise. The ``floor_`` figures are the reference against its
    own perturbation (None when it was not run). ``near_tie_logits`` is the mean of the positions' bounds, ``noise`` the
    measured RMS change of the gap that they rest on.
    """

    positions: int
    agreement: Interval
    raw_agreement: Interval
    near_tie_flips: int
    near_tie_logits: float
    near_tie_share: float
    mean_kl: float
    max_abs_logit_difference: float
    worst_prompt: int
    floor_raw_agreement: float | None = None
    floor_kl: float | None = None
    noise: float = 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


LogitsFn = Callable[["torch.Tensor"], "torch.Tensor"]


def compare(
    engine_logits: LogitsFn,
    reference_logits: LogitsFn,
    prompts: Sequence[Sequence[int]],
    *,
    perturbed_logits: LogitsFn | None = None,
    activations: str = "bfloat16",
    samples: Samples | None = None,
    progress: Progress | None = None,
) -> ParityResult:
    """Compare two models position by position.

    Args:
        engine_logits: int64 [S] → float32 [S, V].
        reference_logits: the same for the checkpoint's reference implementation.
        prompts: token ids of each prompt.
        perturbed_logits: the reference with rounding added: the noise floor.
        activations: the type of the engine's activations.
        samples: prompts that were compared before, and where new ones are kept.

    Raises:
        ForgeError: TF-EVL-005 when there is nothing to compare or shapes differ; TF-EVL-006 when the
            engine's logits are not finite.
    """
    import torch

    if not prompts or any(len(prompt) == 0 for prompt in prompts):
        raise ForgeError("TF-EVL-005", "parity needs at least one non-empty prompt", numbers={"prompts": len(prompts)})
    report = progress or SilentProgress()
    report.start(f"engine parity on {len(prompts)} prompts", total=len(prompts))
    names = [f"{index}-{tokens_digest(prompt)[:24]}" for index, prompt in enumerate(prompts)]
    found = []
    for index, (name, prompt) in enumerate(zip(names, prompts, strict=True)):
        record = samples.get(name) if samples is not None else None
        if record is None:
            record = _positions(engine_logits, reference_logits, perturbed_logits, prompt, index)
            if samples is not None:
                record = samples.add(name, record)
        found.append({part: torch.from_numpy(unpacked(record[part]).copy()) for part in record if part != "id"})
        report.advance()
    if samples is not None:
        samples.finish(names)

    def over_all(part: str) -> torch.Tensor:
        return torch.cat([one[part] for one in found])

    gap_P, kl_P = over_all("gap"), over_all("kl")
    noise = float(over_all("floor_gap_change").square().mean().sqrt()) if perturbed_logits is not None else 0.0
    bound_P = torch.tensor([near_tie_bound(value, activations, noise) for value in over_all("largest").tolist()])
    same_P, tie_P = over_all("same"), gap_P < bound_P
    flips = int((~same_P & (over_all("shortfall") <= bound_P)).sum())
    positions, agreed = len(same_P), int(same_P.sum())
    return ParityResult(
        positions=positions,
        agreement=wilson(agreed + flips, positions),
        raw_agreement=wilson(agreed, positions),
        near_tie_flips=flips,
        near_tie_logits=float(bound_P.mean()),
        near_tie_share=float(tie_P.float().mean()),
        mean_kl=max(0.0, float(kl_P.mean())),
        max_abs_logit_difference=float(over_all("difference").max()),
        worst_prompt=max(range(len(prompts)), key=lambda i: float(found[i]["kl"].mean())),
        floor_raw_agreement=float(over_all("floor_same").float().mean()) if perturbed_logits is not None else None,
        floor_kl=max(0.0, float(over_all("floor_kl").mean())) if perturbed_logits is not None else None,
        noise=noise,
    )


def kl_limit(floor_kl: float | None) -> float:
    """Largest mean KL divergence (nats) that the noise floor explains."""
    return MAX_KL_RATIO * (floor_kl or 0.0) + KL_ALLOWANCE


def _check(got_SV: torch.Tensor, want_SV: torch.Tensor, prompt: int) -> None:
    import torch

    if got_SV.shape != want_SV.shape:
        raise ForgeError(
            "TF-EVL-005",
            "engine and reference return logits of different shapes",
            numbers={"engine": list(got_SV.shape), "reference": list(want_SV.shape)},
        )
    if not torch.isfinite(got_SV).all():
        raise ForgeError(
            "TF-EVL-006",
            "the engine's logits are not finite",
            numbers={"prompt": prompt, "not_finite": int((~torch.isfinite(got_SV)).sum())},
            remedies=["trtforge run RECIPE --force build"],
        )


def _positions(
    engine_logits: LogitsFn,
    reference_logits: LogitsFn,
    perturbed_logits: LogitsFn | None,
    prompt: Sequence[int],
    index: int,
) -> dict[str, Any]:
    """A prompt's sample: figures of every position of the engine, and of the reference's own perturbation (floor)."""
    import torch

    ids = torch.as_tensor(list(prompt), dtype=torch.int64)
    want_SV = reference_logits(ids).float()
    top2 = want_SV.topk(2, dim=-1)
    got_SV = engine_logits(ids).float()
    _check(got_SV, want_SV, index)
    figures = {"gap": top2.values[:, 0] - top2.values[:, 1], "largest": want_SV.abs().amax(-1)}
    figures |= _against(got_SV, want_SV, top2.indices)
    if perturbed_logits is not None:
        floor = _against(perturbed_logits(ids).float(), want_SV, top2.indices)
        figures |= {f"floor_{name}": floor[name] for name in ("same", "kl", "gap_change")}
    return {name: packed(value.numpy()) for name, value in figures.items()}


def _against(got_SV: torch.Tensor, want_SV: torch.Tensor, top2_S2: torch.Tensor) -> dict[str, torch.Tensor]:
    """One model against the reference, a figure a position."""
    got_top, want_top = got_SV.gather(1, top2_S2), want_SV.gather(1, top2_S2)
    log_p, log_q = want_SV.log_softmax(-1), got_SV.log_softmax(-1)
    choice_S = got_SV.argmax(-1)
    return {
        "same": choice_S == top2_S2[:, 0],
        "shortfall": want_top[:, 0] - want_SV.gather(1, choice_S[:, None])[:, 0],
        "kl": (log_p.exp() * (log_p - log_q)).sum(-1),
        "gap_change": (got_top[:, 0] - got_top[:, 1]) - (want_top[:, 0] - want_top[:, 1]),
        "difference": (got_SV - want_SV).abs().amax(-1),
    }


def slice_prompts(tokens: Sequence[int], count: int, length: int) -> list[list[int]]:
    """``count`` non-overlapping prompts spread evenly over ``tokens``.

    Raises:
        ForgeError: TF-EVL-007 when the text is too short for them.
    """
    if count * length > len(tokens):
        raise ForgeError(
            "TF-EVL-007",
            "the corpus is too short for the parity prompts",
            numbers={"tokens": len(tokens), "prompts": count, "length": length},
            remedies=[f"evals.engine_parity.prompts: {max(1, len(tokens) // length)}"],
        )
    step = len(tokens) // count
    return [list(tokens[i * step : i * step + length]) for i in range(count)]
