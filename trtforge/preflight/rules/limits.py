"""K9: one limits object feeds engine, repository and load test, so it must agree with all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trtforge.ground.errors import ForgeError
from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.remedies import by_hand, line
from trtforge.preflight.retarget import methods, to_layout, to_target
from trtforge.rules.sources import ATTENTION, thread
from trtforge.tables.features import Effect

#: the longest prompt of the built-in load, in tokens (a generous bound over tokenizers)
BUILTIN_PROMPT_TOKENS = {
    "builtin:mixed": 700, "builtin:short": 64, "builtin:chat": 100, "builtin:code": 130, "builtin:copy": 300,
    "builtin:open": 100,
}  # fmt: skip


@rule("TF-K9-001", "max_seq_len over the model's context", thread("TL#1830"), needs=("model",))
def sequence_in_context(facts: Facts) -> Iterator[Violation]:
    """Past its trained positions the model writes garbage without an error."""
    limit, context = facts.recipe.build.limits.max_seq_len, facts.require_model().usable_positions
    if limit > context:
        yield Violation(
            f"max_seq_len {limit} is over the model's context of {context}",
            facts.asked("build.limits.max_seq_len"),
            {"max_seq_len": limit, "max_positions": context},
            [f"build.limits.max_seq_len: {context}", *by_hand("a checkpoint whose rope scaling reaches further")],
        )


@rule("TF-K9-002", "max_input_len leaves no room for an answer", thread("TB#402"), waivable=False)
def input_below_sequence(facts: Facts) -> Iterator[Violation]:
    """Prompt and answer share max_seq_len; an answer has at least one token."""
    limits = facts.recipe.build.limits
    if limits.max_input_len is None and limits.max_seq_len < 2:
        yield Violation(
            "max_seq_len 1 holds no prompt and its answer",
            facts.asked("build.limits.max_seq_len"),
            {"max_seq_len": limits.max_seq_len, "least": 2},
            ["build.limits.max_seq_len: 2  # or more"],
        )
    elif limits.max_input_len is not None and limits.max_input_len >= limits.max_seq_len:
        yield Violation(
            f"max_input_len {limits.max_input_len} is not below max_seq_len {limits.max_seq_len}",
            facts.asked("build.limits.max_input_len"),
            {"max_input_len": limits.max_input_len, "max_seq_len": limits.max_seq_len},
            [
                f"build.limits.max_input_len: {limits.max_seq_len - 1}  # or less",
                *by_hand("raise build.limits.max_seq_len"),
            ],
        )


@rule("TF-K9-003", "max_num_tokens below max_batch_size", thread("TL#9277"), waivable=False)
def tokens_cover_batch(facts: Facts) -> Iterator[Violation]:
    """A decode step of a full batch takes one token of every request."""
    limits = facts.recipe.build.limits
    if limits.max_num_tokens < limits.max_batch_size:
        yield Violation(
            f"max_num_tokens {limits.max_num_tokens} cannot hold one token each of {limits.max_batch_size} requests",
            f"build.limits: {{max_num_tokens: {limits.max_num_tokens}, max_batch_size: {limits.max_batch_size}}}",
            {"max_num_tokens": limits.max_num_tokens, "max_batch_size": limits.max_batch_size},
            [
                f"build.limits.max_num_tokens: {limits.max_batch_size}",
                f"build.limits.max_batch_size: {limits.max_num_tokens}",
            ],
        )


@rule("TF-K9-004", "calibration sequences over the model's context", needs=("model",))
def calibration_in_context(facts: Facts) -> Iterator[Violation]:
    """Activations past the trained positions would set the scales."""
    quantize, context = facts.recipe.quantize, facts.require_model().usable_positions
    length = quantize.calibration.sequence_length
    if (quantize.format != "none" or quantize.kv_cache != "none") and length > context:
        yield Violation(
            f"calibration sequences of {length} tokens are over the model's context of {context}",
            facts.asked("quantize.calibration.sequence_length"),
            {"sequence_length": length, "max_positions": context},
            [f"quantize.calibration.sequence_length: {min(512, context)}"],
        )


@rule("TF-K9-017", "long contexts over the model's own", needs=("model",))
def long_contexts_in_context(facts: Facts) -> Iterator[Violation]:
    """Past the trained positions no model finds anything, and the unquantized one loses as much as the other."""
    lengths, context = facts.recipe.evals.long_context.lengths, facts.require_model().usable_positions
    if lengths and max(lengths) > context:
        yield Violation(
            f"contexts of {max(lengths)} tokens are asked for, the model reaches {context}",
            facts.asked("evals.long_context.lengths"),
            {"lengths": list(lengths), "max_positions": context},
            [f"evals.long_context.lengths: {[length for length in lengths if length <= context]}"],
        )


@rule("TF-K9-005", "perplexity windows over the model's context", needs=("model",))
def windows_in_context(facts: Facts) -> Iterator[Violation]:
    """Scores past the trained positions measure the position encoding, not the quantization."""
    perplexity, context = facts.recipe.evals.perplexity, facts.require_model().usable_positions
    window, stride = perplexity.window, max(1, context // 2)
    if window > context:
        tokens = f", tokens: {4 * stride}" if perplexity.tokens < 4 * stride else ""
        yield Violation(
            f"perplexity windows of {window} tokens are over the model's context of {context}",
            facts.asked("evals.perplexity.window"),
            {"window": window, "max_positions": context},
            [f"evals.perplexity: {{window: {context}, stride: {stride}{tokens}}}"],
        )


@rule("TF-K9-006", "the load test's prompts do not fit the limits", thread("TB#565"), severity="warning")
def bench_fits(facts: Facts) -> Iterator[Violation]:
    """The engine would refuse them and the load test measure refusals."""
    limits, bench = facts.recipe.build.limits, facts.recipe.bench
    room = limits.max_seq_len - bench.max_tokens
    if room < 1:
        yield Violation(
            f"answers of {bench.max_tokens} tokens leave no room for a prompt in max_seq_len {limits.max_seq_len}",
            facts.asked("bench.max_tokens"),
            {"max_tokens": bench.max_tokens, "max_seq_len": limits.max_seq_len},
            [f"bench.max_tokens: {max(1, limits.max_seq_len // 2)}", *by_hand("raise build.limits.max_seq_len")],
        )
        return
    longest = BUILTIN_PROMPT_TOKENS.get(bench.prompts)
    room = min(room, limits.max_input_len or room)
    if longest is not None and longest > room:
        yield Violation(
            f"prompts of {bench.prompts} reach {longest} tokens, the limits leave {room}",
            facts.asked("bench.prompts", "bench.max_tokens"),
            {"longest_prompt": longest, "room": room, "max_seq_len": limits.max_seq_len},
            [
                f"build.limits.max_seq_len: {longest + bench.max_tokens}  # or more",
                *(["bench.prompts: builtin:short"] if BUILTIN_PROMPT_TOKENS["builtin:short"] <= room else []),
                *by_hand("shorter prompts of your own: bench.prompts: file:PATH"),
            ],
        )


@rule("TF-K9-019", "a load test that the server refuses")
def server_takes_bench(facts: Facts) -> Iterator[Violation]:
    """Every request over the server's own limits is refused, and the load test would measure refusals."""
    recipe = facts.recipe
    bench, serving, batch = recipe.bench, recipe.serving, recipe.build.limits.max_batch_size
    most, level = serving.max_output_tokens, max(bench.concurrency)
    if not recipe.layout.own_runtime:
        return  # which refuses the section by TF-K13-011
    if most is not None and bench.max_tokens > most:
        yield Violation(
            f"answers of {bench.max_tokens} tokens are over serving.max_output_tokens {most}",
            facts.asked("bench.max_tokens", "serving.max_output_tokens"),
            {"max_tokens": bench.max_tokens, "max_output_tokens": most},
            [f"bench.max_tokens: {most}", f"serving.max_output_tokens: {bench.max_tokens}  # or more"],
        )
    if level > batch + serving.max_waiting:
        yield Violation(
            f"{level} requests in flight, of which {batch} run and {serving.max_waiting} may wait",
            facts.asked("bench.concurrency", "serving.max_waiting"),
            {"concurrency": level, "max_batch_size": batch, "max_waiting": serving.max_waiting},
            [f"serving.max_waiting: {level - batch}  # or more"],
        )


