"""The host op library behind the kernel interface: raw pointers, one call a kernel.

Policy: this module knows the fields of the ops (:mod:`trtforge.native.ops`; a call gives them in their order) and
nothing of how the library computes. What the library cannot take (a dtype, gate and up in separate matrices) goes to
the torch implementation, so callers see one complete interface. A refused call is a bug in the executor and raises
``RuntimeError`` with the library's message.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch

from plugins.host.library import HostLibrary, find_library, load_library
from runtime.executors.kernels import Columns, StepIndex, TorchKernels
from runtime.executors.torch_attention import AttentionParams
from trtforge.native import ops
from trtforge.native.host_library import VARIABLE, host_library_path

DTYPES = {getattr(torch, name): number for name, number in ops.DTYPES.items()}


def open_library() -> HostLibrary | None:
    """The host library; None where none was built and none is named.

    Raises:
        EnvironmentLacks: TF-OPS-001 … 004 a library that is named or was built cannot be used.
    """
    if not os.environ.get(VARIABLE) and host_library_path() is None:
        return None
    return load_library(find_library())


class HostKernels(TorchKernels):
    """Kernels of the host library for one activation dtype on the CPU."""

    name = "host"

    def __init__(self, library: HostLibrary, dtype: torch.dtype) -> None:
        self._library = library
        self._dtype = DTYPES[dtype]
        self._item = torch.empty(0, dtype=dtype).element_size()
        self._rms_norm = library.raw_op(ops.RMS_NORM)
        self._rope = library.raw_op(ops.ROPE)
        self._silu_mul = library.raw_op(ops.SILU_MUL)
        self._fp8 = library.raw_op(ops.FP8_FAKE_QUANT)
        self._nvfp4 = library.raw_op(ops.NVFP4_FAKE_QUANT)
        self._embedding = library.raw_op(ops.EMBEDDING)
        self._copy_blocks = library.raw_op(ops.COPY_BLOCKS)
        #: one argument block a pool: what is fixed for a layer is written once
        self._attention: dict[int, tuple[Any, Callable[[], int]]] = {}

    @property
    def info(self) -> str:
        """The library's own description (JSON)."""
        text: bytes = self._library.raw.trtforge_host_info()
        return text.decode()

    def _fail(self, function: str, status: int) -> RuntimeError:
        return RuntimeError(f"{function}: {self._library.last_error()} (status {status})")

    def embedding(self, table: torch.Tensor, ids: torch.Tensor, out: torch.Tensor, tokens: int) -> None:
        vocabulary, width = table.shape
        status = self._embedding(
            table.data_ptr(), ids.data_ptr(), out.data_ptr(), out.stride(0), vocabulary, tokens, width,
            DTYPES[table.dtype], self._dtype,
        )  # fmt: skip
        if status:
            raise self._fail("embedding", status)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, epsilon: float, out: torch.Tensor, tokens: int) -> None:
        width = x.shape[1]
        status = self._rms_norm(
            x.data_ptr(),
            0,
            weight.data_ptr(),
            out.data_ptr(),
            width,
            0,
            width,
            tokens,
            width,
            self._dtype,
            0,
            epsilon,
            0.0,
        )
        if status:
            raise self._fail("rms_norm", status)

    def add_rms_norm(
        self,
        residual: torch.Tensor,
        x: Columns,
        weight: torch.Tensor,
        epsilon: float,
        out: torch.Tensor,
        tokens: int,
    ) -> None:
        matrix, first, width = x
        status = self._rms_norm(
            matrix.data_ptr() + first * self._item, residual.data_ptr(), weight.data_ptr(), out.data_ptr(),
            matrix.shape[1], width, width, tokens, width, self._dtype, 0, epsilon, 0.0,
        )  # fmt: skip
        if status:
            raise self._fail("rms_norm", status)

    def head_norm(self, x: Columns, weight: torch.Tensor, epsilon: float, tokens: int) -> None:
        # The heads of one token lie side by side, one head of all tokens a matrix row apart: the library takes either
        # as rows, so the smaller number of the two is the number of calls.
        matrix, first, width = x
        size, stride = weight.numel(), matrix.shape[1]
        heads, begin = width // size, matrix.data_ptr() + first * self._item
        calls, step, rows, row_stride = tokens, stride, heads, size
        if heads < tokens:
            calls, step, rows, row_stride = heads, size, tokens, stride
        for call in range(calls):
            at = begin + call * step * self._item
            status = self._rms_norm(
                at, 0, weight.data_ptr(), at, row_stride, 0, row_stride, rows, size, self._dtype, 0, epsilon, 0.0
            )
            if status:
                raise self._fail("rms_norm", status)

    def rope(self, q: Columns, k: Columns, head_size: int, cos: torch.Tensor, sin: torch.Tensor, tokens: int) -> None:
        item = self._item
        status = self._rope(
            q.matrix.data_ptr() + q.first * item, k.matrix.data_ptr() + k.first * item, cos.data_ptr(), sin.data_ptr(),
            q.matrix.shape[1], k.matrix.shape[1], tokens, 2 * cos.shape[1], self._dtype, q.width // head_size,
            k.width // head_size, head_size,
        )  # fmt: skip
        if status:
            raise self._fail("rope", status)

    def silu_mul(self, gate: Columns, up: Columns, out: torch.Tensor, tokens: int) -> None:
        matrix, first, width = gate
        if up.matrix is not matrix or up.first != first + width:
            return super().silu_mul(gate, up, out, tokens)
        status = self._silu_mul(
            matrix.data_ptr() + first * self._item, out.data_ptr(), matrix.shape[1], width, tokens, width, self._dtype
        )  # fmt: skip
        if status:
            raise self._fail("silu_mul", status)
        return None

    def fp8_fake_quant(self, x: torch.Tensor, scale: float, out_scale: float, out: torch.Tensor, tokens: int) -> None:
        count = tokens * x.shape[1]
        own = out_scale == scale
        status = self._fp8(x.data_ptr(), out.data_ptr(), count, self._dtype, 1 if own else 0, scale)
        if status:
            raise self._fail("fp8_fake_quant", status)
        if not own:
            out[:tokens].mul_(out_scale)

    def nvfp4_fake_quant(self, x: torch.Tensor, scale: float, out_scale: float, out: torch.Tensor, tokens: int) -> None:
        width = x.shape[1]
        status = self._nvfp4(x.data_ptr(), out.data_ptr(), width, width, tokens, width, self._dtype, scale)
        if status:
            raise self._fail("nvfp4_fake_quant", status)
        if out_scale != 1.0:
            out[:tokens].mul_(out_scale)

    def paged_attention(
        self,
        q: Columns,
        k: Columns,
        v: Columns,
        pool: torch.Tensor,
        index: StepIndex,
        params: AttentionParams,
        out: torch.Tensor,
        tokens: int,
    ) -> None:
        args, call = self._attention.get(pool.data_ptr()) or self._new_arguments(pool, params)
        item, base = self._item, q.matrix.data_ptr()
        args.query = base + q.first * item
        args.key = (base if k.matrix is q.matrix else k.matrix.data_ptr()) + k.first * item
        args.value = (base if v.matrix is q.matrix else v.matrix.data_ptr()) + v.first * item
        args.query_stride, args.key_stride, args.value_stride = q.matrix.shape[1], k.matrix.shape[1], v.matrix.shape[1]
        args.output, args.output_stride = out.data_ptr(), out.shape[1]
        table, mask = index.block_table, index.tree_mask
        args.query_start, args.sequence_lengths = index.query_start.data_ptr(), index.sequence_lengths.data_ptr()
        args.block_table, args.block_table_stride = table.data_ptr(), table.shape[1]
        args.num_tokens, args.num_requests, args.max_blocks = tokens, table.shape[0], table.shape[1]
        if mask is None:
            args.tree_mask, args.tree_mask_width = None, 0
        else:
            args.tree_mask, args.tree_mask_stride, args.tree_mask_width = mask.data_ptr(), mask.shape[1], mask.shape[1]
        status = call()
        if status:
            raise self._fail("paged_attention", status)

    def _new_arguments(self, pool: torch.Tensor, params: AttentionParams) -> tuple[Any, Callable[[], int]]:
        found = self._library.prepared(
            ops.PAGED_ATTENTION, kv_pool=pool.data_ptr(), num_blocks=pool.shape[0], block_size=pool.shape[3],
            activation_dtype=self._dtype, pool_dtype=DTYPES[pool.dtype], **asdict(params),
        )  # fmt: skip
        self._attention[pool.data_ptr()] = found
        return found

    def copy_blocks(self, pool: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        flat = torch.tensor(list(pairs), dtype=torch.int64)
        block_bytes = pool.stride(0) * pool.element_size()
        status = self._copy_blocks(pool.data_ptr(), flat.data_ptr(), block_bytes, pool.shape[0], len(pairs))
        if status:
            raise self._fail("copy_blocks", status)


def attention_adapter(kernels: TorchKernels) -> Any:
    """The interpreter's attention function over ``kernels`` (tensors [T, heads, E] instead of columns)."""

    def run(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        pool: torch.Tensor,
        query_start: torch.Tensor,
        sequence_lengths: torch.Tensor,
        block_table: torch.Tensor,
        params: AttentionParams,
        tree_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        tokens = q.shape[0]
        flat = [t.reshape(tokens, -1).contiguous() for t in (q, k, v)]
        query, key, value = (Columns(t, 0, t.shape[1]) for t in flat)
        out = torch.empty_like(flat[0])
        mask = None if tree_mask is None else tree_mask.to(torch.uint8).contiguous()
        index = StepIndex(query_start, sequence_lengths, block_table, mask)
        kernels.paged_attention(query, key, value, pool, index, params, out, tokens)
        return out.view_as(q)

    return run
