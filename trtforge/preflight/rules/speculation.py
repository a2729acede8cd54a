"""K12: speculative decoding: the method, its draft or heads, and what a step verifies."""

from __future__ import annotations

from collections.abc import Iterator

from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.remedies import by_hand, line
from trtforge.preflight.retarget import (
    DRAFT_LENGTHS,
    for_architectures,
    methods,
    to_method,
    to_target,
    to_targets,
    without_speculation,
)
from trtforge.preflight.rules.trees import lookahead_draft_len
from trtforge.recipe.sources import is_fetched
from trtforge.rules.sources import EAGLE_3_PAPER, ENGINE_PARAMETERS, SPECULATION, thread

#: with this many requests in a step the GPU is busy without drafts
_BUSY_BATCH = 64
#: methods whose drafts TensorRT-LLM's engines verify with kernels of their own, and GPUs where none was found
_VERIFIED_IN_ENGINE, _WITHOUT_KERNELS = ("medusa", "eagle", "lookahead"), ("sm_100", "sm_103")
#: what trtllm-build 1.2.1 takes for EAGLE
_EAGLE_BATCH, _EAGLE_DRAFT = 512, 256
_NO_PAGES = "Its requests have linear caches and padded batches; drafts are verified over paged caches."


def draft_tokens(facts: Facts) -> int | None:
    """Draft tokens that a step verifies at most, where the recipe says enough to know."""
    speculation = facts.recipe.speculation
    if speculation.method == "lookahead":
        sizes = speculation.lookahead
        return lookahead_draft_len(sizes.window, sizes.ngram, sizes.verification)
    if speculation.choices:
        return max(speculation.max_draft_len or 0, len(speculation.choices))
    if speculation.dynamic_tree is not None:
        return speculation.dynamic_tree.total
    return speculation.max_draft_len


@rule("TF-K12-001", "a speculation method that the target does not have", SPECULATION, waivable=False)
def method_exists(facts: Facts) -> Iterator[Violation]:
    """Each engine drafts in its own ways; a method that it does not know is an unknown key or a refused checkpoint."""
    method, target = facts.recipe.speculation.method, facts.recipe.build.target
    row = facts.features.method(target, method)
    if method == "none" or (row is not None and row.support == "yes"):
        return
    works = [item.method for item in facts.features.methods_of(target)]
    hosts = facts.features.targets_of(method)
    instead = row.instead if row is not None else None
    yield Violation(
        f"target {target} has no speculation by {method}",
        facts.asked("speculation.method", "build.target"),
        {"methods_of_target": works, "targets_of_method": hosts},
        [
            *methods(facts, [instead] if instead else []),
            *(to_target(facts, host) for host in hosts),
            without_speculation(facts),
        ],
        why=_NO_PAGES if not facts.target.has_pool else None,
        source=row.source if row is not None else None,
    )


@rule("TF-K12-004", "no draft model or heads for the method", SPECULATION, waivable=False)
def draft_is_given(facts: Facts) -> Iterator[Violation]:
    """The method drafts with weights of its own; without them there is nothing to draft with."""
    speculation = facts.recipe.speculation
    row = facts.features.method(facts.recipe.build.target, speculation.method)
    if row is not None and row.draft == "required" and not speculation.draft:
        free = [item.method for item in facts.features.methods_of(row.target) if item.draft == "none"]
        yield Violation(
            f"speculation.method: {speculation.method} has no speculation.draft",
            facts.asked("speculation.method"),
            {"methods_without_draft": free},
            [*by_hand("name the draft's directory in speculation.draft"), *methods(facts, free)],
        )


