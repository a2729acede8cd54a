"""K5: heads, KV heads, MLP and experts over the ranks."""

from __future__ import annotations

from collections.abc import Iterator

from trtforge.formats.table import load_formats
from trtforge.models.record import Model
from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.features import (
    context_asked,
    fp8_context_attention,
    in_range,
    kv_asked,
    other_context,
    other_kv,
    used,
    weight_format,
)
from trtforge.preflight.remedies import by_hand
from trtforge.preflight.retarget import for_architectures, padded_mlp, to_target
from trtforge.rules.sources import thread
from trtforge.tables.features import AttentionKernel
from trtforge.targets import DEFAULT, TARGETS

#: tensor-parallel sizes that people run
TPS = (1, 2, 4, 8, 16)
#: head sizes that PagedAttention takes; of which number they are multiples is the target's
HEAD_SIZES = (64, 256)
_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts")


def kv_fits(kv_heads: int, tp: int) -> bool:
    """Whether KV heads are shared out evenly, or each copied to the same number of ranks."""
    return kv_heads % tp == 0 or tp % kv_heads == 0


def tp_works(model: Model) -> list[int]:
    """Every number of tensor-parallel ranks over which heads, KV heads and MLP split."""
    return [
        ranks
        for ranks in range(1, model.heads + 1)
        if model.heads % ranks == 0 and kv_fits(model.kv_heads, ranks) and model.ffn % ranks == 0
    ]


def tp_remedies(model: Model, tp: int) -> list[str]:
    """The numbers of ranks nearest to ``tp`` that work, as recipe lines."""
    near = sorted(tp_works(model), key=lambda ranks: (abs(ranks - tp), -ranks))[:3]
    return [f"build.parallel.tp: {ranks}" for ranks in near]


@rule("TF-K5-001", "attention heads do not split over the ranks", thread("TL#2200"), needs=("model",), waivable=False)
def heads_split(facts: Facts) -> Iterator[Violation]:
    """A rank holds whole heads."""
    model, tp = facts.require_model(), facts.recipe.build.parallel.tp
    if model.heads % tp:
        yield Violation(
            f"{model.heads} heads do not split over tp {tp}",
            facts.asked("build.parallel.tp"),
            {"heads": model.heads, "kv_heads": model.kv_heads, "tp": tp, "works": tp_works(model)},
            tp_remedies(model, tp),
        )


@rule("TF-K5-002", "KV heads do not split over the ranks", thread("TL#2310"), needs=("model",), waivable=False)
def kv_heads_split(facts: Facts) -> Iterator[Violation]:
    """KV heads are shared out over the ranks or copied to groups of ranks, so one number must divide the other."""
    model, tp = facts.require_model(), facts.recipe.build.parallel.tp
    if not kv_fits(model.kv_heads, tp):
        yield Violation(
            f"{model.kv_heads} KV heads and tp {tp}: neither divides the other",
            facts.asked("build.parallel.tp"),
            {"kv_heads": model.kv_heads, "tp": tp, "works": tp_works(model)},
            tp_remedies(model, tp),
        )


@rule("TF-K5-003", "KV heads copied to several ranks", thread("TL#2198"), severity="warning", needs=("model",))
def kv_heads_copied(facts: Facts) -> Iterator[Violation]:
    """With more ranks than KV heads each head is kept more than once: the cache of a token no longer shrinks."""
    model, tp = facts.require_model(), facts.recipe.build.parallel.tp
    if tp > model.kv_heads and tp % model.kv_heads == 0:
        copies = tp // model.kv_heads
        yield Violation(
            f"tp {tp} keeps each of {model.kv_heads} KV heads {copies} times",
            facts.asked("build.parallel.tp"),
            {"kv_heads": model.kv_heads, "tp": tp, "copies": copies},
            [
                *(
                    [f"build.parallel: {{tp: {model.kv_heads}, pp: {copies}}}  # the same ranks, no copies"]
                    if facts.recipe.speculation.method == "none" and copies <= model.layers
                    else []  # speculation runs on one pipeline stage
                ),
                f"build.parallel.tp: {model.kv_heads}",
            ],
        )


@rule("TF-K5-004", "the MLP does not split over the ranks", thread("TL#1636"), needs=("model",), waivable=False)
def mlp_splits(facts: Facts) -> Iterator[Violation]:
    """Gate and up are cut along their rows, down along its columns: every rank takes the same width."""
    model, tp = facts.require_model(), facts.recipe.build.parallel.tp
    if model.ffn % tp:
        padded = padded_mlp(facts, weight_format(facts))  # so that groups and tiles fit too (TF-K4-001, TF-K4-004)
        yield Violation(
            f"an MLP of width {model.ffn} does not split over tp {tp}",
            facts.asked("build.parallel.tp"),
            {"ffn": model.ffn, "tp": tp, "padded": padded, "works": tp_works(model)},
            [*tp_remedies(model, tp), *by_hand(f"pad the checkpoint's MLP with zeros to {padded}")],
        )


