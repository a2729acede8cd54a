"""What share of peak kernels reach, from NVIDIA's published kernel timings: the rows of the planner's efficiency table.

Reads the parquet files that the package ``aiconfigurator-core`` carries (TensorRT-LLM kernels timed on each GPU) and
prints, by architecture and class of kernel, the 10th, 50th and 90th percentile of the share of peak arithmetic, of the
share of peak bandwidth, and of the time that neither explains. ``builder/planner/speed/efficiency.yaml`` holds them.

    VENV/bin/python benchmarks/planner_efficiency.py VENV/lib/python3.11/site-packages/aiconfigurator_core/systems
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

#: architecture -> the system whose timings stand for it
SYSTEMS = {
    "sm_80": "a100_sxm",
    "sm_89": "l40s",
    "sm_90": "h200_sxm",
    "sm_100": "b200_sxm",
    "sm_120": "rtx_pro_6000_server",
}
#: kernel's name there -> class here, bytes a weight, bytes an input value, the peak's key
LINEARS = {
    "bfloat16": ("linear_fp16", 2.0, 2.0, "bfloat16_tc_flops"),
    "fp8": ("linear_fp8", 1.0, 1.0, "fp8_tc_flops"),
    "nvfp4": ("linear_fp4", 4.5 / 8, 4.5 / 8, "fp4_tc_flops"),
    "int4_wo": ("linear_weight_only", 4.125 / 8, 2.0, "bfloat16_tc_flops"),
}


def percentiles(values: Any, digits: int = 2) -> list[float]:
    """The 10th, 50th and 90th."""
    import numpy as np

    return [round(float(value), digits) for value in np.percentile(values, [10, 50, 90])]


def linears(table: Any, gpu: dict[str, Any]) -> dict[str, Any]:
    """Arithmetic from 4,096 rows on; bandwidth from 16 rows or less over 300 MB, launch from 2 to 60 MB of them."""
    import numpy as np

    result = {}
    for kernel, (name, weight, value, peak) in LINEARS.items():
        rows = table[table.gemm_dtype == kernel]
        if not len(rows) or not gpu.get(peak):
            continue
        seconds = rows.latency * 1e-3
        moved = rows.n * rows.k * weight + rows.m * (rows.k * value + rows.n * 2)
        flops = 2 * rows.m * rows.n * rows.k
        few, large = rows.m <= 16, (rows.m >= 4096) & (rows.n >= 4096) & (rows.k >= 4096)
        memory = percentiles((moved / gpu["mem_bw"] / seconds)[few & (moved > 3e8)])
        rest = (seconds - moved / (gpu["mem_bw"] * memory[1]))[few & (moved > 2e6) & (moved < 6e7)]
        result[name] = {
            "compute": percentiles((flops / gpu[peak] / seconds)[large]),
            "memory": memory,
            "launch_us": [max(0.5, value) for value in percentiles(rest * 1e6, 1)],
            "samples": int(np.count_nonzero(large) + np.count_nonzero(few & (moved > 3e8))),
        }
    return result


def attention(prefill: Any, decode: Any, gpu: dict[str, Any]) -> dict[str, Any]:
    """Heads of 128, groups of 1 to 16; prefill from 10^10 operations on, decode from 200 MB of cache on."""

    def usual(table: Any) -> Any:
        kv = table.num_key_value_heads.replace(0, 1)
        return table[
            (table.window_size == 0)
            & (table.head_dim == 128)
            & (table.num_heads <= 64)
            & (table.num_heads / kv <= 16)
            & (table.attn_dtype == "bfloat16")
        ]

    prefill, decode = usual(prefill), usual(decode)
    seconds, flops = prefill.latency * 1e-3, 2 * prefill.batch_size * prefill.num_heads * 128 * prefill.isl**2
    size = decode.kv_cache_dtype.map({"fp8": 1, "bfloat16": 2})
    read = 2 * decode.batch_size * (decode.isl + decode.step) * decode.num_key_value_heads * 128 * size
    step = decode.latency * 1e-3
    return {
        "attention_prefill": {
            "compute": percentiles((flops / gpu["bfloat16_tc_flops"] / seconds)[flops > 1e11]),
            "launch_us": percentiles(seconds[flops < 1e9] * 1e6, 1),
        },
        "attention_decode": {
            "memory": percentiles((read / gpu["mem_bw"] / step)[read > 2e8].clip(upper=1.0)),
            "launch_us": percentiles(step[read < 1e6] * 1e6, 1),
        },
    }


def experts(table: Any, gpu: dict[str, Any]) -> dict[str, Any]:
    """Grouped GEMMs with their routing, every width, format and distribution of the tokens over the experts."""
    import pandas

    sizes = {"bfloat16": 2.0, "fp8": 1.0, "fp8_block": 1.0, "nvfp4": 4.5 / 8}
    peaks = {
        "bfloat16": "bfloat16_tc_flops",
        "fp8": "fp8_tc_flops",
        "fp8_block": "fp8_tc_flops",
        "nvfp4": "fp4_tc_flops",
    }
    parts = []
    for kernel, size in sizes.items():
        rows = table[table.moe_dtype == kernel]
        if not len(rows) or not gpu.get(peaks[kernel]):
            continue
        width = 3 * rows.hidden_size * rows.inter_size / rows.moe_tp_size
        hit = rows.num_experts * (1 - (1 - rows.topk / rows.num_experts) ** rows.num_tokens) / rows.moe_ep_size
        seconds = rows.latency * 1e-3
        each = rows.num_tokens * rows.topk / rows.num_experts
        part = pandas.DataFrame(
            {"tokens": rows.num_tokens, "each": each, "seconds": seconds, "read": hit * width * size}
        )
        part["flops"] = 2 * rows.num_tokens * rows.topk / rows.moe_ep_size * width
        part["compute"] = part.flops / gpu[peaks[kernel]] / seconds
        parts.append(part)
    rows = pandas.concat(parts)
    few = rows[(rows.each <= 8) & (rows.read > 2e8)]
    small = rows[(rows.tokens <= 4) & (rows.read < 5e6)]
    return {
        "compute": percentiles(rows[(rows.each >= 128) & (rows.flops > 2e11)]["compute"]),
        "memory": percentiles((few.read / gpu["mem_bw"] / few.seconds).clip(upper=1.0)),
        "launch_us": percentiles(small.seconds * 1e6 / 2, 1),
    }


def all_reduce(table: Any, one_way: float) -> dict[str, Any]:
    """The share of a link's one-way bandwidth that 2(N−1)/N · M over the time is, for messages from 1 MB on.

    The table counts elements of two bytes (an L40S would otherwise beat its PCIe slot).
    """
    size = 2 * table.message_size
    large, ranks = size >= 2**20, table.num_gpus
    share = 2 * (ranks - 1) / ranks * size / (table.latency * 1e-3) / one_way
    small = table[size <= 2**14].latency * 1e3
    return {"bandwidth": percentiles(share[large]), "small_message_us": percentiles(small, 1)}


def main() -> None:
    """Print the table."""
    import pandas
    import yaml

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("systems", type=Path, help="the folder aiconfigurator_core/systems")
    systems = parser.parse_args().systems
    for arch, system in SYSTEMS.items():
        spec = yaml.safe_load((systems / f"{system}.yaml").read_text(encoding="utf-8"))
        data = systems / "data" / system

        def newest(pattern: str, data: Path = data) -> Any:
            found = sorted(data.glob(pattern))
            return pandas.read_parquet(found[-1]) if found else None

        rows = linears(newest("gemm/trtllm/*/gemm_perf.parquet"), spec["gpu"])
        prefill = newest("attention/trtllm/*/context_attention_perf.parquet")
        rows |= attention(prefill, newest("attention/trtllm/*/generation_attention_perf.parquet"), spec["gpu"])
        tables = [pandas.read_parquet(path) for path in sorted(data.glob("moe/trtllm/*/moe_perf.parquet"))]
        if tables:
            rows["experts"] = experts(pandas.concat(tables), spec["gpu"])
        reduce = newest("comm/trtllm/*/custom_allreduce_perf.parquet")
        if reduce is not None:
            pcie = spec["gpu"]["sm_version"] in (89, 120)
            # the spec counts PCIe 4 as 64 GB/s in places: the data sheets' one-way figures are used
            one_way = {"sm_89": 32e9, "sm_120": 64e9}[arch] if pcie else float(spec["node"]["intra_node_bw"])
            rows["all_reduce"] = all_reduce(reduce, one_way)
        print(f"{arch}:  # {system}")
        for name, row in rows.items():
            print(f"  {name}: {row}")


if __name__ == "__main__":
    main()
