"""How baseline, quantized checkpoint and engine are measured: one function for all, so that they are comparable.

Perplexity over the same tokens with the same windows, greedy answers to the same prompts, tasks with one right answer
and the long-context probe; checkpoints through the reference model (de-quantized weights, emulated activation and KV
quantization, float32). Every sample is kept (:mod:`evals.samples`); verdicts are made from the samples alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trtforge.pipeline.stage import StageContext
from trtforge.pipeline.stages.common import bad_record, corpus_identity, plain, read_json, rounded, write_json
from trtforge.pipeline.stages.subject import REFERENCE_DTYPE, LazyReference, Subject, harness_model, prompt_tokens
from trtforge.recipe.schema import Recipe

if TYPE_CHECKING:
    from evals.long_context import Needle
    from evals.perplexity import Scores
    from evals.samples import Samples
    from evals.tasks import Item
    from evals.windows import Measured, Reference

NLL_FILE = "nll.npy"
PERPLEXITY_FILE = "perplexity.json"
GENERATION_FILE = "generation.json"
LONG_CONTEXT_FILE = "long_context.json"
TOOLS = ("torch", "transformers", "tokenizers", "numpy")
#: names of the files of samples
WINDOWS, NOISE, ANSWERS, TASKS, NEEDLES, TAILS = "windows", "noise", "answers", "tasks", "needles", "tails"
HARNESS = "harness"


def scoring_section(recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
    """What decides the figures: corpus content, windows, prompts, tasks; not the gates, which read them."""
    evals = recipe.evals
    return {
        "perplexity": plain(evals.perplexity, exclude={"gate", "corpus"}),
        "corpus": corpus_identity(evals.perplexity.corpus, recipe_dir, "evaluation"),
        "generation": plain(evals.generation, exclude={"gate"}),
        "tasks": tasks_section(recipe, recipe_dir),
        "long_context": long_context_section(recipe),
        "harness": harness_section(recipe, recipe_dir),
        "reference_dtype": REFERENCE_DTYPE,
    }


def tasks_section(recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
    """What decides the tasks: the suite, and the content of the user's own items."""
    from evals.custom import items_path
    from trtforge.ground.hashing import hash_file

    custom = [
        {**plain(one, exclude={"gate"}), "sha256": hash_file(items_path(one.path, recipe_dir))}
        for one in recipe.evals.custom
    ]
    return {"suite": plain(recipe.evals.suite, exclude={"gate"}), "custom": custom}


def long_context_section(recipe: Recipe) -> dict[str, Any]:
    """What decides the long-context probe; a recipe without it has the section that it always had."""
    from evals.long_context import VERSION

    asked = recipe.evals.long_context
    return {**plain(asked, exclude={"gate"}), **({"version": VERSION} if asked.lengths else {})}


def checkpoint_identity(context: StageContext, stage: str) -> dict[str, Any]:
    """What decides every sample of a checkpoint beside the sample itself."""
    return {"checkpoint": context.inputs[stage].manifest["content_hash"], "dtype": REFERENCE_DTYPE}


def intake_of(context: StageContext) -> str:
    """The content of the unquantized checkpoint that the baseline was measured on."""
    return str(context.inputs["baseline"].manifest["inputs"]["intake"]["content_hash"])


@dataclass(frozen=True)
class Taken:
    """Opens the samples of a stage: in its folder, from its interrupted run, from its earlier artifacts."""

    context: StageContext
    identity: Mapping[str, Any]

    def open(self, name: str, **more: Any) -> Samples:
        from evals.samples import Samples

        return Samples(
            name,
            {**self.identity, **more},
            out=self.context.out,
            scratch=self.context.scratch,
            earlier=[artifact.path for artifact in self.context.earlier],
        )


