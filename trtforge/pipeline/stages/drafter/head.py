"""draft-head: the trained head as servers load it, its figures on held-out prompts, and its data card.

The figures are of greedy chains: the target's greedy answers say which drafts are accepted (exactly what a greedy
verification does). They are computed with the exported weights, and the exported head is held against
:class:`~runtime.speculation.reference.Eagle3Reference` first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from trtforge.ground.errors import ForgeError
from trtforge.ground.hashing import hash_json
from trtforge.pipeline.stage import Stage, StageContext
from trtforge.pipeline.stages.common import execution_facts, read_json, rounded, write_json
from trtforge.pipeline.stages.drafter.card import write_card
from trtforge.pipeline.stages.drafter.options import DraftOptions
from trtforge.pipeline.stages.drafter.text import generate
from trtforge.pipeline.stages.drafter.training import TRAINING_FILE, WEIGHTS_FILE
from trtforge.pipeline.stages.engine_process import engine_of
from trtforge.recipe.schema import Recipe
from trtforge.store.artifact import StageResult

if TYPE_CHECKING:
    from pathlib import Path

    from quantize.speculative.acceptance import Acceptance
    from quantize.speculative.conversations import Conversation
    from quantize.speculative.draft_module import DraftModule
    from runtime.offline import Engine
    from trtforge.drafting.description import Eagle3
    from trtforge.ground.progress import Progress

HEAD_FOLDER = "head"
FIGURES_FILE = "figures.json"
ANSWER_TOKENS = 128
#: logits of two float32 computations of one head; a wrong norm, rotation or tap moves them by more than 0.1
_TOLERANCE = 1e-3


class DraftHeadStage(Stage):
    """The folder ``head`` is what ships: config.json, model.safetensors, README.md."""

    name = "draft-head"
    needs = ("intake", "build", "draft-text", "draft-states", "draft-train")
    code_version = "1"
    tools = ("torch", "transformers", "tokenizers", "numpy")

    def __init__(self, options: DraftOptions) -> None:
        self._options = options

    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        from evals.speculation.prompts import held_out

        asked = self._options
        return {
            "draft_vocab": asked.draft_vocab,
            "drafts": asked.drafts,
            "prompts": asked.figure_prompts,
            "prompts_sha256": hash_json(held_out()),
            "tokens": ANSWER_TOKENS,
            "source": recipe.model.source,
        }

    def host_facts(self) -> dict[str, Any]:
        return execution_facts()

    def run(self, context: StageContext) -> StageResult:
        from safetensors.torch import load_file

        from quantize.speculative.export import export_head
        from quantize.speculative.shape import plan_head

        checkpoint, trained = context.inputs["intake"].path, context.inputs["draft-train"].path
        head = plan_head(checkpoint, self._options.draft_vocab)
        record = read_json(trained / TRAINING_FILE)
        folder = context.out / HEAD_FOLDER
        export_head(head, load_file(trained / WEIGHTS_FILE), record["tokens"], checkpoint, folder)
        answers = self._held_out(context)
        figures = self._figures(context, head, record["tokens"], folder, answers)
        write_json(context.out / FIGURES_FILE, figures)
        write_card(folder, context, figures, record)
        return StageResult(summary=figures)

    def _held_out(self, context: StageContext) -> dict[str, list[Conversation]]:
        """The target's greedy answers to the held-out prompts, by class."""
        asked = self._options
        context.progress.start("loading the engine")
        with engine_of(context.inputs["build"].path, context.progress) as ask:
            found: dict[str, list[Conversation]] = ask(held_out_answers, asked.figure_prompts, ANSWER_TOKENS)
        return found

    def _figures(
        self,
        context: StageContext,
        head: Eagle3,
        tokens: Sequence[int],
        folder: Path,
        answers: Mapping[str, Sequence[Conversation]],
    ) -> dict[str, Any]:
        from safetensors.torch import load_file

        from quantize.speculative.draft_module import DraftModule
        from quantize.speculative.export import WEIGHTS
        from quantize.speculative.judging import judge_answers
        from quantize.speculative.states import StateWriter
        from trtforge.drafting.dialects import canonical_names

        checkpoint = context.inputs["intake"].path
        assert head.taps is not None
        draft = DraftModule.build(checkpoint, head, tokens, None, 0)
        stored = load_file(folder / WEIGHTS)
        draft.load({name: stored[written].float() for name, written in canonical_names(stored).items()})
        context.progress.start("states of the held-out answers")
        writer = StateWriter(checkpoint, head.taps)
        first = next(row for rows in answers.values() for row in rows)
        taps, _ = writer.states([first.tokens])[0]
        check_reference(draft, folder, first.tokens, taps)
        judged = {kind: judge_answers(draft, writer, rows, self._options.drafts) for kind, rows in answers.items()}
        return {"drafts": self._options.drafts, "answer_tokens": ANSWER_TOKENS, "classes": by_class(judged)}