@rule("TF-K12-005", "a draft that cannot be looked into", thread("TL#2673"), needs=("draft",))
def draft_is_there(facts: Facts) -> Iterator[Violation]:
    """A draft that is missing, or whose weights are not safetensors, is found out by the engine an hour later."""
    if facts.draft is None:
        return
    asked = f"speculation.draft: {facts.draft.source}"
    if facts.draft.problem:
        # drafts are not fetched (TF-K12-019), whatever a source may be elsewhere
        ways = by_hand("correct speculation.draft: the draft's directory, relative to the recipe's folder")
        yield Violation(facts.draft.problem, asked, {}, ways)
        return
    files = facts.draft_files
    if files is None:
        return
    if files.kind is not None:
        yield Violation(
            f"the draft {files.folder.name} is {files.kind.title}",
            asked,
            {"kind": files.kind.name},
            by_hand(*files.kind.remedies),
        )
    elif not files.config:
        yield Violation(
            f"{files.folder.name} holds no config.json that can be read",
            asked,
            {"folder": str(files.folder)},
            by_hand("download config.json of the draft into the folder"),
        )
    elif files.weights_error is not None and not files.pointers:
        error = files.weights_error
        yield Violation(
            f"the draft's weights cannot be read: {error.message}",
            asked,
            {"refusal": error.code, **error.numbers},
            by_hand(*(error.remedies or ["a draft with safetensors weights"])),
        )


@rule("TF-K12-009", "max_draft_len is missing", SPECULATION, waivable=False)
def draft_length_given(facts: Facts) -> Iterator[Violation]:
    """Build and server both reserve room for the longest draft of a step."""
    speculation = facts.recipe.speculation
    row = facts.features.method(facts.recipe.build.target, speculation.method)
    if row is not None and row.support == "yes" and draft_tokens(facts) is None:
        wanted = DRAFT_LENGTHS.get(speculation.method, 4)
        yield Violation(
            f"speculation.method: {speculation.method} has no max_draft_len",
            facts.asked("speculation.method"),
            {},
            [f"speculation.max_draft_len: {wanted}"],
        )


@rule(
    "TF-K12-013",
    "heads that are not in the checkpoint",
    "https://github.com/NVIDIA/TensorRT-LLM/blob/main/examples/medusa/README.md",
    needs=("draft",),
)
def heads_exist(facts: Facts) -> Iterator[Violation]:
    """The engine is built for a number of heads; a head without weights is built from nothing."""
    files, speculation = facts.draft_files, facts.recipe.speculation
    if files is None or speculation.method != "medusa" or speculation.heads is None:
        return
    stored = {name.split(".")[0] for name in files.tensors if name.split(".")[0].isdigit()}
    declared = files.config.get("medusa_num_heads")
    numbers = {"heads": speculation.heads, "stored": len(stored), "declared": declared}
    asked = f"speculation.heads: {speculation.heads}"
    if stored and speculation.heads > len(stored):
        yield Violation(
            f"{speculation.heads} heads are asked for, the checkpoint holds {len(stored)}",
            asked,
            numbers,
            [f"speculation.heads: {len(stored)}", *by_hand("a checkpoint with more heads")],
        )
    elif isinstance(declared, int) and declared != speculation.heads:
        yield Violation(
            f"{speculation.heads} heads are asked for, config.json of the heads says {declared}",
            asked,
            numbers,
            [
                f"speculation.heads: {declared}",
                *(by_hand(f"medusa_num_heads: {speculation.heads} in config.json of the heads") if stored else []),
            ],
        )


