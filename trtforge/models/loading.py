"""How much memory a model takes where it is quantized and evaluated: whole, or one decoder layer at a time.

Arithmetic is float32 on a CPU, whatever the checkpoint's type. Measured by ``benchmarks/by_layer.py``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from trtforge.models.record import Model, tensors

Loading = Literal["auto", "whole", "by_layer"]
Mode = Literal["whole", "by_layer"]

#: torch, transformers and ModelOpt loaded, before any weight
LIBRARY_BYTES = 1536 * 2**20
#: of a whole model: its weights and, in smaller types, what is read or exported of them
WHOLE_FACTOR = 1.6
#: of a layer: its weights, what they are read from, a calibrated copy and the export of it
LAYER_FACTOR = 3.0
#: of the embedding's table or the output head: itself and what it is read from
TABLE_FACTOR = 1.5
#: keys and values of the answers that are written together
CACHE_BYTES = 2**30
#: float32 logits of one window, with what their losses are computed in
_LOGIT_COPIES, _WINDOW = 3, 512


@dataclass(frozen=True)
class Footprint:
    """Elements of a model: all, those of the largest decoder layer, and those of the largest table outside the layers;
    ``vocab``: rows of the output head; ``itemsize``: bytes of an element while it is computed."""

    parameters: int
    layer: int
    table: int
    vocab: int
    itemsize: int = 4

    @classmethod
    def of_model(cls, model: Model) -> Footprint:
        layers: dict[int, int] = {}
        table = 0
        for kind in tensors(model):
            for layer in kind.layers:
                layers[layer] = layers.get(layer, 0) + kind.elements * kind.each
            table = max(table, 0 if kind.layers else kind.elements)
        return cls(model.parameters, max(layers.values(), default=0), table, model.vocab)

    @classmethod
    def of_tensors(cls, shapes: Mapping[str, Iterable[int]]) -> Footprint:
        """Of a checkpoint's tensors; numbers in a name that follow ``layers.`` tell the layer."""
        layers: dict[str, int] = {}
        table = rows = parameters = 0
        for name, shape in shapes.items():
            sizes = tuple(shape)
            elements = math.prod(sizes)
            parameters += elements
            before, _, behind = name.partition("layers.")
            number = behind.partition(".")[0]
            if number.isdigit():
                layers[f"{before}{number}"] = layers.get(f"{before}{number}", 0) + elements
            elif elements > table:
                table, rows = elements, sizes[0] if sizes else 0  # a scale is a scalar
        return cls(parameters, max(layers.values(), default=0), table, rows)

    def whole_bytes(self, models: int = 1) -> int:
        """Memory of ``models`` of the model at once, loaded whole."""
        return LIBRARY_BYTES + int(self.parameters * self.itemsize * (WHOLE_FACTOR + models - 1))

    @property
    def by_layer_bytes(self) -> int:
        """Most memory at any time where one layer is in it; never more than the whole."""
        logits = _LOGIT_COPIES * _WINDOW * self.vocab * 4
        weights = max(self.layer * LAYER_FACTOR, self.table * TABLE_FACTOR)
        return min(self.whole_bytes(), LIBRARY_BYTES + CACHE_BYTES + logits + int(self.itemsize * weights))

    def mode(self, asked: Loading, memory: int, models: int = 1) -> Mode | None:
        """The mode for so much memory; None: what was asked for does not fit."""
        if asked != "by_layer" and self.whole_bytes(models) <= memory:
            return "whole"
        return "by_layer" if asked != "whole" and self.by_layer_bytes <= memory else None
