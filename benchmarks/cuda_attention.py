"""PagedAttention on a GPU: decode against copy bandwidth, prefill against torch's flash attention.

**Not run yet**: no GPU was at hand when it was written. Everything up to the measurement is tested on a CPU.

Decode reads every key and value once and does little else, so its bytes a second are held against what a plain copy of
device memory moves (read plus written). Prefill is held against ``scaled_dot_product_attention`` with the flash backend
on contiguous tensors of the same sizes. FlashInfer is measured beside both where it can be imported. Rounds alternate
the contestants; medians of CUDA-event times and their quartile spread are reported.

Run ``python -m benchmarks.cuda_attention`` (``--json FILE`` keeps the figures). Exit code 1: a bar was missed; 3: no
GPU or no library (``trtforge plugins build cuda``).
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from plugins.cuda.library import CudaLibrary, find_cuda_library
from plugins.shared_ops import attention_args
from plugins.structs import cuda_call
from trtforge.ground.errors import EnvironmentLacks, ExitCode

COPY_BYTES = 1 << 30
DECODE_BAR = 0.8
PREFILL_BAR = 0.6


@dataclass(frozen=True)
class Case:
    """One step: B requests of so many tokens, of which the last ``fresh`` are new."""

    name: str
    batch: int
    tokens: int
    fresh: int
    heads: int
    kv_heads: int
    head_size: int
    block_size: int
    pool: str

    @property
    def cache_bytes(self) -> int:
        """Keys and values that the step reads."""
        size = 1 if self.pool == "float8_e4m3fn" else 2
        return 2 * self.batch * self.tokens * self.kv_heads * self.head_size * size

    @property
    def operations(self) -> float:
        """Multiply-adds times two of the causal products."""
        seen = self.fresh * (self.tokens - self.fresh) + self.fresh * (self.fresh + 1) / 2
        return 4.0 * self.batch * self.heads * self.head_size * seen


DECODE = (
    Case("decode", 64, 4096, 1, 32, 8, 128, 64, "bfloat16"),
    Case("decode, group 1", 64, 4096, 1, 8, 8, 128, 64, "bfloat16"),
    Case("decode, FP8", 64, 4096, 1, 32, 8, 128, 64, "float8_e4m3fn"),
    Case("decode, batch 1", 1, 4096, 1, 32, 8, 128, 64, "bfloat16"),
    Case("decode, blocks of 16", 64, 4096, 1, 32, 8, 128, 16, "bfloat16"),
)
PREFILL = (
    Case("prefill", 4, 4096, 4096, 32, 8, 128, 64, "bfloat16"),
    Case("prefill, head 64", 4, 4096, 4096, 32, 8, 64, 64, "bfloat16"),
)


@dataclass
class Row:
    """Medians of a case in milliseconds, and the ratio that a bar is about."""

    case: Case
    ours: float
    spread: float
    yardstick: float
    flashinfer: float | None
    ratio: float
    bar: float | None

    @property
    def holds(self) -> bool:
        """Whether the case reaches its bar (or has none)."""
        return self.bar is None or self.ratio >= self.bar


def prepared_step(library: CudaLibrary, case: Case, device: str) -> tuple[Callable[[], None], dict[str, Any]]:
    """A step ready to be enqueued again and again without allocation, and its tensors."""
    blocks_each = -(-case.tokens // case.block_size)
    count = case.batch * blocks_each
    generator = torch.Generator(device).manual_seed(0)
    shape = (count, 2, case.kv_heads, case.block_size, case.head_size)
    pool = torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16)
    if case.pool == "float8_e4m3fn":
        pool = pool.to(torch.float8_e4m3fn)
    width = (case.heads + 2 * case.kv_heads) * case.head_size
    rows = case.batch * case.fresh
    qkv = torch.randn(rows, width, generator=generator, device=device, dtype=torch.bfloat16)
    cut = case.heads * case.head_size, (case.heads + case.kv_heads) * case.head_size
    table = torch.randperm(count, generator=generator, device=device).int().view(case.batch, blocks_each)
    starts = torch.arange(case.batch + 1, device=device, dtype=torch.int32) * case.fresh
    lengths = torch.full((case.batch,), case.tokens, device=device, dtype=torch.int32)
    args, out = attention_args(
        qkv[:, : cut[0]], qkv[:, cut[0] : cut[1]], qkv[:, cut[1] :], pool, starts, lengths, table, None,
        num_heads=case.heads, num_kv_heads=case.kv_heads, head_size=case.head_size, device=library.device,
    )  # fmt: skip
    memory = torch.empty(library.attention_workspace(args) + 256, dtype=torch.uint8, device=device)
    call = cuda_call(
        stream=torch.cuda.current_stream().cuda_stream if library.on_gpu else None,
        workspace=(memory.data_ptr() + 255) // 256 * 256,
        workspace_bytes=memory.numel() - 256,
        multiprocessors=library.multiprocessors,
    )
    call.max_new_tokens = case.fresh  # what the executor's shapes tell the plugin in every step
    tensors = {"pool": pool, "qkv": qkv, "table": table, "starts": starts, "lengths": lengths, "out": out,
               "memory": memory}  # fmt: skip

    def run() -> None:
        assert tensors
        library.check(library.raw.trtforge_cuda_paged_attention(args, call), "PagedAttention")

    return run, tensors


def copy_memory() -> Callable[[], None]:
    """The yardstick of decode: a device-to-device copy."""
    source = torch.ones(COPY_BYTES // 4, device="cuda")
    target = torch.empty_like(source)

    def run() -> None:
        target.copy_(source)

    return run


def flash_attention(case: Case, device: str) -> Callable[[], None]:
    """The yardstick of prefill: torch's flash attention over contiguous keys and values."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def random(heads: int) -> torch.Tensor:
        return torch.randn(case.batch, heads, case.tokens, case.head_size, device=device, dtype=torch.bfloat16)

    query, key, value = random(case.heads), random(case.kv_heads), random(case.kv_heads)

    def run() -> None:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)

    return run


