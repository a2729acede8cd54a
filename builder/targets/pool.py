"""What the targets with trtforge's own KV pool say of their engines alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from builder.targets.description import Rows
from trtforge.ground.units import format_size


def pool_text(cache: Mapping[str, Any]) -> str:
    """``128 blocks of 32 tokens, fp8, 64.0 MiB``."""
    size = format_size(cache["num_blocks"] * cache["bytes_per_block"])
    return f"{cache['num_blocks']} blocks of {cache['block_size']} tokens, {cache['format']}, {size}"


def report_rows(engine: Mapping[str, Any]) -> Rows:
    """The pool, and the linears counted by what they are."""
    return (
        ("KV pool", f"{engine['kv_cache']['num_blocks']} blocks of {engine['kv_cache']['block_size']} tokens"),
        ("linears", "; ".join(f"{count} × {name}" for name, count in engine["linears"].items())),
    )
