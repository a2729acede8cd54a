"""Where a quantized model leaves the baseline: the output of every layer of both, on the same tokens.

Errors add up from layer to layer, so a layer's figure holds what came before it; attention and MLP are shown by
themselves too, and the worst of all are named.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from trtforge.ground.errors import ForgeError
from trtforge.ground.progress import Progress, SilentProgress

if TYPE_CHECKING:
    import torch

#: tokens that go through both models
TOKENS = 256
NAMED = 10


@dataclass(frozen=True)
class LayerError:
    """One module's output: its cosine with the baseline's, and signal over error in dB; None: there is no error."""

    name: str
    cosine: float
    snr_db: float | None


@dataclass(frozen=True)
class Step:
    """A part of a model that is in memory by itself: its module, what computes it, and its modules' names in the
    model."""

    module: torch.nn.Module
    run: Callable[[], object]
    named: Callable[[str], str]


def layer_errors(
    baseline: torch.nn.Module, candidate: torch.nn.Module, ids: torch.Tensor, progress: Progress | None = None
) -> list[LayerError]:
    """The decoder's layers and their attentions and MLPs, in order; ``ids`` int64 [S] go through both models.

    Raises:
        ForgeError: TF-EVL-023 the two have no layers in common that could be compared.
    """
    return stepwise_errors([whole_step(baseline, ids)], [whole_step(candidate, ids)], progress)


def whole_step(model: torch.nn.Module, ids: torch.Tensor) -> Step:
    """A model that is in memory whole, over int64 [S]."""
    return Step(model, lambda: _forward(model, ids), str)


def stepwise_errors(
    baseline: Iterable[Step], candidate: Iterable[Step], progress: Progress | None = None
) -> list[LayerError]:
    """As :func:`layer_errors`, of models that come in the same steps; one step of each is in memory at a time.

    Raises:
        ForgeError: TF-EVL-023 the two have no layers in common that could be compared.
    """
    report = progress or SilentProgress()
    report.start("errors of every layer")
    errors: list[LayerError] = []
    for one, other in zip_longest(baseline, candidate):
        names = [layer_names(step.module) if step is not None else [] for step in (one, other)]
        if not names[0] or names[0] != names[1]:
            raise _no_pair(*names)
        outputs = []
        for step in (one, other):
            with _recorded(step.module, names[0]) as seen:
                step.run()
            outputs.append(seen)
        errors += [_error(one.named(name), outputs[0][name], outputs[1][name]) for name in names[0]]
        report.note(f"errors of {errors[-1].name}")
    return errors


def _no_pair(baseline: Sequence[str], candidate: Sequence[str]) -> ForgeError:
    return ForgeError(
        "TF-EVL-023",
        "the layers of baseline and quantized model cannot be paired",
        asked="evals.layers",
        numbers={"baseline": len(baseline), "quantized": len(candidate)},
        why="Outputs are compared module by module, by name.",
        remedies=["evals.layers: false"],
    )


def layer_names(model: torch.nn.Module) -> list[str]:
    """The longest list of layers in a model, and of each layer the parts that hold weights other than norms."""
    import torch

    lists = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList) and name.endswith("layers")
    ]
    if not lists:
        return []
    prefix, layers = max(lists, key=lambda found: len(found[1]))
    names = []
    for index, layer in enumerate(layers):
        parts = [
            part
            for part, module in layer.named_children()
            if any(isinstance(inner, torch.nn.Linear) for inner in module.modules())
        ]
        names += [*(f"{prefix}.{index}.{part}" for part in parts), f"{prefix}.{index}"]
    return names


@contextmanager
def _recorded(model: torch.nn.Module, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What the named modules return while the block runs, float32."""
    seen: dict[str, Any] = {}

    def keep(name: str) -> Any:
        def hook(_: Any, __: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            seen[name] = first.detach().float().reshape(-1)

        return hook

    handles = [model.get_submodule(name).register_forward_hook(keep(name)) for name in names]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _forward(model: torch.nn.Module, ids: torch.Tensor) -> None:
    import torch

    with torch.inference_mode():
        model(ids.view(1, -1), use_cache=False, logits_to_keep=1)


def _error(name: str, want: torch.Tensor, got: torch.Tensor) -> LayerError:
    want, got = want.double(), got.double()
    signal, noise = float(want.square().sum()), float((got - want).square().sum())
    norms = math.sqrt(signal * float(got.square().sum()))
    cosine = float((want * got).sum()) / norms if norms else float(noise == 0)
    if not noise:
        return LayerError(name, 1.0, None)
    return LayerError(name, cosine, 10 * math.log10(signal / noise) if signal else -math.inf)


def to_json(errors: Sequence[LayerError]) -> dict[str, Any]:
    """All layers, and the names of the worst parts by signal over error."""
    known = [error for error in errors if error.snr_db is not None]
    worst = sorted(known, key=lambda error: (error.snr_db, error.name))[:NAMED]
    layers = [asdict(error) for error in errors if error.name.rpartition(".")[2].isdigit()]
    parts = [asdict(error) for error in errors if not error.name.rpartition(".")[2].isdigit()]
    return {"layers": layers, "parts": parts, "worst": [error.name for error in worst]}
