"""parity: the engine against the reference model of the quantized checkpoint, teacher-forced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtforge.pipeline.stage import GateResult, StageBase, StageContext, StageResult
from trtforge.pipeline.stages.common import corpus_identity, execution_facts, plain, rounded, write_json
from trtforge.pipeline.stages.scoring import REFERENCE_DTYPE, TOOLS
from trtforge.recipe.schema import Recipe

PARITY_FILE = "parity.json"
#: tokens of a prompt: 16 prompts give 2,048 positions, enough to tell 99 % from 99.5 %
PROMPT_TOKENS = 128

#: relative rounding error of one value, by the model's dtype
ROUNDING = {"bfloat16": 2.0**-9, "float16": 2.0**-12, "float32": 2.0**-24}


class ParityStage(StageBase):
    """Gate: the lower bound of the top-1 agreement over all positions, near ties aside."""

    name = "parity"
    needs = ("quantize", "build")
    code_version = "4"
    tools = TOOLS

    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        return {
            **plain(recipe.evals.engine_parity),
            "corpus": corpus_identity(recipe.evals.perplexity.corpus, recipe_dir, "evaluation"),
            "prompt_tokens": PROMPT_TOKENS,
            "reference_dtype": REFERENCE_DTYPE,
        }

    def host_facts(self) -> dict[str, Any]:
        return execution_facts()

    def run(self, context: StageContext) -> StageResult:
        import torch

        from evals.gates import at_least, at_most
        from evals.parity import compare, kl_limit, slice_prompts
        from evals.statistics import Interval
        from quantize.corpora import corpus_tokens, load_corpus
        from quantize.reference import load_reference_model
        from runtime.offline import Engine

        asked = context.recipe.evals.engine_parity
        checkpoint = context.inputs["quantize"].path
        context.progress.start("loading the engine")
        engine = Engine.load(context.inputs["build"].path)
        context.progress.start("loading the reference model")
        reference = load_reference_model(checkpoint, dtype=REFERENCE_DTYPE)
        activations = str(engine.executor.describe()["activations"])

        def noise(ids: torch.Tensor) -> torch.Tensor:
            """How far a correct engine with activations of that type may be from the reference."""
            if activations in ("bfloat16", "float16"):
                return reference.rounded_logits(ids, activations)  # type: ignore[arg-type]
            return reference.perturbed_logits(ids, ROUNDING[context.recipe.model.dtype], seed=0)

        corpus = load_corpus(context.recipe.evals.perplexity.corpus, context.recipe_dir, "evaluation")
        tokens = corpus_tokens(corpus, reference.tokenizer).tolist()
        length = min(PROMPT_TOKENS, engine.core.limits.max_input_len)
        result = compare(
            lambda ids: torch.from_numpy(engine.logits(ids.tolist())),
            reference.logits,
            slice_prompts(tokens, asked.prompts, length),
            perturbed_logits=noise,
            progress=context.progress,
        )
        gates: list[GateResult] = []
        if asked.gate is not None:
            agreement = result.agreement
            detail = (
                f"top-1 agreement is {agreement.value:.4%} over {result.positions} positions, "
                f"{agreement.confidence:.0%} interval [{agreement.low:.4%}, {agreement.high:.4%}]; "
                f"the lower bound counts, the limit is {asked.gate.min_top1_agreement:.4%}"
            )
            gates.append(at_least("top1_agreement", agreement.low, asked.gate.min_top1_agreement, detail))
            divergence = Interval(result.mean_kl, result.mean_kl, result.mean_kl)
            gates.append(at_most("engine_kl", divergence, kl_limit(result), " nats"))
        figures = rounded(result.to_json())
        figures["prompt_tokens"] = length
        figures["activations"] = activations
        write_json(context.out / PARITY_FILE, figures)
        return StageResult(summary=figures, gates=gates)
