"""A stand-in for TensorRT-LLM's command and package: parses trtllm-build's words and writes what the real one writes.

It proves that our words are well formed and where they end up, never that an engine runs.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

COMMAND = """\
#!{python}
import argparse, json, os, sys
from pathlib import Path

parser = argparse.ArgumentParser()
for flag in {values}:
    parser.add_argument("--" + flag)
for flag in {enables}:
    parser.add_argument("--" + flag, choices=["enable", "disable"])
for flag in {switches}:
    parser.add_argument("--" + flag, action="store_true")
parser.add_argument("--lora_target_modules", nargs="+")
args = parser.parse_args()
print("args " + json.dumps(sys.argv[1:]))
out = Path(args.output_dir)
out.mkdir(parents=True, exist_ok=True)
if os.environ.get("FAKE_FAIL"):
    (out / "rank0.engine").write_bytes(b"half")
    print("[TRT] Error: CUDA out of memory, 12 GiB asked")
    sys.exit(7)
checkpoint = json.loads((Path(args.checkpoint_dir) / "config.json").read_text())
number = lambda text: None if text is None else int(text)
modes = {{None: 1, "draft_tokens_external": 2, "medusa": 4, "lookahead_decoding": 8, "eagle": 32}}
build = {{
    "max_batch_size": number(os.environ.get("FAKE_BATCH") or args.max_batch_size),
    "max_num_tokens": number(args.max_num_tokens),
    "max_seq_len": number(args.max_seq_len),
    "max_input_len": number(args.max_input_len),
    "max_beam_width": number(args.max_beam_width),
    "kv_cache_type": args.kv_cache_type.upper(),
    "gather_context_logits": args.gather_context_logits,
    "gather_generation_logits": args.gather_generation_logits,
    "max_draft_len": number(args.max_draft_len) or 0,
    "speculative_decoding_mode": modes[args.speculative_decoding_mode],
    "lora_config": {{
        "lora_target_modules": args.lora_target_modules or [],
        "max_lora_rank": number(args.max_lora_rank),
    }},
    "plugin_config": {{
        "tokens_per_block": number(args.tokens_per_block),
        "use_paged_context_fmha": args.use_paged_context_fmha == "enable",
        "use_fp8_context_fmha": args.use_fp8_context_fmha == "enable",
        "lora_plugin": args.lora_plugin,
    }},
}}
# tensorrt_llm/builder.py: "Logics to control paged_context_fmha and fp8_context_fmha", and check_max_num_tokens
plugins, quantization = build["plugin_config"], checkpoint["quantization"]
fp8_pool = quantization["kv_cache_quant_algo"] == "FP8"
if quantization["quant_algo"] not in ("FP8", "W4A8_AWQ", "NVFP4") or int(os.environ.get("FAKE_SM", "90")) < 89:
    plugins["use_fp8_context_fmha"] = False
    if fp8_pool:
        plugins["use_paged_context_fmha"] = False
elif plugins["use_paged_context_fmha"]:
    plugins["use_fp8_context_fmha"] = fp8_pool
build["max_num_tokens"] = min(build["max_num_tokens"], build["max_batch_size"] * build["max_seq_len"])
build["max_num_tokens"] = max(build["max_num_tokens"], plugins["tokens_per_block"])
if args.speculative_decoding_mode is not None:  # tensorrt_llm/builder.py makes room for drafts
    build["max_draft_len"] = build["max_draft_len"] or checkpoint.get("max_draft_len", 0)
    build["max_seq_len"] += build["max_draft_len"]
    if args.speculative_decoding_mode == "eagle":
        build["max_seq_len"] += checkpoint["num_eagle_layers"]
        build["plugin_config"]["use_paged_context_fmha"] = True
    build["max_num_tokens"] = max(build["max_num_tokens"], build["max_batch_size"] * (build["max_draft_len"] + 1))
for rank in range(checkpoint["mapping"]["world_size"]):
    (out / f"rank{{rank}}.engine").write_bytes(b"plan of rank %d" % rank)
    print(f"[TRT-LLM] [I] Serializing engine to {{out}}/rank{{rank}}.engine...")
Path(args.output_timing_cache).write_bytes(b"timings")
config = {{"version": "{version}", "pretrained_config": checkpoint, "build_config": build}}
(out / "config.json").write_text(json.dumps(config))
"""
VALUES = [
    *("checkpoint_dir", "output_dir", "max_batch_size", "max_num_tokens", "max_seq_len", "max_input_len"),
    *("max_beam_width", "kv_cache_type", "tokens_per_block", "speculative_decoding_mode", "max_draft_len"),
    *("lora_plugin", "max_lora_rank", "workers", "input_timing_cache", "output_timing_cache"),
]


def program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def install(folder: Path, version: str = "1.2.1") -> dict[str, str]:
    """Put package, command and python3 below ``folder``; returns the environment that has them."""
    programs, packages = folder / "bin", folder / "packages"
    programs.mkdir(parents=True)
    (packages / "tensorrt_llm").mkdir(parents=True)
    (packages / "tensorrt_llm" / "__init__.py").write_text(
        f"print('[TensorRT-LLM] TensorRT-LLM version: {version}')\n__version__ = '{version}'\n"
    )
    text = COMMAND.format(
        python=sys.executable,
        version=version,
        values=VALUES,
        enables=["use_paged_context_fmha", "use_fp8_context_fmha"],
        switches=["gather_context_logits", "gather_generation_logits"],
    )
    program(programs / "trtllm-build", text)
    program(programs / "python3", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "PYTHONPATH": str(packages)}


def write_engine(directory: Path, change: dict[str, Any] | None = None, ranks: int = 1) -> Path:
    """An engine directory as trtllm-build writes it; ``change`` sets values by dotted path."""
    directory.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {
        "version": "1.2.1",
        "pretrained_config": {
            "architecture": "LlamaForCausalLM",
            "dtype": "bfloat16",
            "vocab_size": 512,
            "num_hidden_layers": 2,
            "mapping": {"world_size": ranks, "tp_size": ranks, "pp_size": 1},
            "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "group_size": 128},
        },
        "build_config": {
            "max_batch_size": 32,
            "max_num_tokens": 2048,
            "max_seq_len": 2048,
            "max_input_len": 2047,
            "max_beam_width": 1,
            "kv_cache_type": "PAGED",
            "gather_context_logits": 0,
            "gather_generation_logits": False,
            "max_draft_len": 0,
            "speculative_decoding_mode": 1,
            "plugin_config": {"tokens_per_block": 32, "use_paged_context_fmha": True, "use_fp8_context_fmha": True},
        },
    }
    for path, value in (change or {}).items():
        *parents, last = path.split(".")
        section = config
        for name in parents:
            section = section[name]
        if value is None:
            del section[last]
        else:
            section[last] = value
    if "pretrained_config" in (change or {}):  # of another model: FP8 context attention as the builder has it there
        quantization = config["pretrained_config"].get("quantization") or {}
        fp8 = quantization.get("quant_algo") == quantization.get("kv_cache_quant_algo") == "FP8"
        config["build_config"]["plugin_config"]["use_fp8_context_fmha"] = fp8
    (directory / "config.json").write_text(json.dumps(config))
    for rank in range(ranks):
        (directory / f"rank{rank}.engine").write_bytes(b"plan")
    return directory
