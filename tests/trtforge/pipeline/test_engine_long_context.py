"""Long contexts on the built engine: by the engine that serves, on the baseline's own samples, with their gates."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from evals.long_context import TAIL
from runtime.offline import Engine
from runtime.tokenizer import EngineTokenizer
from tests.support.preflight import report
from trtforge.ground.progress import SilentProgress
from trtforge.pipeline.stage import StageContext
from trtforge.pipeline.stages.baseline import BaselineStage
from trtforge.pipeline.stages.engine_quality import measure_engine
from trtforge.pipeline.stages.parity import ParityStage
from trtforge.pipeline.stages.quality_report import _long_context_tables
from trtforge.pipeline.stages.scoring import LONG_CONTEXT_FILE
from trtforge.pipeline.stages.subject import Subject, engine_subject
from trtforge.pipeline.stages.verdicts import ENGINE, engine_task_gates, judge_long_context
from trtforge.recipe.load import recipe_from_mapping
from trtforge.recipe.schema import Recipe
from trtforge.store.artifact import Artifact

LONGEST = 1023
EVALS: dict[str, Any] = {
    "perplexity": {"tokens": 128, "window": 64, "stride": 32},
    "generation": {"prompts": 1, "max_tokens": 2},
    # the tiny model has 1,024 positions; an engine of as many scores the tail of all of them
    "long_context": {"lengths": [256, 512, 1024], "samples": 1, "depths": [0.5], "gate": {"max_increase": "5%"}},
}


def recipe(folder: Path, **evals: Any) -> Recipe:
    return recipe_from_mapping({"name": "r", "model": {"source": "m"}, "evals": {**EVALS, **evals}}, folder).recipe


def context(asked: Recipe, folder: Path, inputs: dict[str, Artifact], stage: Any, *earlier: Artifact) -> StageContext:
    out, scratch = folder / "out", folder / "scratch"
    out.mkdir(parents=True)
    return StageContext(asked, folder, stage.section(asked, folder), inputs, out, scratch, SilentProgress(), earlier)


def artifact(stage: str, path: Path, **more: Any) -> Artifact:
    return Artifact(stage, "k", path, {"content_hash": f"{stage}-hash", "summary": {}, "files": [], **more})


@pytest.fixture(scope="module")
def baseline(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("long-baseline")
    asked = context(recipe(folder), folder, {"intake": artifact("intake", tiny_checkpoint)}, BaselineStage())
    BaselineStage().run(asked)
    return artifact("baseline", asked.out, inputs={"intake": {"content_hash": "intake-hash"}})


@pytest.fixture(scope="module")
def engine(tiny_engine: Path) -> Iterator[Engine]:
    with Engine.load(tiny_engine) as loaded:
        yield loaded


def subject_of(engine: Engine, folder: Path, longest: int = LONGEST) -> Subject:
    def ask(function: Any, *arguments: Any) -> Any:
        return function(engine, SilentProgress(), *arguments)

    return engine_subject(ask, EngineTokenizer.load(folder), longest)


def probed(folder: Path, asked: Recipe, baseline: Artifact, subject: Subject, *earlier: Artifact) -> Path:
    from quantize.corpora import corpus_tokens, load_corpus

    inputs = {"baseline": baseline, "build": artifact("build", folder)}
    made = context(asked, folder, inputs, ParityStage(), *earlier)
    corpus = load_corpus(asked.evals.perplexity.corpus, folder, "evaluation")
    tokens = corpus_tokens(corpus, subject.tokenizer.backend).tolist()
    measure_engine(made, subject, subject.longest or 0, tokens)
    return made.out


def test_the_engine_is_held_against_the_baseline_at_every_length(
    tmp_path: Path, baseline: Artifact, engine: Engine, tiny_engine: Path
) -> None:
    asked, subject = recipe(tmp_path), subject_of(engine, tiny_engine)
    fed: list[int] = []

    def counting(ids: torch.Tensor, last: int) -> torch.Tensor:
        fed.append(len(ids))
        return subject.logits(ids, last)

    out = probed(tmp_path, asked, baseline, replace(subject, logits=counting))
    assert fed == [255, 511, 1023], "the last token of a context is scored and not fed"
    figures, gates = judge_long_context(asked, baseline.path, out, ENGINE)
    tail = figures["long_context"]["tail"]
    assert [row["length"] for row in tail] == [256, 512, 1024]
    assert all(abs(row["increase"]["value"]) < 0.01 and row["increase"]["high"] < 0.05 for row in tail), (
        "the same model"
    )
    assert [cell["of"] for cell in figures["long_context"]["cells"]] == [1, 1, 1]
    passed = {gate.name: gate.passed for gate in gates}
    assert passed == {"engine_long_context_needles": False, "engine_long_context_increase": True}
    needles = next(gate for gate in gates if gate.name == "engine_long_context_needles")
    assert "right on none" in needles.detail, "random weights find nothing, and that shows nothing"
    assert "the worst of 3 contexts" in next(gate for gate in gates if gate.passed).detail


def test_an_engine_that_breaks_where_contexts_are_long_misses_the_gate(
    tmp_path: Path, baseline: Artifact, engine: Engine, tiny_engine: Path
) -> None:
    subject = subject_of(engine, tiny_engine)

    def broken(ids: torch.Tensor, last: int) -> torch.Tensor:
        rows = subject.logits(ids, last)
        return rows.roll(1, dims=-1) if len(ids) > 600 else rows

    out = probed(tmp_path, recipe(tmp_path), baseline, replace(subject, logits=broken))
    _, gates = judge_long_context(recipe(tmp_path), baseline.path, out, ENGINE)
    gate = next(gate for gate in gates if gate.name == "engine_long_context_increase")
    assert not gate.passed and "the worst of 3 contexts, 1024 tokens" in gate.detail


def test_lengths_that_the_engine_does_not_reach_are_named(
    tmp_path: Path, baseline: Artifact, engine: Engine, tiny_engine: Path
) -> None:
    asked = recipe(tmp_path)
    out = probed(tmp_path, asked, baseline, subject_of(engine, tiny_engine, longest=600))
    assert json.loads((out / LONG_CONTEXT_FILE).read_text())["left_out"] == [1024]
    figures, _ = judge_long_context(asked, baseline.path, out, ENGINE)
    assert [row["length"] for row in figures["long_context"]["tail"]] == [256, 512]
    rows = [row for table in _long_context_tables({}, figures) for row in table.rows]
    assert ("engine", "1024", "–", "–", "over the engine's longest prompt: left out") in rows
    limits = {"limits": {"max_seq_len": 600, "max_num_tokens": 600}}
    settings = {"evals": {"long_context": {"lengths": [512, 1024]}, "engine_parity": {"tokens": 600}}, "build": limits}
    (finding,) = [item for item in report(settings).findings if item.code == "TF-K9-018"]
    assert "1024" in finding.message and "evals.long_context.lengths: [512]" in finding.remedies
    assert "raise build.limits.max_seq_len to 1024" in finding.remedies
    settings["build"] = {"limits": {"max_seq_len": 2048, "max_input_len": 600, "max_num_tokens": 600}}
    (finding,) = [item for item in report(settings).findings if item.code == "TF-K9-018"]
    assert "raise build.limits.max_input_len to 1023" in finding.remedies


def test_a_gate_without_lengths_is_told() -> None:
    for asked, found in (({"gate": {}}, 1), ({}, 0), ({"gate": {}, "lengths": [256]}, 0)):
        messages = [item.message for item in report({"evals": {"long_context": asked}}).findings]
        assert sum("judges nothing: no lengths" in message for message in messages) == found


def test_an_engine_of_less_room_is_not_probed_and_has_no_gate(
    tmp_path: Path, baseline: Artifact, engine: Engine, tiny_engine: Path
) -> None:
    out = probed(tmp_path, recipe(tmp_path), baseline, subject_of(engine, tiny_engine, longest=100))
    assert judge_long_context(recipe(tmp_path), baseline.path, out, ENGINE) == ({}, [])


def test_what_was_measured_of_the_engine_is_taken_over(
    tmp_path: Path, baseline: Artifact, engine: Engine, tiny_engine: Path
) -> None:
    subject = subject_of(engine, tiny_engine)
    first = probed(tmp_path / "a", recipe(tmp_path), baseline, subject)

    def refuse(*_: Any) -> Any:
        raise AssertionError("the engine was asked")

    before = artifact("parity", first)
    again = probed(tmp_path / "b", recipe(tmp_path), baseline, replace(subject, logits=refuse, write=refuse), before)
    names = ("tails.jsonl", "needles.jsonl")
    assert all((again / "samples" / name).read_bytes() == (first / "samples" / name).read_bytes() for name in names)
    records = (first / "samples/tails.jsonl").read_text().splitlines()
    assert len(records) == 1 + 3 and TAIL == 128


def test_gates_that_no_gpu_has_looked_at_are_named(tmp_path: Path) -> None:
    assert engine_task_gates(recipe(tmp_path)) == ("engine_long_context_needles", "engine_long_context_increase")
    one = {**EVALS["long_context"], "gate": {"max_drop": None}}
    assert engine_task_gates(recipe(tmp_path, long_context=one)) == ("engine_long_context_increase",)
    assert engine_task_gates(recipe(tmp_path, long_context={})) == ()


def test_a_recipe_without_the_probe_has_the_section_that_it_had(tmp_path: Path) -> None:
    plain = recipe(tmp_path, long_context={})
    assert "long_context" not in ParityStage().section(plain, tmp_path)
    assert set(BaselineStage().section(plain, tmp_path)["long_context"]) == {"lengths", "depths", "samples"}
    assert "gate" not in ParityStage().section(recipe(tmp_path), tmp_path)["long_context"]
