"""Says for every stage whether it is cached, and if not, what changed since the recipe's last run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trtforge.ground.json_file import PlainRecord
from trtforge.machine.software import tool_versions
from trtforge.pipeline.keys import describe_changes, ingredients_of, key_of
from trtforge.pipeline.pipeline import Pipeline, carries_current_measurements
from trtforge.pipeline.stage import Stage
from trtforge.recipe.load import LoadedRecipe
from trtforge.store.artifact import Artifact
from trtforge.store.runs import RunRecord, StageRecord, load_record
from trtforge.store.store import Damage

ExplainStatus = Literal["cached", "gate failed", "would run", "may run", "left out"]


@dataclass(frozen=True)
class StageExplanation(PlainRecord):
    """One stage as the next run would treat it.

    ``may run`` means that an input would be built first: the stage stays cached if the input comes out the same.
    ``left out`` means that the recipe's target has no such stage here: a run writes down why.
    """

    stage: str
    status: ExplainStatus
    reasons: tuple[str, ...]
    key: str | None = None
    path: Path | None = None
    seconds: float | None = None


def explain(pipeline: Pipeline, loaded: LoadedRecipe, until: str | None = None) -> list[StageExplanation]:
    """What a run of the recipe would do, stage by stage; changes nothing.

    ``seconds`` is what the stage took when the artifact was made, for cached stages.
    """
    record = load_record(pipeline.store, loaded.recipe.name)
    unrecorded = _unrecorded(record)
    artifacts: dict[str, Artifact] = {}
    rows: list[StageExplanation] = []
    stages = pipeline.select(loaded.recipe, until)
    asked = {stage.name for stage in stages}
    for stage in stages:
        before = record.stages.get(stage.name) if record else None
        needs = [name for name in stage.needs if name in asked]
        unknown = [name for name in needs if name not in artifacts]
        if left_out := _left_out(stage, loaded, before):
            rows.append(left_out)
            continue
        if unknown:
            rows.append(_undecided(stage, loaded, unknown, before, unrecorded))
            continue
        inputs = {name: artifacts[name] for name in needs}
        ingredients = ingredients_of(stage, loaded.recipe, loaded.directory, inputs)
        key = key_of(ingredients)
        found = pipeline.store.find(stage.name, key)
        if isinstance(found, Artifact) and carries_current_measurements(stage, found, inputs):
            artifacts[stage.name] = found
            passed = bool(found.manifest["gates_passed"])
            reasons = (
                () if passed else tuple(g["detail"] or g["name"] for g in found.manifest["gates"] if not g["passed"])
            )
            rows.append(
                StageExplanation(
                    stage.name,
                    "cached" if passed else "gate failed",
                    reasons,
                    key,
                    found.path,
                    found.manifest["seconds"],
                )
            )
            continue
        reasons = tuple(_why(found, before, key, ingredients, unrecorded))
        rows.append(StageExplanation(stage.name, "would run", reasons, key))
    return rows


def _unrecorded(record: RunRecord | None) -> str:
    """Why nothing is known of a stage: there was no run, or it ended before the stage did."""
    if record is None:
        return "no run of a recipe of this name is recorded"
    ended = {
        "gate failed": "missed a gate",
        "failed": "failed",
        "interrupted": "was interrupted",
        "running": "was killed, or is still running,",
    }.get(record.status)
    if ended is None:
        return "no run of this recipe has finished the stage"
    return f"the last run {ended} before this stage was finished (log: {record.log})"


def _why(
    found: Artifact | Damage | None, before: StageRecord | None, key: str, ingredients: dict[str, Any], unrecorded: str
) -> Sequence[str]:
    if isinstance(found, Damage):
        return [f"the cached artifact is damaged: {found.reason}"]
    if isinstance(found, Artifact):
        return ["an input was measured anew"]
    if before is None:
        return [unrecorded]
    if before.key == key:
        return ["the artifact of the last run was removed"]
    return describe_changes(before.ingredients, ingredients)


def _left_out(stage: Stage, loaded: LoadedRecipe, before: StageRecord | None) -> StageExplanation | None:
    """The stage as one that the target leaves out; None where it runs, or where that was written down already."""
    absent = stage.section(loaded.recipe, loaded.directory).get("not_run")
    if absent is None or before is not None:
        return None
    return StageExplanation(stage.name, "left out", (str(absent["reason"]),))


def _undecided(
    stage: Stage, loaded: LoadedRecipe, unknown: list[str], before: StageRecord | None, unrecorded: str
) -> StageExplanation:
    """A stage whose inputs would be built first: everything but the inputs can still be compared."""
    inputs = f"input {unknown[0]}" if len(unknown) == 1 else f"inputs {', '.join(unknown)}"
    reasons = [f"{inputs} would be built first"]
    if before is None:
        return StageExplanation(stage.name, "may run", (unrecorded, *reasons))
    now = {
        **before.ingredients,
        "code_version": stage.code_version,
        "section": stage.section(loaded.recipe, loaded.directory),
        "tools": tool_versions(stage.tools),
        "host": stage.host_facts(),
    }
    changes = describe_changes(before.ingredients, now)
    return StageExplanation(stage.name, "would run" if changes else "may run", (*changes, *reasons))
