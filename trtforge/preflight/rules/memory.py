"""K10: what fits into the engine's memory, on the host or on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtforge.formats.mixing import assign, sized_format
from trtforge.formats.table import UNQUANTIZED, FormatRow, first_choice, load_formats
from trtforge.ground.errors import ForgeError
from trtforge.ground.units import format_size
from trtforge.models.kv import fullest_stage, kv_bytes_per_token, pool_blocks
from trtforge.models.kv_window import KvWindows
from trtforge.models.record import Model
from trtforge.models.shape import DTYPE_BYTES, linear_parameters, linears, matches
from trtforge.preflight.draft_sizes import draft_token_bytes, draft_weight_bytes
from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.features import kv_format, weight_format
from trtforge.preflight.remedies import by_hand
from trtforge.preflight.retarget import to_format
from trtforge.recipe.kv_windows import kv_windows
from trtforge.recipe.schema import Quantize
from trtforge.rules.sources import ATTENTION, ENGINE_PARAMETERS, KV_CACHE, thread
from trtforge.tables import Architecture

#: interpreter, torch and the runtime's own buffers
PROCESS_BYTES = 700 * 2**20
#: CUDA context, NCCL and the engine's workspace on a GPU, before any token
GPU_RESERVE_BYTES = 2 * 2**30


def kv_dtype(facts: Facts) -> str:
    """The pool's element type."""
    name = kv_format(facts)
    mode = facts.kv_modes.get(name)
    if mode is not None and mode.dtype in DTYPE_BYTES:
        return str(mode.dtype)
    return facts.recipe.model.dtype


def token_bytes(facts: Facts) -> int:
    """Bytes of KV cache a token on the fullest rank, with those of what drafts under the same block numbers."""
    parallel, model = facts.recipe.build.parallel, facts.require_model()
    layers = fullest_stage(model.layers, parallel.pp)
    own = kv_bytes_per_token(model.kv, kv_dtype(facts), tp=parallel.tp, layers=layers)
    return own + draft_token_bytes(facts)


def windows_of(facts: Facts) -> KvWindows:
    """What the layers' caches keep of a request, as the recipe serves the model."""
    return kv_windows(facts.recipe, facts.require_model())


