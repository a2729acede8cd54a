"""Parity: does the engine compute what the quantized checkpoint means?

Both sides are teacher-forced over the same prompts, and their next-token choices are compared at every
position. A *near tie* is a position where the reference's two best logits are closer than
``NEAR_TIE_LOGITS``; another order of summation may flip it, so a flip there is reported but is not
counted against the engine. Everything else must agree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from evals.statistics import Interval, wilson
from trtforge.errors import ForgeError
from trtforge.progress import Progress, SilentProgress

if TYPE_CHECKING:
    import torch

#: logits; bfloat16 keeps 8 bits, so logits around 16 carry an error of about 1/16
NEAR_TIE_LOGITS = 0.0625


@dataclass(frozen=True)
class ParityResult:
    """Figures over all positions of all prompts.

    ``agreement`` counts near-tie flips as agreement; ``raw_agreement`` does not.
    """

    positions: int
    agreement: Interval
    raw_agreement: Interval
    near_tie_flips: int
    mean_kl: float
    max_abs_logit_difference: float
    worst_prompt: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def compare(
    engine_logits: Callable[[torch.Tensor], torch.Tensor],
    reference_logits: Callable[[torch.Tensor], torch.Tensor],
    prompts: Sequence[Sequence[int]],
    *,
    near_tie: float = NEAR_TIE_LOGITS,
    progress: Progress | None = None,
) -> ParityResult:
    """Compare two models position by position.

    Args:
        engine_logits: int64 [S] → float32 [S, V].
        reference_logits: the same for the checkpoint's reference implementation.
        prompts: token ids of each prompt.
        near_tie: gap between the reference's two best logits below which a flip is a near tie.

    Raises:
        ForgeError: TF-EVL-005 when there is nothing to compare or shapes differ; TF-EVL-006 when the
            engine's logits are not finite.
    """
    import torch

    if not prompts or any(len(prompt) == 0 for prompt in prompts):
        raise ForgeError("TF-EVL-005", "parity needs at least one non-empty prompt", numbers={"prompts": len(prompts)})
    report = progress or SilentProgress()
    report.start(f"engine parity on {len(prompts)} prompts", total=len(prompts))
    positions = agreed = near = 0
    kl_sum = worst_kl = max_difference = 0.0
    worst = 0
    for index, prompt in enumerate(prompts):
        ids = torch.as_tensor(list(prompt), dtype=torch.int64)
        got_SV, want_SV = engine_logits(ids).float(), reference_logits(ids).float()
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
                numbers={"prompt": index, "not_finite": int((~torch.isfinite(got_SV)).sum())},
                remedies=["trtforge run RECIPE --force build"],
            )
        same_S = got_SV.argmax(-1) == want_SV.argmax(-1)
        top2 = want_SV.topk(2, dim=-1).values
        tie_S = (top2[:, 0] - top2[:, 1]) < near_tie
        positions += len(prompt)
        agreed += int(same_S.sum())
        near += int((~same_S & tie_S).sum())
        log_p, log_q = want_SV.log_softmax(-1), got_SV.log_softmax(-1)
        kl = float((log_p.exp() * (log_p - log_q)).sum(-1).mean())
        kl_sum += kl * len(prompt)
        max_difference = max(max_difference, float((got_SV - want_SV).abs().max()))
        if kl > worst_kl:
            worst, worst_kl = index, kl
        report.advance()
    return ParityResult(
        positions=positions,
        agreement=wilson(agreed + near, positions),
        raw_agreement=wilson(agreed, positions),
        near_tie_flips=near,
        mean_kl=max(0.0, kl_sum / positions),
        max_abs_logit_difference=max_difference,
        worst_prompt=worst,
    )


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
