"""How baseline and quantized checkpoint are measured: one function for both, so that they are comparable.

Perplexity over the same tokens with the same windows, and greedy answers to the same prompts, through
the reference model (de-quantized weights, emulated activation and KV quantization, float32).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from trtforge.pipeline.stage import StageContext
from trtforge.pipeline.stages.common import corpus_identity, plain, rounded, write_json
from trtforge.recipe.schema import Recipe

NLL_FILE = "nll.npy"
PERPLEXITY_FILE = "perplexity.json"
GENERATION_FILE = "generation.json"
REFERENCE_DTYPE: Final = "float32"
TOOLS = ("torch", "transformers", "tokenizers", "numpy")


def scoring_section(recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
    """What decides the figures: corpus content, windows, prompts; not the gates, which read them."""
    perplexity = recipe.evals.perplexity
    return {
        "perplexity": plain(perplexity, exclude={"gate", "corpus"}),
        "corpus": corpus_identity(perplexity.corpus, recipe_dir, "evaluation"),
        "generation": plain(recipe.evals.generation, exclude={"gate"}),
        "reference_dtype": REFERENCE_DTYPE,
    }


def measure_checkpoint(context: StageContext, checkpoint: Path) -> dict[str, Any]:
    """Score a checkpoint and let it answer; writes ``perplexity.json``, ``nll.npy`` and ``generation.json``.

    Returns:
        ``perplexity`` with its interval, ``tokens`` scored, prompts and how many answers are sane.
    """
    import numpy as np
    import torch

    from evals.generation import PROMPTS, answer_prompts, answers_to_json
    from evals.perplexity import score
    from evals.statistics import perplexity_interval
    from quantize.corpora import load_corpus, take_tokens
    from quantize.reference import load_reference_model
    from runtime.tokenizer import EngineTokenizer

    asked = context.recipe.evals
    tokenizer = EngineTokenizer.load(checkpoint)
    corpus = load_corpus(asked.perplexity.corpus, context.recipe_dir, "evaluation")
    tokens = take_tokens(corpus, tokenizer.backend, asked.perplexity.tokens).tolist()
    context.progress.start("loading the reference model")
    model = load_reference_model(checkpoint, dtype=REFERENCE_DTYPE)
    scores = score(
        model.logits,
        tokens,
        window=asked.perplexity.window,
        stride=asked.perplexity.stride,
        progress=context.progress,
    )
    interval = perplexity_interval(scores)

    def generate(prompt: str, max_tokens: int) -> tuple[Sequence[int], str]:
        answer = list(model.generate_greedy(torch.tensor(prompt_tokens(tokenizer, prompt)), max_tokens))
        return answer, tokenizer.decode(answer)

    answers = answer_prompts(
        generate,
        prompts=PROMPTS[: asked.generation.prompts],
        max_tokens=asked.generation.max_tokens,
        progress=context.progress,
    )
    np.save(context.out / NLL_FILE, scores.nll)
    figures = {
        "perplexity": rounded(interval.to_json()),
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


def prompt_tokens(tokenizer: Any, prompt: str) -> list[int]:
    """A question as the model expects it: through its chat template when it has one, else as plain text."""
    if tokenizer.chat_template is None:
        return list(tokenizer.encode(prompt))
    text = tokenizer.render_chat([{"role": "user", "content": prompt}])
    return list(tokenizer.encode(text, add_special_tokens=False))


def load_scores(directory: Path) -> Any:
    """The :class:`evals.perplexity.Scores` that :func:`measure_checkpoint` wrote."""
    import numpy as np

    from evals.perplexity import Scores
    from trtforge.pipeline.stages.common import bad_record, read_json

    figures = read_json(directory / PERPLEXITY_FILE)
    try:
        nll = np.load(directory / NLL_FILE, allow_pickle=False)
        return Scores(nll, str(figures["tokens_sha256"]), int(figures["window"]), int(figures["stride"]))
    except (OSError, EOFError, ArithmeticError, ValueError, KeyError, TypeError) as error:
        raise bad_record(
            directory / PERPLEXITY_FILE, f"it lacks a part, or {NLL_FILE} is no array ({error})"
        ) from error


def load_answers(directory: Path) -> list[Any]:
    """The :class:`evals.generation.Answer` list that :func:`measure_checkpoint` wrote."""
    from evals.generation import Answer
    from trtforge.pipeline.stages.common import bad_record, read_json

    try:
        return [
            Answer(a["prompt"], tuple(a["token_ids"]), a["text"], float(a["distinct_share"]), tuple(a["problems"]))
            for a in read_json(directory / GENERATION_FILE)
        ]
    except (ArithmeticError, ValueError, KeyError, TypeError) as error:
        raise bad_record(directory / GENERATION_FILE, f"an answer lacks a part ({error})") from error
