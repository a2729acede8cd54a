"""Which (tp, pp, ep) a model can take on so many GPUs, why the others cannot, and which to choose.

Policy: every combination is listed; an invalid one carries its arithmetic. Among the valid ones the choice follows
the goal by a floor of the step's time (bytes to read at peak bandwidth, operations at peak rate, communication by
formula), which ranks splits; it is no forecast. Tensor parallelism stays inside the fast domain (the NVLink domain
or the node, whichever is larger; inside it the formulas of its links decide) and pipeline stages go across, because
a layer's two all-reduces need the fast link and a stage border's one message does not.
Source: Megatron-LM, https://arxiv.org/abs/2104.04473, section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from builder.planner.capacity import capacity
from builder.planner.communication import StepCommunication, step_communication
from builder.planner.hardware import Gpu, link
from builder.planner.memory import plan_memory
from builder.planner.precision import compute_format, weight_format
from builder.planner.types import (
    ALONE,
    Beside,
    Goal,
    MemoryPlan,
    ParallelPlan,
    Precision,
    Serving,
    Workload,
    bad_input,
    holds,
)
from builder.planner.weights import TensorGroup, active_parameters
from trtforge.models.record import Model

#: up to this many GPUs ep values that do not divide tp are listed too, each with its reason
_LIST_ALL = 16
#: up to this many GPUs splits whose replicas do not divide the count are listed too
_LIST_UNDIVIDED = 128
MOST_GPUS = 65_536
#: expert parallelism is preferred when its floor is at most so much above the best
_NEAR = 0.1


@dataclass(frozen=True)
class Split:
    """One way to split: ``reasons`` say why it is impossible (empty: it is valid), ``notes`` what to mind.

    ``step`` is the floor of a decode step in seconds at ``requests`` running requests a replica, ``tokens_per_second``
    of all replicas; both None where the split is invalid or does not fit. ``local`` is whether tensor parallelism
    stays inside the fast domain.
    """

    parallel: ParallelPlan
    replicas: int
    reasons: tuple[str, ...]
    notes: tuple[str, ...] = ()
    memory: tuple[MemoryPlan, ...] = ()
    fits: bool = False
    local: bool = True
    requests: int = 0
    step: float | None = None
    single: float | None = None
    tokens_per_second: float | None = None
    communication: StepCommunication | None = None

    @property
    def valid(self) -> bool:
        """Whether the arithmetic allows it (it may still not fit)."""
        return not self.reasons


def invalid_reasons(model: Model, precision: Precision, parallel: ParallelPlan, count: int) -> list[str]:
    """Why a split is impossible, in arithmetic; empty when it is not."""
    tp, pp = parallel.tp, parallel.pp
    reasons = []
    if count % parallel.gpus:
        reasons.append(f"a replica's {tp} x {pp} = {parallel.gpus} GPUs do not divide {count}")
    if pp > model.layers:
        reasons.append(f"pp {pp} exceeds the {model.layers} layers")
    if model.heads % tp:
        reasons.append(f"heads: {model.heads} do not divide by tp {tp}, remainder {model.heads % tp}")
    if model.mla is None and model.kv_heads % tp and tp % model.kv_heads:
        reasons.append(f"KV heads: {model.kv_heads} neither divide by tp {tp} nor into it")
    if (model.moe is None or model.moe.dense_layers) and model.ffn % tp:
        reasons.append(f"MLP width: {model.ffn} does not divide by tp {tp}, remainder {model.ffn % tp}")
    reasons += _expert_reasons(model, parallel)
    return reasons + _block_reasons(model, precision, parallel)


def _expert_reasons(model: Model, parallel: ParallelPlan) -> list[str]:
    tp, ep = parallel.tp, parallel.ep
    if model.moe is None:
        return [f"ep {ep} for a model without experts"] if ep > 1 else []
    if tp % ep:
        return [f"ep {ep} does not divide tp {tp}"]
    reasons = []
    if model.moe.experts % ep:
        reasons.append(f"experts: {model.moe.experts} do not divide by ep {ep}, remainder {model.moe.experts % ep}")
    ways = tp // ep
    if model.moe.ffn % ways:
        reasons.append(f"expert width: {model.moe.ffn} does not divide by tp / ep = {ways}")
    return reasons


def _block_reasons(model: Model, precision: Precision, parallel: ParallelPlan) -> list[str]:
    """A rank's columns must hold whole scale blocks (o and down are cut along the inputs)."""
    row = weight_format(precision.weights)
    block = precision.group_size if precision.group_size and row.block > 0 else row.block
    if block == 128 * 128:
        block = 128
    if block <= 0:
        return []
    tp, reasons = parallel.tp, []
    value = model.mla.value_size if model.mla else model.head_size
    widths = [("attention output", model.heads * value, tp)]
    if model.moe is None or model.moe.dense_layers:
        widths.append(("MLP", model.ffn, tp))
    if model.moe is not None and tp % parallel.ep == 0:
        widths.append(("expert", model.moe.ffn, tp // parallel.ep))
    for name, width, ways in widths:
        if width % ways == 0 and (width // ways) % block:
            reasons.append(
                f"{name} width: {width} / {ways} = {width // ways} is no multiple of the scale block {block}"
            )
    return reasons


def candidates(count: int, moe: bool) -> Iterator[ParallelPlan]:
    """Every (tp, pp, ep) of at most ``count`` GPUs a replica, smallest first."""
    for gpus in range(1, count + 1):
        if count > _LIST_UNDIVIDED and count % gpus:
            continue
        for pp in range(1, gpus + 1):
            if gpus % pp:
                continue
            tp = gpus // pp
            for ep in range(1, tp + 1 if moe else 2):
                if tp % ep == 0 or count <= _LIST_ALL:
                    yield ParallelPlan(tp, pp, ep)


def splits(
    model: Model,
    weights: Sequence[TensorGroup],
    precision: Precision,
    serving: Serving,
    gpu: Gpu,
    count: int,
    workload: Workload,
    *,
    network: str = "ib-ndr",
    beside: Beside = ALONE,
) -> list[Split]:
    """All splits with their reasons, memory and floor times.

    Raises:
        ForgeError: ``TF-PLN-008`` the number of GPUs is not positive or absurd; ``TF-PLN-002`` no such network.
    """
    if not 1 <= count <= MOST_GPUS:
        raise bad_input(
            "TF-PLN-008",
            f"the number of GPUs must lie between 1 and {MOST_GPUS:,}, not {count:,}",
            asked=f"--count {count}",
            why="A plan places the model on at least one GPU, and lists every split of them.",
            remedies=["--count 1", "plan one replica's GPUs and multiply"],
        )
    link(network)
    found = []
    for parallel in candidates(count, model.moe is not None):
        reasons = invalid_reasons(model, precision, parallel, count)
        if reasons:
            found.append(Split(parallel, count // parallel.gpus, tuple(reasons)))
            continue
        memory = plan_memory(model, weights, precision, parallel, serving, gpu, beside)
        found.append(_timed(model, precision, parallel, serving, gpu, count, workload, network, memory))
    return found


def _timed(
    model: Model,
    precision: Precision,
    parallel: ParallelPlan,
    serving: Serving,
    gpu: Gpu,
    count: int,
    workload: Workload,
    network: str,
    memory: tuple[MemoryPlan, ...],
) -> Split:
    domain = gpu.fast_domain
    local = parallel.tp <= domain
    replicas = count // parallel.gpus
    notes = _notes(model, parallel, local, domain)
    room = holds(memory)
    requests = capacity(model, memory, workload, serving).running if room else 0
    if not requests:
        if room:
            notes = (*notes, "the pool does not hold one request of this workload")
        return Split(parallel, replicas, (), notes, memory, fits=False, local=local)
    context = workload.mean_isl + workload.mean_osl / 2
    single, _ = _floor(model, precision, parallel, gpu, memory, network, 1, context)
    step, talk = _floor(model, precision, parallel, gpu, memory, network, requests, context)
    rate = replicas * requests / step
    return Split(parallel, replicas, (), notes, memory, True, local, requests, step, single, rate, talk)


def _floor(
    model: Model,
    precision: Precision,
    parallel: ParallelPlan,
    gpu: Gpu,
    memory: Sequence[MemoryPlan],
    network: str,
    requests: int,
    context: float,
) -> tuple[float, StepCommunication]:
    """Seconds of a decode step of all ``requests``, no less than bandwidth, arithmetic and links allow.

    One request passes the stages one after another. With at least as many requests as stages the stages work
    at the same time on a part of the requests each, and a step of all of them lasts as long as the parts together
    on the slowest stage.
    """
    parts = min(requests, parallel.pp)
    batch = requests / parts
    format = compute_format(precision.weights, gpu)
    rate = gpu.flops(format) or gpu.flops("fp16") or 1.0
    operations = 2.0 * active_parameters(model) * batch / parallel.gpus / rate
    touched = _touched(model, batch)
    stages = []
    for plan in memory:
        weights = plan.of("weights") * touched
        stages.append(max((weights + batch * context * plan.pool.bytes_per_token) / gpu.bandwidth, operations))
    talk = step_communication(model, parallel, gpu, max(round(batch), 1), network=network)
    if parts < parallel.pp or parallel.pp == 1:
        return sum(stages) + talk.total, talk
    inside = (talk.tensor + talk.expert) / parallel.pp
    across = talk.pipeline / (parallel.pp - 1)
    return parts * (max(stages) + inside + across), talk


def _touched(model: Model, batch: float) -> float:
    """Share of the weights that a step reads: with experts, those that at least one of ``batch`` tokens chose."""
    if model.moe is None:
        return 1.0
    moe = model.moe
    hit = 1 - (1 - moe.active / moe.experts) ** max(batch, 1.0)
    total = model.parameters
    experts = 3 * moe.experts * moe.ffn * model.hidden * model.moe_layers
    return 1 - experts / total * (1 - hit)


def _notes(model: Model, parallel: ParallelPlan, local: bool, domain: int) -> tuple[str, ...]:
    notes = []
    if not local:
        notes.append(f"tp {parallel.tp} leaves the fast domain of {domain} GPUs: two all-reduces a layer on slow links")
    if model.mla is None and parallel.tp > model.kv_heads:
        notes.append(f"each KV head lies on {parallel.tp // model.kv_heads} ranks: the cache does not shrink further")
    if model.mla is not None and parallel.tp > 1:
        notes.append("the latent cache lies whole on every rank")
    if model.vocab % parallel.tp:
        padded = -(-model.vocab // parallel.tp) * parallel.tp
        notes.append(f"the vocabulary of {model.vocab} is padded to {padded}")
    if model.layers % parallel.pp:
        notes.append(
            f"{model.layers} layers over {parallel.pp} stages: the first {model.layers % parallel.pp} hold one more"
        )
    return tuple(notes)


def recommend(found: Sequence[Split], goal: Goal) -> tuple[Split, str] | None:
    """The split for a goal and the reason; None when nothing fits.

    ``fit``: the fewest GPUs a replica; ``latency``: the shortest floor of a single request's step; ``throughput``: the
    most tokens a second over all replicas. Splits whose tensor parallelism leaves the fast domain are taken only
    when no other fits.
    """
    usable = [split for split in found if split.valid and split.fits]
    near = [split for split in usable if split.local]
    pool = near or usable
    if not pool:
        return None
    rule = "" if near else "; nothing else fits, so tensor parallelism leaves the fast domain"
    if goal == "fit":
        best = min(pool, key=lambda s: (s.parallel.gpus, s.parallel.pp, s.single or 0.0))
        return best, f"the fewest GPUs that hold the model: {best.parallel.gpus}{rule}"
    if goal == "latency":
        best = _whole_experts(min(pool, key=_latency), pool, _latency)
        return best, f"the shortest step of a single request: at least {(best.single or 0) * 1000:.2f} ms{rule}"
    best = _whole_experts(min(pool, key=_seconds_a_token), pool, _seconds_a_token)
    over = f" over {best.replicas} replicas" if best.replicas > 1 else ""
    return best, f"the most tokens a second{over}, by the floors of the times{rule}"


def _latency(split: Split) -> tuple[float, int]:
    return split.single or 0.0, split.parallel.gpus


def _seconds_a_token(split: Split) -> tuple[float, int]:
    return 1 / (split.tokens_per_second or 1e-9), split.parallel.gpus


def _whole_experts(best: Split, pool: Sequence[Split], score: Callable[[Split], tuple[float, int]]) -> Split:
    """Expert parallelism on the same GPUs where it costs next to nothing.

    Whole experts keep their products wide; cutting each expert ``tp`` ways makes narrow ones, which the floor of
    the time does not see.
    """
    same = [split for split in pool if (split.parallel.tp, split.parallel.pp) == (best.parallel.tp, best.parallel.pp)]
    near = [split for split in same if score(split)[0] <= score(best)[0] * (1 + _NEAR)]
    return max(near, key=lambda split: split.parallel.ep)
