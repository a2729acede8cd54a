"""K12: speculation under TensorRT-LLM's LLM API: keys that a release does not honour, sizes that it refuses."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from trtforge.preflight.engine import Facts, Violation, rule
from trtforge.preflight.features import engine_version, without
from trtforge.preflight.remedies import by_hand
from trtforge.preflight.retarget import to_target, without_speculation
from trtforge.recipe.llm_speculation import keys_asked, refused_sizes, speculation_table
from trtforge.targets import DEFAULT

_ARGUMENTS = "https://github.com/NVIDIA/TensorRT-LLM/blob/main/tensorrt_llm/llmapi/llm_args.py"
#: keys that only go together
_PAIR = ("acceptance_rate_threshold", "acceptance_rate_window_size")
#: batches of a schedule that a message names
_NAMED = 8


def _version(facts: Facts) -> Version | None:
    """The release that runs the recipe's speculation through the LLM API; None for another target or method."""
    recipe = facts.recipe
    known = any(recipe.speculation.method in row.types for row in speculation_table().names)
    return engine_version(facts) if facts.target.llm_api and known else None


@rule("TF-K12-036", "a speculation key that this TensorRT-LLM does not honour", _ARGUMENTS, waivable=False)
def release_honours_keys(facts: Facts) -> Iterator[Violation]:
    """LLM() refuses names that it does not have, and reads some that nothing behind it follows."""
    version, asked, table = _version(facts), facts.recipe.speculation, speculation_table()
    if version is None:
        return
    for lack in table.unhonoured(asked, version):
        stacks = [
            row.name
            for row in facts.stacks.rows
            if facts.recipe.build.target in row.targets
            and (other := row.version_of("TensorRT-LLM")) is not None
            and table.honours(lack.key, asked, Version(other))
        ]
        gone = _PAIR if lack.key in _PAIR else (lack.key,)
        removed = [" with ".join(f"remove speculation.{key}" for key in gone)]
        ways = without(facts, "dynamic-tree") if lack.key == "dynamic_tree" else removed
        yield Violation(
            f"speculation.{lack.key} is not honoured by TensorRT-LLM {version} with {asked.method}",
            f"speculation.{lack.key}: {keys_asked(asked)[lack.key]}, speculation.method: {asked.method}",
            {"tensorrt_llm": str(version), "stacks": stacks},
            [*(f"stack: {name}" for name in stacks), *ways, to_target(facts, DEFAULT.name), without_speculation(facts)],
            why=lack.why,
            source=lack.source,
        )


@rule("TF-K12-037", "speculation sizes that LLM() refuses", _ARGUMENTS, waivable=False)
def release_takes_sizes(facts: Facts) -> Iterator[Violation]:
    """Its own checks end the start of the server, after the model was copied there."""
    if _version(facts) is None:
        return
    for size in refused_sizes(facts.recipe.speculation):
        yield Violation(
            f"speculation.{size.key}: {size.message}",
            f"speculation.{size.key}",
            size.numbers,
            [size.remedy, without_speculation(facts)],
        )


@rule("TF-K12-038", "a draft length for batches that never run", _ARGUMENTS)
def schedule_is_reached(facts: Facts) -> Iterator[Violation]:
    """A length holds up to its batch; where an earlier one reaches build.limits.max_batch_size already, the later never
    comes, and whoever wrote it thinks of another limit."""
    schedule, largest = facts.recipe.speculation.draft_len_schedule, facts.recipe.build.limits.max_batch_size
    if facts.recipe.speculation.method == "none" or not schedule:
        return
    covers = next((batch for batch in sorted(schedule) if batch >= largest), None)
    beyond = [batch for batch in sorted(schedule) if covers is not None and batch > covers]
    if beyond:
        named, few = beyond[:_NAMED], len(beyond) <= _NAMED
        more = "" if few else f" and {len(beyond) - _NAMED} more numbers of"
        yield Violation(
            f"draft lengths for {', '.join(map(str, named))}{more} requests, {largest} run at most",
            f"speculation.draft_len_schedule, build.limits.max_batch_size: {largest}",
            {"max_batch_size": largest, "never": named, "lengths": len(beyond)},
            [
                *([" with ".join(f"remove speculation.draft_len_schedule.{batch}" for batch in beyond)] if few else []),
                f"build.limits.max_batch_size: {beyond[-1]}",
                *by_hand(*([] if few else [f"leave out the lengths for more than {covers} requests"])),
            ],
        )
