"""What a graph must pass before it counts as built.

``onnx.checker`` neither compares an external range with its file nor its length with the initializer's
shape, so both are checked here; then the checker runs by path and shape inference in strict mode.
"""

from __future__ import annotations

import math
from pathlib import Path

import onnx
from onnx import TensorProto

from builder import opset
from trtforge.ground.errors import ExitCode, ForgeError

_BITS = {
    TensorProto.FLOAT: 32,
    TensorProto.FLOAT16: 16,
    TensorProto.BFLOAT16: 16,
    TensorProto.FLOAT8E4M3FN: 8,
    TensorProto.INT8: 8,
    TensorProto.FLOAT4E2M1: 4,
    TensorProto.INT4: 4,
}


def _failed(what: str, why: str, **numbers: object) -> ForgeError:
    return ForgeError(
        "TF-GRF-010",
        f"The graph failed its check: {what}",
        numbers=numbers,
        why=why,
        remedies=["Build the graph again from a complete checkpoint", "Report it with the recipe if it stays"],
        exit_code=ExitCode.GATE_FAILED,
    )


def infer(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the types and shapes of every value (strict mode, data propagation).

    Raises:
        ForgeError: ``TF-GRF-010`` types or shapes contradict each other.
    """
    opset.register()
    try:
        inferred = onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)
    except Exception as error:  # onnx raises its own class, whose place has moved between versions
        raise _failed(f"shape inference: {error}", "A node's inputs do not fit its operator.") from error
    known = {info.name for info in (*inferred.graph.value_info, *inferred.graph.output)}
    unknown = [name for node in inferred.graph.node for name in node.output if name and name not in known]
    if unknown:
        raise _failed("values without a shape", "Shape inference could not type them.", values=unknown[:8])
    return inferred


def check_ranges(model: onnx.ModelProto, directory: Path) -> None:
    """Every external initializer lies inside its file and has the length that its shape needs.

    Raises:
        ForgeError: ``TF-GRF-010`` with the initializer and the numbers.
    """
    sizes: dict[str, int] = {}
    for tensor in model.graph.initializer:
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        place = {entry.key: entry.value for entry in tensor.external_data}
        name, offset, length = place["location"], int(place["offset"]), int(place["length"])
        if name not in sizes:
            sizes[name] = (directory / name).stat().st_size
        if offset + length > sizes[name]:
            raise _failed(
                f"{tensor.name} ends past the end of {name}",
                "The file changed after its header was read.",
                ends=offset + length,
                file_bytes=sizes[name],
            )
        needed = (math.prod(tensor.dims) * _BITS[tensor.data_type] + 7) // 8
        if needed != length:
            raise _failed(f"{tensor.name} has {length} bytes, its shape needs {needed}", "Type and range disagree.")


def check_file(path: Path) -> None:
    """``onnx.checker`` on the written file, external files included, with full shape inference.

    Raises:
        ForgeError: ``TF-GRF-010``.
    """
    opset.register()
    try:
        onnx.checker.check_model(str(path), full_check=True)
    except Exception as error:  # ValidationError, or InferenceError from the full check
        raise _failed(f"onnx.checker: {error}", "The file breaks a rule of the ONNX format.") from error