@rule("TF-K9-020", "requests of the trace do not fit the limits", waivable=False)
def trace_fits(facts: Facts) -> Iterator[Violation]:
    """The engine would refuse them, and what was replayed would not be the trace."""
    limits, asked = facts.recipe.build.limits, facts.recipe.bench.trace
    if asked is None:
        return
    from evals.speed.schedule import load_trace

    try:
        trace = load_trace(asked, facts.directory)
    except ForgeError:
        return  # TF-K19-008 says so
    longest, whole = max(trace.isl), max(a + b for a, b in zip(trace.isl, trace.osl, strict=True))
    if whole > limits.max_seq_len or longest > (limits.max_input_len or longest):
        yield Violation(
            f"the trace has prompts of {longest} tokens, and {whole} tokens with the answer",
            f"bench.trace.file: {asked.file}",
            {"longest_prompt": longest, "longest": whole, "max_seq_len": limits.max_seq_len},
            [
                f"build.limits.max_seq_len: {whole}"
                if limits.max_input_len is None
                else f"build.limits: {{max_seq_len: {max(whole, limits.max_seq_len)}, "
                f"max_input_len: {max(longest, limits.max_input_len)}}}",
                *by_hand("a trace of shorter requests, or only the first of its requests"),
            ],
        )
    most = facts.recipe.serving.max_output_tokens
    if most is not None and max(trace.osl) > most:
        yield Violation(
            f"the trace has answers of {max(trace.osl)} tokens, over serving.max_output_tokens {most}",
            f"bench.trace.file: {asked.file}",
            {"longest_answer": max(trace.osl), "max_output_tokens": most},
            [f"serving.max_output_tokens: {max(trace.osl)}  # or more"],
        )


