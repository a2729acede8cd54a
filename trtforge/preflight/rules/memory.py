"""K10, K11: what fits into the engine's memory, and into the host's while it is made."""

from __future__ import annotations

from collections.abc import Iterator

from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.model import DTYPE_BYTES, kv_bytes_per_token, linear_parameters
from trtforge.recipe.units import format_size

#: interpreter, torch and the runtime's own buffers
PROCESS_BYTES = 700 * 2**20
#: torch, transformers and ModelOpt loaded, before any weight
QUANTIZER_BYTES = 1536 * 2**20
#: the reference evaluation computes in float32
REFERENCE_BYTES_PER_PARAMETER = 4


def kv_dtype(facts: Facts) -> str:
    """The pool's element type."""
    mode = facts.kv_modes.get(facts.recipe.quantize.kv_cache)
    if mode is not None and mode.dtype in DTYPE_BYTES:
        return str(mode.dtype)
    return "float8_e4m3fn" if facts.recipe.quantize.kv_cache.startswith("fp8") else facts.recipe.model.dtype


def weight_bytes(facts: Facts, *, stored: bool) -> int:
    """Bytes of the weights: as the checkpoint stores them, or as the torch target keeps them in memory.

    In memory only the 4-bit integer weights stay packed; the others are widened once at load.
    """
    model, recipe = facts.require_model(), facts.recipe
    wide = DTYPE_BYTES[recipe.model.dtype]
    row = facts.format
    if row is None or row.weight is None:
        return model.parameters * wide
    linear = min(linear_parameters(model, recipe.quantize.exclude), model.parameters)
    group = recipe.quantize.group_size or row.default_group_size
    bits = row.weight.bits + (16 / group if group else 0)
    if not stored and not (row.weight.bits == 4 and row.name.startswith("int4")):
        bits = 8 * wide
    return int((model.parameters - linear) * wide + linear * bits / 8)


@rule(
    "TF-K10-001",
    "the KV pool cannot hold one request of max_seq_len",
    why="A request that grows past the pool can never finish, however often it is preempted.",
    source="https://nvidia.github.io/TensorRT-LLM/features/kvcache.html",
    needs=("model",),
)
def pool_holds_one(facts: Facts) -> Iterator[Violation]:
    memory, limits = facts.recipe.build.kv_cache.memory, facts.recipe.build.limits
    if memory is None:
        return
    size = facts.recipe.build.kv_cache.block_size
    token = kv_bytes_per_token(facts.require_model(), kv_dtype(facts))
    blocks, needed = memory // (token * size), -(-limits.max_seq_len // size)
    if blocks < needed:
        least = needed * size * token
        yield Violation(
            f"a KV pool of {format_size(memory)} holds {blocks * size} tokens, "
            f"one request may need {limits.max_seq_len}",
            f"build.kv_cache.memory: {format_size(memory)}, build.limits.max_seq_len: {limits.max_seq_len}",
            {
                "bytes_per_token": token,
                "pool_tokens": blocks * size,
                "max_seq_len": limits.max_seq_len,
                "least_bytes": least,
                "kv_dtype": kv_dtype(facts),
            },
            [
                f"build.kv_cache.memory: {-(-least // 2**20)}MiB or more",
                *([f"build.limits.max_seq_len: {blocks * size}"] if blocks else []),
                *(["quantize.kv_cache: fp8 (halves the bytes)"] if facts.recipe.quantize.kv_cache == "none" else []),
            ],
        )


@rule(
    "TF-K10-002",
    "weights and KV pool do not fit into the machine's memory",
    why="The engine would be killed while it loads.",
    source="https://github.com/triton-inference-server/tensorrtllm_backend/issues/303",
    needs=("model", "machine"),
)
def engine_fits(facts: Facts) -> Iterator[Violation]:
    if facts.recipe.build.target != "torch":
        return
    total = facts.require_machine().memory_total
    weights, pool = weight_bytes(facts, stored=False), facts.recipe.build.kv_cache.memory or 0
    needed = weights + pool + PROCESS_BYTES
    if needed > total:
        room = total - weights - PROCESS_BYTES
        yield Violation(
            f"the engine needs {format_size(needed)}, this machine has {format_size(total)}",
            f"build.kv_cache.memory: {format_size(pool)}, model of {facts.require_model().parameters:,} parameters",
            {"weights": weights, "kv_pool": pool, "process": PROCESS_BYTES, "memory_total": total},
            [
                *([f"build.kv_cache.memory: {room // 2**20}MiB or less"] if pool and room > 64 * 2**20 else []),
                "quantize.format: int4_awq (4-bit weights stay packed)",
                f"a machine with {format_size(needed)} or more",
            ],
        )


