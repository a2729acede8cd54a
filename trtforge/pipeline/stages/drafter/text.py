"""draft-text: what the recipe's own engine answers to the prompts of :mod:`quantize.speculative.prompts`.

Part after part is generated and kept; a killed run goes on behind the last one. Half of the answers are greedy, half
sampled; both are what the target says, which is what its drafter must foresee.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantize.speculative.conversations import Conversation, part_file, read_part, write_part
from quantize.speculative.prompts import SHARES, Prompt, prompt, tables
from quantize.speculative.shape import plan_head
from runtime.request import GenerationResult
from runtime.sampling.params import SamplingParams
from trtforge.ground.errors import ForgeError
from trtforge.ground.hashing import hash_json
from trtforge.ground.progress import Progress, SilentProgress
from trtforge.pipeline.stage import Stage, StageContext
from trtforge.pipeline.stages.common import execution_facts
from trtforge.pipeline.stages.drafter.options import DraftOptions
from trtforge.pipeline.stages.engine_process import engine_of
from trtforge.recipe.schema import Recipe
from trtforge.store.artifact import StageResult

if TYPE_CHECKING:
    from runtime.offline import Engine
    from runtime.tokenizer import EngineTokenizer

#: prompts of a part; what a kill costs at most
PART_PROMPTS = 576
#: a turn that the target makes up
TURN_TOKENS, TURN_TEMPERATURE, TURN_TOP_P, SHORTEST_TURN = 80, 1.0, 0.98, 4
ANSWER_TEMPERATURE, ANSWER_TOP_P = 0.8, 0.95
#: stands where a user's turn begins, to find what the chat template writes before it
_MARK = "\u2063turn\u2063"
#: parts without a token in them before it is clear that this target does not answer
_SILENT = 2


class DraftTextStage(Stage):
    """The corpus: parts of JSON lines."""

    name = "draft-text"
    needs = ("intake", "build")
    code_version = "1"
    tools = ("torch", "tokenizers", "numpy")

    def __init__(self, options: DraftOptions) -> None:
        self._options = options

    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        asked = self._options
        return {
            "seed": asked.seed,
            "tokens": asked.tokens,
            "answer": asked.answer,
            "shares": dict(SHARES),
            "prompts_sha256": hash_json(tables()),
            "part": PART_PROMPTS,
            "turn": [TURN_TOKENS, TURN_TEMPERATURE, TURN_TOP_P],
            "sampled": [ANSWER_TEMPERATURE, ANSWER_TOP_P],
        }

    def host_facts(self) -> dict[str, Any]:
        return execution_facts()

    def run(self, context: StageContext) -> StageResult:
        plan_head(context.inputs["intake"].path, self._options.draft_vocab)  # what cannot be trained is refused first
        asked, number, written = self._options, 0, 0
        answers: Counter[str] = Counter()
        tokens: Counter[str] = Counter()
        context.scratch.mkdir(parents=True, exist_ok=True)
        context.progress.start("loading the engine")
        with engine_of(context.inputs["build"].path, context.progress) as ask:
            context.progress.start("text of the target", float(asked.tokens))
            while written < asked.tokens:
                path = part_file(context.scratch, number)
                if path.exists():
                    context.progress.advance(float(sum(len(row.answer) for row in read_part(path))))
                else:
                    ask(write_answers, asked.seed, number, asked.answer, str(path))
                for row in read_part(path):
                    answers[row.kind] += 1
                    tokens[row.kind] += len(row.answer)
                number, written = number + 1, sum(tokens.values())
                if written == 0 and number >= _SILENT:
                    raise _silent(number * PART_PROMPTS)
        for place in range(number):
            shutil.move(part_file(context.scratch, place), part_file(context.out, place))
        return StageResult(
            summary={
                "prompts": number * PART_PROMPTS,
                "conversations": dict(sorted(answers.items())),
                "answer_tokens": dict(sorted(tokens.items())),
                "tokens": written,
            }
        )


def _silent(prompts: int) -> ForgeError:
    return ForgeError(
        "TF-DRF-032",
        f"the target answered none of {prompts} prompts",
        numbers={"prompts": prompts},
        why="A drafter learns from what its target writes; this one ends every answer at once, or takes no prompt.",
        remedies=["larger build.limits.max_seq_len and max_input_len", "a target that writes text"],
    )


def write_answers(engine: Engine, progress: Progress, seed: int, number: int, answer: int, path: str) -> None:
    """Generate part ``number`` and write it to ``path``."""
    wanted = [prompt(seed, number * PART_PROMPTS + place) for place in range(PART_PROMPTS)]
    write_part(Path(path), answers_of(engine, progress, wanted, answer))


def answers_of(engine: Engine, progress: Progress, wanted: list[Prompt], answer: int) -> list[Conversation]:
    """The target's answers; prompts that do not fit beside an answer are left out."""
    tokenizer = engine.tokenizer
    assert tokenizer is not None
    texts = {item.index: item.text for item in wanted} | made_up_turns(engine, wanted)
    limits = engine.executor.limits
    longest = min(limits.max_input_len, limits.max_seq_len - answer)
    asked: list[tuple[Prompt, list[int]]] = []
    for item in wanted:
        ids = prompt_ids(tokenizer, item.kind, texts[item.index])
        if len(texts[item.index]) >= SHORTEST_TURN and len(ids) <= longest:
            asked.append((item, ids))
    ways = [answering(item, answer) for item, _ in asked]
    results = generate(engine, [ids for _, ids in asked], ways, progress)
    return [
        Conversation(item.kind, item.greedy, texts[item.index], tuple(map(int, ids)), tuple(map(int, result.token_ids)))
        for (item, ids), result in zip(asked, results, strict=True)
    ]