@rule("TF-K9-007", "the load test runs more requests than the engine takes at once", severity="warning")
def concurrency_in_batch(facts: Facts) -> Iterator[Violation]:
    """The surplus waits in the queue and its waiting is measured as latency."""
    # the default sweep passes through a full batch on purpose; other targets' runs end before the load test
    if not facts.is_written(("bench", "concurrency")) or not facts.target.runs_here:
        return
    limit = facts.recipe.build.limits.max_batch_size
    over = [level for level in facts.recipe.bench.concurrency if level > limit]
    within = [level for level in facts.recipe.bench.concurrency if level <= limit]
    if over:
        yield Violation(
            f"bench.concurrency {over} is over max_batch_size {limit}",
            facts.asked("bench.concurrency"),
            {"over": over, "max_batch_size": limit},
            [f"build.limits.max_batch_size: {max(over)}", line("bench.concurrency", within or [limit])],
        )


@rule("TF-K9-008", "the generation check does not fit the limits", severity="warning")
def generation_fits(facts: Facts) -> Iterator[Violation]:
    """Its answers would be cut by the engine."""
    limits, generation = facts.recipe.build.limits, facts.recipe.evals.generation
    if generation.max_tokens >= limits.max_seq_len:
        yield Violation(
            f"answers of {generation.max_tokens} tokens do not fit max_seq_len {limits.max_seq_len}",
            facts.asked("evals.generation.max_tokens"),
            {"max_tokens": generation.max_tokens, "max_seq_len": limits.max_seq_len},
            [
                f"evals.generation.max_tokens: {max(1, limits.max_seq_len // 2)}",
                *by_hand("raise build.limits.max_seq_len"),
            ],
        )


