"""Decode attention against the machine's copy bandwidth, measured side by side in one run.

Decode attention reads every key and value of every request once and does little else, so the honest measure is
bytes of cache read per second against what a plain copy of memory moves per second (read plus written) on the same
threads in the same minute. Rounds alternate copy and attention, so that a slow moment of the machine hits both;
medians, quartile spread and the ratio of medians are reported.

Run ``python -m benchmarks.attention`` (``--quick`` for a short run, ``--json FILE`` to keep the figures).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from plugins.host import load
from plugins.host.library import HostLibrary
from trtforge.native import ops

CONTEXT = 4096
BAR = 0.5
COPY_BYTES = 256 << 20
POOLS = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "fp8": torch.float8_e4m3fn}
CODES = ops.DTYPES | {"fp8": ops.DTYPES["float8_e4m3fn"]}


@dataclass(frozen=True)
class Case:
    """One shape: B requests of 4,096 tokens, one new token each."""

    pool: str
    batch: int
    heads: int
    kv_heads: int
    head_size: int
    block_size: int


@dataclass
class Row:
    """Measured figures of a case. Bandwidths in GB/s (10^9 bytes)."""

    case: Case
    milliseconds: float
    spread: float
    gigabytes_per_second: float
    copy_gigabytes_per_second: float
    copy_spread: float
    ratio: float
    holds: bool


def cases(quick: bool) -> list[Case]:
    """The shapes of the report: SmolLM2's (9/3/64) and a common 8B's (32/8/128), every pool format."""
    shapes = [(9, 3, 64), (32, 8, 128)]
    out = [
        Case(pool, 8, heads, kv, size, 64 if size == 64 else 32)
        for heads, kv, size in shapes
        for pool in ("float32", "bfloat16", "fp8")
    ]
    if not quick:
        out += [Case("bfloat16", 1, 9, 3, 64, 64), Case("bfloat16", 8, 9, 3, 64, 16), Case("float16", 8, 9, 3, 64, 64)]
        out += [Case("bfloat16", 8, 8, 8, 64, 64), Case("bfloat16", 8, 8, 8, 128, 32)]
    return out


def quartile_spread(samples: list[float]) -> float:
    """(third - first quartile) / median."""
    first, middle, third = statistics.quantiles(samples, n=4)
    return (third - first) / middle


def timed(run: Callable[[], None]) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def decode_step(library: HostLibrary, case: Case) -> tuple[Callable[[], None], int]:
    """A ready decode step over its own pool, and the bytes of keys and values that it reads.

    The pool is larger than any cache (several copies of small ones are walked in turn).
    """
    blocks_each = CONTEXT // case.block_size
    bytes_each = 2 * CONTEXT * case.kv_heads * case.head_size * POOLS[case.pool].itemsize * case.batch
    copies = max(1, math.ceil((192 << 20) / bytes_each))
    count = case.batch * blocks_each * copies
    shape = (count, 2, case.kv_heads, case.block_size, case.head_size)
    if case.pool == "fp8":
        pool = torch.randint(0, 0x70, shape, dtype=torch.uint8).view(torch.float8_e4m3fn)
    else:
        pool = torch.randn(shape, dtype=torch.float32).to(POOLS[case.pool])
    tables = torch.randperm(count).int().view(copies, case.batch, blocks_each).contiguous()
    heads, kv, size = case.heads, case.kv_heads, case.head_size
    width = (heads + 2 * kv) * size
    qkv = torch.randn(case.batch, width)
    out = torch.empty(case.batch, heads * size)
    starts = torch.arange(case.batch + 1, dtype=torch.int32)
    lengths = torch.full((case.batch,), CONTEXT, dtype=torch.int32)
    scaled = case.pool == "fp8"
    # The executor's way: one argument struct, of which a step changes a few fields.
    args, call = library.prepared(
        ops.PAGED_ATTENTION,
        query=qkv.data_ptr(),
        key=qkv.data_ptr() + heads * size * 4,
        value=qkv.data_ptr() + (heads + kv) * size * 4,
        kv_pool=pool.data_ptr(),
        output=out.data_ptr(),
        query_start=starts.data_ptr(),
        sequence_lengths=lengths.data_ptr(),
        query_stride=width,
        key_stride=width,
        value_stride=width,
        output_stride=heads * size,
        block_table_stride=blocks_each,
        num_tokens=case.batch,
        num_requests=case.batch,
        max_blocks=blocks_each,
        num_blocks=count,
        block_size=case.block_size,
        num_heads=heads,
        num_kv_heads=kv,
        head_size=size,
        activation_dtype=CODES["float32"],
        pool_dtype=CODES[case.pool],
        scale=size**-0.5,
        k_scale=0.01 if scaled else 1.0,
        v_scale=0.01 if scaled else 1.0,
    )
    alive = (qkv, out, starts, lengths, tables, pool)
    pointers = [table.data_ptr() for table in tables]
    state = {"copy": 0}

    def run() -> None:
        assert alive
        state["copy"] = (state["copy"] + 1) % copies
        args.block_table = pointers[state["copy"]]
        library.check(call(), "PagedAttention")

    return run, bytes_each


def measure(library: HostLibrary, case: Case, rounds: int) -> Row:
    """Alternate copy and attention for ``rounds`` rounds."""
    run, read = decode_step(library, case)
    source = torch.ones(COPY_BYTES // 4)
    target = torch.empty_like(source)
    repeat = max(1, int(COPY_BYTES / 2 / read))

    def move() -> None:
        target.copy_(source)

    def several() -> None:
        for _ in range(repeat):
            run()

    for _ in range(3):
        run()
        move()
    attention: list[float] = []
    copy: list[float] = []
    for _ in range(rounds):
        copy.append(timed(move))
        attention.append(timed(several) / repeat)
    copy_rate = 2 * COPY_BYTES / statistics.median(copy) / 1e9
    seconds = statistics.median(attention)
    rate = read / seconds / 1e9
    return Row(
        case=case,
        milliseconds=seconds * 1e3,
        spread=quartile_spread(attention),
        gigabytes_per_second=rate,
        copy_gigabytes_per_second=copy_rate,
        copy_spread=quartile_spread(copy),
        ratio=rate / copy_rate,
        holds=rate >= BAR * copy_rate,
    )


def main(argv: list[str] | None = None) -> int:
    """Print the table; 1 when a float32 or bfloat16 pool misses half of the copy bandwidth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=0, help="0: torch's default")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    library = load()
    print(f"host library: {library.isa}, {torch.get_num_threads()} threads; contexts of {CONTEXT} tokens", flush=True)
    print(f"{'pool':9} {'batch':>5} {'heads':>7} {'size':>4} {'block':>5} {'ms':>8} {'±':>5} "
          f"{'GB/s':>6} {'copy':>6} {'±':>5} {'ratio':>6}")  # fmt: skip
    rows: list[Row] = []
    for case in cases(options.quick):
        row = measure(library, case, options.rounds)
        rows.append(row)
        print(
            f"{case.pool:9} {case.batch:5} {case.heads:4}/{case.kv_heads:<2} {case.head_size:4} {case.block_size:5} "
            f"{row.milliseconds:8.3f} {row.spread:5.0%} {row.gigabytes_per_second:6.2f} "
            f"{row.copy_gigabytes_per_second:6.2f} {row.copy_spread:5.0%} {row.ratio:6.2f}"
            f"{'' if row.holds else '  below half'}",
            flush=True,
        )
    if options.json:
        data = {"info": library.info(), "context": CONTEXT, "bar": BAR, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(data, indent=2) + "\n")
    return 0 if all(row.holds for row in rows if row.case.pool in ("float32", "bfloat16")) else 1


if __name__ == "__main__":
    sys.exit(main())
