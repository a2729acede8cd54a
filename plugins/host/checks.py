"""Checks of torch tensors before their memory is handed to the host library; all refuse with TF-OPS-005."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plugins.host import abi
from trtforge.ground.errors import ForgeError

if TYPE_CHECKING:
    import torch


def matrix(
    name: str,
    tensor: torch.Tensor,
    shape: tuple[int, int] | None = None,
    dtype: torch.dtype | None = None,
    device: str = "cpu",
) -> tuple[int, int]:
    """Rows and width of a matrix with contiguous columns on the device, of this shape and dtype when given."""
    good = tensor.dim() == 2 and tensor.device.type == device and (tensor.shape[1] <= 1 or tensor.stride(1) == 1)
    if not good or (shape is not None and tuple(tensor.shape) != shape):
        wanted = f"a {device.upper()} matrix {list(shape) if shape else '[rows, width]'} with unit columns"
        raise refuse(name, tensor, wanted)
    if dtype is not None and tensor.dtype != dtype:
        raise refuse(name, tensor, str(dtype))
    return int(tensor.shape[0]), int(tensor.shape[1])


def vector(name: str, tensor: torch.Tensor, width: int) -> None:
    """A contiguous CPU vector of this width."""
    if tuple(tensor.shape) != (width,) or not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise refuse(name, tensor, f"a contiguous CPU vector [{width}]")


def empty_like(x: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor of x's shape and dtype."""
    import torch

    return torch.empty(tuple(x.shape), dtype=x.dtype)


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


def indices(name: str, tensor: torch.Tensor, shape: tuple[int, ...], device: str = "cpu") -> None:
    """An int32 tensor of this shape with contiguous columns on the device."""
    import torch

    if tensor.dtype != torch.int32 or tuple(tensor.shape) != shape or tensor.device.type != device:
        raise refuse(name, tensor, f"int32 {list(shape)}")
    if tensor.dim() > 0 and tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise refuse(name, tensor, f"int32 {list(shape)} with unit columns")


def dense(name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype, device: str = "cpu") -> None:
    """A contiguous tensor of exactly this shape and dtype on the device."""
    good = tuple(tensor.shape) == shape and tensor.dtype == dtype and tensor.is_contiguous()
    if not good or tensor.device.type != device:
        raise refuse(name, tensor, f"contiguous {dtype} {list(shape)} on {device}")


def code(name: str, tensor: torch.Tensor) -> int:
    """The ABI's number of an activation dtype."""
    import torch

    code = {torch.float32: abi.FLOAT32, torch.bfloat16: abi.BFLOAT16, torch.float16: abi.FLOAT16}.get(tensor.dtype)
    if code is None:
        raise refuse(name, tensor, "float32, bfloat16 or float16")
    return code


def pool_code(pool: torch.Tensor) -> int:
    """The ABI's number of a pool dtype; uint8 holds E4M3 bits."""
    import torch

    if pool.dtype in (torch.float8_e4m3fn, torch.uint8):
        return abi.FLOAT8_E4M3
    return code("kv_pool", pool)
