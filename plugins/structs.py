"""The ops' argument structs as ctypes sees them, and the raw way to call an op; from :mod:`trtforge.native.ops`."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from trtforge.native import ops
from trtforge.native.ops import Op

_KINDS: Final[dict[str, tuple[Any, str]]] = {
    "pointer": (ctypes.c_void_p, "P"),
    "int64": (ctypes.c_int64, "q"),
    "int32": (ctypes.c_int32, "i"),
    "float32": (ctypes.c_float, "f"),
}


def _structure(name: str, fields: tuple[tuple[str, str], ...]) -> type[ctypes.Structure]:
    kinds = [(field, _KINDS[kind if kind in _KINDS else "pointer"][0]) for field, kind in fields]
    return type(name, (ctypes.Structure,), {"_fields_": [("struct_size", ctypes.c_uint64), *kinds]})


@cache
def structure(op: Op) -> type[ctypes.Structure]:
    return _structure(f"{op.name}_args", op.fields)


#: ``struct trtforge_cuda_call``
CudaCall: Final = _structure("cuda_call", tuple((name, kind) for name, kind, _ in ops.CUDA_CALL))


def arguments(op: Op, **fields: Any) -> Any:
    """An op's struct with these fields; attributes that are left out have their standard value.

    Pointers are integers (``tensor.data_ptr()``); whoever fills them keeps the tensors alive.
    """
    kind = structure(op)
    return kind(struct_size=ctypes.sizeof(kind), **(op.standards | fields))


def cuda_call(**fields: Any) -> Any:
    return CudaCall(struct_size=ctypes.sizeof(CudaCall), **fields)


def packing(op: Op) -> Callable[..., None]:
    """Writes a struct's size and the values of ``op.fields`` into (memory, at an offset)."""
    return struct.Struct("@Q" + "".join(_KINDS[kind][1] for _, kind in op.fields)).pack_into


def packer(function: Callable[[Any], int], op: Op) -> Callable[..., int]:
    """The raw call of an op for an inner loop: takes the values of ``op.fields`` in their order, returns the status.

    Pointers are integers, 0 for null. The arguments are packed into memory of the call's own, which is quicker than
    ctypes' conversion of each argument; so it is not for two threads at once.
    """
    args = arguments(op)
    size, pointer = args.struct_size, ctypes.pointer(args)
    pack = packing(op)

    def call(*values: Any) -> int:
        pack(args, 0, size, *values)
        return function(pointer)

    return call


def prepared(function: Callable[[Any], int], op: Op, **fields: Any) -> tuple[Any, Callable[[], int]]:
    """A struct of which a step changes a few fields, and the call with it."""
    args = arguments(op, **fields)
    pointer = ctypes.pointer(args)
    return args, lambda: function(pointer)
