"""The header reader under the name that the quantize package uses; it lives in the spine (the graph builder reads it too)."""

from trtforge.safetensors_header import (
    DTYPE_BITS,
    MAX_HEADER_BYTES,
    TensorInfo,
    read_file_header,
    read_headers,
    shard_files,
)

__all__ = ["DTYPE_BITS", "MAX_HEADER_BYTES", "TensorInfo", "read_file_header", "read_headers", "shard_files"]
