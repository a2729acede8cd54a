"""K22: settings that work and waste: one tokenizer for many requests, waiting, batch sizes that disagree."""

from __future__ import annotations

from collections.abc import Iterator

from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.retarget import to_format
from trtforge.rules.sources import ENGINE_PARAMETERS, MODELOPT_BENCHMARK, thread

#: NVIDIA's advice for pre- and postprocessing
_INSTANCES = 5


@rule("TF-K22-001", "one tokenizer for many requests", thread("TB#532"), severity="warning")
def instances_suffice(facts: Facts) -> Iterator[Violation]:
    """A model with one instance runs one request at a time: prompts queue before the engine sees them."""
    triton, batch = facts.recipe.triton, facts.recipe.build.limits.max_batch_size
    if not facts.recipe.layout.chain or batch < 8:
        return
    for key in ("preprocessing_instances", "postprocessing_instances"):
        count = int(getattr(triton, key))
        if count == 1:
            yield Violation(
                f"triton.{key}: 1 for up to {batch} requests",
                f"triton.{key}: {count}",
                {key: count, "max_batch_size": batch},
                [f"triton.{key}: {min(_INSTANCES, batch)}"],
            )


@rule("TF-K22-002", "requests wait for others before in-flight batching", thread("TB#189"), severity="warning")
def no_queue_delay(facts: Facts) -> Iterator[Violation]:
    """The engine takes a request into the running batch at the next step; a queue delay only adds to its latency."""
    triton = facts.recipe.triton
    if facts.recipe.layout.chain and triton.queue_delay_us > 1000:
        yield Violation(
            f"requests may wait {triton.queue_delay_us / 1000:g} ms for others",
            facts.asked("triton.queue_delay_us"),
            {"queue_delay_us": triton.queue_delay_us},
            ["triton.queue_delay_us: 0"],
            source=ENGINE_PARAMETERS,
        )


@rule("TF-K22-003", "more tokenizer processes than cores", ENGINE_PARAMETERS, severity="warning", needs=("machine",))
def instances_have_cores(facts: Facts) -> Iterator[Violation]:
    """Each instance is a process of its own; more of them than cores only take turns, and take memory."""
    triton, machine = facts.recipe.triton, facts.require_machine()
    together = triton.preprocessing_instances + triton.postprocessing_instances
    if facts.recipe.layout.chain and machine.gpus and together > 2 * machine.cores:
        each = max(1, machine.cores)
        yield Violation(
            f"{together} pre- and postprocessing processes on {machine.cores} cores",
            f"triton: {{preprocessing_instances: {triton.preprocessing_instances}, "
            f"postprocessing_instances: {triton.postprocessing_instances}}}",
            {"instances": together, "cores": machine.cores},
            [f"triton: {{preprocessing_instances: {each}, postprocessing_instances: {each}}}"],
        )


@rule(
    "TF-K22-004",
    "steps too short for the prompts",
    "https://nvidia.github.io/TensorRT-LLM/performance/perf-best-practices.html",
    severity="warning",
)
def steps_are_long_enough(facts: Facts) -> Iterator[Violation]:
    """A long prompt is computed in many small chunks, each a step of its own: the first token comes late and the GPU
    stays idle."""
    build = facts.recipe.build
    limits = build.limits
    longest = limits.max_input_len or limits.max_seq_len - 1
    if not facts.target.tensorrt_llm or not build.trtllm.chunked_context:
        return
    if limits.max_num_tokens * 32 < longest:
        yield Violation(
            f"a prompt of {longest} tokens takes {-(-longest // limits.max_num_tokens)} steps of "
            f"{limits.max_num_tokens}",
            facts.asked("build.limits.max_num_tokens"),
            {"longest_prompt": longest, "max_num_tokens": limits.max_num_tokens},
            [f"build.limits.max_num_tokens: {min(8192, -(-longest // 1024) * 1024)}"],
        )


@rule("TF-K22-005", "weight-only 4-bit at a large batch", MODELOPT_BENCHMARK, severity="warning")
def four_bits_are_for_small_batches(facts: Facts) -> Iterator[Violation]:
    """4-bit weights save bandwidth, which small batches lack; at a large batch kernels widen them in every step and FP8
    is faster."""
    recipe, own = facts.recipe, facts.format
    batch, target = recipe.build.limits.max_batch_size, recipe.build.target
    rows = [facts.architectures.row(name) for name in recipe.build.architectures]
    if own is None or own.speedup_at_64 is None or own.speedup_at_64 >= 1 or not facts.target.needs_gpu or batch < 64:
        return
    faster = {
        other.name: other.speedup_at_64
        for other in facts.formats.values()
        if other.speedup_at_64 is not None
        and other.speedup_at_64 > 1
        and rows
        and all(row is not None and row.support(other.name, target) == "yes" for row in rows)
    }
    if faster:
        yield Violation(
            f"{own.name} for batches up to {batch} on {', '.join(recipe.build.architectures)}",
            f"quantize.format: {own.name}, build.limits.max_batch_size: {batch}",
            {"max_batch_size": batch, "published_speedup_at_64": {own.name: own.speedup_at_64, **faster}},
            [*(to_format(facts, name) for name in faster), "build.limits.max_batch_size: 8"],
        )
