"""Loader and Python face of the host op library.

Two ways to call an op:

- the checked methods of :class:`HostLibrary` take torch CPU tensors and verify shape, dtype, device and layout;
- the raw way is for an executor's inner loop: ``library.raw`` holds the bound C functions (integer pointers in,
  status out, give it to :meth:`HostLibrary.check`), and :meth:`HostLibrary.attention_call` prepares a reusable
  argument struct of which a step changes only a few fields.

The C side checks every argument again either way; a refused call has no effect. Calls release the GIL.

:mod:`trtforge.native.host_library` says where the library lies.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugins.host import abi, calls, checks
from plugins.opening import Refusal, open_shared
from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.native.host_library import HOST_LIBRARY, folders, host_library_path
from trtforge.native.host_library import VARIABLE as LIBRARY_VARIABLE

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


class HostLibrary(calls.SpeculationOps):
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
        self._attention = self.raw.trtforge_paged_attention
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

    def run_op(self, name: str, args: ctypes.Structure) -> None:
        """Call ``trtforge_<name>`` with its argument struct."""
        self.check(getattr(self.raw, f"trtforge_{name}")(args), name)

    # --- attention --------------------------------------------------------------------------------------------

    def attention_call(self, **fields: Any) -> abi.PagedAttentionArgs:
        """A reusable argument struct for the raw path; see :func:`run_attention`.

        Scales and soft cap default to 1 and 0. Pointers are integers (``tensor.data_ptr()``); whoever fills them
        keeps the tensors alive.
        """
        return calls.attention_struct(**fields)

    def run_attention(self, args: abi.PagedAttentionArgs) -> None:
        """Run PagedAttention on a prepared struct (raw path: pointers are trusted, indices are checked)."""
        status = self._attention(args)
        if status:
            self.check(status, "PagedAttention")

    def paged_attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_pool: torch.Tensor,
        query_start: torch.Tensor,
        sequence_lengths: torch.Tensor,
        block_table: torch.Tensor,
        out: torch.Tensor | None = None,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_size: int,
        scale: float | None = None,
        sliding_window: int = 0,
        soft_cap: float = 0.0,
        k_scale: float = 1.0,
        v_scale: float = 1.0,
        tree_mask: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """``trtforge::PagedAttention`` v1; the contract is in docs/ops.md.

        Args:
            query: [T, H*E] float32, bfloat16 or float16; rows may be strided (a slice of a packed qkv).
            key: [T, K*E], same dtype; value likewise.
            kv_pool: [N, 2, K, S, E] float32, bfloat16, float16 or float8_e4m3fn (or uint8 holding E4M3 bits);
                contiguous; written in place.
            query_start: [B+1] int32. sequence_lengths: [B] int32. block_table: [B, M] int32.
            out: [T, H*E] in the query's dtype; made when None.
            scale: default 1/sqrt(E).
            tree_mask: [T, W] bool or uint8. sinks: [H] float32.

        Returns:
            ``out``.

        Raises:
            ForgeError: TF-OPS-005 for tensors of the wrong kind, TF-OPS-101 … 113 for what the op refuses.
        """
        args, out, _alive = calls.attention_args(
            query, key, value, kv_pool, query_start, sequence_lengths, block_table, out, num_heads=num_heads,
            num_kv_heads=num_kv_heads, head_size=head_size, scale=scale, sliding_window=sliding_window,
            soft_cap=soft_cap, k_scale=k_scale, v_scale=v_scale, tree_mask=tree_mask, sinks=sinks,
        )  # fmt: skip
        self.run_attention(args)
        return out

    def copy_blocks(self, kv_pool: torch.Tensor, pairs: torch.Tensor) -> None:
        """Copy whole blocks inside a pool, pair after pair (copy on write).

        Args:
            kv_pool: [N, …] contiguous CPU tensor of any dtype. pairs: [P, 2] int64 (source, destination).
        """
        import torch

        if not kv_pool.is_contiguous() or kv_pool.dim() < 1 or kv_pool.device.type != "cpu":
            raise checks.refuse("kv_pool", kv_pool, "a contiguous CPU tensor [N, …]")
        if pairs.dtype != torch.int64 or pairs.dim() != 2 or pairs.shape[1] != 2 or not pairs.is_contiguous():
            raise checks.refuse("pairs", pairs, "contiguous int64 [P, 2]")
        blocks = int(kv_pool.shape[0])
        size = kv_pool.element_size() * (kv_pool.numel() // max(blocks, 1))
        self.check(
            self.raw.trtforge_copy_blocks(kv_pool.data_ptr(), size, blocks, pairs.data_ptr(), len(pairs)),
            "copy_blocks",
        )

    # --- fused helpers ----------------------------------------------------------------------------------------

    def rms_norm(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor | None = None,
        *,
        eps: float,
        weight_offset: float = 0.0,
    ) -> torch.Tensor:
        """``x * rsqrt(mean(x²) + eps) * (weight + weight_offset)`` by rows of [T, D]; ``out`` may be x."""
        out = checks.empty_like(x) if out is None else out
        shape = checks.matrix("x", x)
        checks.matrix("out", out, shape, x.dtype)
        checks.vector("weight", weight, shape[1])
        self.check(
            self.raw.trtforge_rms_norm(
                x.data_ptr(), x.stride(0), weight.data_ptr(), out.data_ptr(), out.stride(0), shape[0], shape[1], eps,
                weight_offset, checks.code("x", x), checks.code("weight", weight),
            ),
            "rms_norm",
        )  # fmt: skip
        return out

    def add_rms_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        out: torch.Tensor | None = None,
        *,
        eps: float,
        weight_offset: float = 0.0,
    ) -> torch.Tensor:
        """``residual += x`` in place, then the RMS norm of the residual; ``out`` may be x. Shapes [T, D]."""
        out = checks.empty_like(x) if out is None else out
        shape = checks.matrix("x", x)
        checks.matrix("residual", residual, shape, x.dtype)
        checks.matrix("out", out, shape, x.dtype)
        checks.vector("weight", weight, shape[1])
        self.check(
            self.raw.trtforge_add_rms_norm(
                x.data_ptr(), x.stride(0), residual.data_ptr(), residual.stride(0), weight.data_ptr(), out.data_ptr(),
                out.stride(0), shape[0], shape[1], eps, weight_offset, checks.code("x", x),
                checks.code("weight", weight),
            ),
            "add_rms_norm",
        )  # fmt: skip
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
        import torch

        tokens = int(query.shape[0])
        checks.matrix("query", query, (tokens, num_heads * head_size))
        checks.matrix("key", key, (tokens, num_kv_heads * head_size), query.dtype)
        for name, table in (("cosine", cosine), ("sine", sine)):
            if table.dtype != torch.float32 or table.shape != cosine.shape or not table.is_contiguous():
                raise checks.refuse(name, table, "contiguous float32 [T, rotary/2]")
        if cosine.dim() != 2 or cosine.shape[0] != tokens:
            raise checks.refuse("cosine", cosine, f"float32 [{tokens}, rotary/2]")
        self.check(
            self.raw.trtforge_rope(
                query.data_ptr(), query.stride(0), key.data_ptr(), key.stride(0), cosine.data_ptr(), sine.data_ptr(),
                tokens, num_heads, num_kv_heads, head_size, 2 * int(cosine.shape[1]), checks.code("query", query),
            ),
            "rope",
        )  # fmt: skip

    def silu_mul(self, x: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """``silu(x[:, :F]) * x[:, F:]`` for a packed gate|up [T, 2F]; gives [T, F]."""
        import torch

        rows, double = checks.matrix("x", x)
        if double % 2:
            raise checks.refuse("x", x, "[T, 2F]")
        out = torch.empty(rows, double // 2, dtype=x.dtype) if out is None else out
        checks.matrix("out", out, (rows, double // 2), x.dtype)
        self.check(
            self.raw.trtforge_silu_mul(
                x.data_ptr(), x.stride(0), out.data_ptr(), out.stride(0), rows, double // 2, checks.code("x", x)
            ),
            "silu_mul",
        )
        return out

    def fp8_fake_quant(
        self, x: torch.Tensor, scale: float, out: torch.Tensor | None = None, *, dequantize: bool = True
    ) -> torch.Tensor:
        """``e4m3(x / scale)`` (saturating), times ``scale`` when ``dequantize``; in place when ``out`` is None."""
        out = x if out is None else out
        for name, tensor in (("x", x), ("out", out)):
            if not tensor.is_contiguous() or tensor.device.type != "cpu" or tensor.shape != x.shape:
                raise checks.refuse(name, tensor, f"a contiguous CPU tensor {list(x.shape)}")
        if out.dtype != x.dtype:
            raise checks.refuse("out", out, str(x.dtype))
        self.check(
            self.raw.trtforge_fp8_fake_quant(
                x.data_ptr(), out.data_ptr(), x.numel(), scale, int(dequantize), checks.code("x", x)
            ),
            "fp8_fake_quant",
        )
        return out

    def nvfp4_fake_quant(self, x: torch.Tensor, scale: float, out: torch.Tensor | None = None) -> torch.Tensor:
        """Dynamic NVFP4 fake quantization of [T, D] in blocks of 16, in place; ``scale`` = amax / (6·448)."""
        out = x if out is None else out
        shape = checks.matrix("x", x)
        checks.matrix("out", out, shape, x.dtype)
        self.check(
            self.raw.trtforge_nvfp4_fake_quant(
                x.data_ptr(), x.stride(0), out.data_ptr(), out.stride(0), shape[0], shape[1], scale, checks.code("x", x)
            ),
            "nvfp4_fake_quant",
        )
        return out

    def embedding(self, table: torch.Tensor, ids: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """``out[t] = table[ids[t]]`` with conversion. table [V, D] contiguous, ids int64 [T], out [T, D]."""
        import torch

        shape = checks.matrix("out", out)
        if table.dim() != 2 or not table.is_contiguous() or table.shape[1] != shape[1]:
            raise checks.refuse("table", table, f"contiguous [V, {shape[1]}]")
        if ids.dtype != torch.int64 or tuple(ids.shape) != (shape[0],) or not ids.is_contiguous():
            raise checks.refuse("ids", ids, f"contiguous int64 [{shape[0]}]")
        self.check(
            self.raw.trtforge_embedding(
                table.data_ptr(), int(table.shape[0]), shape[1], ids.data_ptr(), shape[0], out.data_ptr(),
                out.stride(0), checks.code("table", table), checks.code("out", out),
            ),
            "embedding",
        )  # fmt: skip
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

        from plugins.host.int4 import PANEL, WORD

        rows, inputs = checks.matrix("x", x)
        panels, groups = -(-outputs // PANEL), inputs // max(group, 1)
        checks.dense("weights", weights, (panels, inputs // WORD, PANEL), torch.int32)
        checks.dense("scales", scales, (panels, groups, PANEL), torch.float32)
        if bias is not None:
            checks.dense("bias", bias, (outputs,), torch.float32)
        out = torch.empty(rows, outputs, dtype=out_dtype or x.dtype)
        self.check(
            self.raw.trtforge_int4_linear(
                x.data_ptr(), x.stride(0), weights.data_ptr(), scales.data_ptr(),
                None if bias is None else bias.data_ptr(), out.data_ptr(), outputs, rows, outputs, inputs, group,
                checks.code("x", x), checks.code("out", out),
            ),
            "int4_linear",
        )  # fmt: skip
        return out

    def argmax_logsumexp(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Per row of float32 [L, V]: index of the first maximum (int64), the maximum, log(sum(exp))."""
        import torch

        rows, width = checks.matrix("logits", logits, None, torch.float32)
        index = torch.empty(rows, dtype=torch.int64)
        maximum = torch.empty(rows)
        logsumexp = torch.empty(rows)
        self.check(
            self.raw.trtforge_argmax_logsumexp(
                logits.data_ptr(), logits.stride(0), rows, width, index.data_ptr(), maximum.data_ptr(),
                logsumexp.data_ptr(),
            ),
            "argmax_logsumexp",
        )  # fmt: skip
        return index, maximum, logsumexp
