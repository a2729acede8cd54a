"""parity: the engine against the reference model of the quantized checkpoint, teacher-forced and by its own answers.

The packed weights are read back too and held against the stored ones: what was evaluated is what is deployed.

An RTX engine cannot be run here. For it the graph that it is compiled from is compared, written in float32 and run
by ONNX Runtime; gates and figures say so.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evals.power import PROMPT_TOKENS
from trtforge.pipeline.stage import Stage, StageContext
from trtforge.pipeline.stages.common import corpus_identity, execution_facts, plain, read_json, rounded, write_json
from trtforge.pipeline.stages.engine_process import Ask, engine_of
from trtforge.pipeline.stages.engine_quality import judge_engine, measure_engine
from trtforge.pipeline.stages.scoring import (
    TOOLS,
    Taken,
    checkpoint_identity,
    harness_section,
    load_answers,
    long_context_section,
    tasks_section,
)
from trtforge.pipeline.stages.subject import REFERENCE_DTYPE, LazyReference, Subject, engine_subject, prompt_tokens
from trtforge.pipeline.stages.verdicts import ENGINE, gates_section, harness_of, judge_long_context, judge_tasks
from trtforge.recipe.schema import Recipe
from trtforge.store.artifact import GateResult, StageResult
from trtforge.store.export import copy_artifact_file

if TYPE_CHECKING:
    import torch

    from quantize.by_layer.reference import LayeredReference
    from quantize.reference import ReferenceModel
    from runtime.executors.weight_check import WeightCheck
    from runtime.offline import Engine
    from trtforge.ground.progress import Progress

PARITY_FILE = "parity.json"
#: figures before any gate, and the engine's answers: what another gate is judged from
MEASURED_FILE, ANSWERS_FILE = "measured.json", "engine_answers.json"

#: names of the files of samples: prompts position by position, and the engine's own answers as the reference reads them
POSITIONS, OWN_ANSWERS = "positions", "own_answers"

#: what is compared where the engine itself cannot be run
FLOAT32_GRAPH = "the engine's graph, in float32 under ONNX Runtime,"

#: relative rounding error of one value, by the model's dtype
ROUNDING = {"bfloat16": 2.0**-9, "float16": 2.0**-12, "float32": 2.0**-24}


class ParityStage(Stage):
    """Gates: the lower bound of the top-1 agreement over all positions, near ties aside; the divergence; what the
    engine writes by itself; the weights that its kernels hold; the tasks that it answers.

    They are judged from the records: another gate runs no engine.
    """

    name = "parity"
    needs = ("baseline", "quantize", "build")
    code_version = "7"
    tools = TOOLS
    reuses_samples = True

    def section(self, recipe: Recipe, recipe_dir: Path) -> dict[str, Any]:
        evals = recipe.evals
        of_graph = {"runs": FLOAT32_GRAPH} if recipe.target.graph_mode == "native" else {}
        return {
            **of_graph,
            **plain(evals.engine_parity, exclude={"gate"}),
            "perplexity": plain(evals.perplexity, exclude={"gate", "corpus", "noise_tokens"}),
            "corpus": corpus_identity(evals.perplexity.corpus, recipe_dir, "evaluation"),
            "prompt_tokens": PROMPT_TOKENS,
            "reference_dtype": REFERENCE_DTYPE,
            "generation": {} if of_graph else plain(evals.generation, exclude={"gate"}),
            "tasks": {} if of_graph else tasks_section(recipe, recipe_dir),
            "harness": {} if of_graph else harness_section(recipe, recipe_dir),
            **({"long_context": long_context_section(recipe)} if evals.long_context.lengths and not of_graph else {}),
            "gates": {
                "engine_parity": plain(evals.engine_parity.gate) if evals.engine_parity.gate else None,
                **gates_section(recipe),
            },
        }

    def host_facts(self) -> dict[str, Any]:
        return execution_facts()

    def run(self, context: StageContext) -> StageResult:
        figures = _measured_before(context)
        if figures is None:
            with _engine(context) as engine:
                figures = _measure(context, engine)
            write_json(context.out / MEASURED_FILE, figures)
        figures, gates = _judge(context, figures)
        write_json(context.out / PARITY_FILE, figures)
        return StageResult(summary=figures, gates=gates)


def _measured_before(context: StageContext) -> dict[str, Any] | None:
    """The figures of an earlier artifact that differs in its gates alone, with its files; None: there is none."""
    wanted = {**context.section, "gates": None}
    contents = {name: artifact.manifest["content_hash"] for name, artifact in context.inputs.items()}
    for artifact in context.earlier:
        ingredients = artifact.manifest["ingredients"]
        same = {**ingredients["section"], "gates": None} == wanted and ingredients["inputs"] == contents
        if not same or not (artifact.path / MEASURED_FILE).is_file():
            continue
        for entry in artifact.manifest["files"]:
            if entry["path"] != PARITY_FILE:
                target = context.out / entry["path"]
                target.parent.mkdir(parents=True, exist_ok=True)
                copy_artifact_file(artifact, entry["path"], target)
        context.progress.note("only gates changed: judged from what was measured before")
        figures: dict[str, Any] = read_json(context.out / MEASURED_FILE)
        return figures
    return None


def _measure(context: StageContext, engine: _Asked) -> dict[str, Any]:
    from evals.parity import compare, slice_prompts
    from quantize.corpora import corpus_tokens, load_corpus

    asked = context.recipe.evals.engine_parity
    checkpoint = context.inputs["quantize"].path
    activations = engine.activations
    context.progress.start("loading the reference model")
    reference = LazyReference(
        checkpoint, context.progress, context.recipe.model.loading, context.scratch / "layers"
    ).model

    def noise(ids: torch.Tensor) -> torch.Tensor:
        """How far a correct engine with activations of that type may be from the reference."""
        if activations in ("bfloat16", "float16"):
            return reference.rounded_logits(ids, activations)  # type: ignore[arg-type]
        return reference.perturbed_logits(ids, ROUNDING[context.recipe.model.dtype], seed=0)

    corpus = load_corpus(context.recipe.evals.perplexity.corpus, context.recipe_dir, "evaluation")
    tokens = corpus_tokens(corpus, reference.tokenizer).tolist()
    length = min(PROMPT_TOKENS, engine.longest)
    identity = {"engine": context.inputs["build"].manifest["content_hash"], "activations": activations}
    taken = Taken(context, {**checkpoint_identity(context, "quantize"), **identity, **execution_facts()})
    result = compare(
        engine.logits,
        reference.logits,
        slice_prompts(tokens, asked.prompts, length),
        perturbed_logits=noise,
        activations=activations,
        samples=taken.open(POSITIONS),
        progress=context.progress,
    )
    figures = rounded(result.to_json())
    figures["prompt_tokens"] = length
    figures["activations"] = activations
    if isinstance(engine, _Running):
        figures |= _own(context, engine.ask, engine.subject, activations, reference, tokens, result.noise, taken)
        measure_engine(context, engine.subject, engine.longest, tokens)
    if context.recipe.target.graph_mode == "native":
        figures["ran"] = FLOAT32_GRAPH
    return figures


def _own(
    context: StageContext,
    ask: Ask,
    subject: Subject,
    activations: str,
    reference: ReferenceModel | LayeredReference,
    corpus: list[int],
    noise: float,
    taken: Taken,
) -> dict[str, Any]:
    """What only the engine itself can show: its answers, and the weights in its kernels."""
    from evals.engine_answers import Question, answer_questions, short_questions

    asked, tokenizer = context.recipe.evals, subject.tokenizer
    baseline = load_answers(context.inputs["baseline"].path)
    questions = [Question(a.prompt, tuple(prompt_tokens(tokenizer, a.prompt)), True) for a in baseline]

    found = answer_questions(
        subject.answer,
        reference.logits,
        [*questions, *short_questions(corpus, tokenizer.decode)],
        decode=tokenizer.decode,
        max_tokens=asked.generation.max_tokens,
        activations=activations,
        noise=noise,
        samples=taken.open(OWN_ANSWERS, max_tokens=asked.generation.max_tokens),
        progress=context.progress,
    )
    write_json(context.out / ANSWERS_FILE, rounded(found.to_record()))
    weights = ask(_check_weights)
    return {} if weights is None else {"weights": weights.to_json()}


def _judge(context: StageContext, figures: dict[str, Any]) -> tuple[dict[str, Any], list[GateResult]]:
    """The gates over what was measured, and the figures with what the engine is against the baseline."""
    from evals.gates import at_least, at_most
    from evals.parity import kl_limit
    from evals.statistics import Interval

    gate, gates = context.recipe.evals.engine_parity.gate, []
    names = ("graph_top1_agreement", "graph_kl") if "ran" in figures else ("top1_agreement", "engine_kl")
    if gate is not None:
        agreement = Interval(**figures["agreement"])
        detail = (
            f"top-1 agreement is {agreement.value:.4%} over {figures['positions']} positions, "
            f"{agreement.confidence:.0%} interval [{agreement.low:.4%}, {agreement.high:.4%}]; "
            f"the lower bound counts, the limit is {gate.min_top1_agreement:.4%}"
        )
        gates.append(at_least(names[0], agreement.low, gate.min_top1_agreement, detail))
        divergence = Interval(figures["mean_kl"], figures["mean_kl"], figures["mean_kl"])
        gates.append(at_most(names[1], divergence, kl_limit(figures["floor_kl"]), " nats"))
    if (context.out / ANSWERS_FILE).is_file():
        own, more = _judge_own(context, figures)
        figures = {**figures, **own}
        gates += more
    return figures, gates


def _judge_own(context: StageContext, figures: dict[str, Any]) -> tuple[dict[str, Any], list[GateResult]]:
    from evals.engine_answers import EngineAnswers, agreement_gate
    from evals.gates import at_most
    from evals.generation import compare, sanity_gate
    from evals.statistics import Interval
    from runtime.executors.weight_check import TOLERANCE

    asked, baseline = context.recipe.evals, context.inputs["baseline"].path
    found = EngineAnswers.of_record(read_json(context.out / ANSWERS_FILE))
    answers = compare(load_answers(baseline), found.to_baseline())
    own: dict[str, Any] = {"answers": rounded({**found.to_json(), "against_baseline": answers.to_json()})}
    gates = []
    if asked.engine_parity.gate is not None:
        gates.append(agreement_gate(found, asked.engine_parity.gate.min_top1_agreement))
    if asked.generation.gate is not None:
        gates.append(sanity_gate(answers, asked.generation.gate.min_sane, "engine_sanity"))
    if (weights := figures.get("weights")) is not None:
        changed = Interval(weights["largest"], weights["largest"], weights["largest"])
        gate = at_most("deployed_weights", changed, TOLERANCE)
        counts = f"{weights['changed']:,} of {weights['weights']:,} weights are not the stored ones"
        worst = ", ".join(f"{name} ({row['kernel']})" for name, row in list(weights["linears"].items())[:3])
        gates.append(replace(gate, detail=f"{counts}; {gate.detail}{f'; first: {worst}' if worst else ''}"))
    quality = judge_engine(baseline, context.out)
    tasks, more = judge_tasks(context.recipe, baseline, context.out, ENGINE)
    probe, of_length = judge_long_context(context.recipe, baseline, context.out, ENGINE)
    return {**own, **quality, **tasks, **harness_of(baseline, context.out), **probe}, [*gates, *more, *of_length]


@dataclass(frozen=True)
class _Asked:
    """What stands for the engine.

    Attributes:
        logits: token ids [S] → float32 [S, V].
        activations: the type of its activations.
        longest: tokens of the longest prompt.
    """

    logits: Callable[[torch.Tensor], torch.Tensor]
    activations: str
    longest: int


@dataclass(frozen=True)
class _Running(_Asked):
    """The engine itself, where it can be run."""

    ask: Ask
    subject: Subject


@contextlib.contextmanager
def _engine(context: StageContext) -> Iterator[_Asked]:
    import torch

    if context.recipe.target.graph_mode == "native":
        from builder.targets.rtx.float32 import emit_float32
        from builder.targets.rtx.session import Float32Session

        folder = context.scratch / "float32"
        emit_float32(context.inputs["quantize"].path, folder, progress=context.progress)
        context.progress.start("loading the graph")
        session = Float32Session(folder)
        longest = int(context.inputs["build"].summary["limits"]["max_input_len"])
        yield _Asked(lambda ids: torch.from_numpy(session.logits(ids.tolist())), "float32", longest)
        return
    from runtime.tokenizer import EngineTokenizer

    context.progress.start("loading the engine")
    with engine_of(context.inputs["build"].path, context.progress) as ask:
        activations, longest = ask(_about)
        subject = engine_subject(ask, EngineTokenizer.load(context.inputs["build"].path), longest)
        yield _Running(lambda ids: subject.logits(ids, 0), activations, longest, ask, subject)


# What the engine is asked, in the process that holds it.


def _about(engine: Engine, progress: Progress) -> tuple[str, int]:
    return str(engine.executor.describe()["activations"]), engine.core.limits.max_input_len


def _check_weights(engine: Engine, progress: Progress) -> WeightCheck | None:
    check = getattr(engine.executor, "check_weights", None)
    if check is None:  # a compiled engine's kernels cannot be asked
        return None
    progress.start("reading the engine's weights back")
    found: WeightCheck = check()
    speculator = engine.core.speculator
    draft = getattr(getattr(speculator, "model", None), "executor", None)
    return found if draft is None else found.with_draft(draft.check_weights())
