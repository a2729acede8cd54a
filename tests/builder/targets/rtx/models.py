"""Tiny models as RTX engines are built from them."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnx
import pytest

from builder.graphs.build import build_graph
from tests.builder.quantized_tiny import Quantizer
from tests.support.tiny import write_tiny_llama
from trtforge.recipe.schema import Build, Limits

#: real builds: a process of its own and about a second each
compiles = [
    pytest.mark.slow,
    pytest.mark.skipif(
        find_spec("tensorrt_rtx") is None, reason="tensorrt-rtx is not installed: pip install 'trtforge[rtx]'"
    ),
]
LIMITS = Limits(max_batch_size=4, max_num_tokens=256, max_seq_len=256)


def native_graph(directory: Path, fmt: str = "none", *, dtype: str = "float16", **model: Any) -> Path:
    """A native graph directory of a tiny Llama in a format."""
    write_tiny_llama(directory, dtype=dtype, **model)
    Quantizer(directory, fmt, scale_type={"float16": "F16", "bfloat16": "BF16", "float32": "F32"}[dtype])
    build_graph(directory, directory, dtype=dtype, mode="native")
    return directory


def rtx_build(*architectures: str, **keys: Any) -> Build:
    """The build section of an RTX recipe with small limits."""
    return Build(target="tensorrt-rtx", architectures=architectures, **{"limits": LIMITS, **keys})


def load(directory: Path) -> onnx.ModelProto:
    """The graph without its weights."""
    return onnx.load(directory / "model.onnx", load_external_data=False)
