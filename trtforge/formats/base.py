"""What a quantization format is: one object that knows how its linears are stored, written, computed and converted.

Policy: the stages know linears, graphs, kernels and checkpoints, and no format. Each of them hands in an object with
what it can do (:class:`CheckpointReader`, :class:`LinearWriter`, :class:`GraphView`, :class:`ShardWriter`), and the
format says what is to be done, in the stage's terms. So a format is its row of ``formats.yaml`` and one module, which
overrides what differs from here; what it leaves out, it does not have. Importing a format costs neither torch nor onnx.

Modelled on TensorRT Edge-LLM's ``LinearMethodBase`` and vLLM's ``LinearMethodBase``: a class a format, which nobody
else branches on.

Shape letters: N rows, K columns, G values that share a scale.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from trtforge.formats.table import FormatRow
from trtforge.ground.safetensors_header import TensorInfo

if TYPE_CHECKING:
    import torch

#: safetensors types of weights that are not quantized
FLOAT_TYPES = ("BF16", "F16", "F32")
INPUT_FACTORS = "pre_quant_scale"
#: of a row whose scale is computed with it: a row of zeros has one too
LEAST_SCALE = 2.0**-126


# --- in a checkpoint ----------------------------------------------------------------------------


@dataclass(frozen=True)
class LinearTensors:
    """The tensors of one linear [N, K] by name; ``group`` is the block length of the block formats.

    Attributes:
        parts: the format's own tensors beside the weight: ``weight_scale`` and the like → the tensor's name.
    """

    name: str
    shape: tuple[int, int]
    format: str
    weight: str
    group: int | None = None
    parts: Mapping[str, str] = field(default_factory=dict)
    bias: str | None = None


class CheckpointReader(Protocol):
    """The checkpoint's headers while a graph is written: what is taken is marked as used."""

    headers: dict[str, TensorInfo]

    @property
    def weight_only(self) -> bool:
        """Whether linears may be without activation scales."""

    def take(self, name: str, shape: tuple[int, ...] | None = None) -> TensorInfo:
        """The tensor, refused when it is missing or has another shape."""

    def scalar(self, name: str) -> str:
        """The name of a tensor that must be one float32 value."""

    def divides(self, name: str, columns: int, group: int) -> None:
        """Refuse blocks that do not divide the linear's columns."""

    def uncalibrated(self, name: str, what: str) -> Exception:
        """The refusal of a linear with weights of the algorithm ``what`` and no activation scale."""


@dataclass(frozen=True)
class Repacking:
    """How stored weights are laid out anew beside the graph: bits move, no value changes.

    Attributes:
        kind, layout: what the new file's metadata says of it.
        shape: stored shape → shape of the bytes in the new file; as many bytes.
        rows: stored bytes [R, C] → the same rows of the linear in the new layout.
    """

    kind: str
    layout: str
    shape: Callable[[tuple[int, ...]], tuple[int, ...]]
    rows: Callable[[Any], Any]


# --- in a graph ---------------------------------------------------------------------------------


class LinearWriter(Protocol):
    """What a format writes a linear with; values are handled by their names."""

    def in_model_type(self, name: str, scope: str, *, label: str = "Cast_weight") -> str:
        """A float tensor of the checkpoint in the model's type."""

    def stored(self, name: str, *, element: str | None = None, shape: tuple[int, int] | None = None) -> str:
        """A tensor of the checkpoint (or of what was laid out anew) as an initializer of ONNX type ``element``."""

    def scalar(self, name: str) -> str:
        """A one-element tensor of the checkpoint as a scalar initializer."""

    def scaled(self, x: str, factors: str, scope: str) -> str:
        """``x`` times the checkpoint's factors [K]; linears with equal ones share the node."""

    def once(self, kind: str, x: str, scale: str | None, write: Callable[[], str]) -> str:
        """What ``write`` makes of ``x`` under the tensor ``scale``; linears with an equal one (or with none, where
        scales are computed with the values) share the nodes."""

    def dequantize(
        self,
        values: str,
        scales: str,
        scope: str,
        *,
        label: str = "weight",
        group: int | None = None,
        wide: bool = False,
        axis: int | None = None,
    ) -> str:
        """De-quantized values: one scale, one for each index of ``axis``, or one for ``group`` columns; ``wide``: in
        float32, not the model's type."""

    def round_e4m3(self, x: str, scale: str, scope: str, *, label: str = "input") -> str:
        """``x`` rounded to E4M3 under one scale."""

    def round_int8(self, x: str, scale: str, scope: str) -> str:
        """``x`` rounded to INT8 under one scale."""

    def round_rows(self, x: str, scope: str) -> str:
        """Each row of ``x`` rounded to E4M3 under a scale of its own: its largest magnitude becomes E4M3's."""

    def round_blocks(self, x: str, scale: str, scope: str, *, group: int) -> str:
        """``x`` rounded to E2M1 in blocks with E4M3 scales of their own under one scale."""