def measure_checkpoint(context: StageContext, stage: str, *, against_baseline: bool) -> dict[str, Any]:
    """Measure the checkpoint of ``stage``; writes its samples, ``perplexity.json``, ``nll.npy``, ``generation.json``.

    Returns:
        ``perplexity`` with its interval, ``tokens`` scored, prompts and how many answers are sane.
    """
    import numpy as np

    from evals.generation import answers_to_json
    from evals.statistics import perplexity_interval
    from quantize.corpora import load_corpus

    reference = LazyReference(
        context.inputs[stage].path, context.progress, context.recipe.model.loading, context.scratch / "layers"
    )
    subject, taken = reference.subject(), Taken(context, checkpoint_identity(context, stage))
    corpus = load_corpus(context.recipe.evals.perplexity.corpus, context.recipe_dir, "evaluation")
    tokens = evaluation_tokens(context, subject, corpus)
    measured = score_windows(context, subject, taken, tokens, against_baseline=against_baseline)
    if not against_baseline and (some := context.recipe.evals.perplexity.noise_tokens):
        measure_noise(context, reference, taken, tokens[: min(some, len(tokens))], measured.references)
    answers = answer_prompts_of(context, subject, taken)
    answer_tasks(context, subject, taken)
    run_harness(context, subject, taken)
    if context.recipe.evals.long_context.lengths:
        probe_long_context(context, subject, taken, _all_tokens(subject, corpus))
    scores = measured.scores
    np.save(context.out / NLL_FILE, scores.nll)
    figures = {
        "perplexity": rounded(perplexity_interval(scores).to_json()),
        "tokens": len(scores.nll),
        "tokens_sha256": scores.tokens_sha256,
        "window": scores.window,
        "stride": scores.stride,
        "corpus": corpus.name,
        "corpus_sha256": corpus.sha256,
    }
    write_json(context.out / PERPLEXITY_FILE, figures)
    write_json(context.out / GENERATION_FILE, rounded(answers_to_json(answers)))
    return {
        **figures,
        "prompts": len(answers),
        "sane_answers": sum(not answer.problems for answer in answers),
    }


def evaluation_tokens(context: StageContext, subject: Subject, corpus: Any) -> list[int]:
    """The tokens that perplexity is measured on."""
    from quantize.corpora import take_tokens

    asked = context.recipe.evals.perplexity.tokens
    tokens: list[int] = take_tokens(corpus, subject.tokenizer.backend, asked).tolist()
    return tokens


def score_windows(
    context: StageContext, subject: Subject, taken: Taken, tokens: Sequence[int], *, against_baseline: bool
) -> Measured:
    """Perplexity, and of a candidate its divergence from the baseline."""
    from evals.windows import TOP, measure_windows

    asked = context.recipe.evals.perplexity
    beside = {"baseline": intake_of(context)} if against_baseline else {}
    return measure_windows(
        subject.logits,
        tokens,
        window=asked.window,
        stride=asked.stride,
        samples=taken.open(WINDOWS, top=TOP, **beside),
        against=baseline_references(context) if against_baseline else None,
        keep=not against_baseline,
        progress=context.progress,
        prepare=subject.prepare,
    )


def baseline_references(context: StageContext) -> list[Reference]:
    """What the baseline keeps of every window."""
    from evals.samples import read_samples
    from evals.windows import references_of

    path = context.inputs["baseline"].path
    try:
        return references_of(read_samples(path, WINDOWS))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise bad_record(path / "samples" / f"{WINDOWS}.jsonl", str(error)) from error


def measure_noise(
    context: StageContext,
    reference: LazyReference,
    taken: Taken,
    tokens: Sequence[int],
    references: Sequence[Reference],
) -> None:
    """The baseline against itself: its first tokens again, with every result rounded to bfloat16."""
    from evals.windows import TOP, measure_windows, plan_windows

    asked = context.recipe.evals.perplexity
    if len(tokens) < 2:
        return
    # a shorter text ends with a shorter window, of which the baseline keeps nothing: whole windows only
    whole = [w for w in plan_windows(asked.tokens, asked.window, asked.stride) if w.end <= len(tokens)]
    if not whole:
        return
    measure_windows(
        lambda ids, _: reference.rounded(ids),
        tokens[: whole[-1].end],
        window=asked.window,
        stride=asked.stride,
        samples=taken.open(NOISE, top=TOP),
        against=references,
        what="the baseline with itself, rounded,",
        progress=context.progress,
        prepare=reference.prepare_rounded,
    )


