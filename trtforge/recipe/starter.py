"""Writes a first recipe for a model that was inspected: values that fit it, with a comment each.

Policy: what is written must pass preflight on this machine. Group sizes divide every linear, limits stay
within the context, the KV pool holds at least one full request and fits the memory.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from trtforge.formats.table import FormatRow, first_choice
from trtforge.ground.errors import ForgeError
from trtforge.ground.files import write_text_atomic
from trtforge.ground.paths import resolved_path, user_path
from trtforge.ground.units import format_size
from trtforge.machine.record import Machine
from trtforge.models.kv import blocks_of, kv_bytes_per_token
from trtforge.models.record import Model
from trtforge.models.shape import DTYPE_BYTES, outlier_keys, quantized_linears
from trtforge.recipe.sources import is_fetched
from trtforge.recipe.starter_target import StarterTarget
from trtforge.targets import DEFAULT

#: the perplexity gate of a first recipe
MAX_INCREASE = 0.05
_BLOCK = 32
_SERVED = 2048
_BATCH = 32


def recipe_name(source: str, quantization: str, target: str = DEFAULT.name) -> str:
    """A recipe's name from its source: ``smollm2-135m-instruct-fp8``, and the target where it is no default."""
    tail = source.rpartition("#")[2] if source.startswith("pypi:") else re.sub(r"@[^/]*$", "", source)
    stem = tail.rstrip("/").rpartition("/")[2].removeprefix("hf:")
    stem = re.sub(r"(\.[A-Za-z0-9_]+)?\.gguf$", "", stem)
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", stem.lower()).strip("-._") or "model"
    built = "" if target == DEFAULT.name else f"-{target}"
    return f"{stem[: 100 - len(built)]}-{'bf16' if quantization == 'none' else quantization.replace('_', '-')}{built}"


def source_in_recipe(source: str, folder: Path) -> str:
    """The source as the recipe in ``folder`` must write it: local paths below it relative, others absolute."""
    if is_fetched(source):
        return source
    given = user_path(source, code="TF-SRC-001", asked=source)
    target, base = resolved_path(given, code="TF-SRC-001", asked=source), folder.resolve()
    return os.fspath(target.relative_to(base)) if target.is_relative_to(base) else str(target)


def group_size_for(model: Model, row: FormatRow, exclude: tuple[str, ...]) -> int | None:
    """The largest group size of the format that divides every quantized linear; raises TF-K4-001 when none does."""
    if not row.group_sizes:
        return None
    widths = {linear.columns for linear in quantized_linears(model, exclude)}
    fitting = [size for size in row.group_sizes if all(width % size == 0 for width in widths)]
    if not fitting:
        raise ForgeError(
            "TF-K4-001",
            f"no group size of {row.name} divides every linear of this model",
            asked=f"--format {row.name}",
            numbers={"widths": sorted(widths), "group_sizes": list(row.group_sizes)},
            why="Every row of a weight is cut into whole groups; a partial group has no scale and fails at export.",
            remedies=[f"--format {first_choice()} (one scale a tensor, no groups)"],
        )
    preferred = row.default_group_size
    return preferred if preferred in fitting else max(fitting)


