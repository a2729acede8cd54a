"""Model graphs: ONNX written from config.json and safetensors headers, one module an architecture family."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from builder.graphs.info import GRAPH_FILE, INFO_FILE, PACKED_FILE, GraphInfo, LinearInfo
from trtforge.ground.progress import Progress

__all__ = ["GRAPH_FILE", "INFO_FILE", "PACKED_FILE", "GraphInfo", "LinearInfo", "build_graph"]


def build_graph(
    checkpoint: Path,
    out: Path,
    *,
    dtype: str | None = None,
    kv_cache_format: str | None = None,
    block_size: int = 32,
    mode: str = "paged",
    hidden_states: Sequence[int] = (),
    tree_mask: bool = False,
    progress: Progress | None = None,
) -> GraphInfo:
    """Write model.onnx and graph.json; see :func:`builder.graphs.build.build_graph` (imports ``onnx`` on first use)."""
    from builder.graphs.build import build_graph as build

    return build(
        checkpoint,
        out,
        dtype=dtype,
        kv_cache_format=kv_cache_format,
        block_size=block_size,
        mode=mode,
        hidden_states=hidden_states,
        tree_mask=tree_mask,
        progress=progress,
    )