# --- as computed --------------------------------------------------------------------------------


@dataclass(frozen=True)
class InputOperation:
    """What happens to the input of a linear first.

    Attributes:
        apply: the operation.
        key: equal for equal operations, whose results linears with one input share; None: nothing is shared.
    """

    apply: Callable[[torch.Tensor], torch.Tensor]
    key: Hashable | None = None


class GraphView(Protocol):
    """What an executor knows of a graph of plain ONNX operators while it looks for linears."""

    @property
    def producer(self) -> Mapping[str, Any]:
        """The node that makes a value."""

    @property
    def index(self) -> Mapping[int, int]:
        """A node's ``id`` → its place in the graph."""

    @property
    def dtype(self) -> Mapping[str, torch.dtype]:
        """The element type of a value."""

    def raw(self, name: str) -> Any | None:
        """The initializer ``name``, when it is one: ``dtype`` (ONNX's name), ``shape``, ``data``."""

    def scalar(self, name: str) -> float | None:
        """The value of a constant with one element."""

    def evaluate(self, name: str) -> Any:
        """The value of a constant expression."""


@dataclass(frozen=True)
class StoredWeight:
    """The scales of a quantized weight in a graph.

    Attributes:
        scale: the factor outside the product: one, or one a row of the weight, float32 [N].
        block_scales: [N, K/G], as floats.
        group: G, 0 without blocks.
    """

    scale: float | torch.Tensor = 1.0
    block_scales: torch.Tensor | None = None
    group: int = 0


@dataclass(frozen=True)
class RoundedInput:
    """The value that is rounded, under which scale, and the nodes that do it (by their place in the graph)."""

    source: str
    scale: float
    nodes: frozenset[int]


# --- in TensorRT-LLM's checkpoint ---------------------------------------------------------------


class Part(Protocol):
    """Rows ``begin`` to ``end`` of a linear."""

    @property
    def module(self) -> str: ...
    @property
    def begin(self) -> int: ...
    @property
    def end(self) -> int: ...


class ShardWriter(Protocol):
    """What a format writes its tensors of a rank's file with: rows of ``parts`` below each other, columns of K."""

    @property
    def group(self) -> int | None:
        """Values that share a scale, as the checkpoint says."""

    def scalars(self, parts: Sequence[Any], leaf: str) -> dict[str, float]:
        """The one value of each part's ``leaf``, by module."""

    def stack(
        self,
        out: str,
        parts: Sequence[Any],
        leaf: str,
        columns: tuple[int, int] | None,
        *,
        rows: int = 1,
        dtype: str | None = None,
        tables: Mapping[str, Any] | None = None,
    ) -> Any:
        """``leaf`` of each part below the other, ``rows`` rows of the linear in a stored one, mapped by ``tables``."""

    def widened(self, tensor: Any) -> Any:
        """The tensor in float32."""

    def numbers(self, out: str, values: Sequence[float]) -> Any:
        """A tensor of these float32 values."""

    def input_factors(self, out: str, parts: Sequence[Any], columns: tuple[int, int] | None) -> Any:
        """The factors of the input's channels (``pre_quant_scale``); ones where they were folded away."""

    def rounded_again(self, part: Any, ratio: float) -> None:
        """Record that a part's weights are rounded again under a scale 1/ratio times theirs."""

    def unlike(self, out: str, parts: Sequence[Any], how: str, numbers: Mapping[str, float]) -> Exception:
        """The refusal of parts that cannot be one linear."""


def input_factors(tensors: CheckpointReader, linear: LinearTensors) -> dict[str, str]:
    """The part ``pre_quant_scale`` [K] of a linear, where it has one: factors of its input's channels."""
    name = f"{linear.name}.{INPUT_FACTORS}"
    if name not in tensors.headers:
        return {}
    tensors.take(name, (linear.shape[1],))
    return {INPUT_FACTORS: name}


def factored(writer: LinearWriter, linear: LinearTensors, x: str, scope: str) -> str:
    """``x`` times the linear's factors, where it has them."""
    factors = linear.parts.get(INPUT_FACTORS)
    return x if factors is None else writer.scaled(x, factors, scope)


def factored_input(parts: Mapping[str, torch.Tensor], after: InputOperation | None) -> InputOperation | None:
    """The input times the linear's factors, where it has them, and then what happens ``after``."""
    factors = parts.get(INPUT_FACTORS)
    if factors is None:
        return after
    wide = factors.float()

    def apply(x: torch.Tensor) -> torch.Tensor:
        scaled = x * wide.to(x.dtype)
        return scaled if after is None else after.apply(scaled)

    return InputOperation(apply)


