"""Runs the plugins on index tensors that mean nothing, every tensor between pages that may not be touched.

``python -m tests.plugins.tensorrt.garbage HARNESS PLUGINS``: a kernel that reads or writes outside its tensors, by a
byte or by a gigabyte, ends the process with a fault. A process of its own, because that is how it fails.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from plugins.trees import TreeShape
from tests.plugins.tensorrt.harness import Harness

_PAGE = 4096
_GUARD = 1 << 28
_NOTHING, _READ_WRITE, _PRIVATE_ANONYMOUS_NORESERVE = 0, 3, 0x4022
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

Fill = Callable[[tuple[int, ...]], torch.Tensor]
Types = tuple[torch.dtype, torch.dtype]


class Guarded:
    """Tensors whose last byte (``at_end``) or first byte touches a page without access; freed all at once."""

    def __init__(self, *, at_end: bool) -> None:
        self.at_end = at_end
        self._maps: list[tuple[int, int]] = []

    def memory(self, size: int) -> int:
        """Address of ``size`` bytes, aligned to 16 bytes."""
        pages = max(1, -(-size // _PAGE)) * _PAGE
        base = _LIBC.mmap(None, pages + 2 * _GUARD, _NOTHING, _PRIVATE_ANONYMOUS_NORESERVE, -1, 0)
        assert base not in (None, ctypes.c_void_p(-1).value)
        assert _LIBC.mprotect(base + _GUARD, pages, _READ_WRITE) == 0
        self._maps.append((base, pages + 2 * _GUARD))
        return int(base + _GUARD + (pages - -(-size // 16) * 16 if self.at_end else 0))

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor."""
        flat = tensor.contiguous().reshape(-1).view(torch.uint8)
        copy = self.bytes(flat.numel())
        copy.copy_(flat)
        return copy.view(tensor.dtype).view(tensor.shape)

    def bytes(self, size: int) -> torch.Tensor:
        """``size`` bytes."""
        address = self.memory(max(16, size))
        return torch.frombuffer((ctypes.c_char * max(1, size)).from_address(address), dtype=torch.uint8)[:size]

    def scratch(self, size: int) -> torch.Tensor:
        """A workspace: its sizes are multiples of 256 bytes, so either end touches a guard."""
        return self.bytes(-(-max(1, size) // 256) * 256)

    def free(self) -> None:
        for base, size in self._maps:
            _LIBC.munmap(base, size)
        self._maps.clear()


def fills(seed: int) -> Iterator[tuple[str, Fill]]:
    """Ways to fill an int32 tensor with what TensorRT's timing, or a broken caller, may leave there."""
    generator = torch.Generator().manual_seed(seed)

    def random(low: int, high: int) -> Fill:
        return lambda shape: torch.randint(low, high, shape, generator=generator, dtype=torch.int64).int()

    for value in (0, 1, -1, 7, -(2**31), 2**31 - 1):
        yield str(value), lambda shape, value=value: torch.full(shape, value, dtype=torch.int32)
    yield "random", random(-(2**31), 2**31)
    yield "small", random(-3, 40)
    yield "falling", lambda shape: torch.arange(int(torch.Size(shape).numel()), 0, -1, dtype=torch.int32).view(shape)
    yield "rising by one", lambda shape: torch.arange(int(torch.Size(shape).numel()), dtype=torch.int32).view(shape)


def attention(harness: Harness, memory: Guarded, fill: Fill, kind: dict[str, int], dtypes: Types) -> None:
    """A step whose offsets, lengths and block table are garbage."""
    activation, pool_type = dtypes
    heads, kv_heads, size, tokens, requests, table, blocks = 8, 2, 64, 37, 5, 3, 6
    fields = {name: value for name, value in kind.items() if name != "width"}
    plugin = harness.plugin("PagedAttention", num_heads=heads, num_kv_heads=kv_heads, head_size=size, **fields)
    pool = memory.put(torch.randn(blocks, 2, kv_heads, 16, size).to(pool_type))
    inputs = [
        memory.put(torch.randn(tokens, heads * size).to(activation)),
        *(memory.put(torch.randn(tokens, kv_heads * size).to(activation)) for _ in range(2)),
        pool,
        memory.put(fill((requests + 1,))),
        memory.put(fill((requests,))),
        memory.put(fill((requests, table))),
        memory.put(fill((min(tokens, kind.get("width", 0)) or tokens,))),
    ]
    if kind.get("has_scales"):
        inputs += [memory.put(torch.tensor(0.5)) for _ in range(2)]
    if kind.get("has_tree_mask"):
        inputs.append(memory.put(torch.randint(0, 2, (tokens, kind["width"])).bool()))
    out = memory.put(torch.zeros(tokens, heads * size, dtype=activation))
    assert plugin.run(inputs, [out, pool], scratch=memory.scratch) == 0, harness.log()


def tree_build(harness: Harness, memory: Guarded, fill: Fill, level: int, static: bool) -> None:
    shape = TreeShape(3, 2, 3, 8)
    count, requests, vocabulary = shape.candidates, 3, 50
    fields = {"top_k": 3, "expand": 2, "levels": 3, "total": 8, "level": level, "has_static_tree": int(static)}
    plugin = harness.plugin("EagleTreeBuild", **fields, has_draft_to_target=1)
    scores = fill((requests, count)).view(torch.float32)
    state = [memory.put(fill((requests, count))), memory.put(fill((requests, count))), memory.put(scores)]
    state.append(memory.put(fill((requests, 2))))
    logits = fill((requests, 1 if level == 0 else 2, vocabulary)).view(torch.float32)
    inputs = [memory.put(logits), memory.put(fill((requests,))), *state, memory.put(fill((vocabulary,)))]
    if static:
        inputs += [memory.put(fill((8,))) for _ in range(2)]
    outputs = [memory.put(torch.zeros(requests, 8, dtype=torch.int32)) for _ in range(3)]
    outputs += [memory.put(torch.zeros(requests, 8)), memory.put(torch.zeros(requests, 8, 8, dtype=torch.int8))]
    outputs.append(memory.put(torch.zeros(requests, dtype=torch.int32)))
    assert plugin.run(inputs, [*state, *outputs], scratch=memory.scratch) == 0, harness.log()


def accept(harness: Harness, memory: Guarded, fill: Fill) -> None:
    requests, total = 3, 8
    plugin = harness.plugin("EagleAccept", total=total, has_sampling=1)
    inputs = [memory.put(fill((requests * total, 50)).view(torch.float32))]
    inputs += [memory.put(fill((requests, total))) for _ in range(2)]
    inputs += [memory.put(fill((requests,))), memory.put(fill((requests,)).view(torch.float32))]
    inputs += [memory.put(fill((requests,)).long()), memory.put(fill((requests,)))]
    outputs = [memory.put(torch.zeros(shape, dtype=torch.int32)) for shape in ((3, 8), (3,), (3, 8), (3,))]
    assert plugin.run(inputs, outputs, scratch=memory.scratch) == 0, harness.log()


def move(harness: Harness, memory: Guarded, fill: Fill) -> None:
    plugin = harness.plugin("PagedKVMove", num_kv_heads=2, head_size=64, num_pools=2)
    pools = [memory.put(torch.randn(4, 2, 2, 16, 64)) for _ in range(2)]
    index = [memory.put(fill(shape)) for shape in ((3, 2), (3,), (3, 8), (3,))]
    assert plugin.run([*index, *pools], pools, scratch=memory.scratch) == 0, harness.log()


def cases(harness: Harness) -> Iterator[tuple[str, Callable[[Guarded, Fill], None]]]:
    """Every plugin, in every way that it reads indices."""
    yield "accept", partial(accept, harness)
    yield "move", partial(move, harness)
    for level in range(3):
        for static in (False, True):
            yield f"tree, level {level}, static {static}", partial(tree_build, harness, level=level, static=static)
    kinds: list[dict[str, int]] = [
        {}, {"sliding_window": 9}, {"has_tree_mask": 1, "width": 1}, {"has_tree_mask": 1, "width": 12},
        {"has_tree_mask": 1, "width": 12, "sliding_window": 5}, {"width": 1},
    ]  # fmt: skip
    types = [(torch.bfloat16, torch.bfloat16), (torch.float16, torch.float8_e4m3fn), (torch.float32, torch.float32)]
    for kind in kinds:
        for dtypes in types:
            scales = {"has_scales": 1} if dtypes[1] == torch.float8_e4m3fn else {}
            yield f"attention {kind} {dtypes}", partial(attention, harness, kind=kind | scales, dtypes=dtypes)


def main(harness_file: str, library: str) -> int:
    """Run everything; prints how many cases there were."""
    harness = Harness(Path(harness_file), Path(library))
    done = 0
    for at_end in (True, False):
        for name, fill in fills(seed=1):
            for label, case in cases(harness):
                print(f"{label}, indices {name}, at_end {at_end}", file=sys.stderr, flush=True)
                memory = Guarded(at_end=at_end)
                case(memory, fill)
                memory.free()
                done += 1
    print(done)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
