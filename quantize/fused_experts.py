"""Experts that transformers holds as one module: two tensors [experts, N, K] a layer, and no linear of their own.

ModelOpt's export and the reference look for linears. Here is what each of them needs instead. Whether a model's experts
are held so is seen in the module; checkpoints name the linears of every expert either way.

Source: ``use_experts_implementation`` in transformers/integrations/moe.py, ``_QuantFusedExperts`` in
modelopt/torch/quantization/plugins/huggingface.py of the pinned releases.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from quantize.experts import in_model
from trtforge.ground.errors import ForgeError

if TYPE_CHECKING:
    import torch

    from trtforge.formats.base import InputOperation

_FIRST, _SECOND = ("gate_proj", "up_proj"), "down_proj"


def are_fused(experts: Any) -> bool:
    """Whether a module holds the experts of a layer as tensors of three dimensions."""
    return all(getattr(getattr(experts, name, None), "ndim", 0) == 3 for name in ("gate_up_proj", "down_proj"))


@contextlib.contextmanager
def fused_experts_exported() -> Iterator[None]:
    """Inside the block ModelOpt's export takes fused experts as they are, in every format.

    In formats that it counts among AWQ's it averages the input factors of a layer's experts, which it looks for as
    modules: there are none, and fused experts have no factors (:func:`quantize.plan.plan_quantization` refuses the
    algorithms that would search for some).
    """
    import modelopt.torch.export.unified_export_hf as export

    module: Any = export
    original = module.get_experts_list

    def of_modules(block: Any, model_type: str) -> Any:
        return [] if are_fused(block.experts) else original(block, model_type)

    module.get_experts_list = of_modules
    try:
        yield
    finally:
        module.get_experts_list = original


def hook_experts(model: Any, inputs: Mapping[str, InputOperation]) -> dict[str, InputOperation]:
    """Put the input operations of fused experts in front of their products; returns those of all other linears.

    Args:
        inputs: by the linear's name in the checkpoint.

    Raises:
        ForgeError: ``TF-QNT-032`` experts that compute in another way than gate, up and down.
    """
    rest: dict[str, InputOperation] = {}
    found: dict[str, dict[tuple[int, str], InputOperation]] = {}
    modules = {name for name, module in model.named_modules() if are_fused(module)}
    for name, operation in inputs.items():
        block, _, part = in_model(name).partition(".experts.")
        place, _, leaf = part.partition(".")
        if f"{block}.experts" in modules and place.isdigit():
            found.setdefault(f"{block}.experts", {})[int(place), leaf] = operation
        else:
            rest[name] = operation
    for name, operations in found.items():
        experts = model.get_submodule(name)
        _require_known(name, experts)
        experts.forward = _Forward(experts, operations)
    return rest


def _require_known(name: str, experts: Any) -> None:
    wanted = {"has_gate": True, "has_bias": False, "is_transposed": False, "is_concatenated": True}
    if any(getattr(experts, key, None) is not value for key, value in wanted.items()):
        raise ForgeError(
            "TF-QNT-032",
            f"No reference for quantized experts of the class {type(experts).__name__}",
            asked=name,
            numbers={key: getattr(experts, key, None) for key in wanted},
            why="What a format does to the inputs is known for experts of gate, up and down projection without biases.",
            remedies=[
                "quantize.exclude: add experts",
                "quantize.format: w4a16_nvfp4 or another that leaves the inputs as they are",
            ],
        )


class _Forward:
    """The experts' computation with an operation in front of each product; each expert has the tokens sent to it."""

    def __init__(self, experts: Any, operations: Mapping[tuple[int, str], InputOperation]) -> None:
        # the module holds this: a reference back would keep its weights until the collector comes
        self._experts, self._operations = weakref.ref(experts), operations

    def __call__(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """States [T, D], chosen experts and their weights [T, k] → [T, D]."""
        import torch
        from torch.nn.functional import linear

        experts: Any = self._experts()
        output = torch.zeros_like(hidden_states)
        for place in range(len(experts.down_proj)):
            token, choice = torch.where(top_k_index == place)
            if not len(token):
                continue
            halves = experts.gate_up_proj[place].chunk(2)
            given = hidden_states[token]
            both = [linear(self._put(place, leaf, given), half) for leaf, half in zip(_FIRST, halves, strict=True)]
            inner = experts._apply_gate(torch.cat(both, dim=-1))
            made = linear(self._put(place, _SECOND, inner), experts.down_proj[place])
            made = made * top_k_weights[token, choice, None]
            output.index_add_(0, token, made.to(output.dtype))
        return output

    def _put(self, place: int, leaf: str, given: torch.Tensor) -> torch.Tensor:
        operation = self._operations.get((place, leaf))
        return given if operation is None else operation.apply(given).to(given.dtype)