def answering(item: Prompt, tokens: int) -> SamplingParams:
    if item.greedy:
        return SamplingParams(max_tokens=tokens, temperature=0.0)
    return SamplingParams(max_tokens=tokens, temperature=ANSWER_TEMPERATURE, top_p=ANSWER_TOP_P, seed=item.seed)


def made_up_turns(engine: Engine, wanted: list[Prompt]) -> dict[int, str]:
    """Turns of a user by the index of their prompt, as the target goes on where its chat template begins one."""
    mine = [item for item in wanted if item.kind == "self"]
    assert engine.tokenizer is not None
    begins = turn_begins(engine.tokenizer)
    ways = [
        SamplingParams(max_tokens=TURN_TOKENS, temperature=TURN_TEMPERATURE, top_p=TURN_TOP_P, seed=item.seed)
        for item in mine
    ]
    results = generate(engine, [begins] * len(mine), ways, SilentProgress())
    return {item.index: result.text.strip() for item, result in zip(mine, results, strict=True)}


def turn_begins(tokenizer: EngineTokenizer) -> list[int]:
    """What stands before a user's turn; of a model without a chat template, what stands before any text."""
    if tokenizer.chat_template is None:
        return tokenizer.encode("") or tokenizer.encode("\n")
    before, mark, _ = tokenizer.render_chat([{"role": "user", "content": _MARK}]).partition(_MARK)
    return tokenizer.encode(before if mark else "\n", add_special_tokens=False) or tokenizer.encode("\n")


def prompt_ids(tokenizer: EngineTokenizer, kind: str, text: str) -> list[int]:
    """A prompt's tokens: a user's turn where the model has a chat template, else plain text."""
    if kind == "open" or tokenizer.chat_template is None:
        return tokenizer.encode(text)
    return tokenizer.encode_chat([{"role": "user", "content": text}])


def generate(
    engine: Engine, prompts: list[list[int]], ways: list[SamplingParams], progress: Progress
) -> list[GenerationResult]:
    """The engine's results in the order of the prompts; every token is progress."""
    from runtime.offline import prompt_index

    results = [GenerationResult() for _ in prompts]
    if not prompts:
        return results
    for output in engine.stream(prompts, ways):
        progress.advance(float(sum(len(sample.token_ids) for sample in output.samples)))
        results[prompt_index(output.request_id)].add(output)
    return results
