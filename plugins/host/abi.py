"""The C ABI of ``libtrtforge_host.so`` as ctypes sees it: struct layout, prototypes, status codes.

Mirrors ``plugins/include/trtforge/host_abi.h``; a test compares the two. No torch here.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_float, c_int, c_int32, c_int64, c_uint64, c_void_p
from typing import Any, Final

ABI_VERSION: Final = 3

FLOAT32: Final = 0
BFLOAT16: Final = 1
FLOAT16: Final = 2
FLOAT8_E4M3: Final = 3


class PagedAttentionArgs(ctypes.Structure):
    """``struct trtforge_paged_attention_args``: build once, change the fields that change, call again."""

    _fields_ = (
        ("struct_size", c_uint64),
        ("query", c_void_p),
        ("key", c_void_p),
        ("value", c_void_p),
        ("kv_pool", c_void_p),
        ("output", c_void_p),
        ("query_start", c_void_p),
        ("sequence_lengths", c_void_p),
        ("block_table", c_void_p),
        ("tree_mask", c_void_p),
        ("sinks", c_void_p),
        ("query_stride", c_int64),
        ("key_stride", c_int64),
        ("value_stride", c_int64),
        ("output_stride", c_int64),
        ("block_table_stride", c_int64),
        ("tree_mask_stride", c_int64),
        ("num_tokens", c_int64),
        ("num_requests", c_int32),
        ("max_blocks", c_int32),
        ("num_blocks", c_int32),
        ("block_size", c_int32),
        ("num_heads", c_int32),
        ("num_kv_heads", c_int32),
        ("head_size", c_int32),
        ("activation_dtype", c_int32),
        ("pool_dtype", c_int32),
        ("sliding_window", c_int32),
        ("tree_mask_width", c_int32),
        ("scale", c_float),
        ("soft_cap", c_float),
        ("k_scale", c_float),
        ("v_scale", c_float),
    )


class EagleTreeArgs(ctypes.Structure):
    """``struct trtforge_eagle_tree_args``."""

    _fields_ = (
        ("struct_size", c_uint64),
        ("draft_logits", c_void_p),
        ("root_tokens", c_void_p),
        ("draft_to_target", c_void_p),
        ("static_parents", c_void_p),
        ("static_ranks", c_void_p),
        ("candidate_tokens", c_void_p),
        ("candidate_parents", c_void_p),
        ("candidate_scores", c_void_p),
        ("frontier", c_void_p),
        ("tokens", c_void_p),
        ("parents", c_void_p),
        ("depths", c_void_p),
        ("scores", c_void_p),
        ("mask", c_void_p),
        ("counts", c_void_p),
        ("row_stride", c_int64),
        ("level", c_int32),
        ("requests", c_int32),
        ("vocabulary", c_int32),
        ("top_k", c_int32),
        ("expand", c_int32),
        ("levels", c_int32),
        ("total", c_int32),
        ("logits_dtype", c_int32),
    )


class EagleAcceptArgs(ctypes.Structure):
    """``struct trtforge_eagle_accept_args``."""

    _fields_ = (
        ("struct_size", c_uint64),
        ("target_logits", c_void_p),
        ("tokens", c_void_p),
        ("parents", c_void_p),
        ("counts", c_void_p),
        ("temperatures", c_void_p),
        ("seeds", c_void_p),
        ("root_positions", c_void_p),
        ("path", c_void_p),
        ("lengths", c_void_p),
        ("emitted", c_void_p),
        ("bonus", c_void_p),
        ("row_stride", c_int64),
        ("requests", c_int32),
        ("vocabulary", c_int32),
        ("total", c_int32),
        ("logits_dtype", c_int32),
    )


class KvMoveArgs(ctypes.Structure):
    """``struct trtforge_kv_move_args``; ``pools`` is a host array of pointers."""

    _fields_ = (
        ("struct_size", c_uint64),
        ("pools", c_void_p),
        ("block_table", c_void_p),
        ("base_positions", c_void_p),
        ("path", c_void_p),
        ("lengths", c_void_p),
        ("block_table_stride", c_int64),
        ("num_pools", c_int32),
        ("num_blocks", c_int32),
        ("requests", c_int32),
        ("max_blocks", c_int32),
        ("path_width", c_int32),
        ("num_kv_heads", c_int32),
        ("head_size", c_int32),
        ("block_size", c_int32),
        ("pool_dtype", c_int32),
    )


#: name -> argument types; every function returns int unless it is in RESULTS.
PROTOTYPES: Final[dict[str, tuple[Any, ...]]] = {
    "trtforge_host_abi": (),
    "trtforge_last_error": (),
    "trtforge_host_info": (),
    "trtforge_host_isa": (),
    "trtforge_host_select_isa": (c_char_p,),
    "trtforge_host_set_threads": (c_int,),
    "trtforge_host_leave_with_parent": (c_int, c_int),
    "trtforge_paged_attention": (POINTER(PagedAttentionArgs),),
    "trtforge_copy_blocks": (c_void_p, c_int64, c_int32, c_void_p, c_int64),
    "trtforge_eagle_tree_build": (POINTER(EagleTreeArgs),),
    "trtforge_eagle_accept": (POINTER(EagleAcceptArgs),),
    "trtforge_kv_move": (POINTER(KvMoveArgs),),
    "trtforge_rms_norm": (
        c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_float, c_float, c_int32, c_int32,
    ),
    "trtforge_add_rms_norm": (
        c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_float, c_float,
        c_int32, c_int32,
    ),
    "trtforge_rope": (
        c_void_p, c_int64, c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_int32, c_int32, c_int32, c_int32,
        c_int32,
    ),
    "trtforge_silu_mul": (c_void_p, c_int64, c_void_p, c_int64, c_int64, c_int64, c_int32),
    "trtforge_fp8_fake_quant": (c_void_p, c_void_p, c_int64, c_float, c_int32, c_int32),
    "trtforge_nvfp4_fake_quant": (c_void_p, c_int64, c_void_p, c_int64, c_int64, c_int64, c_float, c_int32),
    "trtforge_embedding": (c_void_p, c_int64, c_int64, c_void_p, c_int64, c_void_p, c_int64, c_int32, c_int32),
    "trtforge_argmax_logsumexp": (c_void_p, c_int64, c_int64, c_int64, c_void_p, c_void_p, c_void_p),
    "trtforge_int4_linear": (
        c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_int64, c_int64,
        c_int32, c_int32,
    ),
}  # fmt: skip

RESULTS: Final[dict[str, Any]] = {
    "trtforge_last_error": c_char_p,
    "trtforge_host_info": c_char_p,
    "trtforge_host_isa": c_char_p,
}

#: status of the library -> (our code, why such a call is refused, what to change).
STATUS: Final[dict[int, tuple[str, str, str]]] = {
    1: ("TF-OPS-101", "A required tensor was not given.", "pass every required tensor"),
    2: ("TF-OPS-102", "The kernels exist for float32, bfloat16 and float16 (pools also float8_e4m3fn).",
        "convert the tensor to a supported dtype"),
    3: ("TF-OPS-103", "The shape does not fit the op's contract.", "see docs/ops.md for the shapes"),
    4: ("TF-OPS-104", "Head sizes from 64 to 256 in steps of 8 have kernels (rotary sizes are even and at most that).",
        "use a checkpoint with a supported head size"),
    5: ("TF-OPS-105", "Blocks hold 16, 32, 64 or 128 tokens.", "set the cache's block size to 16, 32, 64 or 128"),
    6: ("TF-OPS-106", "Every kv head must serve the same number of query heads.",
        "make num_heads a multiple of num_kv_heads"),
    7: ("TF-OPS-107", "query_start must be the running sum of each request's new tokens.",
        "rebuild query_start from the step's requests"),
    8: ("TF-OPS-108", "A context must hold its new tokens and fit its row of the block table.",
        "allocate more blocks to the request, or correct its length"),
    9: ("TF-OPS-109", "Following that entry would read or write outside the pool.",
        "allocate a block for every position of the context before the step"),
    10: ("TF-OPS-110", "Rows would overlap.", "pass a tensor whose rows do not overlap"),
    11: ("TF-OPS-111", "The value has no meaning for this op.", "see docs/ops.md for the range"),
    12: ("TF-OPS-112", "Each new token needs one column of the tree mask.",
         "make the mask as wide as the longest run of new tokens"),
    13: ("TF-OPS-113", "The machine could not give scratch memory.", "free memory or lower max_num_tokens"),
    14: ("TF-OPS-004", "Its instructions would stop the process with SIGILL.",
         "unset TRTFORGE_HOST_ISA to take the best that the CPU has"),
    15: ("TF-OPS-003", "Caller and library disagree about a struct.", "reinstall trtforge so that both match"),
    16: ("TF-OPS-114", "The index points outside the tensor.", "pass indices inside the tensor"),
    17: ("TF-OPS-115", "The CUDA driver refused the kernel.",
         "see the driver's own message; `trtforge plugins info` shows which architectures the library has"),
}  # fmt: skip


def bind(library: ctypes.CDLL) -> list[str]:
    """Set argument and result types of every function once, so that calls convert quickly and cannot truncate.

    Returns:
        the functions that the library lacks: one built from an older version of the sources.
    """
    missing = []
    for name, arguments in PROTOTYPES.items():
        function = getattr(library, name, None)
        if function is None:
            missing.append(name)
            continue
        function.argtypes = arguments
        function.restype = RESULTS.get(name, c_int)
    return missing