@rule(
    "TF-K12-014",
    "a step that cannot verify the drafts of a full batch",
    "https://nvidia.github.io/TensorRT-LLM/advanced/speculative-decoding.html",
    severity="warning",
)
def step_holds_drafts(facts: Facts) -> Iterator[Violation]:
    """A decode step takes one token and all draft tokens of every request; what does not fit has to wait."""
    limits, drafts = facts.recipe.build.limits, draft_tokens(facts)
    if facts.recipe.speculation.method == "none" or not drafts:
        return
    needed = limits.max_batch_size * (1 + drafts)
    if limits.max_num_tokens < needed:
        fits = max(1, limits.max_num_tokens // (1 + drafts))
        yield Violation(
            f"{limits.max_batch_size} requests with {drafts} draft tokens take {needed} tokens a step, "
            f"max_num_tokens is {limits.max_num_tokens}",
            f"build.limits: {{max_num_tokens: {limits.max_num_tokens}, max_batch_size: {limits.max_batch_size}}}",
            {"draft_tokens": drafts, "needed": needed, "max_num_tokens": limits.max_num_tokens, "largest_batch": fits},
            [
                f"build.limits.max_num_tokens: {needed}",
                *([f"build.limits.max_batch_size: {fits}"] if fits * (1 + drafts) <= limits.max_num_tokens else []),
            ],
        )


@rule("TF-K12-015", "speculation at a large batch", thread("TL#10396"), severity="warning")
def batch_is_small(facts: Facts) -> Iterator[Violation]:
    """Drafts use compute that a small batch leaves idle; a full batch has none to spare, and verification slows it."""
    recipe = facts.recipe
    batch, levels = recipe.build.limits.max_batch_size, recipe.bench.concurrency
    if recipe.speculation.method != "none" and batch >= _BUSY_BATCH and max(levels) < batch:
        yield Violation(
            f"speculation for up to {batch} requests, measured at {max(levels)}",
            facts.asked("speculation.method", "build.limits.max_batch_size"),
            {"max_batch_size": batch, "measured_up_to": max(levels)},
            [line("bench.concurrency", [*levels, batch]), f"build.limits.max_batch_size: {_BUSY_BATCH // 4}"],
        )


@rule(
    "TF-K12-016",
    "sizes that the method's kernels do not take",
    "https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/tensorrt_llm/builder.py",
    waivable=False,
)
def eagle_sizes(facts: Facts) -> Iterator[Violation]:
    """trtllm-build stops at a batch or a draft beyond what the kernels of EAGLE are compiled for."""
    recipe = facts.recipe
    if recipe.speculation.method != "eagle" or not facts.target.trtllm_build:
        return
    for key, value, most in (
        ("build.limits.max_batch_size", recipe.build.limits.max_batch_size, _EAGLE_BATCH),
        ("speculation.max_draft_len", draft_tokens(facts) or 0, _EAGLE_DRAFT),
    ):
        if value > most:
            yield Violation(
                f"{key} {value} is over EAGLE's {most}",
                f"{key}: {value}",
                {key: value, "most": most},
                [f"{key}: {most}"],
            )


@rule("TF-K12-017", "a layout whose models do not draft by the method", ENGINE_PARAMETERS, waivable=False)
def layout_drafts(facts: Facts) -> Iterator[Violation]:
    """The engine could draft so, but nothing in the repository would ask it to."""
    method, layout = facts.recipe.speculation.method, facts.recipe.triton.layout
    works = facts.features.drafting_layouts.get(layout)
    row = facts.features.method(facts.recipe.build.target, method)
    if method == "none" or works is None or method in works or row is None or row.support == "no":
        return
    target = facts.recipe.build.target
    rows = {name: facts.features.method(target, name) for name in works}
    usable = [name for name, other in rows.items() if other and other.support == "yes"]
    hosts = [name for name, methods in facts.features.drafting_layouts.items() if method in methods]
    others = sorted(
        (other, host)
        for host in hosts
        for other in facts.features.targets_of(method)
        if other != target and _served_by(facts, other, host)
    )
    yield Violation(
        f"triton.layout: {layout} has no models that draft by {method}",
        facts.asked("speculation.method", "triton.layout"),
        {"methods_of_layout": usable, "layouts_of_method": hosts},
        [
            *(f"triton.layout: {host}" for host in hosts if _served_by(facts, target, host)),
            *(to_target(facts, name, layout=host) for name, host in others),
            *methods(facts, usable),
        ],
    )


def _served_by(facts: Facts, target: str, layout: str) -> bool:
    return any(layout in stack.layouts for stack in facts.stacks.of(target))


@rule(
    "TF-K12-018",
    "a method whose drafter is not written beside the model",
    "https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/tensorrt_llm/models/eagle/model.py",
    needs=("files",),
    waivable=False,
)
def drafter_is_written(facts: Facts) -> Iterator[Violation]:
    """What drafts inside an engine lies in the model's checkpoint, and TensorRT-LLM has that for models of some classes
    only."""
    method, target = facts.recipe.speculation.method, facts.recipe.build.target
    row = facts.features.method(target, method)
    found = (facts.files.config.get("architectures") or [None])[0] if facts.files is not None else None
    if row is None or not row.architectures or not isinstance(found, str) or found in row.architectures:
        return
    any_model = [
        item.method for item in facts.features.methods_of(target) if not item.architectures and item.draft == "none"
    ]
    yield Violation(
        f"speculation by {method} is not written beside {found} for {target}",
        f"speculation.method: {method}, model: {found}",
        {"architectures": list(row.architectures)},
        [*methods(facts, any_model), without_speculation(facts)],
    )


@rule("TF-K12-019", "a draft that is no directory", waivable=False)
def draft_is_directory(facts: Facts) -> Iterator[Violation]:
    """The artifact carries every model that the server loads, and drafts are taken from a directory only."""
    draft = facts.recipe.speculation.draft
    if draft is None or facts.recipe.speculation.method == "none":
        return
    if is_fetched(draft) or draft.endswith(".gguf"):
        name = draft.removeprefix("hf:").split("@")[0]
        yield Violation(
            f"speculation.draft: {draft} is not fetched",
            facts.asked("speculation.draft"),
            {"draft": draft},
            by_hand(f"huggingface-cli download {name} --local-dir draft, then speculation.draft: draft"),
        )


@rule(
    "TF-K12-021",
    "drafts on a GPU without the kernels that verify them",
    thread("TL#6158"),
    severity="warning",
    needs=("build.architectures",),
)
def drafts_have_kernels(facts: Facts) -> Iterator[Violation]:
    """TensorRT engines verify drafts with XQA kernels; on B200 the server stopped because it found none, and no release
    note since says that they are there."""
    recipe = facts.recipe
    named = [name for name in facts.target_architectures if name in _WITHOUT_KERNELS]
    method = recipe.speculation.method
    if facts.target.trtllm_build and method in _VERIFIED_IN_ENGINE and named:
        yield Violation(
            f"speculation by {method} in an engine for {', '.join(named)}",
            f"speculation.method: {method}, build.architectures: {list(facts.target_architectures)}",
            {"architectures": named},
            [
                without_speculation(facts),
                *for_architectures(facts, named[0], ["sm_90"]),
                *to_targets(facts, lambda target: target.llm_api),
            ],
        )


@rule("TF-K12-022", "a draft that is a whole model where heads are wanted", EAGLE_3_PAPER, needs=("model", "draft"))
def draft_is_heads(facts: Facts) -> Iterator[Violation]:
    """EAGLE's draft is a layer or two that read the target's hidden states; a language model has no weights for that
    and fails when it is loaded."""
    files, model, method = facts.draft_files, facts.require_model(), facts.recipe.speculation.method
    if files is None or method not in ("eagle", "eagle3"):
        return
    layers = files.config.get("num_hidden_layers")
    reads_hidden_states = any(name.endswith("fc.weight") for name in files.tensors)
    if isinstance(layers, int) and layers >= max(3, model.layers // 2) and files.tensors and not reads_hidden_states:
        yield Violation(
            f"the draft has {layers} layers and none that reads the target's hidden states",
            facts.asked("speculation.method", "speculation.draft"),
            {"draft_layers": layers, "target_layers": model.layers, "expected_tensor": "fc.weight"},
            [
                *by_hand("heads that were trained for this target"),
                *([to_method(facts, "draft_target")] if facts.target.llm_api else []),
                without_speculation(facts),
            ],
        )