@rule(
    "TF-K10-003",
    "little of the memory is free for the engine right now",
    why="It would fit the machine, but not beside what is running.",
    severity="warning",
    needs=("model", "machine"),
)
def engine_fits_now(facts: Facts) -> Iterator[Violation]:
    machine = facts.require_machine()
    if facts.recipe.build.target != "torch":
        return
    needed = weight_bytes(facts, stored=False) + (facts.recipe.build.kv_cache.memory or 0) + PROCESS_BYTES
    if machine.memory_available < needed <= machine.memory_total:
        yield Violation(
            f"the engine needs {format_size(needed)}, {format_size(machine.memory_available)} are free",
            f"build.kv_cache.memory: {facts.recipe.build.kv_cache.memory}",
            {"needed": needed, "available": machine.memory_available},
            ["stop other programs", "a smaller build.kv_cache.memory"],
        )


@rule(
    "TF-K10-004",
    "the KV pool is small for the batch",
    why="Requests beyond the pool are preempted and computed again.",
    severity="warning",
    needs=("model",),
)
def pool_serves_batch(facts: Facts) -> Iterator[Violation]:
    build = facts.recipe.build
    if build.kv_cache.memory is None:
        return
    token = kv_bytes_per_token(facts.require_model(), kv_dtype(facts))
    tokens = build.kv_cache.memory // (token * build.kv_cache.block_size) * build.kv_cache.block_size
    share = tokens / build.limits.max_batch_size
    if tokens >= build.limits.max_seq_len and share < 2 * build.kv_cache.block_size:
        wanted = 4 * build.kv_cache.block_size * build.limits.max_batch_size * token
        yield Violation(
            f"a full batch of {build.limits.max_batch_size} has {share:.0f} KV tokens a request",
            f"build.kv_cache.memory: {format_size(build.kv_cache.memory)}",
            {
                "pool_tokens": tokens,
                "max_batch_size": build.limits.max_batch_size,
                "tokens_per_request": round(share, 1),
            },
            [f"build.kv_cache.memory: {-(-wanted // 2**20)}MiB", "a smaller build.limits.max_batch_size"],
        )


@rule(
    "TF-K11-001",
    "not enough memory to quantize and evaluate",
    why="The model is loaded whole, and the reference evaluation computes in float32.",
    source="https://github.com/NVIDIA/TensorRT-LLM/issues/102",
    needs=("model", "machine"),
)
def host_memory(facts: Facts) -> Iterator[Violation]:
    parameters, total = facts.require_model().parameters, facts.require_machine().memory_total
    needed = parameters * REFERENCE_BYTES_PER_PARAMETER + QUANTIZER_BYTES
    if needed > total:
        yield Violation(
            f"quantizing {parameters / 1e9:.2f} billion parameters needs about {format_size(needed)}, "
            f"this machine has {format_size(total)}",
            f"model.source: {facts.recipe.model.source}",
            {"parameters": parameters, "needed": needed, "memory_total": total},
            [f"a machine with {format_size(needed)} or more", "a smaller model"],
        )


@rule(
    "TF-K11-002",
    "not enough disk for the artifacts",
    why="Every stage publishes a whole directory, so that any of them can be used alone.",
    source="https://github.com/NVIDIA/TensorRT-LLM/issues/743",
    needs=("model", "machine"),
)
def host_disk(facts: Facts) -> Iterator[Violation]:
    free = facts.require_machine().disk_free
    plain = facts.require_model().parameters * DTYPE_BYTES[facts.recipe.model.dtype]
    stored = weight_bytes(facts, stored=True)
    needed = plain + 4 * stored
    if needed > free:
        yield Violation(
            f"the artifacts take about {format_size(needed)}, {format_size(free)} are free",
            f"model.source: {facts.recipe.model.source}",
            {"checkpoint": plain, "quantized": stored, "copies": 4, "needed": needed, "disk_free": free},
            ["trtforge artifacts gc", "--store DIR on a larger disk"],
        )
