"""Which linears bear a format: groups quantized alone in an otherwise unquantized model, and which of them to spare.

A group is what a target multiplies as one (query, key and value; gate and up; the experts of a layer) and therefore
quantizes as one; every other linear is a group of its own. ModelOpt calibrates the whole model once; a group's weights
and inputs then pass through its quantizers while all others stay as they are. So each format is measured by the
arithmetic of its own calibration, before the export shares scales between fused linears. Keys and values keep the
model's type.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantize import ptq
from quantize.loading import require_whole
from quantize.one_scale import FUSED
from quantize.plan import QuantPlan, plan_quantization, read_config
from quantize.quiet import quiet
from trtforge.formats.mixing import product_of
from trtforge.ground.errors import ForgeError
from trtforge.ground.progress import Progress
from trtforge.ground.safetensors_header import DTYPE_BITS, TensorInfo, read_headers
from trtforge.recipe.schema import Quantize

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class LinearGroup:
    """Linears that are quantized together.

    Attributes:
        name: of the first module, with the last parts of all.
        modules: names of the linears.
        saved: bytes that quantizing them saves.
        weights: how many they have.
    """

    name: str
    modules: tuple[str, ...]
    saved: int
    weights: int = 0


def planned_groups(
    checkpoint: Path, section: Quantize
) -> tuple[QuantPlan, Mapping[str, TensorInfo], list[LinearGroup]]:
    """What a section of a recipe quantizes of a checkpoint, the checkpoint's tensors, and the groups."""
    headers = read_headers(checkpoint)
    plan = plan_quantization(read_config(checkpoint), headers, section)
    return plan, headers, linear_groups(plan, headers)


def linear_groups(plan: QuantPlan, headers: Mapping[str, TensorInfo]) -> list[LinearGroup]:
    """The groups of what a plan quantizes, in the order of the layers.

    Raises:
        ForgeError: ``TF-QNT-016`` the plan quantizes no weights.
    """
    if not plan.rows:
        raise ForgeError(
            "TF-QNT-016",
            "The recipe quantizes no weights, so no linear can be sensitive to it",
            asked=f"quantize.format: {plan.row.name}",
            why="Sensitivity is what the recipe's own format costs in each linear.",
            remedies=["--set quantize.format=NAME (trtforge formats lists them)", "trtforge quantize advise RECIPE"],
        )
    found: dict[str, list[str]] = {}
    for module in plan.quantized:
        product = product_of(module)
        found.setdefault(module if product is None else product[0], []).append(module)
    groups = []
    for modules in found.values():
        ordered = tuple(sorted(modules, key=lambda module: (_place(module), _natural(module))))
        saved = sum(_wide_bytes(plan, headers, module) - stored_bytes(plan, headers, module) for module in ordered)
        groups.append(LinearGroup(_name(ordered), ordered, saved, sum(math.prod(plan.linears[m]) for m in ordered)))
    return sorted(groups, key=lambda group: _natural(group.modules[0]))


def _name(modules: Sequence[str]) -> str:
    """The parent of all, and the last parts of their names where they lie side by side."""
    parents = {module.rpartition(".")[0] for module in modules}
    if len(parents) > 1:
        return modules[0].partition(".experts.")[0] + ".experts"
    leaves = "+".join(module.rpartition(".")[2] for module in modules)
    return f"{parent}.{leaves}" if (parent := parents.pop()) else leaves


def _place(module: str) -> int:
    order = [name for names in FUSED for name in names]
    return next((place for place, name in enumerate(order) if module.endswith(f".{name}")), 0)


def _natural(module: str) -> list[tuple[int, str]]:
    """Layers in the order of their numbers."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in module.split(".")]


def _wide_bits(headers: Mapping[str, TensorInfo], module: str) -> int:
    stored = headers.get(f"{module}.weight")
    return DTYPE_BITS[stored.dtype] if stored is not None else 16  # a tied head has no tensor of its own


def _wide_bytes(plan: QuantPlan, headers: Mapping[str, TensorInfo], module: str) -> int:
    """Bytes of the linear's weight as the checkpoint has it."""
    return math.prod(plan.linears[module]) * _wide_bits(headers, module) // 8


