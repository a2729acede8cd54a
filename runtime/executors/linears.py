"""Linear kernels and which one a layer gets.

Policy: the choice is made once, at load, from what the weights are stored as and what the processor
can do; ``describe()`` on the executor repeats it. What a format stores is kept exactly: an FP8 or
NVFP4 weight is its integer-like codes (exact in float16 and bfloat16) and one scale applied outside
the product; an INT4 weight is its integer and its block's scale in float32; a bfloat16 weight is exact
in float16 inside its normal range, and a tensor that is not is first multiplied by a power of two, or
kept in float32 when even that is too narrow. Every kernel can read its weights back
(``weights()``), and :mod:`~runtime.executors.weight_check` holds them against what is stored.

========================  ==================================  =========================================
kernel                    weights, activations                used
========================  ==================================  =========================================
``host_int4``             INT4, the engine's dtype            INT4, with the host op library
``fbgemm_fp16``           float16, float32                    CPUs without bfloat16 units (AVX2, AVX-512F)
``onednn_bf16``           bfloat16, bfloat16                  CPUs with AVX512-BF16 or AMX
``onednn_f32``            float32, float32                    float32 engines; weights out of range
``torch_linear``          the engine's dtype                  CUDA, and the last resort
``scaled_mm``             FP8, FP8                            CUDA, sm_89 and later
========================  ==================================  =========================================

Rows of a result must not depend on how many rows are computed with them, or a request's greedy output
would depend on its neighbours. ``host_int4`` sums every output in one order. FBGEMM's float16 kernels sum
in another order when a tile is one or two rows high, and oneDNN cuts long sums in pieces for its threads
when there are few rows, or takes other blocks for many: :mod:`~runtime.executors.row_order` measures which row counts
those are, and the kernels pad to the next that is not, or compute many rows in pieces. Where rows need not be
invariant (``exact=False``), nothing is padded or cut for it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from plugins.host.library import HostLibrary
from runtime.executors.int4_linear import HostInt4, takes
from runtime.executors.row_order import fbgemm_rows, onednn_row_order
from runtime.executors.weights import LinearSource, Scratch
from trtforge.formats.elements import to_e4m3
from trtforge.machine.gpus import architecture_name
from trtforge.machine.processor import processor

FP16_MAX = 65504.0
#: error of a float16 weight, relative to the tensor's largest, from which it is not used as it is
FP16_TOLERANCE = 2.0**-16


@dataclass(frozen=True)
class Capability:
    """What the processor offers to linears.

    Attributes:
        device: ``cpu`` or ``cuda``.
        bf16: bfloat16 matrix units (AVX512-BF16, AMX) or a CUDA device.
        fbgemm: FBGEMM's packed kernels are in this torch build.
        fp8: ``torch._scaled_mm`` works (CUDA sm_89 and later).
    """

    device: str = "cpu"
    bf16: bool = False
    fbgemm: bool = True
    fp8: bool = False
    label: str = ""


def detect(device: str = "cpu") -> Capability:
    """The capability of this machine's CPU, or of a CUDA device."""
    if device != "cpu":
        major, minor = torch.cuda.get_device_capability(device)
        return Capability("cuda", True, False, (major, minor) >= (8, 9), f"cuda {architecture_name(major, minor)}")
    isa = processor().isa
    # oneDNN takes bfloat16 on any AVX-512 processor; without units for it, it is slower than float16 weights
    units = "avx512_bf16" in isa or "amx_bf16" in isa
    bf16 = bool(units and torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())
    fbgemm = "fbgemm" in torch.backends.quantized.supported_engines
    label = torch.backends.cpu.get_cpu_capability()
    return Capability("cpu", bf16, fbgemm, False, f"{label}{', bf16' if bf16 else ''}")


class LinearKernel(Protocol):
    """y = kernel(x, tokens): x is [rows, K] with rows ≥ :meth:`rows`(tokens); y has at least ``tokens`` rows."""

    name: str
    #: what executes, in words
    executed: str
    nbytes: int
    row_invariant: bool
    #: the kernel applies activation quantization itself
    quantizes_input: bool

    def rows(self, tokens: int) -> int:
        """Rows that the kernel computes for ``tokens``."""

    def __call__(self, x: torch.Tensor, tokens: int) -> torch.Tensor: ...

    def weights(self) -> torch.Tensor:
        """float32 [N, K]: the weights that the kernel multiplies, read back from its own form."""


