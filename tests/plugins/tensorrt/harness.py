"""Python side of the C++ harness: plugins as objects, tensors as torch tensors on the host."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

# TensorRT's enumerators (NvInferRuntimeBase.h, NvInferRuntimePlugin.h)
FLOAT, HALF, INT8, INT32, BOOL, UINT8, FP8, BF16, INT64 = 0, 1, 2, 3, 4, 5, 6, 7, 8
LINEAR, CHW4 = 0, 3
FIELD_FLOAT32, FIELD_INT32, FIELD_INT64 = 1, 5, 10
TYPE_OF = {
    torch.float32: FLOAT,
    torch.float16: HALF,
    torch.bfloat16: BF16,
    torch.float8_e4m3fn: FP8,
    torch.int8: INT8,
    torch.int32: INT32,
    torch.int64: INT64,
    torch.bool: BOOL,
}
_DIMS = 8

Shape = Sequence[int]


def _ints(values: Sequence[int]) -> Any:
    return (ctypes.c_int32 * max(1, len(values)))(*values)


def _shapes(shapes: Sequence[Shape]) -> tuple[Any, Any]:
    flat = [size for shape in shapes for size in (*shape, *[0] * (_DIMS - len(shape)))]
    return _ints([len(shape) for shape in shapes]), (ctypes.c_int64 * max(1, len(flat)))(*flat)


class Harness:
    """A plugin library under the harness."""

    def __init__(self, harness: Path, library: Path) -> None:
        self.lib = ctypes.CDLL(str(harness))
        for name in ("create", "clone", "attach"):
            getattr(self.lib, f"harness_{name}").restype = ctypes.c_void_p
        for name in ("log", "creator", "field_names", "core"):
            getattr(self.lib, f"harness_{name}").restype = ctypes.c_char_p
        self.lib.harness_workspace.restype = ctypes.c_int64
        self.plugins = ctypes.CDLL(str(library))
        self.plugins.trtforge_plugin_shim_launches.restype = ctypes.c_char_p
        count = self.lib.harness_open(str(library).encode())
        assert count > 0, self.log()
        self.creators = [self.lib.harness_creator(i).decode().split("|") for i in range(count)]

    def log(self) -> str:
        """What was logged since the last call."""
        return str(self.lib.harness_log().decode())

    def launches(self) -> list[str]:
        """Grid and block of each kernel that was started since the last call."""
        return [launch for launch in self.plugins.trtforge_plugin_shim_launches().decode().split(";") if launch]

    def index(self, op: str) -> int:
        return [creator[0] for creator in self.creators].index(op)

    def field_names(self, op: str) -> dict[str, int]:
        text = self.lib.harness_field_names(self.index(op)).decode()
        return {name: int(kind) for name, kind in (part.split(":") for part in text.split(","))}

    def create(self, op: str, fields: Sequence[tuple[str, int, Any, int | None]], phase: int = 1) -> Plugin | None:
        """A plugin of ``(name, field type, values, length or None)``; None when the creator refuses.

        ``phase`` is TensorRT's: 0 while an engine is built, 1 at run time.
        """
        kinds = {FIELD_FLOAT32: np.float32, FIELD_INT32: np.int32, FIELD_INT64: np.int64}
        arrays = [np.atleast_1d(np.asarray(value, dtype=kinds[kind])) for _, kind, value, _ in fields]
        names = (ctypes.c_char_p * max(1, len(fields)))(*[field[0].encode() for field in fields])
        data = (ctypes.c_void_p * max(1, len(fields)))(*[array.ctypes.data for array in arrays])
        lengths = [array.size if field[3] is None else field[3] for field, array in zip(fields, arrays, strict=True)]
        made = self.lib.harness_create(
            self.index(op), phase, len(fields), names, _ints([field[1] for field in fields]), data, _ints(lengths)
        )
        return Plugin(self, made) if made else None

    def plugin(self, op: str, **values: float) -> Plugin:
        """A plugin of fields by their natural types: int or float."""
        fields = [(k, FIELD_FLOAT32 if isinstance(v, float) else FIELD_INT32, v, None) for k, v in values.items()]
        made = self.create(op, fields)
        assert made is not None, self.log()
        return made


class Plugin:
    """One plugin; destroyed with the object."""

    def __init__(self, harness: Harness, handle: int) -> None:
        self.harness, self.handle = harness, ctypes.c_void_p(handle)

    def __del__(self) -> None:
        self.harness.lib.harness_destroy(self.handle)

    def clone(self) -> Plugin:
        return Plugin(self.harness, self.harness.lib.harness_clone(self.handle))

    def attach(self) -> Plugin:
        return Plugin(self.harness, self.harness.lib.harness_attach(self.handle))

    @property
    def core(self) -> list[str]:
        """Name, version, namespace, build interface, its major version, timing-cache id."""
        return list(self.harness.lib.harness_core(self.handle).decode().split("|"))

    @property
    def outputs(self) -> int:
        return int(self.harness.lib.harness_outputs(self.handle))

    def alias(self, output: int) -> int:
        return int(self.harness.lib.harness_alias(self.handle, output))

    def serialize(self) -> list[tuple[str, int, Any, int | None]]:
        """The serialized fields, as :meth:`Harness.create` takes them."""
        names, types, values = ctypes.c_char_p(), _ints([0] * 32), (ctypes.c_char * 128)()
        count = self.harness.lib.harness_serialize(self.handle, ctypes.byref(names), types, values)
        kinds = {FIELD_FLOAT32: np.float32, FIELD_INT32: np.int32}
        assert names.value is not None
        return [
            (name, types[i], np.frombuffer(values.raw[4 * i : 4 * i + 4], dtype=kinds[types[i]])[0].item(), None)
            for i, name in zip(range(count), names.value.decode().split(","), strict=True)
        ]

    def output_types(self, types: Sequence[int]) -> list[int] | None:
        result = _ints([-1] * self.outputs)
        code = self.harness.lib.harness_output_types(self.handle, len(types), _ints(types), self.outputs, result)
        return None if code else list(result)[: self.outputs]

    def output_shapes(self, shapes: Sequence[Shape]) -> list[list[int]] | None:
        ranks, dims = _shapes(shapes)
        out_ranks, out_dims = _ints([0] * self.outputs), (ctypes.c_int64 * (_DIMS * self.outputs))()
        code = self.harness.lib.harness_output_shapes(
            self.handle, len(shapes), ranks, dims, self.outputs, out_ranks, out_dims
        )
        return None if code else [list(out_dims[_DIMS * i : _DIMS * i + out_ranks[i]]) for i in range(self.outputs)]

    def format(self, pos: int, inputs: int, types: Sequence[int], formats: Sequence[int] | None = None) -> bool:
        given = [LINEAR] * len(types) if formats is None else formats
        return bool(self.harness.lib.harness_format(self.handle, pos, inputs, self.outputs, _ints(types), _ints(given)))

    def _profile(self, call: Any, types: Sequence[int], low: Sequence[Shape], high: Sequence[Shape]) -> int:
        ranks, least = _shapes(low)
        most = _shapes(high)[1]
        return int(call(self.handle, len(types), self.outputs, _ints(types), ranks, least, most, most))

    def configure(self, types: Sequence[int], low: Sequence[Shape], high: Sequence[Shape]) -> int:
        return self._profile(self.harness.lib.harness_configure, types, low, high)

    def workspace(self, types: Sequence[int], low: Sequence[Shape], high: Sequence[Shape]) -> int:
        return self._profile(self.harness.lib.harness_workspace, types, low, high)

    def run(
        self,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
        workspace: int | None = None,
        scratch: Callable[[int], torch.Tensor] | None = None,
    ) -> int:
        """enqueue with tensors of the host; the workspace is as large as the plugin asks for these shapes.

        ``scratch`` makes its memory, aligned to 256 bytes.
        """
        every = [*inputs, *outputs]
        types = [TYPE_OF[tensor.dtype] for tensor in every]
        shapes = [tuple(tensor.shape) for tensor in every]
        size = workspace
        if size is None:
            size = self.workspace(types[: len(inputs)], shapes[: len(inputs)], shapes[: len(inputs)])
        memory = torch.empty(size + 512, dtype=torch.uint8) if scratch is None else scratch(size)
        aligned = (memory.data_ptr() + 255) // 256 * 256
        pointers = (ctypes.c_void_p * len(every))(*[tensor.data_ptr() for tensor in every])
        ranks, dims = _shapes(shapes)
        out = ctypes.cast(ctypes.byref(pointers, 8 * len(inputs)), ctypes.POINTER(ctypes.c_void_p))
        return int(
            self.harness.lib.harness_run(
                self.handle,
                len(inputs),
                len(outputs),
                _ints(types),
                ranks,
                dims,
                pointers,
                out,
                ctypes.c_void_p(aligned),
            )
        )
