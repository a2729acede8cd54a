"""K7, K18: rotary embedding as config.json says it, and weights that are pointers."""

from __future__ import annotations

from collections.abc import Iterator

from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.remedies import by_hand
from trtforge.rules.sources import thread
from trtforge.tables.decoders import decoders

_ROPE_NEEDS = {
    "linear": ("factor",),
    "yarn": ("factor",),
    "longrope": ("long_factor", "short_factor", "original_max_position_embeddings"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


@rule("TF-K18-001", "rope type that the graph does not write", thread("TL#2105"), needs=("model",), waivable=False)
def rope_type(facts: Facts) -> Iterator[Violation]:
    """With another rotation the model reads positions wrongly: short prompts look fine, long ones turn to garbage."""
    kind, row = _rope_kind(facts), decoders().get(facts.require_model().architecture)
    known = row.rope_types if row is not None else ()
    if row is not None and kind not in known:
        yield Violation(
            f"rope type {kind} of a {row.architecture} is not written by the graph builder",
            f"config.json of {facts.recipe.model.source}: rope_type: {kind}",
            {"known": list(known)},
            by_hand(f"a checkpoint with rope type {', '.join(known)}"),
        )


@rule("TF-K18-002", "rope settings that are incomplete", thread("TL#2302"), needs=("model",), waivable=False)
def rope_complete(facts: Facts) -> Iterator[Violation]:
    """A missing factor would be taken as 1 and the context extension lost."""
    kind, rope = _rope_kind(facts), facts.require_model().rope
    missing = [key for key in _ROPE_NEEDS.get(kind, ()) if rope.get(key) is None]
    if missing:
        yield Violation(
            f"rope type {kind} without {', '.join(missing)}",
            f"config.json of {facts.recipe.model.source}: rope_type: {kind}",
            {"given": {key: value for key, value in rope.items() if isinstance(value, (int, float, str))}},
            by_hand(f"add {', '.join(missing)} to rope_parameters in config.json"),
        )


def _rope_kind(facts: Facts) -> str:
    rope = facts.require_model().rope
    return str(rope.get("rope_type") or rope.get("type") or "default")


@rule("TF-K18-003", "rope settings that contradict each other", thread("TL#2105"), needs=("files",))
def rope_agrees(facts: Facts) -> Iterator[Violation]:
    """Readers take one spelling or the other: `type` is the old key, `rope_type` the new one, and `rope_parameters`
    stands beside `rope_scaling`."""
    config = facts.files.config if facts.files is not None else {}
    sections = {key: config[key] for key in ("rope_scaling", "rope_parameters") if isinstance(config.get(key), dict)}
    values: dict[str, dict[str, object]] = {"type": {}, "factor": {}, "rope_theta": {}}
    for name, section in sections.items():
        for spelling in ("type", "rope_type"):
            if section.get(spelling) is not None:
                values["type"][f"{name}.{spelling}"] = section[spelling]
        for key in ("factor", "rope_theta"):
            if section.get(key) is not None:
                values[key][f"{name}.{key}"] = section[key]
    if config.get("rope_theta") is not None:
        values["rope_theta"]["rope_theta"] = config["rope_theta"]
    for what, found in values.items():
        given = list(found.values())
        if any(value != given[0] for value in given):
            shown = ", ".join(f"{key}: {value}" for key, value in found.items())
            yield Violation(
                f"config.json says the rope's {what} in two ways: {shown}",
                facts.asked("model.source"),
                {"found": dict(found)},
                by_hand(
                    f"keep one value of {', '.join(found)} in config.json", "download config.json of one revision again"
                ),
            )


@rule("TF-K18-004", "weights that are Git-LFS pointers", thread("TL#2052"), needs=("files",), waivable=False)
def no_pointers(facts: Facts) -> Iterator[Violation]:
    """The repository was cloned without Git-LFS: each weight file is a text of about 130 bytes that names it."""
    folders = {f"model.source: {facts.recipe.model.source}": facts.files}
    folders[f"speculation.draft: {facts.recipe.speculation.draft}"] = facts.draft_files
    folders |= {f"build.trtllm.lora.adapters.{name}": files for name, files in facts.adapter_files.items()}
    for asked, files in folders.items():
        if files is not None and files.pointers:
            yield Violation(
                f"{files.folder.name} holds {len(files.pointers)} pointers instead of weights: {files.pointers[0]} …",
                asked,
                {"pointers": list(files.pointers)},
                by_hand(
                    f"git lfs install && git lfs pull in {files.folder}",
                    "a source that is fetched: hf:org/name@revision",
                ),
            )


@rule("TF-K7-007", "a context extension that was lost", thread("VL#6738"), needs=("model",), severity="warning")
def extension_is_there(facts: Facts) -> Iterator[Violation]:
    """Llama 3.1 and later reach 131,072 positions by their rope scaling; a conversion that drops it keeps the figure
    and loses the ability: short prompts look fine, long ones turn to garbage."""
    model = facts.require_model()
    base = model.rope.get("rope_theta")
    lost = _rope_kind(facts) == "default" and (model.vocab, model.max_positions) == (128_256, 131_072)
    if lost and base in (None, 500_000):
        yield Violation(
            "config.json says 131,072 positions of a Llama-3 vocabulary and no rope scaling",
            facts.asked("model.source"),
            {"max_positions": model.max_positions, "rope_type": "default", "rope_theta": base},
            by_hand(
                "rope_scaling: {rope_type: llama3, factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, "
                "original_max_position_embeddings: 8192} in config.json (factor 32.0 for Llama 3.2)",
                "config.json of the publisher's own revision",
            ),
        )
