"""draft-train: ModelOpt's EAGLE-3 module on the target's states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtforge.ground.errors import ForgeError
from trtforge.pipeline.stage import Stage, StageContext
from trtforge.pipeline.stages.common import read_json, write_json
from trtforge.pipeline.stages.drafter.options import DraftOptions
from trtforge.recipe.schema import Recipe
from trtforge.store.artifact import StageResult

WEIGHTS_FILE = "weights.safetensors"
TRAINING_FILE = "training.json"


class DraftTrainStage(Stage):
    """The trained weights under canonical names, and how they came about."""

    name = "draft-train"
    needs = ("intake", "draft-states")
    code_version = "2"
    tools = ("torch", "nvidia-modelopt", "transformers")

    def __init__(self, options: DraftOptions) -> None:
        self._options = options

    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        asked = self._options
        names = (
            "seed",
            "draft_vocab",
            "draft_steps",
            "epochs",
            "steps",
            "time_budget",
            "batch_tokens",
            "learning_rate",
        )
        return {name: getattr(asked, name) for name in names}

    def run(self, context: StageContext) -> StageResult:
        from safetensors.torch import save_file

        from quantize.speculative.draft_module import DraftModule
        from quantize.speculative.shape import choose_tokens, plan_head
        from quantize.speculative.states import States
        from quantize.speculative.training import Settings, train

        asked = self._options
        checkpoint = context.inputs["intake"].path
        head = plan_head(checkpoint, asked.draft_vocab)
        context.progress.start("reading the states")
        states = States(context.inputs["draft-states"].path)
        counts = states.counts(head.vocab_size)
        written = int(counts.sum())
        tokens = choose_tokens(counts.tolist(), asked.draft_vocab, end_tokens(checkpoint, head.vocab_size))
        covered = int(counts[tokens].sum())
        draft = DraftModule.build(checkpoint, head, tokens, states.spread(), asked.seed)
        settings = Settings(
            seed=asked.seed,
            epochs=asked.epochs,
            steps=asked.steps,
            time_budget=asked.time_budget,
            batch_tokens=asked.batch_tokens,
            learning_rate=asked.learning_rate,
            draft_steps=asked.draft_steps,
        )
        if len(states.texts) < 2:
            raise ForgeError(
                "TF-DRF-033",
                f"{len(states.texts)} answers are no text to train a drafter on",
                numbers={"answers": len(states.texts)},
                why="One answer is kept out to watch the training by.",
                remedies=["a larger --tokens", "larger build.limits.max_seq_len"],
            )
        context.scratch.mkdir(parents=True, exist_ok=True)
        state = train(draft, states, settings, context.scratch, context.progress)
        save_file({name: value.contiguous() for name, value in draft.tensors().items()}, context.out / WEIGHTS_FILE)
        record = {
            "tokens": tokens,
            "covered": covered / max(1, written),
            "steps": state.step,
            "planned_steps": state.total,
            "best_step": state.best_step,
            "held_out_accepted_length": round(state.best, 4),
            "history": state.history,
        }
        write_json(context.out / TRAINING_FILE, record)
        summary = {name: value for name, value in record.items() if name not in ("tokens", "history")}
        return StageResult(summary=summary, measurements={"seconds": round(state.seconds, 1)})


def end_tokens(checkpoint: Path, vocabulary: int) -> list[int]:
    """The tokens that end an answer: a head that cannot draft them stops short of every end."""
    found: list[int] = []
    for name in ("generation_config.json", "config.json"):
        if not (checkpoint / name).exists():
            continue
        value = read_json(checkpoint / name).get("eos_token_id")
        found += value if isinstance(value, list) else [value]
    return sorted({token for token in found if isinstance(token, int) and 0 <= token < vocabulary})
