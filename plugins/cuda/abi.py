"""The C ABI of the CUDA op library as ctypes sees it; mirrors ``plugins/include/trtforge/cuda_abi.h``."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int, c_int32, c_uint64, c_void_p
from typing import Any, Final

from plugins.host.abi import EagleAcceptArgs, EagleTreeArgs, KvMoveArgs, PagedAttentionArgs

ABI_VERSION: Final = 1
STATUS_WORDS: Final = 8


class CudaCall(ctypes.Structure):
    """``struct trtforge_cuda_call``: what only a GPU needs."""

    _fields_ = (
        ("struct_size", c_uint64),
        ("stream", c_void_p),
        ("workspace", c_void_p),
        ("workspace_bytes", c_uint64),
        ("k_scale", c_void_p),
        ("v_scale", c_void_p),
        ("status", c_void_p),
        ("max_new_tokens", c_int32),
        ("device", c_int32),
        ("multiprocessors", c_int32),
    )


#: name -> argument types; every function returns int unless it is in RESULTS.
PROTOTYPES: Final[dict[str, tuple[Any, ...]]] = {
    "trtforge_cuda_abi": (),
    "trtforge_cuda_info": (),
    "trtforge_cuda_last_error": (),
    "trtforge_cuda_attention_workspace": (POINTER(PagedAttentionArgs), POINTER(CudaCall), POINTER(c_uint64)),
    "trtforge_cuda_attention_workspace_bound": (POINTER(PagedAttentionArgs), POINTER(CudaCall), POINTER(c_uint64)),
    "trtforge_cuda_paged_attention": (POINTER(PagedAttentionArgs), POINTER(CudaCall)),
    "trtforge_cuda_eagle_tree_build": (POINTER(EagleTreeArgs), POINTER(CudaCall)),
    "trtforge_cuda_eagle_accept": (POINTER(EagleAcceptArgs), POINTER(CudaCall)),
    "trtforge_cuda_kv_move": (POINTER(KvMoveArgs), POINTER(CudaCall)),
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
