"""The spine's header reader under the quantize package's name; see :mod:`trtforge.ground.safetensors_header`."""

from trtforge.ground.safetensors_header import (
    DTYPE_BITS,
    INDEX_NAME,
    MAX_HEADER_BYTES,
    WEIGHTS_NAME,
    TensorInfo,
    is_pointer_file,
    read_header,
    read_headers,
    read_index,
    refuse_pointer,
    weight_files,
)

__all__ = [
    "DTYPE_BITS",
    "INDEX_NAME",
    "MAX_HEADER_BYTES",
    "WEIGHTS_NAME",
    "TensorInfo",
    "is_pointer_file",
    "read_header",
    "read_headers",
    "read_index",
    "refuse_pointer",
    "weight_files",
]
