"""The host library's C functions as ctypes sees them, and its status codes. No torch here.

The ops' argument structs are :mod:`plugins.structs`', the rest mirrors ``plugins/include/trtforge/host_abi.h``; a test
compares the two.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_int
from typing import Any, Final

from plugins.structs import structure
from trtforge.native import ops

ABI_VERSION: Final = ops.ABI_VERSION

#: name -> argument types; every function returns int unless it is in RESULTS.
PROTOTYPES: Final[dict[str, tuple[Any, ...]]] = {
    "trtforge_host_abi": (),
    "trtforge_last_error": (),
    "trtforge_host_info": (),
    "trtforge_host_isa": (),
    "trtforge_host_select_isa": (c_char_p,),
    "trtforge_host_set_threads": (c_int,),
    "trtforge_host_leave_with_parent": (c_int, c_int),
    **{f"trtforge_{op.name}": (POINTER(structure(op)),) for op in ops.OPS},
}

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