def fitting_sections(model: Model) -> dict[str, Any]:
    """The recipe keys whose defaults a model with a short context would not bear, as a mapping."""
    context = model.max_positions
    window = min(512, context)
    return {
        "quantize": {"calibration": {"sequence_length": window}},
        "evals": {"perplexity": {"window": window, "stride": max(1, window // 2)}},
        "build": {"limits": {"max_seq_len": min(_SERVED, context)}},
    }


def starter_text(
    name: str,
    source: str,
    model: Model,
    row: FormatRow,
    machine: Machine,
    target: StarterTarget,
    *,
    sha256: str | None = None,
    lost: tuple[float, str] | None = None,
) -> str:
    """The recipe as YAML text.

    Args:
        sha256: of the fetched file.
        lost: what the format cost the nearest model that was measured, a share of 1, and of what metric of which model.
    """
    exclude = ("lm_head",)
    quantizes = row.weight is not None
    group = group_size_for(model, row, exclude) if quantizes else None
    context = model.max_positions
    sequence = min(_SERVED, context)
    calibration = min(512, context)
    gpu = target.architecture
    dtype = "float16" if gpu is not None and gpu.dtypes.get("bfloat16") == "no" else "bfloat16"
    kv_cache, why_kv = _kv_cache(model, row, target)
    kind = "tied to lm_head" if model.tied else "separate from lm_head"
    lines = [
        f"# {model.architecture}: {model.parameters / 1e6:.1f} M parameters, {model.layers} layers, "
        f"width {model.hidden}, FFN {model.ffn},",
        f"# {model.heads} heads over {model.kv_heads} KV heads of {model.head_size}, "
        f"vocabulary {model.vocab} ({kind}), context {context}.",
        f"name: {name}",
        "",
        "model:",
        f"  source: {_quoted(source)}",
        *([f"  sha256: {sha256}  # of the fetched file; a changed file is refused"] if sha256 else []),
        f"  dtype: {dtype}  # of everything that is not quantized",
        "",
        "quantize:",
        f"  format: {row.name}  # `trtforge formats` lists the others",
    ]
    if group is not None:
        widths = sorted({linear.columns for linear in quantized_linears(model, exclude)})
        lines.append(f"  group_size: {group}  # divides the input widths {', '.join(map(str, widths))}")
    if quantizes:
        lines += [
            f"  kv_cache: {kv_cache}  # {why_kv}",
            "  exclude: [lm_head]"
            + ("  # it is the embedding" if model.tied else "  # the logits are sensitive to it"),
            f"  calibration: {{corpus: 'builtin:python-topics', samples: 16, sequence_length: {calibration}}}",
        ]
    lines += [
        "",
        "evals:",
        "  perplexity:",
        "    corpus: builtin:python-topics  # or file:PATH beside this recipe, or hf:DATASET",
        "    tokens: 8192",
        f"    window: {calibration}",
        f"    stride: {max(1, calibration // 2)}",
        *([f"    # {outlook(row.name, *lost)}"] if lost is not None else []),
        f"    gate: {{max_increase: {MAX_INCREASE:.0%}}}  # compared with the upper bound of the confidence interval",
        "    noise_tokens: 1024  # of these, what the baseline differs from itself by",
        "  generation: {prompts: 4, gate: {min_sane: 50%}}  # answers that are neither empty nor loops",
        "  suite: {samples: 16, gate: {max_drop: 20%}}  # of each task; right answers lost, with the interval",
        "  engine_parity: {prompts: 16, tokens: 1024, gate: {min_top1_agreement: 99%}}  # and the engine's perplexity",
        "",
        "build:",
        *_target_lines(target),
        "  limits:",
        f"    max_batch_size: {_BATCH}  # requests in one step",
        f"    max_num_tokens: {max(_BATCH, min(2048, sequence))}  # tokens in one step, prefill and decode together",
        f"    max_seq_len: {sequence}  # prompt and answer of one request; the model's context is {context}",
        *_pool_lines(model, target, machine, sequence, "float8_e4m3fn" if kv_cache != "none" else dtype),
        "",
        "bench:",
        "  concurrency: [1, 4, 16]",
        f"  prompts: {'builtin:mixed' if sequence >= 1024 else 'builtin:short'}",
        f"  max_tokens: {min(32, max(1, sequence // 4))}",
        "  slo: {ttft_p99: 2s, itl_p99: 200ms}",
    ]
    return "\n".join(lines) + "\n"


def outlook(name: str, share: float, metric: str) -> str:
    """Whether the perplexity gate that a first recipe has is in a format's reach, and by what measurement."""
    cost = f"{name} cost {share:.1%} ({metric}, the nearest model that was measured)"
    if share <= MAX_INCREASE:
        return f"{cost}: within the gate"
    default = first_choice()
    other = f"--format {default}" if name != default else "a larger model"
    return f"{cost}: this gate is likely to be missed ({other}, or a gate that allows it)"


def _kv_cache(model: Model, row: FormatRow, target: StarterTarget) -> tuple[str, str]:
    """``quantize.kv_cache`` and the reason that stands beside it."""
    kv_cache = target.kv_cache(row.name)
    if kv_cache == "none":
        return kv_cache, f"as {target.name} takes it here"
    outliers = outlier_keys(model)
    if outliers is not None:
        cost = "+2.9 % perplexity of Qwen2.5-Coder-0.5B"
        return "none", f"not {kv_cache}: {outliers}, which 8 bits round too coarsely ({cost})"
    return kv_cache, "calibrated scales; halves the cache"


def _target_lines(target: StarterTarget) -> list[str]:
    if target.architecture is None:
        return [f"  target: {target.name}  # runs on any machine; the Triton layout follows the target"]
    gpu = target.architecture
    return [
        f"  target: {target.name}  # the Triton layout follows the target",
        f"  architectures: [{gpu.name}]  # {gpu.title}",
    ]


def _pool_lines(model: Model, target: StarterTarget, machine: Machine, sequence: int, dtype: str) -> list[str]:
    """The KV pool: a share of the GPU's free memory, or a size of this machine's."""
    token = kv_bytes_per_token(model.kv, dtype)
    if not target.has_pool:
        return [f"  # no KV pool: the caller owns the caches, {token} bytes a token of each request"]
    if target.architecture is not None:
        share = "free_fraction: 90%}  # of the GPU's memory that weights and workspace leave"
        return [f"  kv_cache: {{block_size: {_BLOCK}, {share}; {token} bytes a token"]
    pool = pool_bytes(token, sequence, machine, model.parameters * DTYPE_BYTES["bfloat16"])
    size = f"memory: {pool // 2**20}MiB}}  # {token} bytes a token: {pool // token} tokens"
    return [f"  kv_cache: {{block_size: {_BLOCK}, {size}"]


def pool_bytes(token: int, sequence: int, machine: Machine, weights: int) -> int:
    """A KV pool in whole MiB: eight full requests, a quarter of the free memory at most, one request at least."""
    one = token * blocks_of(sequence, _BLOCK) * _BLOCK
    room = max(0, machine.memory_total - weights - 2 * 2**30) // 4
    wanted = max(one, min(8 * one, room))
    return -(-wanted // 2**20) * 2**20


def write_new(path: Path, text: str, *, overwrite: bool) -> None:
    """Write a recipe that does not exist yet; raises TF-RCP-015."""
    if path.exists() and not overwrite:
        raise ForgeError(
            "TF-RCP-015",
            f"{path} exists",
            asked=str(path),
            numbers={"size": format_size(path.stat().st_size)},
            why="It may hold changes that are worth keeping.",
            remedies=["--overwrite replaces it", "-o FILE writes another file"],
        )
    try:
        write_text_atomic(path, text)
    except OSError as error:
        raise ForgeError(
            "TF-RCP-015",
            f"cannot write {path}: {error.strerror or error}",
            asked=str(path),
            remedies=["-o FILE in a folder that can be written"],
        ) from error


def _quoted(text: str) -> str:
    """``text`` as a YAML scalar: plain where YAML reads it back as this text, else in quotes."""
    if re.fullmatch(r"[A-Za-z0-9_./~+=#@-][A-Za-z0-9_./~:+=#@-]*", text) and not text.endswith(":"):
        from trtforge.recipe.text import parse_scalar

        if parse_scalar(text, "source") == text:
            return text
    return "'" + text.replace("'", "''") + "'"
