"""The CUDA library's C functions as ctypes sees them; mirrors ``plugins/include/trtforge/cuda_abi.h``."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_uint64, c_void_p
from typing import Any, Final

from plugins.structs import CudaCall, structure
from trtforge.native import ops

ABI_VERSION: Final = ops.CUDA_ABI_VERSION
STATUS_WORDS: Final = 8

_ATTENTION: Final = (POINTER(structure(ops.PAGED_ATTENTION)), POINTER(CudaCall))
#: name -> argument types; every function returns int unless it is in RESULTS.
PROTOTYPES: Final[dict[str, tuple[Any, ...]]] = {
    "trtforge_cuda_abi": (),
    "trtforge_cuda_info": (),
    "trtforge_cuda_last_error": (),
    "trtforge_cuda_attention_workspace": (*_ATTENTION, POINTER(c_uint64)),
    "trtforge_cuda_attention_workspace_bound": (*_ATTENTION, POINTER(c_uint64)),
    **{f"trtforge_cuda_{op.name}": (POINTER(structure(op)), POINTER(CudaCall)) for op in ops.DEVICE_OPS},
    "trtforge_cuda_describe": (c_char_p, c_void_p),
    "trtforge_cuda_shim_order": (c_int,),
    "trtforge_cuda_shim_launches": (),
}

RESULTS: Final[dict[str, Any]] = {
    "trtforge_cuda_info": c_char_p,
    "trtforge_cuda_last_error": c_char_p,
    "trtforge_cuda_shim_launches": c_char_p,
}


def bind(library: ctypes.CDLL) -> None:
    """Set argument and result types of every function."""
    for name, arguments in PROTOTYPES.items():
        function = getattr(library, name)
        function.argtypes = arguments
        function.restype = RESULTS.get(name, c_int)
