"""Checks of torch tensors by the ops' tables before their memory is handed over; all refuse with TF-OPS-005.

What a table says is worked out once an op (:class:`_Plan`); a call then costs a few microseconds a tensor.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from plugins.structs import packing, structure
from trtforge.ground.errors import ForgeError
from trtforge.native import ops
from trtforge.native.ops import Op, Tensor

if TYPE_CHECKING:
    import torch

#: torch dtypes that a concrete type of the tables may be
_STORED = {"byte": ("bool", "uint8"), "words": ("int32",)}
_FACTORS = re.compile(r"\s*([*/+])\s*")


def refuse(name: str, tensor: torch.Tensor, wanted: str) -> ForgeError:
    """The error that names what was wanted and what came."""
    got = f"{tensor.dtype} {list(tensor.shape)} strides {list(tensor.stride())} on {tensor.device}"
    return ForgeError(
        "TF-OPS-005",
        f"{name} must be {wanted}",
        asked=f"{name}: {got}",
        why="The kernels read raw memory, so layout and dtype must be what the contract says.",
        remedies=["see docs/ops.md for shapes and types", f"pass {name}.contiguous() or convert its dtype"],
    )


def checked(
    op: Op, tensors: Mapping[str, torch.Tensor | Sequence[torch.Tensor] | None], *, device: str = "cpu", **values: Any
) -> Any:
    """The argument struct of an op, of tensors that are what its table says.

    Args:
        tensors: by name; optional ones may be None or left out, a list where the table has one.
        device: where they must lie.
        values: sizes and attributes, and shape letters that no tensor's axis tells.

    Returns:
        The struct, which keeps the memory of lists of pointers alive; the tensors are the caller's to keep.

    Raises:
        ForgeError: TF-OPS-005 with what was wanted and what came.
    """
    plan = _plan(op)
    fields = plan.standard.copy()
    known: dict[str, Any] = {}
    numbers: dict[str, int] = {}
    for name, value in values.items():
        if name in plan.at:
            fields[plan.at[name]] = value
        known[plan.letters.get(name, name)] = value
    late = []
    array: Any = None
    for entry in plan.entries:
        given: Any = tensors.get(entry.name)
        if given is None:
            continue
        if entry.many:
            array = (ctypes.c_void_p * len(given))(*(one.data_ptr() for one in given))
            fields[entry.at], fields[entry.many] = ctypes.addressof(array), len(given)
            for one in given:
                entry.check(one, known, numbers, device)
            continue
        if not entry.check(given, known, numbers, device):
            late.append((entry, given))
        fields[entry.at] = given.data_ptr()
        if entry.stride:
            fields[entry.stride] = given.stride(-2)
    for entry, given in late:
        entry.check(given, known, numbers, device, last=True)
    for at, letter in plan.sizes:
        fields[at] = known.get(letter, 0)
    for at, letter in plan.dtypes:
        fields[at] = numbers[letter]
    args = plan.kind()
    plan.pack(args, 0, plan.size, *fields)
    args.kept = array
    return args


class _Entry:
    """What a tensor must be."""

    def __init__(self, tensor: Tensor, at: Mapping[str, int]) -> None:
        import torch

        self.name, self.rows, self.at = tensor.name, tensor.rows, at[tensor.name]
        self.stride = at[f"{tensor.name}_stride"] if tensor.rows else 0
        self.many = at[tensor.list_of] if tensor.list_of else 0
        self.letter = tensor.dtype if tensor.dtype in ops.LETTERS else ""
        names = ops.LETTERS.get(tensor.dtype) or _STORED.get(tensor.dtype) or (tensor.dtype,)
        #: torch dtype -> its number in the struct, 0 where it has none; bytes of a pool are E4M3 bits
        self.dtypes = {getattr(torch, name): (ops.DTYPES | {"uint8": 3}).get(name, 0) for name in names}
        self.rank = len(tensor.axes)
        self.single = [(i, axis) for i, axis in enumerate(tensor.axes) if axis.isidentifier()]
        self.terms = [(i, _FACTORS.split(axis)) for i, axis in enumerate(tensor.axes) if not axis.isidentifier()]
        self.needed = {term for _, terms in self.terms for term in terms[::2] if not term.isdigit()}

    def check(
        self, value: torch.Tensor, known: dict[str, int], numbers: dict[str, int], device: str, *, last: bool = False
    ) -> bool:
        """Refuse a tensor that is something else; False where a size that it depends on is not known yet.

        The first tensor with a letter says what the letter stands for.
        """
        shape, number = value.shape, self.dtypes.get(value.dtype)
        if number is not None and len(shape) == self.rank and getattr(value, f"is_{device}"):
            good = numbers.setdefault(self.letter, number) == number if self.letter else True
            for i, letter in self.single:
                if letter in known:
                    good = good and known[letter] == shape[i]
                else:
                    known[letter] = shape[i]
            if good and self.terms:
                if not last and not self.needed <= known.keys():
                    return False
                good = all(shape[i] == _product(terms, known) for i, terms in self.terms)
            if good and (value.is_contiguous() or (self.rows and _even(value))):
                return True
        raise refuse(self.name, value, self._wanted(known, numbers, device))

    def _wanted(self, known: Mapping[str, int], numbers: Mapping[str, int], device: str) -> str:
        one = numbers.get(self.letter)
        dtypes = [str(d).removeprefix("torch.") for d, n in self.dtypes.items() if one is None or n == one]
        shape: list[Any] = [None] * self.rank
        for i, letter in self.single:
            shape[i] = known.get(letter, letter)
        for i, terms in self.terms:
            shape[i] = _product(terms, known) if self.needed <= known.keys() else " ".join(terms)
        text = ", ".join(map(str, shape))
        return (
            f"{' or '.join(dtypes)} [{text}], {'even rows of unit columns' if self.rows else 'contiguous'}, on {device}"
        )


class _Plan:
    """An op's table as a call reads it; the positions are those of the struct's fields behind its size."""

    def __init__(self, op: Op) -> None:
        self.kind, self.pack = structure(op), packing(op)
        self.size = ctypes.sizeof(self.kind)
        self.at = {name: at for at, (name, _) in enumerate(op.fields)}
        self.entries = [_Entry(tensor, self.at) for tensor in op.tensors]
        self.letters = {s.name: s.letter for s in op.sizes} | {a.name: a.letter for a in op.attributes}
        self.letters = {name: letter for name, letter in self.letters.items() if letter}
        self.sizes = [(self.at[size.name], size.letter) for size in op.sizes if size.letter]
        self.dtypes = [(self.at[name], letter) for letter, name in op.dtypes.items()]
        self.standard: list[Any] = [op.standards.get(name, 0) for name, _ in op.fields]


@cache
def _plan(op: Op) -> _Plan:
    return _Plan(op)


def _product(terms: Sequence[str], known: Mapping[str, int]) -> int:
    """Terms multiplied, divided or added from left to right."""
    values = [int(term) if term.isdigit() else known.get(term, 0) for term in terms[::2]]
    result = values[0]
    for sign, other in zip(terms[1::2], values[1:], strict=True):
        result = result * other if sign == "*" else result + other if sign == "+" else result // max(other, 1)
    return result


def _even(value: torch.Tensor) -> bool:
    """Whether the last axis is contiguous and all others are one axis of evenly spaced rows."""
    if value.shape[-1] > 1 and value.stride(-1) != 1:
        return False
    outer = range(value.dim() - 2)
    return all(value.shape[i] < 2 or value.stride(i) == value.shape[i + 1] * value.stride(i + 1) for i in outer)