def held_out_answers(engine: Engine, progress: Progress, count: int, tokens: int) -> dict[str, list[Conversation]]:
    """Greedy answers to the first ``count`` held-out prompts of each class."""
    from evals.speculation.prompts import chosen
    from quantize.speculative.conversations import Conversation
    from runtime.sampling.params import SamplingParams

    limits = engine.executor.limits
    prompts = chosen(engine.tokenizer, count, min(limits.max_input_len, limits.max_seq_len - tokens))
    flat = [(kind, ids) for kind, rows in prompts.items() for ids in rows]
    progress.start("greedy answers to held-out prompts", float(len(flat) * tokens))
    ways = [SamplingParams(max_tokens=tokens, temperature=0.0)] * len(flat)
    results = generate(engine, [ids for _, ids in flat], ways, progress)
    found: dict[str, list[Conversation]] = {kind: [] for kind in prompts}
    for (kind, ids), result in zip(flat, results, strict=True):
        found[kind].append(Conversation(kind, True, "", tuple(map(int, ids)), tuple(map(int, result.token_ids))))
    return found


def by_class(judged: Mapping[str, Sequence[Acceptance]]) -> dict[str, Any]:
    """Accepted lengths with 95 % intervals (resampled over prompts), and acceptance by position."""
    from evals.statistics import ratio_interval
    from quantize.speculative.acceptance import merged

    found: dict[str, Any] = {}
    for kind, texts in judged.items():
        some = [text for text in texts if text.rounds]
        if not some:
            continue
        total = merged(some, len(some[0].reached))
        interval = ratio_interval([text.tokens for text in some], [text.rounds for text in some])
        found[kind] = rounded({"prompts": len(some), **total.to_json(), "interval": interval.to_json()}, 5)
    return found


def check_reference(draft: DraftModule, folder: Path, tokens: Sequence[int], taps: Any) -> None:
    """Hold the exported folder against the plain reference, on one text.

    Raises:
        ForgeError: ``TF-DRF-034`` training module and exported head compute different logits.
    """
    import torch

    from quantize.speculative.rollout import first_logits
    from runtime.speculation.reference import Eagle3Reference

    reference = Eagle3Reference.open(folder, embedding=draft.embedding)
    ids = torch.tensor(tokens)
    with torch.no_grad():
        states = reference.join(taps[:-1].float())
        theirs, _ = reference.step(ids[1:], states)
        ours = first_logits(draft, ids[None], taps[None])[0, :-1]
    apart = float((theirs - ours).abs().max())
    if not apart <= _TOLERANCE:
        raise ForgeError(
            "TF-DRF-034",
            f"the exported head's logits are {apart:.3g} from those of the module that was trained",
            asked=str(folder),
            numbers={"apart": apart, "tolerance": _TOLERANCE},
            why="What was trained is not what servers would compute; another ModelOpt or transformers does otherwise.",
            remedies=["the versions of constraints.txt"],
        )