@rule("TF-K9-009", "fewer scored tokens than one window", severity="warning")
def enough_tokens(facts: Facts) -> Iterator[Violation]:
    """One window is one sample: no interval can be given."""
    perplexity = facts.recipe.evals.perplexity
    if perplexity.tokens < 4 * perplexity.stride:
        blocks = perplexity.tokens / perplexity.stride
        yield Violation(
            f"{perplexity.tokens} tokens make {blocks:.1f} blocks of {perplexity.stride}",
            facts.asked("evals.perplexity.tokens"),
            {"tokens": perplexity.tokens, "stride": perplexity.stride},
            [
                f"evals.perplexity.tokens: {4 * perplexity.stride}  # or more",
                *by_hand("a smaller evals.perplexity.stride"),
            ],
        )


@rule("TF-K9-010", "a key that has no effect here", severity="warning")
def keys_have_effect(facts: Facts) -> Iterator[Violation]:
    """Whoever wrote it expects something that will not happen; the target, layout or method does not read it."""
    # where nothing is drafted, keys of a base recipe that say how are no contradiction
    refused = facts.features.refusals if facts.recipe.speculation.method == "none" else ()
    yield from unread_keys(facts, (*facts.features.effects, *refused))


def unread_keys(facts: Facts, rows: Sequence[Effect]) -> Iterator[Violation]:
    """The keys of ``rows`` that the recipe writes and its target, layout or method does not read."""
    recipe = facts.recipe
    for row in rows:
        if not facts.is_written(row.key.split(".")):
            continue
        for name, chosen, readers in (
            ("build.target", recipe.build.target, row.targets),
            ("triton.layout", recipe.triton.layout, row.layouts),
            ("speculation.method", recipe.speculation.method, row.methods),
        ):
            if readers and chosen not in readers:
                yield Violation(
                    f"{row.key} has no effect with {name}: {chosen}",
                    f"{row.key}, {name}: {chosen}",
                    {"key": row.key, "read_by": list(readers)},
                    [f"remove {row.key}", *_readers(facts, name, readers)],
                    why=f"{row.why[0].upper()}{row.why[1:]}.",
                )


def _readers(facts: Facts, name: str, readers: Sequence[str]) -> list[str]:
    """What would let the key have its effect: a target, layout or method that reads it."""
    if name == "speculation.method":
        return methods(facts, readers)
    if name == "triton.layout":
        serving = [reader for reader in readers if reader in facts.target.layouts]
        return [to_layout(facts, reader) for reader in serving]
    return [to_target(facts, reader) for reader in readers]


@rule("TF-K9-011", "the longest prompt does not fit one step", thread("TL#9277"))
def prompt_fits_step(facts: Facts) -> Iterator[Violation]:
    """Without chunked context a prompt is computed in one step, so max_num_tokens bounds every prompt."""
    build = facts.recipe.build
    limits = build.limits
    longest = limits.max_input_len or limits.max_seq_len - 1
    chunked = build.trtllm.chunked_context and (build.trtllm.paged_context_attention or not facts.target.trtllm_build)
    if facts.target.tensorrt_llm and not chunked and limits.max_num_tokens < longest:
        yield Violation(
            f"prompts may have {longest} tokens, a step takes {limits.max_num_tokens}",
            f"build.limits.max_num_tokens: {limits.max_num_tokens}, build.trtllm.chunked_context: "
            f"{str(build.trtllm.chunked_context).lower()}",
            {"longest_prompt": longest, "max_num_tokens": limits.max_num_tokens},
            [
                f"build.limits.max_num_tokens: {longest}",
                "build.trtllm: {chunked_context: true, paged_context_attention: true}",
                f"build.limits.max_input_len: {limits.max_num_tokens}",
            ],
        )