def flashinfer_step(case: Case, tensors: dict[str, Any]) -> Callable[[], None] | None:
    """The same step by FlashInfer over the same pool; None where it is not installed or does not take the case."""
    if case.pool != "bfloat16" or importlib.util.find_spec("flashinfer") is None:
        return None
    flashinfer = importlib.import_module("flashinfer")
    pages = tensors["table"].flatten()
    blocks_each = tensors["table"].shape[1]
    indptr = torch.arange(case.batch + 1, device="cuda", dtype=torch.int32) * blocks_each
    last = torch.full((case.batch,), (case.tokens - 1) % case.block_size + 1, device="cuda", dtype=torch.int32)
    space = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    query = tensors["qkv"][:, : case.heads * case.head_size].reshape(-1, case.heads, case.head_size)
    if case.fresh == 1:
        decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(space, "HND", use_tensor_cores=True)
        decode.plan(indptr, pages, last, case.heads, case.kv_heads, case.head_size, case.block_size,
                    q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)  # fmt: skip
        return lambda: decode.run(query, tensors["pool"])
    prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(space, "HND")
    prefill.plan(tensors["starts"], indptr, pages, last, case.heads, case.kv_heads, case.head_size, case.block_size,
                 causal=True, q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)  # fmt: skip
    return lambda: prefill.run(query, tensors["pool"])


def milliseconds(run: Callable[[], None]) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    run()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def measure(library: CudaLibrary, case: Case, rounds: int) -> Row:
    """Alternate ours, the yardstick and FlashInfer for ``rounds`` rounds."""
    # A capture happens on a stream of its own, so the call's stream is set inside it.
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run, tensors = prepared_step(library, case, "cuda")
        run()
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            run()
    is_decode = case.fresh == 1
    contestants: dict[str, Callable[[], None]] = {
        "ours": graph.replay,
        "yardstick": copy_memory() if is_decode else flash_attention(case, "cuda"),
    }
    other = flashinfer_step(case, tensors)
    if other is not None:
        contestants["flashinfer"] = other
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds + 3):
        for name, contestant in contestants.items():
            took = milliseconds(contestant)
            if turn >= 3:
                times[name].append(took)
    ours, yardstick = statistics.median(times["ours"]), statistics.median(times["yardstick"])
    first, _, third = statistics.quantiles(times["ours"], n=4)
    ratio = (case.cache_bytes / ours) / (2 * COPY_BYTES / yardstick) if is_decode else yardstick / ours
    bars = {"decode": DECODE_BAR, "prefill": PREFILL_BAR}
    beside = statistics.median(times["flashinfer"]) if other is not None else None
    return Row(case, ours, (third - first) / ours, yardstick, beside, ratio, bars.get(case.name))


def open_gpu_library() -> CudaLibrary:
    """The library on this machine's GPU.

    Raises:
        EnvironmentLacks: TF-OPS-007 … 009, TF-ENV-004 without a GPU.
    """
    if not torch.cuda.is_available():
        raise EnvironmentLacks(
            "TF-ENV-004", "no GPU is here", asked="benchmarks.cuda_attention", remedies=["run it on a machine with one"]
        )
    library = CudaLibrary(find_cuda_library())
    library.checked = False
    return library


def main(argv: list[str] | None = None) -> int:
    """Print the table; 1 when a bar is missed, 3 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(argv)
    try:
        library = open_gpu_library()
    except EnvironmentLacks as lacks:
        print(f"{lacks.code}: {lacks.message}; {'; '.join(lacks.remedies)}", file=sys.stderr)
        return int(ExitCode.ENVIRONMENT)
    print(f"{torch.cuda.get_device_name()}; torch {torch.__version__}; {library.info()}", flush=True)
    print(f"{'case':22} {'ms':>9} {'±':>5} {'yardstick ms':>13} {'FlashInfer':>11} {'ratio':>6} {'rate':>14}")
    rows = []
    for case in (*DECODE, *PREFILL):
        row = measure(library, case, options.rounds)
        rows.append(row)
        rate = (
            f"{case.cache_bytes / row.ours / 1e6:9.0f} GB/s" if case.fresh == 1
            else f"{case.operations / row.ours / 1e9:7.0f} TFLOP/s"
        )  # fmt: skip
        beside = "–" if row.flashinfer is None else f"{row.flashinfer:.3f}"
        verdict = "" if row.holds else f"  below {row.bar:.0%}"
        print(f"{case.name:22} {row.ours:9.3f} {row.spread:5.0%} {row.yardstick:13.3f} {beside:>11} {row.ratio:6.2f} "
              f"{rate}{verdict}", flush=True)  # fmt: skip
    if options.json:
        figures = {"gpu": torch.cuda.get_device_name(), "info": library.info(), "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0 if all(row.holds for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
