"""Host memory and disk that quantizing and building take, so that a run is not killed after an hour.

Policy: quantizing and the reference compute in float32, whole or one decoder layer at a time, as the preflight rules of
host memory say; building is a range a billion parameters, as users report it.
"""

from __future__ import annotations

from dataclasses import dataclass

from builder.planner.types import Term
from trtforge.models.loading import LIBRARY_BYTES, Footprint
from trtforge.models.shape import DTYPE_BYTES

#: GB of host memory for a billion parameters when an engine is built
BUILD_GB_A_BILLION = (3.0, 4.0)
_BUILD_SOURCE = "https://github.com/NVIDIA/TensorRT-Edge-LLM/issues/30"
#: directories that hold the quantized weights: quantized checkpoint, graph, engine, bundle
COPIES = 4


@dataclass(frozen=True)
class HostPlan:
    """Terms of host memory to quantize (whole, and layer by layer) and to build, and of disk."""

    quantize: tuple[Term, ...]
    by_layer: tuple[Term, ...]
    build: tuple[Term, ...]
    disk: tuple[Term, ...]

    def totals(self) -> dict[str, int]:
        """Bytes by purpose."""
        return {
            "quantize": sum(term.bytes for term in self.quantize),
            "quantize_by_layer": sum(term.bytes for term in self.by_layer),
            "build": sum(term.bytes for term in self.build),
            "disk": sum(term.bytes for term in self.disk),
        }


def plan_host(footprint: Footprint, dtype: str, served_bytes: int, *, prequantized: bool = False) -> HostPlan:
    """Host memory and disk.

    Args:
        footprint: weights of the model.
        dtype: the recipe's ``model.dtype``.
        served_bytes: weights in the precision that is served, over all ranks.
        prequantized: the checkpoint is stored in that precision: nothing is quantized, and it is kept as it is.
    """
    parameters = footprint.parameters
    plain = parameters * DTYPE_BYTES[dtype]
    low, high = (int(parameters * each) for each in BUILD_GB_A_BILLION)
    billions = parameters / 1e9
    checkpoint = _exact("checkpoint in the recipe's dtype", plain, f"{billions:.2f} billion x {DTYPE_BYTES[dtype]} B")
    if prequantized:
        checkpoint = _exact("checkpoint as stored", served_bytes, f"{served_bytes:,} B")
    libraries = _exact("libraries", LIBRARY_BYTES, "torch, transformers and ModelOpt, before any weight")
    whole, layer = footprint.whole_bytes() - LIBRARY_BYTES, footprint.by_layer_bytes - LIBRARY_BYTES
    quantizing = (_exact("model", whole, f"{billions:.2f} billion in float32, and what it is made of"), libraries)
    largest = f"the largest layer ({footprint.layer / 1e9:.2f} billion) or table ({footprint.table / 1e9:.2f} billion)"
    by_layer = (_exact("a layer, or embedding or head", layer, f"{largest} in float32, and its work"), libraries)
    return HostPlan(
        quantize=() if prequantized else quantizing,
        by_layer=() if prequantized else by_layer,
        build=(
            Term(
                "builder",
                "runtime",
                high,
                f"{billions:.2f} billion x {BUILD_GB_A_BILLION[0]:g} to {BUILD_GB_A_BILLION[1]:g} B",
                low,
                high,
                _BUILD_SOURCE,
            ),
        ),
        disk=(
            checkpoint,
            _exact("quantized weights", COPIES * served_bytes, f"{COPIES} directories x {served_bytes:,} B"),
        ),
    )


def _exact(name: str, size: int, formula: str) -> Term:
    return Term(name, "weights", size, formula, size, size)
