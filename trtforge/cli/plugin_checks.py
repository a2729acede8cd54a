"""``trtforge plugins test``: the host library against the plain PyTorch reference, on this machine's processor.

A quick proof that the built library computes right here; the full conformance suite lives in the tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from trtforge.errors import ForgeError
from trtforge.progress import Progress

if TYPE_CHECKING:
    import torch

HEAD_SIZES = (64, 128)
BLOCK_SIZES = (16, 32)
#: element types of activations, with the largest error against float32 that their rounding explains
TOLERANCE = {"float32": 2e-5, "bfloat16": 3e-2, "float16": 4e-3}


@dataclass(frozen=True)
class PluginCheck:
    """One comparison: its case, and the largest absolute difference."""

    name: str
    passed: bool
    detail: str


def run_checks(progress: Progress) -> list[PluginCheck]:
    """Ragged mixed batches over head sizes, block sizes, types and pools; raises TF-OPS codes of the loader."""
    from plugins import host

    library = host.load()
    cases = list(product(HEAD_SIZES, BLOCK_SIZES, TOLERANCE, ("model", "fp8")))
    progress.start(f"PagedAttention on {library.isa}", len(cases))
    checks = []
    for head_size, block_size, dtype, pool in cases:
        name = f"PagedAttention E={head_size} S={block_size} {dtype}, {pool} pool"
        checks.append(_attention(library, name, head_size, block_size, dtype, pool))
        progress.advance()
    return checks


def _attention(library: Any, name: str, head_size: int, block_size: int, dtype: str, pool: str) -> PluginCheck:
    import torch

    from plugins import reference

    generator = torch.Generator().manual_seed(head_size * 1000 + block_size)
    kind: torch.dtype = getattr(torch, dtype)
    heads, kv_heads = 6, 2
    # a long prefill, a decode step, a continued prefill, a short prompt
    new, lengths = [37, 1, 9, 3], [37, 51, 40, 3]
    blocks = [-(-length // block_size) for length in lengths]
    total, most = sum(blocks), max(blocks)
    order = torch.randperm(total, generator=generator).to(torch.int32)
    table = torch.full((len(new), most), -1, dtype=torch.int32)
    taken = 0
    for row, count in enumerate(blocks):
        table[row, :count] = order[taken : taken + count]
        taken += count

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(kind)

    tokens = sum(new)
    query = random(tokens, heads * head_size)
    key, value = random(tokens, kv_heads * head_size), random(tokens, kv_heads * head_size)
    start = torch.tensor([0, *torch.tensor(new).cumsum(0).tolist()], dtype=torch.int32)
    context = torch.tensor(lengths, dtype=torch.int32)
    cache = random(total, 2, kv_heads, block_size, head_size)
    if pool == "fp8":
        cache = cache.to(torch.float8_e4m3fn)
    mine, theirs = cache.clone(), cache.clone()
    settings: dict[str, Any] = {"num_heads": heads, "num_kv_heads": kv_heads, "head_size": head_size}
    if pool == "fp8":
        settings |= {"k_scale": 0.5, "v_scale": 0.25}
    try:
        got = library.paged_attention(query, key, value, mine, start, context, table, **settings)
    except ForgeError as error:
        return PluginCheck(name, False, f"{error.code}: {error.message}")
    wanted = reference.paged_attention(query, key, value, theirs, start, context, table, **settings)
    largest = float((got.float() - wanted.float()).abs().max())
    same = bool(torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8)))
    limit = TOLERANCE[dtype]
    detail = f"largest difference {largest:.2e} (limit {limit:.0e}), pool {'identical' if same else 'differs'}"
    return PluginCheck(name, largest <= limit and same, detail)