def answer_prompts_of(context: StageContext, subject: Subject, taken: Taken) -> list[Any]:
    """Greedy answers to the fixed prompts."""
    from evals.generation import PROMPTS, answer_prompts

    asked = context.recipe.evals.generation

    def generate(prompt: str, max_tokens: int) -> tuple[Sequence[int], str]:
        answer = list(subject.answer(prompt_tokens(subject.tokenizer, prompt), max_tokens))
        return answer, subject.tokenizer.decode(answer)

    def prepare(prompts: Sequence[str], max_tokens: int) -> None:
        if subject.prepare_answers is not None:
            subject.prepare_answers([(prompt_tokens(subject.tokenizer, prompt), max_tokens) for prompt in prompts])

    return answer_prompts(
        generate,
        prompts=PROMPTS[: asked.prompts],
        max_tokens=asked.max_tokens,
        samples=taken.open(ANSWERS),
        progress=context.progress,
        prepare=prepare,
    )


def task_items(context: StageContext) -> list[Item]:
    """The items of the suite and of the user's own tasks."""
    from evals.custom import custom_items
    from evals.suite import suite_items

    asked = context.recipe.evals
    items = suite_items(asked.suite.samples, asked.suite.tasks)
    for one in asked.custom:
        items += custom_items(one, context.recipe_dir)
    return items


def answer_tasks(context: StageContext, subject: Subject, taken: Taken) -> None:
    """Let the model answer the tasks, if the recipe has any."""
    from evals.tasks import answer_items

    items = task_items(context)
    if items:
        samples = taken.open(TASKS)
        answer_items(subject.write, items, samples=samples, progress=context.progress, batch=subject.batch)


def run_harness(context: StageContext, subject: Subject, taken: Taken) -> None:
    """Tasks of the LM Evaluation Harness, if the recipe has any."""
    from evals.harness import run_tasks

    tasks = context.recipe.evals.tasks
    if tasks:
        identity = harness_section(context.recipe, context.recipe_dir)
        samples = taken.open(HARNESS, **{k: v for k, v in identity.items() if k != "tasks"})
        run_tasks(harness_model(subject), tasks, context.recipe_dir, samples, context.progress)