def _bound(packed: Any, width: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """``linear_dynamic_fp16`` with its packed weight bound in.

    Handing a packed object from Python to an operator costs some 10 µs a call, several times what the operator
    itself takes for few rows; a traced function that holds it as an attribute does not pay that.
    """

    class Bound(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.packed = packed

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.quantized.linear_dynamic_fp16(x, self.packed)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traced = torch.jit.trace(Bound().eval(), (torch.zeros(3, width),), check_trace=False)
        method: Callable[[torch.Tensor], torch.Tensor] = traced._c._get_method("forward")
    except Exception:  # tracing is on its way out of torch: the plain call means the same
        call = torch.ops.quantized.linear_dynamic_fp16.default
        return lambda x: call(x, packed)
    return method


class FbgemmFp16:
    """FBGEMM: float16 weights packed in panels, float32 activations and sums."""

    name = "fbgemm_fp16"
    executed = "float16 weights, float32 activations"
    quantizes_input = False

    def __init__(self, codes: torch.Tensor, bias: torch.Tensor | None, exact: bool = True) -> None:
        self._packed = torch.ops.quantized.linear_prepack_fp16(codes, bias)
        self._call = _bound(self._packed, codes.shape[1])
        self.nbytes = codes.numel() * 2
        self.row_invariant = exact
        #: rows up to this many run unpadded: a fifth faster, summed in another order
        self._unpadded = 0 if exact else 2

    def rows(self, tokens: int) -> int:
        return tokens if tokens <= self._unpadded else fbgemm_rows(tokens)

    def __call__(self, x: torch.Tensor, tokens: int) -> torch.Tensor:
        if x.dtype != torch.float32:
            x = x[: self.rows(tokens)].float()
        return self._call(x[: self.rows(tokens)])

    def weights(self) -> torch.Tensor:
        weight: torch.Tensor = torch.ops.quantized.linear_unpack_fp16(self._packed)[0]
        return weight.float()


class OnednnF32:
    """oneDNN, float32 weights reordered for it."""

    name = "onednn_f32"
    executed = "float32 weights, float32 activations"
    row_invariant = True
    quantizes_input = False

    def __init__(self, codes: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(codes.contiguous(), 16)
        self._bias = bias
        self._call = torch.ops.mkldnn._linear_pointwise.default
        self._inputs = codes.shape[1]
        self.nbytes = codes.numel() * 4

    def rows(self, tokens: int) -> int:
        return tokens

    def __call__(self, x: torch.Tensor, tokens: int) -> torch.Tensor:
        return self._call(x[:tokens].float(), self._packed, self._bias, "none", [], "")

    def weights(self) -> torch.Tensor:
        return _columns(self._call, self._packed, self._inputs, torch.float32)


class OnednnBf16:
    """oneDNN, bfloat16 weights reordered for AVX512-BF16 or AMX; sums in float32."""

    name = "onednn_bf16"
    executed = "bfloat16 weights, bfloat16 activations"
    quantizes_input = False

    def __init__(self, codes: torch.Tensor, bias: torch.Tensor | None, exact: bool = True) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(codes.bfloat16().contiguous(), 16)
        self._bias = None if bias is None else bias.bfloat16()
        self._call = torch.ops.mkldnn._linear_pointwise.default
        self._outputs, self._inputs = codes.shape
        self.nbytes = codes.numel() * 2
        order = onednn_row_order(codes.shape[0], codes.shape[1], torch.get_num_threads()) if exact else None
        self.row_invariant = order is not None
        self._least, self._most = (order.least, order.most) if order is not None else (1, None)

    def _product(self, x: torch.Tensor) -> torch.Tensor:
        return self._call(x, self._packed, self._bias, "none", [], "")

    def rows(self, tokens: int) -> int:
        return max(tokens, self._least)

    def __call__(self, x: torch.Tensor, tokens: int) -> torch.Tensor:
        rows, most = self.rows(tokens), self._most
        x = x[:rows].bfloat16()
        if most is None or rows <= most:
            return self._product(x)
        out = x.new_empty(rows, self._outputs)
        for begin in range(0, rows, most):
            # of a short end rows are computed a second time, to the same bits
            at = min(begin, rows - self._least)
            out[at : at + most] = self._product(x[at : at + most])
        return out

    def weights(self) -> torch.Tensor:
        return _columns(self._call, self._packed, self._inputs, torch.bfloat16)


def _columns(call: Callable[..., torch.Tensor], packed: torch.Tensor, inputs: int, dtype: torch.dtype) -> torch.Tensor:
    """The weights in oneDNN's own layout, float32 [N, K]: products with unit vectors are its columns, exactly."""
    bands = torch.eye(inputs, dtype=dtype).split(512)
    return torch.cat([call(band, packed, None, "none", [], "").float() for band in bands]).T.contiguous()


class TorchLinear:
    """``torch.nn.functional.linear`` in one dtype: CUDA, and processors without the packed kernels."""

    name = "torch_linear"
    row_invariant = False
    quantizes_input = False

    def __init__(self, codes: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype, device: str) -> None:
        self._weight = codes.to(device=device, dtype=dtype)
        self._bias = None if bias is None else bias.to(device=device, dtype=dtype)
        self.executed = f"{str(dtype).removeprefix('torch.')} weights and activations"
        self.nbytes = self._weight.numel() * self._weight.element_size()

    def rows(self, tokens: int) -> int:
        return tokens

    def __call__(self, x: torch.Tensor, tokens: int) -> torch.Tensor:
        return F.linear(x[:tokens].to(self._weight.dtype), self._weight, self._bias)

    def weights(self) -> torch.Tensor:
        return self._weight.float().cpu()


class ScaledMm:
    """cuBLASLt FP8: E4M3 weights and activations, one scale each, bfloat16 result."""

    name = "scaled_mm"
    executed = "E4M3 weights, E4M3 activations"
    row_invariant = False
    quantizes_input = True

    def __init__(
        self, codes: torch.Tensor, bias: torch.Tensor | None, scale: float, input_scale: float, device: str
    ) -> None:
        self._weight = codes.to(device=device).to(torch.float8_e4m3fn)
        self._bias = None if bias is None else bias.to(device=device, dtype=torch.bfloat16)
        self._input_scale = torch.tensor(input_scale, device=device)
        self._scale = torch.tensor(scale, device=device)
        self.nbytes = self._weight.numel()

    def rows(self, tokens: int) -> int:
        return tokens

    def __call__(self, x: torch.Tensor, tokens: int) -> torch.Tensor:
        quantized = to_e4m3(x[:tokens], self._input_scale)
        return torch._scaled_mm(
            quantized, self._weight.t(), self._input_scale, self._scale, bias=self._bias, out_dtype=torch.bfloat16
        )

    def weights(self) -> torch.Tensor:
        return self._weight.float().cpu()


@dataclass
class PackedLinear:
    """The linears that share an input, as one kernel call.

    Attributes:
        out_scale: what the product has yet to be multiplied by: None, one factor, or one a column.
        bias: float32 [N], added after that factor; None where the kernel adds it itself.
        power: what the codes were multiplied by to fit the kernel's type, a power of two.
    """

    kernel: LinearKernel
    sources: list[LinearSource]
    out_scale: float | torch.Tensor | None
    bias: torch.Tensor | None = None
    power: float = 1.0
    notes: list[str] = field(default_factory=list)
    #: quantization of the input in front of the kernel: a format's kind, or "" (set by the lowering)
    input: str = ""

    @property
    def width(self) -> int:
        """N of all sources together."""
        return sum(s.shape[0] for s in self.sources)


def _bias(sources: Sequence[LinearSource]) -> torch.Tensor | None:
    if all(s.bias is None for s in sources):
        return None
    return torch.cat([torch.zeros(s.shape[0]) if s.bias is None else s.bias.float() for s in sources])


def _power_for_fp16(sources: Sequence[LinearSource], codes: torch.Tensor) -> float | None:
    """The power of two that brings dense weights into float16's normal range; None: no power does.

    A bfloat16 weight loses bits in float16 only below 2^-14, at most 2^-25 of absolute error; so the largest
    weight bounds the error relative to it, and 1.0 is the answer for all but odd tensors.
    """
    if sources[0].method is not None:
        largest = float(torch.linalg.vector_norm(codes, float("inf")))
    else:
        largest = max(s.largest() for s in sources)
    if largest == 0.0 or (sources[0].format == "float16" and largest <= FP16_MAX):
        return 1.0
    if largest <= FP16_MAX and 2.0**-25 / largest <= FP16_TOLERANCE:
        return 1.0
    if not math.isfinite(largest):
        return None
    return 2.0 ** (14 - math.floor(math.log2(largest)))


def pack(
    sources: Sequence[LinearSource],
    capability: Capability,
    dtype: torch.dtype,
    *,
    input_scale: float | None = None,
    exact: bool = True,
    scratch: Scratch | None = None,
    library: HostLibrary | None = None,
) -> PackedLinear:
    """Choose and load a kernel for linears with one input.

    Args:
        sources: same K, format and group; concatenated along N in this order.
        capability: see :func:`detect`.
        dtype: dtype of the activations.
        input_scale: the scale of the input where the graph rounds it as the weights' format does.
        exact: rows must not depend on their number, also where that costs speed.
        scratch: memory to widen weights in, shared by the calls of a load.
        library: the host op library; None does without its kernels.
    """
    method, bias = sources[0].method, _bias(sources)
    scale = _one_scale(sources)
    wanted = Wanted(sources, bias, capability, input_scale, scratch or Scratch(), library)
    for name in () if method is None else method.kernels:
        own = KERNELS[name](wanted)
        if own is not None:
            return PackedLinear(own, list(sources), None)
    codes = wanted.scratch.codes(sources)
    if capability.device == "cuda":
        weight = codes * _column_scales(sources)[:, None] if scale is None else codes * scale
        return PackedLinear(
            TorchLinear(weight, bias, dtype, "cuda"),
            list(sources),
            None,
            notes=[] if method is None else ["weights de-quantized at load"],
        )
    out_scale = _column_scales(sources) if scale is None else None if scale == 1.0 else scale
    # in front of the factor the kernel would hold the bias divided by it, rounded to the kernel's type
    after = bias if out_scale is not None else None
    kernel, power, notes = _dense(sources, codes, bias if after is None else None, capability, dtype, exact)
    if power != 1.0:
        out_scale = 1.0 / power if out_scale is None else out_scale / power
    return PackedLinear(kernel, list(sources), out_scale, after, power, notes)


def _dense(
    sources: Sequence[LinearSource],
    codes: torch.Tensor,
    bias: torch.Tensor | None,
    capability: Capability,
    dtype: torch.dtype,
    exact: bool,
) -> tuple[LinearKernel, float, list[str]]:
    """A CPU kernel for dense codes, the power of two that its weights are multiplied by, and notes."""
    kind, exact_codes = sources[0].format, sources[0].exact_codes
    # float16 weights, and quantized ones with other codes, have bits that bfloat16 has no room for
    narrow = kind not in ("float32", "float16") if sources[0].method is None else exact_codes
    if dtype == torch.bfloat16 and narrow:
        kernel = OnednnBf16(codes, bias, exact)
        # a rounding difference is amplified where activations are quantized: there the order has to be common
        if kernel.row_invariant or not exact or not exact_codes or not capability.fbgemm:
            return kernel, 1.0, []
        return FbgemmFp16(codes, bias), 1.0, ["oneDNN's sums depend on the number of rows on this processor"]
    if kind == "float32" or not capability.fbgemm:
        return _float32(codes, bias), 1.0, []
    power = 1.0 if exact_codes else _power_for_fp16(sources, codes)
    if power == 1.0:
        return FbgemmFp16(codes, bias, exact), 1.0, []
    if power is None:
        return _float32(codes, bias), 1.0, ["kept in float32: the weights hold values that float16 cannot"]
    note = f"weights times 2^{math.log2(power):.0f} to stay inside float16's normal range"
    scaled = FbgemmFp16(codes * power, None if bias is None else bias * power, exact)
    return scaled, power, [note]


def _float32(codes: torch.Tensor, bias: torch.Tensor | None) -> LinearKernel:
    if torch.backends.mkldnn.is_available():
        return OnednnF32(codes, bias)
    return TorchLinear(codes.clone(), bias, torch.float32, "cpu")


@dataclass(frozen=True)
class Wanted:
    """Linears with one input that want a kernel; the fields are the arguments of :func:`pack`."""

    sources: Sequence[LinearSource]
    bias: torch.Tensor | None
    capability: Capability
    input_scale: float | None
    scratch: Scratch
    library: HostLibrary | None


def _host_int4(wanted: Wanted) -> LinearKernel | None:
    if wanted.capability.device != "cpu" or wanted.library is None or not takes(wanted.sources):
        return None
    return HostInt4(wanted.library, wanted.sources, wanted.bias)


def _scaled_mm(wanted: Wanted) -> LinearKernel | None:
    """One scale for all, calibrated inputs, and whole tiles of 16."""
    sources = wanted.sources
    scale, sizes = _one_scale(sources), (sum(s.shape[0] for s in sources), sources[0].shape[1])
    fits = wanted.capability.device == "cuda" and wanted.capability.fp8 and not any(size % 16 for size in sizes)
    if scale is None or wanted.input_scale is None or not fits:
        return None
    codes = wanted.scratch.codes(sources)
    return ScaledMm(codes, wanted.bias, scale, wanted.input_scale, "cuda")


#: kernels that formats have of their own, by the name that a format gives them: None where one does not take the linear
KERNELS: Mapping[str, Callable[[Wanted], LinearKernel | None]] = {"host_int4": _host_int4, "scaled_mm": _scaled_mm}


def _one_scale(sources: Sequence[LinearSource]) -> float | None:
    """The outer scale that all of them have; None: they differ, or rows have their own."""
    first = sources[0].scale
    if isinstance(first, torch.Tensor) or any(isinstance(s.scale, torch.Tensor) or s.scale != first for s in sources):
        return None
    return first


def _column_scales(sources: Sequence[LinearSource]) -> torch.Tensor:
    """The outer scales float32 [N] of the product's columns."""
    return torch.cat([torch.as_tensor(s.scale, dtype=torch.float32).expand(s.shape[0]) for s in sources])