def rounded_by_one_scale(view: GraphView, node: Any, dtype: torch.dtype) -> RoundedInput | None:
    """What DequantizeLinear ``node`` ends: QuantizeLinear to ``dtype`` and back under one constant scale."""
    inner = view.producer.get(node.inputs[0]) if node.kind == "DequantizeLinear" else None
    if inner is None or inner.kind != "QuantizeLinear" or view.dtype.get(inner.outputs[0]) != dtype:
        return None
    scale = view.scalar(inner.inputs[1])
    if scale is None or scale != view.scalar(node.inputs[1]):
        return None
    return RoundedInput(inner.inputs[0], scale, frozenset({view.index[id(node)], view.index[id(inner)]}))


def in_blocks(node: Any) -> bool:
    """Whether DequantizeLinear has a scale for some columns of a row each, and no zero points."""
    zeros = len(node.inputs) > 2 and node.inputs[2]
    return node.attribute("axis", 1) % 2 == 1 and not zeros and bool(node.attribute("block_size", 0))


def row_scales(view: GraphView, node: Any) -> torch.Tensor | None:
    """The scales float32 [N] of a DequantizeLinear with one for each row, and no zero points; None: it has others."""
    if node.attribute("axis", 1) != 0 or node.attribute("block_size", 0) or (len(node.inputs) > 2 and node.inputs[2]):
        return None
    scales: torch.Tensor = view.evaluate(node.inputs[1])
    return scales.float() if scales.dim() == 1 else None


# --- the format ---------------------------------------------------------------------------------


class Format:
    """One quantization format: its row, and what the row cannot say.

    Attributes:
        row: the format's row.
        kind: what the executor's description calls weights stored so.
        exact_codes: float16 and bfloat16 hold the codes of a weight exactly; its scale stays outside the product.
        scale_bytes: of one block scale in an engine's files.
        kernels: the executor's own kernels for it, preferred first (:data:`runtime.executors.linears.KERNELS`);
            without one that takes the linear, the weights are widened at load.
        input_kernel: the executor's kernel that rounds the input (a method of
            :class:`runtime.executors.kernels.Kernels`); None: the input is not rounded.
    """

    kind: str = ""
    exact_codes: bool = False
    scale_bytes: int = 0
    kernels: tuple[str, ...] = ()
    input_kernel: str | None = None

    def __init__(self, row: FormatRow) -> None:
        self.row = row

    @property
    def name(self) -> str:
        return self.row.name

    # in a checkpoint

    def holds(self, stored: TensorInfo, beside: Mapping[str, TensorInfo]) -> bool:
        """Whether a linear's weight is stored so; ``beside``: the tensors of its module by their last name."""
        raise NotImplementedError

    def take(self, tensors: CheckpointReader, linear: LinearTensors) -> LinearTensors:
        """The linear with its format, group and parts, every tensor taken.

        Args:
            linear: name, [N, K], weight and bias; nothing of the format yet.
        """
        raise NotImplementedError

    def repacking(self, stored: TensorInfo) -> Repacking | None:
        """How the weight is laid out anew for ONNX; None: it stays where it is."""
        return None

    def rounds_input(self, parts: Iterable[str]) -> bool:
        """Whether the inputs of a linear are rounded; ``parts``: the last names of its tensors."""
        calibrated = "input_scale" in self.row.tensors
        return self.row.activation is not None and (not calibrated or "input_scale" in parts)

    # in a graph

    def emit(self, writer: LinearWriter, linear: LinearTensors, x: str, scope: str) -> tuple[str, str]:
        """Write what comes before the product; returns the values (x, W [N, K]) that are multiplied."""
        raise NotImplementedError

    # as computed

    def read(self, parts: Mapping[str, torch.Tensor]) -> tuple[torch.Tensor, InputOperation | None]:
        """Tensors of one linear → (float32 weight [N, K], what happens to its input)."""
        raise NotImplementedError

    # in the executor

    def stored_of(self, view: GraphView, node: Any) -> Any | None:
        """The initializer behind ``node`` (DequantizeLinear), if it can be a weight of this format."""
        return view.raw(node.inputs[0])

    def match_weight(self, view: GraphView, node: Any, stored: Any) -> StoredWeight | None:
        """The scales of ``stored`` [N, K], which ``node`` (DequantizeLinear) widens, if it is of this format."""
        return None

    def match_input(self, view: GraphView, node: Any) -> RoundedInput | None:
        """What ``node`` rounds, if it ends the format's rounding of a linear's input."""
        return None

    def write_codes(self, stored: Any, scales: StoredWeight, out: torch.Tensor) -> None:
        """Fill float32 [N, K] with the weights before :attr:`StoredWeight.scale`."""
        raise NotImplementedError

    def kept_scale(self, scale: float) -> float:
        """What the executor's rounded input is yet to be multiplied by, for a scale of the graph's."""
        return 1.0

    # in TensorRT-LLM's checkpoint

    def shard(
        self, writer: ShardWriter, out: str, parts: Sequence[Part], columns: tuple[int, int] | None
    ) -> Iterator[Any]:
        """The tensors of one linear in a rank's file: ``parts`` below each other, of which the rank has ``columns``."""
        raise NotImplementedError
