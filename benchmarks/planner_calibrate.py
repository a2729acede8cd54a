"""A calibration of the planner on the GPU at hand: kernels timed with torch over what the planner says of them.

    python benchmarks/planner_calibrate.py config.json OUT.json --gpu h200

Times the linears of a model (bfloat16 and, where the GPU has it, FP8), attention of decoding and of prompts, and the
norms, at several sizes each; every sample is measured over the planner's typical time. Written for CUDA and not run
on a GPU yet; ``--device cpu`` runs the same code for a test of the wiring, with figures that mean nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from builder.planner.calibration import calibrate
from builder.planner.hardware import Gpu, gpu
from builder.planner.model import from_config, read_config
from builder.planner.speed.ops import Attention, Linear, Pointwise
from builder.planner.speed.roofline import Engine
from builder.planner.speed.step import Step, decode_step, prefill_step
from builder.planner.types import ParallelPlan, Precision
from trtforge.models.record import Model

ROWS = (1, 8, 64, 512, 4096)
DECODING = ((8, 1024), (64, 1024), (64, 4096))
PROMPTS = (1024, 4096)
REPEATS = 20
Sample = tuple[str, float, float]


def seconds(run: Callable[[], Any], device: str) -> float:
    """Median seconds of one run, after three that warm up; CUDA events on a GPU."""
    import torch

    for _ in range(3):
        run()
    if device == "cpu":
        times = []
        for _ in range(3):
            start = time.perf_counter()
            run()
            times.append(time.perf_counter() - start)
        return statistics.median(times)
    spans = []
    for _ in range(REPEATS):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        run()
        last.record()
        torch.cuda.synchronize()
        spans.append(first.elapsed_time(last) / 1e3)
    return statistics.median(spans)


def planned(engine: Engine, name: str, op_class: str, step: Step) -> float:
    """The planner's typical seconds of one run of an op."""
    count = next(op.count for op in engine.ops if op.name == name)
    return next(
        float(op.total[1]) / count for op in engine.time(step).ops if (op.name, op.op_class) == (name, op_class)
    )


def linears(engine: Engine, device: str, rows: tuple[int, ...]) -> Iterator[Sample]:
    """Every linear of the rank at every number of rows, in its own format."""
    import torch

    for op in engine.ops:
        if not isinstance(op, Linear) or op.experts or op.rows == "logits":
            continue
        eight = op.weights == "fp8"
        for count in rows:
            x = torch.randn(count, op.k, device=device, dtype=torch.bfloat16)
            w = torch.randn(op.n, op.k, device=device, dtype=torch.bfloat16)
            if not eight:
                taken = seconds(lambda x=x, w=w: torch.nn.functional.linear(x, w), device)  # type: ignore[misc]
            else:
                one = torch.ones((), device=device)
                x8, w8 = x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn).t()
                taken = seconds(
                    lambda x8=x8, w8=w8, one=one: torch._scaled_mm(x8, w8, one, one, out_dtype=torch.bfloat16),  # type: ignore[misc]
                    device,
                )
            name = "linear_fp8" if eight else "linear_fp16"
            yield name, planned(engine, op.name, name, decode_step(count, 1)), taken


def attention(
    engine: Engine, device: str, decoding: tuple[tuple[int, int], ...], prompts: tuple[int, ...]
) -> Iterator[Sample]:
    """One query a request over its cache, and whole prompts."""
    import torch

    op = next(op for op in engine.ops if isinstance(op, Attention))
    attend = torch.nn.functional.scaled_dot_product_attention

    def tensors(batch: int, queries: int, keys: int) -> tuple[Any, Any, Any]:
        def made(heads: int, length: int) -> Any:
            return torch.randn(batch, heads, length, op.head_size, device=device, dtype=torch.bfloat16)

        return made(op.heads, queries), made(op.kv_heads, keys), made(op.kv_heads, keys)

    for batch, context in decoding:
        q, k, v = tensors(batch, 1, context)
        taken = seconds(lambda q=q, k=k, v=v: attend(q, k, v, enable_gqa=True), device)  # type: ignore[misc]
        yield "attention_decode", planned(engine, op.name, "attention_decode", decode_step(batch, context)), taken
    for length in prompts:
        q, k, v = tensors(1, length, length)
        taken = seconds(lambda q=q, k=k, v=v: attend(q, k, v, is_causal=True, enable_gqa=True), device)  # type: ignore[misc]
        yield "attention_prefill", planned(engine, op.name, "attention_prefill", prefill_step(1, length)), taken


def norms(engine: Engine, device: str, rows: tuple[int, ...]) -> Iterator[Sample]:
    """The residual sum and the norm behind it, as two kernels: the planner counts one that does both."""
    import torch

    op = next(op for op in engine.ops if isinstance(op, Pointwise) and op.kind == "RMSNormalization")
    width = engine.model.hidden
    for count in rows:
        x, y = (torch.randn(count, width, device=device, dtype=torch.bfloat16) for _ in range(2))
        weight = torch.ones(width, device=device, dtype=torch.bfloat16)
        taken = seconds(
            lambda x=x, y=y, weight=weight: torch.nn.functional.rms_norm(x + y, (width,), weight),  # type: ignore[misc]
            device,
        )
        yield "pointwise", planned(engine, op.name, "pointwise", decode_step(count, 1)), taken


def samples(model: Model, card: Gpu, device: str, *, small: bool) -> Iterator[Sample]:
    """All samples; ``small`` for the test of the wiring."""
    rows = ROWS[:2] if small else ROWS
    decoding, prompts = (((2, 64),), (64,)) if small else (DECODING, PROMPTS)
    engine = Engine(model, Precision(), card, ParallelPlan())
    yield from linears(engine, device, rows)
    yield from attention(engine, device, decoding, prompts)
    yield from norms(engine, device, rows)
    if card.executes("fp8") and device != "cpu":
        yield from linears(Engine(model, Precision("fp8"), card, ParallelPlan()), device, rows)


def main() -> int:
    """Measure and write."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path, help="config.json of the model whose shapes are timed")
    parser.add_argument("out", type=Path, help="the calibration to write")
    parser.add_argument("--gpu", required=True, help="the GPU's name in the hardware table")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    given = parser.parse_args()
    card, model = gpu(given.gpu), from_config(read_config(given.config))
    device = torch.cuda.get_device_name() if given.device == "cuda" else "a CPU, which means nothing"
    found = calibrate(
        card.name,
        f"torch {torch.__version__} kernels on {device}",
        samples(model, card, given.device, small=given.device == "cpu"),
    )
    given.out.write_text(json.dumps(found.to_json(), indent=1) + "\n", encoding="utf-8")
    for name, row in sorted(found.ratios.items()):
        print(f"{name}: {row.ratio:.2f} ({row.low:.2f} to {row.high:.2f}) of {row.samples}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
