"""Loader and Python face of the CUDA op library, on a GPU or under the host shim.

Methods have the signatures of :class:`plugins.host.library.HostLibrary`, so one conformance suite serves both. On a
GPU tensors lie on the current CUDA device and work goes to torch's current stream; under the shim they lie on the
CPU and a call returns when it is done.

Search order for ``libtrtforge_cuda.so``: ``TRTFORGE_CUDA_LIBRARY`` (a file), then the build cache
(``trtforge plugins build``).
"""

from __future__ import annotations

import ctypes
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plugins.cuda import abi
from plugins.host.abi import STATUS
from plugins.opening import Refusal, open_shared
from plugins.shared_ops import SharedOps, attention_args
from plugins.structs import cuda_call
from trtforge.ground.errors import EnvironmentLacks, ForgeError
from trtforge.native import ops
from trtforge.native.ops import Op

if TYPE_CHECKING:
    import torch

LIBRARY_VARIABLE = "TRTFORGE_CUDA_LIBRARY"

_UNLOADABLE = Refusal(
    "TF-OPS-008",
    "the CUDA op library cannot be loaded",
    ("trtforge plugins build cuda on this machine", f"unset {LIBRARY_VARIABLE}"),
)
_OTHER_ABI = Refusal(
    "TF-OPS-009",
    "the CUDA op library has another ABI version",
    ("trtforge plugins build cuda", f"unset {LIBRARY_VARIABLE}"),
)


def find_cuda_library() -> Path:
    """Where the GPU library lies.

    Raises:
        EnvironmentLacks: TF-OPS-007 when it is nowhere; the remedy says how to build it.
    """
    from plugins.cuda.build import built_library

    given = os.environ.get(LIBRARY_VARIABLE)
    path = Path(given) if given else built_library()
    if path is not None and path.is_file():
        return path
    raise EnvironmentLacks(
        "TF-OPS-007",
        "the CUDA op library has not been built" if not given else "the CUDA op library is not where it should be",
        asked=f"{LIBRARY_VARIABLE}={given}" if given else "libtrtforge_cuda.so",
        why="No build of these sources was found.",
        remedies=["trtforge plugins build (needs nvcc 13)", f"{LIBRARY_VARIABLE}=FILE for a library built elsewhere"],
    )


class CudaLibrary(SharedOps):
    """The opened library.

    Args:
        path: the file; its ``backend`` says whether it is for a GPU or the host shim.

    Attributes:
        checked: read the device's verdict on the index tensors after every call (waits for the stream).
        multiprocessors: plan as if the device had so many; 0 asks it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checked = True
        self.multiprocessors = 0
        self.raw = open_shared(path, "trtforge_cuda_abi", abi.ABI_VERSION, _UNLOADABLE, _OTHER_ABI)
        abi.bind(self.raw)
        self.on_gpu = self.info()["backend"] == "cuda"
        self.device = "cuda" if self.on_gpu else "cpu"

    def info(self) -> dict[str, Any]:
        """abi, backend, architectures, compiler, source_hash, path."""
        data: dict[str, Any] = json.loads(self.raw.trtforge_cuda_info())
        data["path"] = str(self.path)
        return data

    def check(self, status: int, op: str) -> None:
        """Raise the ForgeError that belongs to a non-zero status."""
        if status == 0:
            return
        code, why, remedy = STATUS.get(status, ("TF-OPS-199", "Unknown status.", "rebuild the library"))
        message = (self.raw.trtforge_cuda_last_error() or b"").decode("utf-8", "replace")
        raise ForgeError(code, f"{op}: {message}", asked=op, numbers={"status": status}, why=why, remedies=[remedy])

    def _call(self) -> tuple[Any, torch.Tensor | None]:
        """A call on the current stream, and its status words when calls are checked."""
        import torch

        status = torch.zeros(abi.STATUS_WORDS, dtype=torch.int32, device=self.device) if self.checked else None
        call = cuda_call(
            stream=torch.cuda.current_stream().cuda_stream if self.on_gpu else None,
            status=None if status is None else status.data_ptr(),
            device=torch.cuda.current_device() if self.on_gpu else 0,
            multiprocessors=self.multiprocessors,
        )
        return call, status

    def _verdict(self, op: str, status: torch.Tensor | None) -> None:
        if status is not None:
            words = status.cpu()
            self.check(self.raw.trtforge_cuda_describe(op.encode(), words.data_ptr()), op)

    def run_op(self, op: Op, args: Any) -> None:
        """Call ``trtforge_cuda_<op>`` with its argument struct."""
        self._run(op, args, *self._call())

    def _run(self, op: Op, args: Any, call: Any, status: torch.Tensor | None) -> None:
        self.check(getattr(self.raw, f"trtforge_cuda_{op.name}")(args, call), op.title)
        self._verdict(op.title, status)

    def attention_workspace(self, args: Any, *, bound: bool = False) -> int:
        """Bytes that this call needs; ``bound``: enough for every smaller shape too."""
        call, _ = self._call()
        size = ctypes.c_uint64(0)
        name = "trtforge_cuda_attention_workspace" + ("_bound" if bound else "")
        self.check(getattr(self.raw, name)(args, call, size), "PagedAttention")
        return size.value

    def paged_attention(
        self, *tensors: Any, k_scale: float = 1.0, v_scale: float = 1.0, max_new_tokens: int = 0, **options: Any
    ) -> torch.Tensor:
        """``trtforge::PagedAttention`` v2; arguments as for the host library.

        Args:
            max_new_tokens: promise that no request has more new tokens (0: none); spares launches in decode.

        Raises:
            ForgeError: TF-OPS-005 for tensors of the wrong kind, TF-OPS-1xx for what the op refuses.
        """
        import torch

        args, out = attention_args(*tensors, device=self.device, **options)
        scales = torch.tensor([k_scale, v_scale], device=self.device)
        call, status = self._call()
        call.max_new_tokens = max_new_tokens
        call.k_scale, call.v_scale = scales.data_ptr(), scales.data_ptr() + 4
        needed = ctypes.c_uint64(0)
        self.check(self.raw.trtforge_cuda_attention_workspace(args, call, needed), "PagedAttention")
        memory = torch.empty(needed.value + 256, dtype=torch.uint8, device=self.device)
        if not self.on_gpu:
            memory.fill_(0xFF)  # NaN: reading what no kernel wrote shows
        call.workspace = (memory.data_ptr() + 255) // 256 * 256
        call.workspace_bytes = needed.value
        self._run(ops.PAGED_ATTENTION, args, call, status)
        return out

    def shim_launches(self) -> list[tuple[int, ...]]:
        """Host shim only: grid (x, y, z) and threads of a block of each kernel started since the last call."""
        text = self.raw.trtforge_cuda_shim_launches().decode()
        return [tuple(map(int, launch.split(","))) for launch in text.split(";") if launch]

    def shim_order(self, *, descending: bool) -> None:
        """Host shim only: the order in which the threads of a block run between barriers."""
        self.check(self.raw.trtforge_cuda_shim_order(int(descending)), "shim_order")
