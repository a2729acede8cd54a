"""K12: drafters: what EAGLE's shares with a TensorRT engine, what is wrong with EAGLE-3's, how far a model reaches."""

from __future__ import annotations

from collections.abc import Iterator

from trtforge.drafting.inspection import Inspection, inspect_headers
from trtforge.drafting.kinds import EAGLE, EAGLE3, MEDUSA, MODEL, MTP, drafter_method, is_eagle_3, kind_of
from trtforge.drafting.pairing import Target
from trtforge.drafting.trtllm_head import head_for
from trtforge.ground.errors import ForgeError
from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.features import engine_version
from trtforge.preflight.remedies import by_hand
from trtforge.preflight.retarget import to_target, to_targets, without_speculation
from trtforge.rules.sources import DRAFT_TARGET, DRAFTER_CLASSES, EAGLE_3_PAPER, SPECULATORS
from trtforge.tables import StackRow
from trtforge.targets import names


@rule(
    "TF-K12-024",
    "an EAGLE drafter that the engine cannot take",
    "https://github.com/NVIDIA/TensorRT-LLM/blob/v1.2.1/cpp/tensorrt_llm/runtime/gptJsonConfig.cpp",
    needs=("model", "draft"),
    waivable=False,
)
def drafter_fits_engine(facts: Facts) -> Iterator[Violation]:
    """In a TensorRT engine the drafter is a Llama of EAGLE-1 and -2's layout whose keys and values lie in the model's
    pool; EAGLE-3 runs on the PyTorch backend only."""
    files, model, recipe = facts.draft_files, facts.require_model(), facts.recipe
    if files is None or recipe.speculation.method != "eagle" or not facts.target.trtllm_build:
        return
    asked = f"speculation.draft: {recipe.speculation.draft}"
    if is_eagle_3(files.tensors):
        yield Violation(
            "the drafter is an EAGLE-3 one",
            asked,
            {"fc": next((list(info.shape) for name, info in files.tensors.items() if name == "fc.weight"), None)},
            [
                *by_hand("a drafter of EAGLE-1 or -2"),
                *to_targets(facts, lambda target: target.llm_api, method="eagle3"),
            ],
        )
        return
    heads, kv_heads = files.config.get("num_attention_heads"), files.config.get("num_key_value_heads")
    hidden, size = files.config.get("hidden_size"), files.config.get("head_dim")
    if size is None and isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        size = hidden // heads
    for what, found, wanted in (
        ("KV heads", kv_heads if kv_heads is not None else heads, model.kv_heads),
        ("values a head", size, model.head_size),
    ):
        if isinstance(found, int) and found != wanted:
            yield Violation(
                f"the drafter has {found} {what}, the model {wanted}",
                asked,
                {"drafter": found, "model": wanted},
                [*by_hand("a drafter that was trained for this model"), without_speculation(facts)],
            )


#: what a method's drafter is called
_DRAFTERS = {kind.name: kind.title for kind in (EAGLE, EAGLE3, MEDUSA)}


@rule("TF-K12-026", "a drafter of another method", EAGLE_3_PAPER, needs=("draft",), waivable=False)
def drafter_is_of_method(facts: Facts) -> Iterator[Violation]:
    """EAGLE-3 joins hidden states of three layers, EAGLE-1 and -2 an embedding and one hidden state, and Medusa's heads
    read the last one only: the weights of one have no place in another."""
    files, recipe = facts.draft_files, facts.recipe
    method = recipe.speculation.method
    found = drafter_method(files.tensors) if files is not None and method in _DRAFTERS else None
    if files is None or found is None or found == method:
        return
    if (method, found) == ("eagle", "eagle3") and facts.target.trtllm_build:
        return  # TF-K12-024 names it
    fc = files.tensors.get("fc.weight")
    hosts = facts.features.targets_of(found)
    yield Violation(
        f"the draft is {_DRAFTERS[found]}, speculation.method {method} wants {_DRAFTERS[method]}",
        facts.asked("speculation.method", "speculation.draft"),
        {"found": found, "fc": list(fc.shape) if fc is not None else None, "maps": "d2t" in files.tensors},
        [
            *(to_target(facts, host, method=found) for host in hosts),
            *by_hand(f"{_DRAFTERS[method]} of this model as speculation.draft"),
            without_speculation(facts),
        ],
    )


@rule("TF-K12-027", "an EAGLE-3 drafter that cannot work", DRAFTER_CLASSES, needs=("draft",), waivable=False)
def eagle_3_drafter_is_sound(facts: Facts) -> Iterator[Violation]:
    """What `trtforge draft inspect` refuses drafts nothing that is accepted, or cannot be loaded."""
    yield from _inspected(facts, "error")


@rule("TF-K12-028", "an EAGLE-3 drafter that asks for a look", DRAFTER_CLASSES, severity="warning", needs=("draft",))
def eagle_3_drafter_is_plain(facts: Facts) -> Iterator[Violation]:
    """What `trtforge draft inspect` warns of loads, and may accept little."""
    yield from _inspected(facts, "warning")


