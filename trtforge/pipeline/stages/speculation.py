"""speculation: the engine with drafts against itself without: the same answers, the same distribution, what is gained.

One engine is loaded; each request says whether it may be drafted for. Equality, distribution and accepted lengths are
measured with drafts as long as the engine makes them, so that no clock decides them; speed with the recipe's policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from trtforge.drafting.record import SpeculationRecord, read_speculation
from trtforge.ground.hashing import hash_json
from trtforge.machine.processor import cores
from trtforge.machine.record import machine_facts
from trtforge.pipeline.stage import Stage, StageContext
from trtforge.pipeline.stages.common import bad_record, execution_facts, plain, read_json, rounded, write_json
from trtforge.pipeline.stages.engine_process import engine_of
from trtforge.recipe.schema import Recipe
from trtforge.store.artifact import StageResult

if TYPE_CHECKING:
    from pathlib import Path

    from evals.speculation.measure import Measured

SPECULATION_FILE = "speculation.json"
#: times and what the policy made of them
SPEED_FILE = "speculation-speed.json"


class SpeculationStage(Stage):
    """Gates: greedy answers, sampled distribution, accepted length where the recipe asks for one, speed."""

    name = "speculation"
    # parity measured how far rounding moves a logit
    needs = ("build", "parity")
    code_version = "1"
    tools = ("torch", "tokenizers", "numpy")

    def asked_for(self, recipe: Recipe) -> bool:
        return recipe.speculation.method != "none"

    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        from evals.speculation.prompts import held_out

        return {
            **plain(recipe.evals.speculation),
            "concurrency": levels(recipe),
            "prompts_sha256": hash_json(held_out()),
        }

    def host_facts(self) -> dict[str, Any]:
        return {**execution_facts(), "cpus": cores()}

    def run(self, context: StageContext) -> StageResult:
        from evals.speculation.measure import gates, measure
        from evals.speculation.prompts import chosen
        from runtime.tokenizer import EngineTokenizer

        asked = context.recipe.evals.speculation
        directory = context.inputs["build"].path
        engine = read_json(directory / "engine.json")
        tokenizer = EngineTokenizer.load(directory)
        assert tokenizer is not None
        limits = engine["limits"]
        longest = min(int(limits["max_input_len"]), int(limits["max_seq_len"]) - asked.max_tokens)
        prompts = chosen(tokenizer, asked.prompts, longest)
        context.progress.start("loading the engine")
        with engine_of(directory, context.progress) as ask:
            found: Measured = ask(
                measure,
                prompts,
                asked,
                levels(context.recipe),
                record_of(engine, directory),
                float(context.inputs["parity"].summary["noise"]),
            )
        quality = rounded(found.quality.to_json())
        speed = rounded({"machine": machine_facts(), **found.speed.to_json()}, 6)
        write_json(context.out / SPECULATION_FILE, quality)
        write_json(context.out / SPEED_FILE, speed)
        return StageResult(
            summary={"method": context.recipe.speculation.method, **quality},
            measurements=speed,
            measured=(SPEED_FILE,),
            gates=gates(found, asked.gate),
        )


def levels(recipe: Recipe) -> list[int]:
    """Requests in flight when speed is measured, rising: the section's own, else 1 and the bench's."""
    return sorted(set(recipe.evals.speculation.concurrency or (1, *recipe.bench.concurrency)))


def record_of(engine: Mapping[str, Any], directory: Path) -> SpeculationRecord:
    """What the engine was built to draft.

    Raises:
        ForgeError: TF-STO-015 it has no record of that, or none that this version reads.
    """
    try:
        record = read_speculation(engine)
    except ValueError as error:
        raise bad_record(directory / "engine.json", str(error)) from error
    if record is None:
        raise bad_record(directory / "engine.json", "the engine was built without speculation")
    return record
