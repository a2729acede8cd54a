"""Self test of the host library on this machine: a minute's worth of the conformance suite, without pytest.

Every instruction set that the CPU can run is compared with the PyTorch reference over every pool and activation
dtype, and checked for the reproducibility that docs/ops.md promises. ``trtforge plugins test`` prints the result.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from plugins import reference
from plugins.host import int4, load
from plugins.host.library import HostLibrary
from trtforge.ground.progress import Progress, SilentProgress

#: Largest absolute difference of an attention output (magnitudes up to about 4) from the float32 reference.
TOLERANCE = {"float32": 2e-5, "bfloat16": 2e-2, "float16": 3e-3}
POOLS = ("float32", "bfloat16", "float16", "float8_e4m3fn")
#: head size and block size of the short steps, dealt out over types and pools: every pair on every instruction set
SHAPES = ((64, 16), (64, 32), (128, 16), (128, 32))


@dataclass(frozen=True)
class Check:
    """One line of the report."""

    name: str
    passed: bool
    detail: str


def run_selftest(*, progress: Progress | None = None) -> list[Check]:
    """Compare the installed library with the reference; never raises for a difference.

    Raises:
        EnvironmentLacks: TF-OPS-001 … 004 when the library cannot be opened at all.
    """
    progress = progress or SilentProgress()
    library = load()
    names = [str(name) for name in library.info()["isas_available"]]
    chosen = library.isa
    progress.start("comparing kernels with the reference", total=float(len(names) * (len(POOLS) + 3)))
    checks: list[Check] = []
    try:
        for name in names:
            library.select_isa(name)
            for what, check in (
                *((f"attention, {pool} pool", functools.partial(_attention, library, pool)) for pool in POOLS),
                ("same bits alone or batched", functools.partial(_same_bits, library)),
                ("fused helpers", functools.partial(_helpers, library)),
                ("INT4 linears", functools.partial(_int4_linear, library)),
            ):
                checks.append(_guarded(f"{name}: {what}", check))
                progress.advance()
    finally:
        library.select_isa(chosen)
    return checks


def _guarded(name: str, check: Callable[[], tuple[bool, str]]) -> Check:
    try:
        passed, detail = check()
    except Exception as error:  # a crash of one check is that check's result
        return Check(name, False, f"{type(error).__name__}: {error}")
    return Check(name, passed, detail)


def _step(
    pool: str, requests: list[tuple[int, int]], activation: str = "float32", size: int = 64, slots: int = 16
) -> dict[str, Any]:
    """Tensors of a ragged step: (context before, new tokens) pairs over shuffled blocks of ``slots`` tokens."""
    generator = torch.Generator().manual_seed(7)
    heads, kv = 6, 2
    columns = max(-(-(before + fresh) // slots) for before, fresh in requests)
    count = columns * len(requests)
    values = torch.randn(count, 2, kv, slots, size, generator=generator)
    dtype = getattr(torch, pool)
    scaled = pool == "float8_e4m3fn"
    tokens = sum(fresh for _, fresh in requests)
    qkv = torch.randn(tokens, (heads + 2 * kv) * size, generator=generator).to(getattr(torch, activation))
    return {
        "qkv": (qkv[:, : heads * size], qkv[:, heads * size : (heads + kv) * size], qkv[:, (heads + kv) * size :]),
        "pool": reference.to_e4m3(values * 60) if scaled else values.to(dtype),
        "starts": torch.tensor([0, *(fresh for _, fresh in requests)]).cumsum(0).int(),
        "lengths": torch.tensor([before + fresh for before, fresh in requests], dtype=torch.int32),
        "table": torch.randperm(count, generator=generator).int().view(len(requests), columns),
        "options": {"num_heads": heads, "num_kv_heads": kv, "head_size": size,
                    **({"k_scale": 0.017, "v_scale": 0.016} if scaled else {})},
    }  # fmt: skip


def _run(op: Callable[..., torch.Tensor], step: dict[str, Any], pool: torch.Tensor, **options: Any) -> torch.Tensor:
    return op(*step["qkv"], pool, step["starts"], step["lengths"], step["table"], **step["options"], **options)


def _attention(library: HostLibrary, pool: str) -> tuple[bool, str]:
    worst: dict[str, float] = {}
    stored = True
    for index, activation in enumerate(TOLERANCE, start=POOLS.index(pool)):
        shape = SHAPES[index % len(SHAPES)]
        long = _step(pool, [(530, 1), (0, 21), (40, 3)], activation)
        short = _step(pool, [(50, 1), (0, 37), (31, 9), (0, 3)], activation, *shape)
        for step, options in ((long, {}), (long, {"sliding_window": 33, "soft_cap": 20.0}), (short, {})):
            ours, theirs = step["pool"].clone(), step["pool"].clone()
            actual = _run(library.paged_attention, step, ours, **options).float()
            expected = _run(reference.paged_attention, step, theirs, **options).float()
            worst[activation] = max(worst.get(activation, 0.0), float((actual - expected).abs().max()))
            stored = stored and torch.equal(ours.view(torch.uint8), theirs.view(torch.uint8))
    passed = stored and all(difference <= TOLERANCE[name] for name, difference in worst.items())
    text = ", ".join(f"{name} {difference:.1e}" for name, difference in worst.items())
    return passed, f"largest difference {text}; stored bits {'equal' if stored else 'DIFFER'}"


def _same_bits(library: HostLibrary) -> tuple[bool, str]:
    requests = [(1030, 1), (0, 40), (511, 2)]
    step = _step("bfloat16", requests)
    together = _run(library.paged_attention, step, step["pool"].clone())
    alone = True
    for index in range(len(requests)):
        begin, end = int(step["starts"][index]), int(step["starts"][index + 1])
        pool = step["pool"].clone()
        for token in range(begin, end):  # one token a step: decode instead of prefill
            single = dict(step)
            single["qkv"] = tuple(part[token : token + 1] for part in step["qkv"])
            single["starts"] = torch.tensor([0, 1], dtype=torch.int32)
            single["lengths"] = step["lengths"][index : index + 1] - (end - 1 - token)
            single["table"] = step["table"][index : index + 1]
            row = _run(library.paged_attention, single, pool)
            alone = alone and torch.equal(row[0], together[token])
    return alone, "equal" if alone else "a request's output depends on its batch"


def _helpers(library: HostLibrary) -> tuple[bool, str]:
    close = functools.partial(torch.allclose, rtol=1e-5, atol=1e-6)
    x = torch.randn(5, 96, generator=torch.Generator().manual_seed(1))
    weight = torch.linspace(0.5, 1.5, 96)
    angles = torch.randn(5, 32, generator=torch.Generator().manual_seed(2))
    query, key = torch.randn(5, 128), torch.randn(5, 64)
    rotated = reference.rope(query, angles.cos(), angles.sin(), heads=2, head_size=64)
    library.rope(query, key, angles.cos(), angles.sin(), num_heads=2, num_kv_heads=1, head_size=64)
    wide = torch.randn(5, 192)
    equal = {
        "rms_norm": close(library.rms_norm(x, weight, eps=1e-5), reference.rms_norm(x, weight, eps=1e-5)),
        "rope": close(query, rotated),
        "silu_mul": close(library.silu_mul(wide), reference.silu_mul(wide)),
        "fp8_fake_quant": torch.equal(library.fp8_fake_quant(x.clone(), 0.01), reference.fp8_fake_quant(x, 0.01)),
        "nvfp4_fake_quant": torch.equal(
            library.nvfp4_fake_quant(x.clone(), 0.002), reference.nvfp4_fake_quant(x, 0.002)
        ),
        "argmax": torch.equal(library.argmax_logsumexp(x)[0], x.argmax(-1)),
    }
    wrong = [name for name, same in equal.items() if not same]
    return not wrong, "agree" if not wrong else f"differ: {', '.join(wrong)}"


def _int4_linear(library: HostLibrary) -> tuple[bool, str]:
    """Against float64, and each row of a batch against the row alone."""
    outputs, inputs, group = 200, 256, 64
    generator = torch.Generator().manual_seed(3)
    integers = torch.randint(-8, 8, (outputs, inputs), generator=generator, dtype=torch.int8)
    scales = torch.rand(outputs, inputs // group, generator=generator) * 0.01 + 1e-3
    nibbles = (integers & 15).to(torch.uint8)
    packed = int4.pack_weights(nibbles[:, 0::2] | (nibbles[:, 1::2] << 4)), int4.pack_scales(scales)
    meaning = (integers.double().view(outputs, -1, group) * scales.double()[..., None]).view(outputs, inputs)
    worst, alone = 0.0, True
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        x = torch.randn(100, inputs, generator=generator).to(dtype)
        run = functools.partial(library.int4_linear, outputs=outputs, group=group, out_dtype=torch.float32)
        together = run(x, *packed)
        size = x.double().abs() @ meaning.abs().T
        worst = max(worst, float(((together - x.double() @ meaning.T).abs() / size).max()))
        alone = alone and all(torch.equal(run(x[row : row + 1], *packed)[0], together[row]) for row in (0, 7, 97))
        alone = alone and all(torch.equal(run(x[:rows], *packed), together[:rows]) for rows in (2, 3, 5, 6, 9))
    text = "equal alone and batched" if alone else "a row depends on its batch"
    return alone and worst < 1e-6, f"largest relative difference {worst:.1e}; {text}"