def harness_section(recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
    """What decides the harness' figures: the tasks, the content of local ones, and the package's version."""
    from evals.harness import DISTRIBUTION, local_task
    from trtforge.ground.hashing import hash_file
    from trtforge.machine.software import tool_versions

    tasks = recipe.evals.tasks
    if not tasks:
        return {}
    local = {spec: found[1] for spec in tasks if (found := local_task(spec, recipe_dir)) is not None}
    files = {spec: hash_file(path) for spec, path in local.items()}
    return {"tasks": list(tasks), "files": files, "version": tool_versions((DISTRIBUTION,))}


def probe_long_context(context: StageContext, subject: Subject, taken: Taken, tokens: Sequence[int]) -> None:
    """Needles, and the tail of a text under growing contexts, as far as the subject's own limit goes.

    The text and its tail are those of the longest length that the recipe asks for: what an engine of less room is given
    are the baseline's own samples, and fewer of them.

    Args:
        tokens: the whole corpus.
    """
    from evals.long_context import TAIL, tail_plan
    from evals.tasks import answer_items
    from evals.windows import measure_windows

    asked = sorted(context.recipe.evals.long_context.lengths)
    within = [length for length in asked if subject.longest is None or length <= subject.longest + 1]
    if len(within) < len(asked):
        beyond = ", ".join(map(str, asked[len(within) :]))
        room = (subject.longest or 0) + 1
        context.progress.note(f"long contexts of {beyond} tokens are over the engine's {room}: left out")
    if not within:
        return
    placed = [needle for needle in placed_needles(context, subject, tokens) if needle.length in within]
    answer_items(
        subject.write,
        [needle.item for needle in placed],
        samples=taken.open(NEEDLES),
        progress=context.progress,
        batch=subject.batch,
    )
    where = [{"name": n.item.name, "length": n.length, "depth": n.depth} for n in placed]
    left_out = {"left_out": asked[len(within) :]} if len(within) < len(asked) else {}
    write_json(context.out / LONG_CONTEXT_FILE, {"lengths": within, "needles": where, **left_out})
    text, plan = tail_plan(tokens, asked)
    measure_windows(
        subject.logits,
        text,
        window=len(text),
        stride=TAIL,
        plan=plan[: len(within)],
        samples=taken.open(TAILS),
        what=f"the last {TAIL} tokens under {len(within)} contexts",
        progress=context.progress,
        prepare=subject.prepare,
    )


def placed_needles(context: StageContext, subject: Subject, tokens: Sequence[int]) -> list[Needle]:
    """The needles that the recipe asks for, in text of the corpus."""
    from evals.long_context import needles

    asked = context.recipe.evals.long_context
    return needles(
        tokens,
        subject.tokenizer.decode,
        lambda text: subject.tokenizer.encode(text, add_special_tokens=False),
        lengths=asked.lengths,
        depths=asked.depths,
        samples=asked.samples,
    )


def _all_tokens(subject: Subject, corpus: Any) -> list[int]:
    from quantize.corpora import corpus_tokens

    tokens: list[int] = corpus_tokens(corpus, subject.tokenizer.backend).tolist()
    return tokens


def measure_layers(context: StageContext) -> dict[str, Any]:
    """Every layer's output against the baseline's; both models, or a layer of each, are in memory meanwhile."""
    import torch

    from evals.layers import TOKENS, stepwise_errors, to_json
    from quantize.corpora import load_corpus

    stages = ("intake", "quantize")
    taken = Taken(context, {**checkpoint_identity(context, "quantize"), "baseline": intake_of(context)})
    asked = context.recipe.evals.perplexity
    samples = taken.open("layers", tokens=TOKENS, corpus=context.section["corpus"])
    known = samples.get("all")
    if known is None:
        both = [
            LazyReference(context.inputs[stage].path, context.progress, context.recipe.model.loading, models=2)
            for stage in stages
        ]
        corpus = load_corpus(asked.corpus, context.recipe_dir, "evaluation")
        ids = torch.tensor(_all_tokens(both[0].subject(), corpus)[:TOKENS])
        found = stepwise_errors(both[0].steps(ids), both[1].steps(ids), context.progress)
        known = samples.add("all", {"errors": rounded(to_json(found))})
    samples.finish(["all"])
    errors: dict[str, Any] = known["errors"]
    return errors


def scores_of(figures: Any, losses: Path) -> Scores:
    """Scores of the content of ``perplexity.json`` and the losses beside it; raises what a foreign file makes it."""
    import numpy as np

    from evals.perplexity import Scores

    nll = np.load(losses, allow_pickle=False)
    return Scores(nll, str(figures["tokens_sha256"]), int(figures["window"]), int(figures["stride"]))


def load_scores(directory: Path) -> Scores:
    """What :func:`measure_checkpoint` wrote."""
    figures = read_json(directory / PERPLEXITY_FILE)
    try:
        return scores_of(figures, directory / NLL_FILE)
    except (OSError, EOFError, ArithmeticError, ValueError, KeyError, TypeError) as error:
        raise bad_record(
            directory / PERPLEXITY_FILE, f"it lacks a part, or {NLL_FILE} is no array ({error})"
        ) from error


def load_answers(directory: Path) -> list[Any]:
    """The :class:`evals.generation.Answer` list that :func:`measure_checkpoint` wrote."""
    from evals.generation import Answer

    try:
        return [Answer.of_json(record) for record in read_json(directory / GENERATION_FILE)]
    except (ArithmeticError, ValueError, KeyError, TypeError) as error:
        raise bad_record(directory / GENERATION_FILE, f"an answer lacks a part ({error})") from error
