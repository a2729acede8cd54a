"""Model configurations as ``ModelConfig`` messages, printed and parsed by ``text_format``.

A message cannot hold an unfilled placeholder or an unknown field, so a configuration that was emitted
here is well-formed by construction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from triton_repo.lint.files import MAX_BYTES
from triton_repo.tensors import TensorRow
from trtforge.ground.errors import ForgeError
from trtforge.ground.json_file import read_text_file


def new_config(name: str, *, backend: str, max_batch_size: int, decoupled: bool) -> Any:
    """A ``ModelConfig`` with its identity set."""
    from tritonclient.grpc import model_config_pb2 as pb

    config = pb.ModelConfig(name=name, backend=backend, max_batch_size=max_batch_size)
    config.model_transaction_policy.decoupled = decoupled
    return config


def add_tensors(config: Any, inputs: Iterable[TensorRow], outputs: Iterable[TensorRow]) -> None:
    """Add the rows as inputs and outputs of ``config``."""
    from tritonclient.grpc import model_config_pb2 as pb

    for row in inputs:
        tensor = config.input.add(
            name=row.name,
            data_type=pb.DataType.Value(f"TYPE_{row.dtype}"),
            dims=list(row.dims),
            optional=row.optional,
            allow_ragged_batch=row.ragged,
        )
        if row.scalar:
            tensor.reshape.SetInParent()
    for row in outputs:
        config.output.add(name=row.name, data_type=pb.DataType.Value(f"TYPE_{row.dtype}"), dims=list(row.dims))


def add_cpu_instance(config: Any, count: int = 1) -> None:
    """Add an instance group on the CPU."""
    from tritonclient.grpc import model_config_pb2 as pb

    config.instance_group.add(count=count, kind=pb.ModelInstanceGroup.KIND_CPU)


def add_queue(config: Any, *, preferred: int, delay_us: int) -> None:
    """Turn on Triton's batcher: batches of ``preferred`` where they come, a wait of ``delay_us``, no queue limit."""
    config.dynamic_batching.preferred_batch_size.append(preferred)
    config.dynamic_batching.max_queue_delay_microseconds = delay_us
    config.dynamic_batching.default_queue_policy.max_queue_size = 0


def set_parameters(config: Any, parameters: Mapping[str, str]) -> None:
    """Set string parameters; keys in sorted order so that the text is reproducible."""
    for key in sorted(parameters):
        config.parameters[key].string_value = parameters[key]


def print_config(config: Any) -> str:
    """The message as protobuf text; map entries sorted, so equal messages give equal bytes."""
    from google.protobuf import text_format

    text: str = text_format.MessageToString(config, use_index_order=False)
    return text


def read_config(path: Path) -> Any:
    """Parse a ``config.pbtxt``.

    Raises:
        ForgeError: TF-TRI-001 with line and column.
    """
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2 as pb

    try:
        text = read_text_file(path, MAX_BYTES)
        return text_format.Parse(text, pb.ModelConfig())
    except (OSError, ValueError, RecursionError, text_format.ParseError) as error:
        raise ForgeError(
            "TF-TRI-001",
            f"{path} is no model configuration",
            asked=str(path),
            why=str(error),
            remedies=["emit the repository again: trtforge triton emit"],
        ) from None