@rule("TF-K9-012", "a step shorter than a KV block", ATTENTION, waivable=False)
def step_holds_block(facts: Facts) -> Iterator[Violation]:
    """A chunk of a prompt is a whole number of KV blocks, so a step takes at least one."""
    build = facts.recipe.build
    tokens, block = build.limits.max_num_tokens, build.kv_cache.block_size
    if facts.target.tensorrt_llm and build.trtllm.chunked_context and tokens < block:
        yield Violation(
            f"max_num_tokens {tokens} is less than a KV block of {block}",
            facts.asked("build.limits.max_num_tokens", "build.kv_cache.block_size"),
            {"max_num_tokens": tokens, "block_size": block},
            [
                f"build.limits.max_num_tokens: {block}",
                *(f"build.kv_cache.block_size: {size}" for size in (64, 32, 16) if size <= tokens),
            ],
        )


@rule("TF-K9-018", "more is asked for than is measured", severity="warning")
def what_is_asked_is_measured(facts: Facts) -> Iterator[Violation]:
    """Noise and engine are scored on windows of evals.perplexity, and the engine takes prompts up to its own limit:
    what lies beyond is left out, and the figures are of fewer tokens than the recipe says."""
    evals, limits = facts.recipe.evals, facts.recipe.build.limits
    asked, engine = evals.perplexity, evals.engine_parity.tokens
    runs = not facts.target.tensorrt_llm and facts.target.graph_mode != "native"
    parts = {"evals.perplexity.noise_tokens": asked.noise_tokens}
    parts |= {"evals.engine_parity.tokens": engine} if runs else {}
    for key, tokens in parts.items():
        if tokens > asked.tokens:
            yield Violation(
                f"{key} {tokens} is over evals.perplexity.tokens {asked.tokens}: {asked.tokens} are scored",
                facts.asked(key),
                {"asked": tokens, "scored": asked.tokens},
                [f"{key}: {asked.tokens}", f"evals.perplexity.tokens: {tokens}"],
            )
    if evals.long_context.gate is not None and not evals.long_context.lengths:
        yield Violation(
            "evals.long_context.gate judges nothing: no lengths are probed",
            facts.asked("evals.long_context.gate", "evals.long_context.lengths"),
            {"lengths": []},
            [
                "remove evals.long_context.gate",
                *by_hand("evals.long_context.lengths: [1024, 4096], as far as the model goes"),
            ],
        )
    if not runs:
        return
    longest = limits.max_input_len or limits.max_seq_len - 1
    first = min(asked.window, asked.tokens)
    if 0 < engine < first or (engine and asked.window > longest + 1):
        why = "hold no whole window" if engine < first else f"the engine takes prompts of {longest}: no window fits"
        yield Violation(
            f"evals.engine_parity.tokens {engine}, windows of {asked.window} tokens: {why}",
            facts.asked("evals.engine_parity.tokens", "evals.perplexity.window"),
            {"tokens": engine, "window": asked.window, "longest_prompt": longest},
            [
                *([f"evals.engine_parity.tokens: {first}"] if asked.window <= longest + 1 else []),
                "evals.engine_parity.tokens: 0",
            ],
        )
    lengths = evals.long_context.lengths
    if over := [length for length in lengths if length > longest + 1]:
        asked_of = {
            "max_input_len": max(over) - 1 if limits.max_input_len and limits.max_input_len < max(over) - 1 else None,
            "max_seq_len": max(over) if limits.max_seq_len < max(over) else None,
        }
        raised = [f"build.limits.{key} to {size}" for key, size in asked_of.items() if size is not None]
        yield Violation(
            f"long contexts of {', '.join(map(str, over))} tokens are over the engine's {longest + 1}: it is not asked",
            facts.asked("evals.long_context.lengths"),
            {"lengths": list(lengths), "longest_prompt": longest},
            [
                f"evals.long_context.lengths: {[length for length in lengths if length not in over]}",
                *by_hand(f"raise {' and '.join(raised)}"),
            ],
        )