@rule(
    "TF-K5-005",
    "expert parallelism that model or ranks do not have",
    "https://nvidia.github.io/TensorRT-LLM/advanced/expert-parallelism.html",
    needs=("files",),
    waivable=False,
)
def experts_split(facts: Facts) -> Iterator[Violation]:
    """Experts are shared out over ep of the tp ranks, so ep divides both numbers."""
    parallel = facts.recipe.build.parallel
    if parallel.ep == 1 or not facts.target.needs_gpu or facts.files is None:
        return
    config = facts.files.config
    experts = next((int(config[key]) for key in _EXPERT_KEYS if isinstance(config.get(key), int)), 0)
    works = [ep for ep in range(1, parallel.tp + 1) if parallel.tp % ep == 0 and experts % ep == 0]
    if experts < 2:
        message = f"ep {parallel.ep} is asked of a model without experts"
        remedies = ["build.parallel.ep: 1"]
    elif parallel.ep not in works:
        message = f"{experts} experts and tp {parallel.tp} do not split over ep {parallel.ep}"
        remedies = [f"build.parallel.ep: {ep}" for ep in reversed(works)]
    else:
        return
    numbers = {"ep": parallel.ep, "tp": parallel.tp, "experts": experts, "works": works if experts > 1 else [1]}
    yield Violation(message, facts.asked("build.parallel.ep"), numbers, remedies)


def head_taken(head_size: int, target: str) -> bool:
    """Whether the graph's attention takes a head size on a target that is built from a graph."""
    low, high = HEAD_SIZES
    multiple = TARGETS[target].head_multiple
    return multiple is not None and low <= head_size <= high and head_size % multiple == 0


def is_compiled(facts: Facts, target: str, head_size: int) -> bool:
    """Whether the target's attention has kernels for a head size, where the table knows."""
    sizes = facts.kernels.decoding(target)
    # beyond the largest, the PyTorch backend has kernels of other libraries
    return not sizes or head_size in sizes or head_size > sizes[-1]


@rule(
    "TF-K5-007",
    "a head size that TensorRT-LLM's attention is not compiled for",
    thread("TL#679"),
    needs=("model",),
    waivable=False,
)
def head_size_compiled(facts: Facts) -> Iterator[Violation]:
    """Every answer's tokens pass through kernels that exist for some head sizes only: the engine is refused when
    attention is set up, after the weights were converted."""
    size, target = facts.require_model().head_size, facts.recipe.build.target
    if is_compiled(facts, target, size):
        return
    sizes = facts.kernels.decoding(target)
    others = [to_target(facts, DEFAULT.name)] if head_taken(size, DEFAULT.name) else []
    yield Violation(
        f"heads of {size} values; TensorRT-LLM has kernels for {', '.join(map(str, sizes))}",
        f"config.json of {facts.recipe.model.source}: head size {size}",
        {"head_size": size, "compiled": list(sizes)},
        [*by_hand("a model whose heads have one of these sizes"), *others],
    )


def _unfused(facts: Facts, otherwise: str) -> Iterator[tuple[AttentionKernel, str]]:
    """Rows of the attention table that have no kernel for the model's heads, each with the architecture asked for."""
    size, target = facts.require_model().head_size, facts.recipe.build.target
    uses = {
        "fp8-context": facts.target.trtllm_build and fp8_context_attention(facts),
        "fp8-kv": used(facts, "fp8-kv"),
        "decode": False,  # TF-K5-007
    }
    for row in facts.kernels.attention:
        if row.otherwise != otherwise or target not in row.targets or size in row.head_sizes or not uses[row.attention]:
            continue
        if in_range(facts, row.since, row.until):
            yield from ((row, name) for name in facts.target_architectures if name in row.architectures)


def _without_kernel(facts: Facts, row: AttentionKernel, name: str, verdict: str) -> Violation:
    size, context = facts.require_model().head_size, row.attention == "fp8-context"
    what = "FP8 context attention" if context else "attention over an FP8 KV cache"
    cache = load_formats().first_choice.kv_cache
    hosts = [
        item.name
        for item in facts.architectures.rows
        if item.context_fp8 == "yes" and item.kv_cache.get(cache) == "yes" and item.name not in row.architectures
    ]
    return Violation(
        f"{what} on {name} {verdict} heads of {size}",
        f"{context_asked(facts) if context else kv_asked(facts)}, build.architectures: {name}",
        {"head_size": size, "compiled": list(row.head_sizes), "architecture": name},
        [*(other_context(facts) if context else other_kv(facts)), *for_architectures(facts, name, hosts)],
        source=row.source,
    )


@rule(
    "TF-K5-008",
    "heads that FP8 attention has no kernel for on the architecture",
    needs=("model", "build.architectures"),
)
def fp8_attention_has_heads(facts: Facts) -> Iterator[Violation]:
    """FP8 attention is compiled for some head sizes on each architecture: others stop the build or the server."""
    for row, name in _unfused(facts, "no"):
        yield _without_kernel(facts, row, name, "has no kernel for")


@rule(
    "TF-K5-009",
    "heads that FP8 attention computes without a fused kernel",
    severity="warning",
    needs=("model", "build.architectures"),
)
def fp8_attention_is_fused(facts: Facts) -> Iterator[Violation]:
    """Without a fused kernel the context is computed whole: it takes much memory, and blocks of earlier requests are
    not reused."""
    for row, name in _unfused(facts, "slow"):
        yield _without_kernel(facts, row, name, "is not fused for")
