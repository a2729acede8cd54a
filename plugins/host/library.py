"""Loader and Python face of the host op library.

Two ways to call an op:

- the checked methods of :class:`HostLibrary` take torch CPU tensors and hold them against the op's table;
- the raw way is for an executor's inner loop: :meth:`HostLibrary.raw_op` takes the fields of the op's struct in their
  order (integer pointers) and returns a status for :meth:`HostLibrary.check`; :meth:`HostLibrary.prepared` is a struct
  of which a step changes a few fields.

Both fill the struct that :mod:`trtforge.native.ops` describes.

The C side checks every argument again either way; a refused call has no effect. Calls release the GIL.

:mod:`trtforge.native.host_library` says where the library lies.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugins.checked import checked, refuse
from plugins.host import abi
from plugins.opening import Refusal, open_shared
from plugins.shared_ops import SharedOps, attention_args
from plugins.structs import packer, prepared
from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.native import ops
from trtforge.native.host_library import HOST_LIBRARY, folders, host_library_path
from trtforge.native.host_library import VARIABLE as LIBRARY_VARIABLE
from trtforge.native.ops import Op

if TYPE_CHECKING:
    import torch

ISA_VARIABLE = "TRTFORGE_HOST_ISA"

_UNLOADABLE = Refusal(
    "TF-OPS-002",
    "the host op library cannot be loaded",
    (
        "reinstall trtforge on this machine (pip install -e . --force-reinstall), or trtforge plugins build",
        "apt-get install libgomp1 if libgomp.so.1 is what is missing",
        f"unset {LIBRARY_VARIABLE} to use the installed library",
    ),
)
_OTHER_ABI = Refusal(
    "TF-OPS-003",
    "the host op library has another ABI version",
    ("reinstall trtforge so that both are rebuilt, or trtforge plugins build", f"unset {LIBRARY_VARIABLE}"),
)

_lock = threading.Lock()
_loaded: HostLibrary | None = None


def find_library() -> Path:
    """Where the library lies.

    Raises:
        EnvironmentLacks: TF-OPS-001 when it is nowhere; the remedy says how to build it.
    """
    given = os.environ.get(LIBRARY_VARIABLE)
    if given:
        path = Path(given)
        if path.is_file():
            return path
        raise EnvironmentLacks(
            "TF-OPS-001",
            "the host op library is not where the environment says",
            asked=f"{LIBRARY_VARIABLE}={given}",
            why="That file does not exist.",
            remedies=[f"unset {LIBRARY_VARIABLE} to use the installed library", "build it there with cmake"],
        )
    found = host_library_path()
    if found is not None:
        return found
    raise EnvironmentLacks(
        "TF-OPS-001",
        "the host op library has not been built",
        asked=HOST_LIBRARY,
        numbers={"searched": [str(folder) for folder in folders()]},
        why="The package build compiles it with g++; running from a source tree without installing skips that.",
        remedies=[
            "pip install -e . (needs g++ 12 or newer: apt-get install g++)",
            f"cmake -S . -B build/dev && cmake --build build/dev, then {LIBRARY_VARIABLE}=build/dev/{HOST_LIBRARY}",
        ],
    )


def load_library(path: Path | None = None) -> HostLibrary:
    """Open the library once per process (``path`` given: open that file anew)."""
    global _loaded
    if path is not None:
        return HostLibrary(path)
    with _lock:
        if _loaded is None:
            _loaded = HostLibrary(find_library())
        return _loaded


class HostLibrary(SharedOps):
    """The opened library.

    Attributes:
        path: the file.
        raw: the ``ctypes.CDLL`` with bound prototypes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.raw = open_shared(path, "trtforge_host_abi", abi.ABI_VERSION, _UNLOADABLE, _OTHER_ABI)
        missing = abi.bind(self.raw)
        if missing:
            raise EnvironmentLacks(
                "TF-OPS-003",
                "the host op library is older than this version of trtforge",
                asked=str(path),
                numbers={"missing": missing},
                why="It lacks functions that this version calls.",
                remedies=["reinstall trtforge, which rebuilds it, or trtforge plugins build"],
            )
        if self.raw.trtforge_host_isa() is None:
            raise EnvironmentLacks(
                "TF-OPS-004",
                "the instruction set asked for cannot be used",
                asked=f"{ISA_VARIABLE}={os.environ.get(ISA_VARIABLE, '')}",
                why=self.last_error(),
                remedies=[f"unset {ISA_VARIABLE}: the best that this CPU has is chosen"],
            )

    # --- the library itself -----------------------------------------------------------------------------------

    def last_error(self) -> str:
        """Message of this thread's last refused call."""
        return (self.raw.trtforge_last_error() or b"").decode("utf-8", "replace")

    def check(self, status: int, op: str = "host op") -> None:
        """Raise the ForgeError that belongs to a non-zero status."""
        if status == 0:
            return
        code, why, remedy = abi.STATUS.get(status, ("TF-OPS-199", "Unknown status.", "reinstall trtforge"))
        raise ForgeError(
            code, f"{op}: {self.last_error()}", asked=op, numbers={"status": status}, why=why, remedies=[remedy]
        )

    def info(self) -> dict[str, Any]:
        """abi, isa, isas_compiled, isas_available, compiler, openmp, threads, source_hash, path."""
        data: dict[str, Any] = json.loads(self.raw.trtforge_host_info())
        data["path"] = str(self.path)
        return data

    @property
    def isa(self) -> str:
        """Instruction set in use."""
        return str(self.raw.trtforge_host_isa().decode())

    def select_isa(self, name: str | None) -> None:
        """Use an instruction set by name for the whole process; None: back to the environment or the best."""
        self.check(self.raw.trtforge_host_select_isa(name.encode() if name else None), "select_isa")

    def set_threads(self, threads: int) -> None:
        """Threads a call may use; 0 follows OpenMP and so ``torch.set_num_threads``."""
        self.check(self.raw.trtforge_host_set_threads(threads), "set_threads")

    def leave_with_parent(self, parent: int, milliseconds: int = 500) -> None:
        """End this process when ``parent`` is no longer its parent; for a thread of its own, and it does not return.

        It waits without the GIL: a process whose threads all wait for a dead parent, GIL and all, is ended too.
        """
        self.check(self.raw.trtforge_host_leave_with_parent(parent, milliseconds), "leave_with_parent")

    def raw_op(self, op: Op) -> Callable[..., int]:
        """The op for an inner loop: the values of ``op.fields`` in, the status out; not for two threads at once."""
        return packer(getattr(self.raw, f"trtforge_{op.name}"), op)

    def prepared(self, op: Op, **fields: Any) -> tuple[Any, Callable[[], int]]:
        """A struct with these fields, to be changed between calls, and the call with it (pointers are trusted)."""
        return prepared(getattr(self.raw, f"trtforge_{op.name}"), op, **fields)

    def run_op(self, op: Op, args: Any) -> None:
        """Call an op with its argument struct."""
        status = getattr(self.raw, f"trtforge_{op.name}")(args)
        if status:
            self.check(status, op.title if op.plugin else op.name)

    # --- the ops ----------------------------------------------------------------------------------------------

    def paged_attention(self, *tensors: Any, **options: Any) -> torch.Tensor:
        """``trtforge::PagedAttention`` v2: arguments of :func:`plugins.shared_ops.attention_args`; returns the output.

        Raises:
            ForgeError: TF-OPS-005 for tensors of the wrong kind, TF-OPS-101 … 113 for what the op refuses.
        """
        args, out = attention_args(*tensors, **options)
        self.run_op(ops.PAGED_ATTENTION, args)
        return out

    def copy_blocks(self, kv_pool: torch.Tensor, pairs: torch.Tensor) -> None:
        """Copy whole blocks inside a pool, pair after pair (copy on write).

        Args:
            kv_pool: [N, …] contiguous CPU tensor of any dtype. pairs: [P, 2] int64 (source, destination).
        """
        import torch

        if not kv_pool.is_contiguous() or kv_pool.dim() < 1:
            raise refuse("kv_pool", kv_pool, "a contiguous tensor [N, …]")
        blocks, held = int(kv_pool.shape[0]), kv_pool.view(-1).view(torch.uint8)
        size = held.numel() // max(blocks, 1)
        self._run(ops.COPY_BLOCKS, block_bytes=size, num_blocks=blocks, kv_pool=held, pairs=pairs)

    # --- fused helpers ----------------------------------------------------------------------------------------

    def _run(self, op: Op, **given: Any) -> None:
        """An op with tensors and numbers by name."""
        tensors = {tensor.name: given.pop(tensor.name) for tensor in op.tensors}
        self.run_op(op, checked(op, tensors, **given))

    def rms_norm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor | None = None,
        *,
        eps: float,
        weight_offset: float = 0.0,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``x * rsqrt(mean(x²) + eps) * (weight + weight_offset)`` by rows of [T, D]; ``out`` may be x.

        Args:
            residual: [T, D]; ``residual += x`` in place first, and the norm is the residual's.
        """
        out = _like(x) if out is None else out
        self._run(ops.RMS_NORM, x=x, residual=residual, weight=weight, out=out, eps=eps, weight_offset=weight_offset)
        return out

    def rope(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        cosine: torch.Tensor,
        sine: torch.Tensor,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_size: int,
    ) -> None:
        """Half-rotation RoPE in place.

        Args:
            query: [T, H*E], key: [T, K*E]; rows may be strided (slices of a packed qkv).
            cosine: [T, R/2] float32 contiguous, R <= E the rotated part of a head; sine likewise.
        """
        self._run(
            ops.ROPE, query=query, key=key, cosine=cosine, sine=sine, rotary=2 * int(cosine.shape[-1]),
            num_heads=num_heads, num_kv_heads=num_kv_heads, head_size=head_size,
        )  # fmt: skip

    def silu_mul(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """``silu(x[:, :F]) * x[:, F:]`` for a packed gate|up [T, 2F]; gives [T, F]."""
        import torch

        out = torch.empty(x.shape[0], x.shape[1] // 2, dtype=x.dtype) if out is None else out
        self._run(ops.SILU_MUL, x=x, out=out)
        return out

    def fp8_fake_quant(
        self, x: torch.Tensor, scale: float, out: torch.Tensor | None = None, *, dequantize: bool = True
    ) -> torch.Tensor:
        """``e4m3(x / scale)`` (saturating), times ``scale`` when ``dequantize``; in place when ``out`` is None."""
        out = x if out is None else out
        for name, tensor in (("x", x), ("out", out)):
            if not tensor.is_contiguous() or tensor.shape != x.shape:
                raise refuse(name, tensor, f"contiguous {list(x.shape)}")
        self._run(ops.FP8_FAKE_QUANT, x=x.view(-1), out=out.view(-1), scale=scale, dequantize=int(dequantize))
        return out

    def nvfp4_fake_quant(self, x: torch.Tensor, scale: float, out: torch.Tensor | None = None) -> torch.Tensor:
        """Dynamic NVFP4 fake quantization of [T, D] in blocks of 16, in place; ``scale`` = amax / (6·448)."""
        out = x if out is None else out
        self._run(ops.NVFP4_FAKE_QUANT, x=x, out=out, scale=scale)
        return out

    def embedding(self, table: torch.Tensor, ids: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """``out[t] = table[ids[t]]`` with conversion. table [V, D] contiguous, ids int64 [T], out [T, D]."""
        self._run(ops.EMBEDDING, table=table, ids=ids, out=out)
        return out

    def int4_linear(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        scales: torch.Tensor,
        *,
        outputs: int,
        group: int,
        bias: torch.Tensor | None = None,
        out_dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """``x Wᵀ + bias`` [T, N] with INT4 weights; a row's bits depend on that row alone.

        Args:
            x: [T, K]; rows may be strided.
            weights, scales: as :mod:`plugins.host.int4` packs them, int32 [panels, K/8, 16] and float32
                [panels, K/group, 16].
            outputs: N. bias: float32 [N]. out_dtype: default that of x.
        """
        import torch

        from plugins.host.int4 import PANEL

        out = torch.empty(x.shape[0], outputs, dtype=out_dtype or x.dtype)
        self._run(
            ops.INT4_LINEAR, x=x, weights=weights, scales=scales, bias=bias, out=out, outputs=outputs, group=group,
            panels=-(-outputs // PANEL),
        )  # fmt: skip
        return out

    def argmax_logsumexp(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Per row of float32 [L, V]: index of the first maximum (int64), the maximum, log(sum(exp))."""
        import torch

        rows = logits.shape[0]
        index, maximum, logsumexp = torch.empty(rows, dtype=torch.int64), torch.empty(rows), torch.empty(rows)
        self._run(ops.ARGMAX_LOGSUMEXP, logits=logits, index=index, maximum=maximum, logsumexp=logsumexp)
        return index, maximum, logsumexp


def _like(x: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor of x's shape and dtype."""
    import torch

    return torch.empty(tuple(x.shape), dtype=x.dtype)