def _inspection(facts: Facts) -> Inspection | None:
    """The recipe's EAGLE-3 drafter, held against the model where that is here; None where there is none to look at."""
    files, model = facts.draft_files, facts.files
    if files is None or facts.recipe.speculation.method != EAGLE3.name or not files.tensors:
        return None
    if kind_of(files.config, files.tensors) is not EAGLE3 or drafter_method(files.tensors) == EAGLE.name:
        return None  # TF-K12-026 and TF-K12-029 name it

    def inspect() -> Inspection:
        target = Target(model.folder, model.config, model.tensors) if model is not None and model.config else None
        return inspect_headers(files.folder, files.config, files.tensors, target)

    return files.once(f"drafter against {model.folder if model is not None else ''}", inspect)


def _inspected(facts: Facts, severity: str) -> Iterator[Violation]:
    """The findings of an EAGLE-3 drafter, each under the code that ``trtforge draft`` gives it."""
    found = _inspection(facts)
    if found is None:
        return
    # TF-K12-006 and TF-K12-007 compare what stands at the top of config.json
    said = {code for key, code in (("hidden_size", "TF-DRF-019"), ("vocab_size", "TF-DRF-021")) if key in found.config}
    for finding in found.findings:
        if finding.severity == severity and finding.code not in said:
            yield Violation(
                f"{finding.message} ({finding.code})",
                facts.asked("speculation.draft"),
                {"refusal": finding.code, **finding.numbers},
                [*by_hand(*finding.remedies), without_speculation(facts)],
                why=finding.why,
            )


@rule(
    "TF-K12-035",
    "an EAGLE-3 drafter that this TensorRT-LLM does not load",
    DRAFTER_CLASSES,
    needs=("draft",),
    waivable=False,
)
def drafter_is_loaded(facts: Facts) -> Iterator[Violation]:
    """The artifact holds the drafter in the dialect of TensorRT-LLM's loader, which ignores what it does not know; what
    has no place there would be lost."""
    found, version = _inspection(facts), engine_version(facts)
    if found is None or found.errors or version is None or not facts.target.llm_api:
        return
    asked = f"speculation.draft: {facts.recipe.speculation.draft}"
    try:
        head_for(found, str(version), asked=asked, whole=False)
    except ForgeError as error:
        newer = [row.name for row in facts.stacks.rows if row.name != facts.recipe.stack and _loads(found, row)]
        ways = [way for way in error.remedies if not way.startswith("--")]
        if error.code == "TF-DRF-020":
            command = f"trtforge draft convert {found.folder.name} --to tensorrt-llm"
            ways = [f"{command} {way}, and its result as speculation.draft" for way in error.remedies[:1]]
        yield Violation(
            f"{error.message} ({error.code})",
            asked,
            {"refusal": error.code, "tensorrt_llm": str(version), **error.numbers},
            [*(f"stack: {name}" for name in newer), *by_hand(*ways), without_speculation(facts)],
            why=error.why,
        )


def _loads(found: Inspection, row: StackRow) -> bool:
    """Whether the TensorRT-LLM of another stack loads the drafter."""
    version = row.version_of("TensorRT-LLM")
    if version is None or not any(name in row.targets for name in names(lambda target: target.llm_api)):
        return False
    try:
        head_for(found, version, asked="", whole=False)
    except ForgeError:
        return False
    return True


#: the methods that read a draft's folder
_METHODS = ("eagle", "eagle3", "medusa", "draft_target")


@rule("TF-K12-029", "a drafter that no method of a recipe takes", SPECULATORS, needs=("draft",), waivable=False)
def drafter_has_a_method(facts: Facts) -> Iterator[Violation]:
    """DFlash, DSpark, P-EAGLE, MTP, ReDrafter and MLP speculators draft in their own ways; loaded as an EAGLE head or
    as a model, their weights have no place."""
    files, method = facts.draft_files, facts.recipe.speculation.method
    if files is None or method not in _METHODS or not files.tensors:
        return
    kind = kind_of(files.config, files.tensors)
    if kind is None or kind.name in (*_DRAFTERS, MODEL.name):
        return
    if kind is MTP and method == "draft_target":
        return  # a model with a prediction layer of its own drafts as any other
    yield Violation(
        f"the draft is {kind.title}, which speculation.method {method} does not take",
        facts.asked("speculation.method", "speculation.draft"),
        {"kind": kind.name},
        [*by_hand("an EAGLE-3 drafter of this model as speculation.draft"), without_speculation(facts)],
    )


@rule("TF-K12-025", "a draft model with fewer positions than a request", DRAFT_TARGET, needs=("draft",))
def draft_is_long_enough(facts: Facts) -> Iterator[Violation]:
    """The draft continues the whole text, prompt and answer; past its last position its rotary table ends."""
    files, recipe = facts.draft_files, facts.recipe
    reads = facts.target.trtllm_build or facts.target.runs_here
    if files is None or recipe.speculation.method != "draft_target" or not reads:
        return
    positions, longest = files.config.get("max_position_embeddings"), recipe.build.limits.max_seq_len
    if isinstance(positions, int) and positions < longest:
        yield Violation(
            f"the draft has {positions} positions, build.limits.max_seq_len is {longest}",
            facts.asked("speculation.draft"),
            {"positions": positions, "max_seq_len": longest},
            [f"build.limits.max_seq_len: {positions}", without_speculation(facts)],
        )