def stored_bytes(plan: QuantPlan, headers: Mapping[str, TensorInfo], module: str) -> int:
    """Bytes of a linear's tensors as the plan stores it, scales included; those of its weight where it is excluded."""
    if module not in plan.quantized_set:
        return _wide_bytes(plan, headers, module)
    row, group = plan.row_of(module), plan.group_of(module)
    return sum(
        math.prod(rule.expected_shape(*plan.linears[module], group))
        * DTYPE_BITS.get(rule.dtype, _wide_bits(headers, module))
        // 8
        for rule in row.tensors.values()
    )


class PartlyQuantized:
    """The unquantized model, of which chosen linears compute as their quantizers do; loaded when it is first asked."""

    def __init__(
        self,
        checkpoint: Path,
        config: dict[str, Any],
        plan: QuantPlan,
        section: Quantize,
        base_dir: Path,
        progress: Progress,
        allow_remote_code: bool = False,
    ) -> None:
        self._checkpoint, self._config, self._plan, self._section = checkpoint, config, plan, section
        self._base_dir, self._progress, self._remote = base_dir, progress, allow_remote_code

    @cached_property
    def _plain(self) -> Any:
        require_whole(self._checkpoint, models=2)  # the calibrated one follows
        self._progress.start("loading the model")
        with quiet():
            return ptq.load_model(self._checkpoint, self._remote)

    @cached_property
    def _calibrated(self) -> Any:
        plan, section = self._plan, self._section
        batch = ptq.calibration_batch_of(plan, section, self._config, self._checkpoint, self._base_dir, {})
        return ptq.calibrated_model(
            plan, self._checkpoint, self._config, batch, section, self._progress, allow_remote_code=self._remote
        )

    def logits(self, ids: torch.Tensor, modules: Sequence[str] = ()) -> torch.Tensor:
        """int64 [S] → float32 [S, V], with ``modules`` quantized; row i predicts token i + 1."""
        import torch

        model = self._plain
        with torch.no_grad(), self._quantized(modules):
            return model(ids.view(1, -1).to(model.device), use_cache=False).logits[0].float().cpu()

    @contextlib.contextmanager
    def _quantized(self, modules: Sequence[str]) -> Iterator[None]:
        if not modules:
            yield
            return
        from quantize.emulation import emulated_block_quantization

        kept, hooks = {}, []
        with emulated_block_quantization():
            try:
                for name in modules:
                    linear, like = self._plain.get_submodule(name), self._calibrated.get_submodule(name)
                    kept[name] = linear.weight.data
                    linear.weight.data = like.weight_quantizer(like.weight).detach()
                    hooks.append(linear.register_forward_pre_hook(_through(like.input_quantizer)))
                yield
            finally:
                for hook in hooks:
                    hook.remove()
                for name, weight in kept.items():
                    self._plain.get_submodule(name).weight.data = weight


def _through(quantizer: Any) -> Callable[[Any, tuple[Any, ...]], tuple[Any, ...]]:
    return lambda _, inputs: (quantizer(inputs[0]), *inputs[1:])


def least_exclusions(
    groups: Sequence[LinearGroup],
    divergence: Mapping[str, float],
    bound: float,
    together: Callable[[Sequence[LinearGroup]], float],
) -> list[LinearGroup]:
    """The groups to spare so that what is left, quantized together, stays under a bound, at the least bytes.

    Groups are spared in the order of their divergence a byte that they save; how many of them is found by halving, with
    the rest measured together each time, because divergences do not simply add up.

    Args:
        divergence: of each group quantized alone, nats.
        bound: largest divergence of the rest, nats, above 0.
        together: what groups diverge that are quantized together; nothing diverges by nothing.
    """
    order = sorted(groups, key=lambda group: (-divergence[group.name] / max(group.saved, 1), group.name))
    low, high = 0, len(order)
    while low < high:
        middle = (low + high) // 2
        if together(order[middle:]) <= bound:
            high = middle
        else:
            low = middle + 1
    spared = {group.name for group in order[:low]}
    return [group for group in groups if group.name in spared]