def request_bytes(facts: Facts) -> int:
    """Bytes of KV cache that one request of max_seq_len takes on the fullest rank, in whole blocks."""
    limits, block = facts.recipe.build.limits, facts.recipe.build.kv_cache.block_size
    windows = windows_of(facts)
    kept: int = windows.layer_tokens(limits.max_seq_len, block, limits.max_num_tokens)
    return -(-kept * token_bytes(facts) // len(windows.windows))


def longest_request(facts: Facts, pool: int) -> int:
    """Tokens of the longest request, up to max_seq_len, that a pool of so many bytes holds; 0 when it holds none."""
    limits, block = facts.recipe.build.limits, facts.recipe.build.kv_cache.block_size
    tokens = pool_blocks(pool, token_bytes(facts), block) * block
    return windows_of(facts).longest(tokens, block, limits.max_num_tokens, limits.max_seq_len)


def weight_bytes(facts: Facts, *, stored: bool, name: str | None = None) -> int:
    """Bytes of the weights: as the checkpoint stores them, or as the torch target keeps them in memory.

    ``name`` is a format instead of the engine's. In memory formats whose kernels read packed weights
    stay packed; the others are widened once at load.
    """
    model, recipe = facts.require_model(), facts.recipe
    wide = DTYPE_BYTES[recipe.model.dtype]
    row = facts.formats.get(name or weight_format(facts))
    if row is None or row.weight is None:
        return model.parameters * wide
    group = (recipe.quantize.group_size if name is None else None) or row.default_group_size
    parts = [(min(linear_parameters(model, recipe.quantize.unquantized), model.parameters), row, group)]
    if name is None and recipe.quantize.mixed:
        parts = _mixed_parts(model, recipe.quantize, row, group)
    total = float((model.parameters - sum(weights for weights, *_ in parts)) * wide)
    for weights, own, size in parts:
        bits = (own.weight.bits if own.weight is not None else 8 * wide) + (16 / size if size else 0)
        total += weights * (bits / 8 if stored or own.cpu.packed else wide)
    return int(total)


def _mixed_parts(
    model: Model, quantize: Quantize, row: FormatRow, group: int | None
) -> list[tuple[int, FormatRow, int | None]]:
    """How many weights have each format, and its group size; all ``row`` where other rules refuse the mixture."""
    sizes = {name: linear.rows * linear.columns for linear in linears(model) for name in linear.names}
    free = [name for name in sizes if not any(matches(name, pattern) for pattern in quantize.unquantized)]
    try:
        assigned, _ = assign(quantize.mixed, free, ())
        rows = {text: sized_format(text) for text in quantize.mixed}
    except ForgeError:
        return [(sum(sizes[name] for name in free), row, group)]
    found = [(sum(sizes[name] for name in free if name not in assigned), row, group)]
    for text, (own, size) in rows.items():
        found.append((sum(sizes[name] for name in free if assigned.get(name) == text), own, size))
    return found


@rule("TF-K10-001", "the KV pool cannot hold one request of max_seq_len", KV_CACHE, needs=("model",))
def pool_holds_one(facts: Facts) -> Iterator[Violation]:
    """A request that grows past the pool can never finish, however often it is preempted."""
    memory, limits = facts.recipe.build.kv_cache.memory, facts.recipe.build.limits
    if memory is None or not facts.target.has_pool:
        return
    token, least = token_bytes(facts), request_bytes(facts)
    if memory < least:
        size = facts.recipe.build.kv_cache.block_size
        halved = kv_format(facts) == "none" and memory >= -(-least // DTYPE_BYTES[kv_dtype(facts)])
        held, longest = pool_blocks(memory, token, size) * size, longest_request(facts, memory)
        kept = -(-least // token)
        yield Violation(
            f"a KV pool of {format_size(memory)} holds {held} tokens, one request may need {limits.max_seq_len}"
            + (f" and keeps {kept} with its window" if kept < limits.max_seq_len else ""),
            f"build.kv_cache.memory: {format_size(memory)}, build.limits.max_seq_len: {limits.max_seq_len}",
            {
                "bytes_per_token": token,
                "pool_tokens": held,
                "kept_tokens": kept,
                "max_seq_len": limits.max_seq_len,
                "least_bytes": least,
                "kv_dtype": kv_dtype(facts),
            },
            [
                f"build.kv_cache.memory: {-(-least // 2**20)}MiB  # or more",
                *([f"build.limits.max_seq_len: {longest}"] if longest else []),
                *([f"quantize.kv_cache: {load_formats().first_choice.kv_cache}  # halves the bytes"] if halved else []),
            ],
        )


@rule(
    "TF-K10-002",
    "weights and KV pool do not fit into the machine's memory",
    thread("TB#303"),
    needs=("model", "machine"),
)
def engine_fits(facts: Facts) -> Iterator[Violation]:
    """The engine would be killed while it loads."""
    if facts.target.needs_gpu:
        return
    total = facts.require_machine().memory_total
    weights, pool = weight_bytes(facts, stored=False), facts.recipe.build.kv_cache.memory or 0
    weights += draft_weight_bytes(facts)
    needed = weights + pool + PROCESS_BYTES
    if needed > total:
        room = total - weights - PROCESS_BYTES
        others = draft_weight_bytes(facts) + pool + PROCESS_BYTES
        packed = [name for name, row in facts.formats.items() if row.cpu.packed]
        fitting = [name for name in packed if weight_bytes(facts, stored=False, name=name) + others <= total]
        yield Violation(
            f"the engine needs {format_size(needed)}, this machine has {format_size(total)}",
            f"build.kv_cache.memory: {format_size(pool)}, model of {facts.require_model().parameters:,} parameters",
            {"weights": weights, "kv_pool": pool, "process": PROCESS_BYTES, "memory_total": total},
            [
                *([f"build.kv_cache.memory: {room // 2**20}MiB  # or less"] if pool and room > 64 * 2**20 else []),
                *(f"{to_format(facts, name)}  # 4-bit weights stay packed" for name in fitting),
                *by_hand(f"a machine with {format_size(needed)} or more"),
            ],
        )


@rule(
    "TF-K10-003",
    "little of the memory is free for the engine right now",
    severity="warning",
    needs=("model", "machine"),
)
def engine_fits_now(facts: Facts) -> Iterator[Violation]:
    """It would fit the machine, but not beside what is running."""
    machine = facts.require_machine()
    if facts.target.needs_gpu:
        return
    weights = weight_bytes(facts, stored=False) + draft_weight_bytes(facts)
    needed = weights + (facts.recipe.build.kv_cache.memory or 0) + PROCESS_BYTES
    if machine.memory_available < needed <= machine.memory_total:
        yield Violation(
            f"the engine needs {format_size(needed)}, {format_size(machine.memory_available)} are free",
            facts.asked("build.kv_cache.memory"),
            {"needed": needed, "available": machine.memory_available},
            by_hand("stop other programs", "a smaller build.kv_cache.memory"),
        )


@rule("TF-K10-004", "the KV pool is small for the batch", severity="warning", needs=("model",))
def pool_serves_batch(facts: Facts) -> Iterator[Violation]:
    """Requests beyond the pool are preempted and computed again."""
    build = facts.recipe.build
    if build.kv_cache.memory is None or not facts.target.has_pool:
        return
    token = token_bytes(facts)
    tokens = pool_blocks(build.kv_cache.memory, token, build.kv_cache.block_size) * build.kv_cache.block_size
    share = tokens / build.limits.max_batch_size
    if build.kv_cache.memory >= request_bytes(facts) and share < 2 * build.kv_cache.block_size:
        wanted = 4 * build.kv_cache.block_size * build.limits.max_batch_size * token
        yield Violation(
            f"a full batch of {build.limits.max_batch_size} has {share:.0f} KV tokens a request",
            f"build.kv_cache.memory: {format_size(build.kv_cache.memory)}",
            {
                "pool_tokens": tokens,
                "max_batch_size": build.limits.max_batch_size,
                "tokens_per_request": round(share, 1),
            },
            [f"build.kv_cache.memory: {-(-wanted // 2**20)}MiB", *by_hand("a smaller build.limits.max_batch_size")],
        )


@rule("TF-K10-005", "two engines share the memory of a GPU by fractions", thread("TB#303"))
def shared_gpu_needs_bytes(facts: Facts) -> Iterator[Violation]:
    """Each engine takes its fraction of what is free when it starts: the second one of what the first left, and a
    restart in another order divides otherwise. Bytes do not depend on the order."""
    recipe = facts.recipe
    fraction, method = recipe.build.kv_cache.free_fraction, recipe.speculation.method
    if not facts.target.needs_gpu or method != "draft_target":
        return
    if facts.target.trtllm_build and fraction is None and recipe.build.kv_cache.memory is None:
        fraction = 0.9  # the server's own, for each
    if fraction is None or fraction <= 0.5:
        return
    yield Violation(
        f"draft and target engine each take {fraction:.0%} of the free memory",
        f"build.kv_cache.free_fraction: {fraction:g}, speculation.method: {method}",
        {"free_fraction": fraction, "engines": 2, "together": 2 * fraction},
        ["build.kv_cache: {memory: 8GiB, free_fraction: null}", "build.kv_cache.free_fraction: 0.45"],
    )


@rule("TF-K10-006", "a rank's weights are larger than any board", thread("TL#401"), needs=("model",))
def rank_fits_board(facts: Facts) -> Iterator[Violation]:
    """The weights of a rank lie in one GPU's memory, beside the KV cache and the workspace."""
    recipe = facts.recipe
    if not facts.target.needs_gpu:
        return
    parallel, weights = recipe.build.parallel, weight_bytes(facts, stored=True)
    share = weights // (parallel.tp * parallel.pp)
    for name in recipe.build.architectures:
        row = facts.architectures.row(name)
        if row is None or row.board_gib is None or share + GPU_RESERVE_BYTES <= row.board_gib * 2**30:
            continue
        room = row.board_gib * 2**30 - GPU_RESERVE_BYTES
        ranks = -(-weights // room)
        works = [tp for tp in (2, 4, 8, 16) if tp * parallel.pp >= ranks]
        yield Violation(
            f"a rank has {format_size(share)} of weights, the largest board of {name} has {row.board_gib} GiB",
            f"build.parallel: {{tp: {parallel.tp}, pp: {parallel.pp}}}, build.architectures: {name}",
            {"weights": weights, "per_rank": share, "board_gib": row.board_gib, "least_ranks": ranks},
            [
                *(f"build.parallel.tp: {tp}" for tp in works[:2] if not facts.target.one_rank),
                *_halved_weights(facts, [row], parallel.tp * parallel.pp, room),
                *by_hand(f"tp x pp of {ranks} or more in build.parallel"),
            ],
        )


def _halved_weights(facts: Facts, rows: Sequence[Architecture], ranks: int, room: int) -> list[str]:
    """8-bit weights, where the model has none, every architecture has the kernel, and a rank's share fits the room."""
    narrow = first_choice()
    if weight_format(facts) != UNQUANTIZED or weight_bytes(facts, stored=True, name=narrow) // ranks > room:
        return []
    fast = all(row.support(narrow, facts.recipe.build.target) == "yes" for row in rows)
    return [f"{to_format(facts, narrow)}  # halves the weights"] if fast else []


@rule("TF-K10-007", "weights and KV pool do not fit into the GPUs here", thread("TL#2773"), needs=("model", "machine"))
def rank_fits_gpu(facts: Facts) -> Iterator[Violation]:
    """The engine is killed while it loads, or starts with a pool that no request fits into."""
    recipe, gpus = facts.recipe, facts.require_machine().gpus
    if not facts.target.needs_gpu or not gpus:
        return
    parallel, pool = recipe.build.parallel, recipe.build.kv_cache
    smallest = min(gpu.memory for gpu in gpus)
    ranks = parallel.tp * parallel.pp
    share = weight_bytes(facts, stored=True) // ranks
    least = request_bytes(facts)
    wanted = pool.memory if pool.memory is not None else least
    room = smallest - share - GPU_RESERVE_BYTES
    if pool.free_fraction is not None:
        room = int(room * pool.free_fraction)
    if wanted <= room:
        return
    batch, positions = max(0, room) // least, longest_request(facts, room)
    yield Violation(
        f"a rank needs {format_size(share)} of weights and {format_size(wanted)} of KV cache, the smallest GPU has "
        f"{format_size(smallest)}",
        f"build.kv_cache: {{memory: {pool.memory}, free_fraction: {pool.free_fraction}}}, "
        f"build.parallel.tp: {parallel.tp}",
        {
            "weights_per_rank": share,
            "kv_pool": wanted,
            "reserve": GPU_RESERVE_BYTES,
            "gpu": smallest,
            "bytes_per_token": token_bytes(facts),
            "bytes_per_request": least,
            "largest_full_length_batch": batch,
            "longest_request": positions,
        },
        [
            *([f"build.kv_cache.memory: {room // 2**20}MiB"] if batch else []),
            *([f"build.limits.max_seq_len: {positions}"] if not batch and positions >= 128 else []),
            *(
                [f"build.parallel.tp: {parallel.tp * 2}"]
                if not facts.target.one_rank and wanted <= smallest - share // 2 - GPU_RESERVE_BYTES
                else []
            ),
            *(
                [f"quantize.kv_cache: {load_formats().first_choice.kv_cache}  # halves the cache"]
                if kv_format(facts) == "none" and pool.memory is None and wanted // 2 <= room
                else []
            ),
            *_halved_weights(facts, facts.target_rows, ranks, smallest - GPU_RESERVE_BYTES - wanted),
            *by_hand(f"GPUs with {format_size(share + wanted + GPU_RESERVE_BYTES)} or more"),
        ],
    )


@rule("TF-K10-008", "the KV pool leaves nothing beside it", ENGINE_PARAMETERS, severity="warning")
def fraction_leaves_room(facts: Facts) -> Iterator[Violation]:
    """The fraction is taken of what is free after the weights: workspace, logits and adapters need the rest."""
    recipe = facts.recipe
    fraction = recipe.build.kv_cache.free_fraction
    if fraction is not None and fraction > 0.95:
        yield Violation(
            f"the KV pool takes {fraction:.0%} of the free memory",
            f"build.kv_cache.free_fraction: {fraction:g}",
            {"free_fraction": fraction},
            ["build.kv_cache.free_fraction: 0.9"],
        )


@rule("TF-K10-009", "beams or drafts that the KV pool cannot hold", ATTENTION, severity="warning", needs=("model",))
def pool_holds_beams(facts: Facts) -> Iterator[Violation]:
    """Every beam keeps its own answer, and a step writes all draft tokens before it knows which are accepted."""
    build, speculation = facts.recipe.build, facts.recipe.speculation
    beams, drafts = build.trtllm.max_beam_width, speculation.max_draft_len or 0
    if build.kv_cache.memory is None or not facts.target.needs_gpu or (beams == 1 and not drafts):
        return
    token, size, batch = token_bytes(facts), build.kv_cache.block_size, build.limits.max_batch_size
    tokens = build.kv_cache.memory // token
    needed = batch * (beams * size + drafts)
    if tokens < needed:
        fits = max(1, int(tokens // (beams * size + drafts)))
        yield Violation(
            f"{batch} requests with {beams} beams and {drafts} draft tokens write {needed} tokens a block, the pool "
            f"holds {tokens}",
            f"build.kv_cache.memory: {format_size(build.kv_cache.memory)}, build.limits.max_batch_size: {batch}",
            {"pool_tokens": tokens, "needed_tokens": needed, "beams": beams, "max_draft_len": drafts},
            [f"build.kv_cache.memory: {-(-needed * token // 2**20)}MiB", f"build.limits.max_batch_size: {fits}"],
        )
