"""How many calibration tokens every routed expert saw, and whether that is enough.

A router sends a token to few experts, so that a corpus that calibrates a dense model well may leave experts of a
mixture without one. ModelOpt takes weight scales from the weights, whatever was routed; with fused experts
(transformers 5) it has one input scale a projection for all experts of a layer, and with separate ones the largest of
those that were used. An expert that saw nothing therefore has scales, but none that knows its inputs: values of it
beyond them are clipped, and nothing says so. ModelOpt's ``moe_calib_experts_ratio`` sends the calibration's tokens to
more experts, for their statistics alone, and does nothing where experts are fused; :meth:`Coverage.calibrated` does
that for both: each block runs once with every expert chosen, and once as it is, whose hidden states go on.

Sources: https://github.com/NVIDIA/Model-Optimizer/blob/main/modelopt/torch/quantization/plugins/huggingface.py
(_QuantSparseSequentialMoe, _QuantFusedExperts) and modelopt/torch/export/moe_utils.py there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from trtforge.recipe.schema import Experts

#: where a block of experts has its router
_ROUTERS = ("gate", "router")
_OF_MIXTRAL = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
#: experts that are named as the worst
WORST = 8


class Coverage:
    """Tokens that routers chose each expert for, by block.

    Attributes:
        counts: block → tokens of every expert.
        tokens: that went through the blocks.
    """

    def __init__(self, all_experts: bool) -> None:
        self.all_experts = all_experts
        self.counts: dict[str, list[int]] = {}
        self.tokens = 0

    @contextlib.contextmanager
    def calibrated(self, model: Any) -> Iterator[None]:
        """Send every token to every expert inside the block where that is asked for, for the statistics alone."""

        def with_all(block: Any, inputs: tuple[Any, ...], router: Any, experts: int) -> None:
            chosen, router.top_k = router.top_k, experts
            try:
                block.forward(*inputs)
            finally:
                router.top_k = chosen

        hooks = []
        if self.all_experts:
            for name, router, experts in routed_blocks(model):
                block = model.get_submodule(name.removesuffix(".experts"))
                hooks.append(block.register_forward_pre_hook(partial(with_all, router=router, experts=experts)))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    @contextlib.contextmanager
    def counted(self, model: Any) -> Iterator[None]:
        """Count what the routers of ``model`` choose inside the block; a dense model has none."""
        hooks = [
            router.register_forward_hook(self._counting(name, experts))
            for name, router, experts in routed_blocks(model)
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def over(self, loop: Callable[[Any], None]) -> Callable[[Any], None]:
        """A calibration loop whose first run is counted: an algorithm may run it again over the same text."""

        def counted(model: Any) -> None:
            with self.calibrated(model), contextlib.nullcontext() if self.counts else self.counted(model):
                loop(model)

        return counted

    def _counting(self, name: str, experts: int) -> Any:
        counts = self.counts.setdefault(name, [0] * experts)
        first = next(iter(self.counts)) == name

        def count(router: Any, _: Any, output: Any) -> None:
            import torch

            chosen = _chosen(router, output)
            # where all experts are calibrated a block runs twice: for statistics, and for what goes on
            if self.all_experts and chosen.shape[-1] < experts:
                return
            for expert, tokens in enumerate(torch.bincount(chosen.flatten(), minlength=experts).tolist()):
                counts[expert] += tokens
            if first:
                self.tokens += chosen.shape[0]

        return count

    def summary(self, asked: Experts) -> dict[str, Any] | None:
        """What a report says of it; None for a dense model."""
        if not self.counts:
            return None
        every = [(tokens, f"{name}.{place}") for name, own in self.counts.items() for place, tokens in enumerate(own)]
        least = asked.gate.min_tokens if asked.gate is not None else 1
        below = [name for tokens, name in every if tokens < least]
        return {
            "calibrated": "all" if self.all_experts else "routed",
            "layers": len(self.counts),
            "experts": len(every),
            "tokens": self.tokens,
            "min_tokens": least,
            "below": len(below),
            "share_below": len(below) / len(every),
            "never": sum(tokens == 0 for tokens, _ in every),
            "fewest": [{"expert": name, "tokens": tokens} for tokens, name in sorted(every)[:WORST]],
            "tokens_of_experts": {name: list(own) for name, own in self.counts.items()},
        }


def routed_blocks(model: Any) -> Iterator[tuple[str, Any, int]]:
    """``(name, router, experts)`` of every block that has experts and a router with a weight of [experts, hidden]."""
    for name, module in model.named_modules():
        if not hasattr(module, "experts"):
            continue
        for attribute in _ROUTERS:
            router = getattr(module, attribute, None)
            weight = getattr(router, "weight", None)
            if weight is not None and weight.dim() == 2:
                yield f"{name}.experts", router, weight.shape[0]
                break


def _chosen(router: Any, output: Any) -> Any:
    """int64 [tokens, k]: the experts that a router chose; routers that give only logits choose the largest."""
    import torch

    if isinstance(output, tuple) and len(output) > 2:
        return output[2].reshape(-1, output[2].shape[-1])
    logits = output[0] if isinstance(output, tuple) else output
    return torch.topk(logits.reshape(-1, logits.shape[-1]).float(), router.top_k, dim=-1).indices


def judge(found: Mapping[str, Any], asked: Experts) -> tuple[bool, str]:
    """Whether the experts saw enough text, and the sentence that says so; what would work where they did not."""
    gate = asked.gate
    assert gate is not None
    few = f"{found['below']:,} of {found['experts']:,} experts saw fewer than {gate.min_tokens}"
    said = f"{few} of {found['tokens']:,} tokens, {found['never']:,} none; {found['share_below']:.2%} <= limit"
    said += f" {gate.max_below:.2%}, {found['calibrated']} experts calibrated"
    if found["share_below"] <= gate.max_below:
        return True, said
    ways = "more quantize.calibration.samples, another calibration.corpus, quantize.experts.calibrate: all"
    return False, f"{said.replace('<=', '>')}; what would work: {ways}"


def in_model(linear: str) -> str:
    """An expert's linear by its name in transformers' model, which has other names than Mixtral's checkpoints."""
    parent, _, leaf = linear.rpartition(".")
    if ".block_sparse_moe.experts." not in parent:
        return linear
    return f"{parent.replace('.block_sparse_moe.', '.mlp.')}.{_OF_MIXTRAL.get(leaf, leaf)}"


def quantizer_prefix(linear: str) -> str:
    """What the names of a linear's quantizers begin with, as a pattern: the experts of a layer are one module."""
    experts, separator, _ = in_model(linear).partition(".experts.")
    return f"{experts}.experts*" if separator else f"{linear}."


def expert_linears(model: Any) -> dict[str, bool]:
    """Whether each expert's linear is quantized, by its name in the checkpoint, of modules that hold all as one."""
    found = {}
    for name, module in model.named_modules():
        for weights, linears in (("gate_up_proj", ("gate_proj", "up_proj")), ("down_proj", ("down_proj",))):
            for place, quantizer in enumerate(getattr(module, f"{weights}_weight_quantizers", ())):
                for linear in linears:
                    found[f"{name}.{place}.{linear}"] = bool(quantizer.is_enabled)
    return found
