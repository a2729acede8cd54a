"""The LM Evaluation Harness over our models: up to its border without it, and a local task where it is installed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from evals import harness
from evals.harness import HarnessModel, compare_harness, cut, local_task, make_lm, require_installed, run_tasks
from evals.samples import Samples
from tests.support.refusals import refusal

WORDS = ["<end>", "yes", "no", "is", "water", "wet", "fire", "?", " ", "\n"]
TASK = """
task: wetness
dataset_path: json
dataset_kwargs: {data_files: {test: wet.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: [" yes", " no"]
doc_to_target: "{{answer}}"
metric_list:
  - {metric: acc, aggregation: mean, higher_is_better: true}
"""


def encode(text: str, special: bool) -> list[int]:
    ids = [0] if special else []
    while text:
        word = next((w for w in WORDS if text.startswith(w)), None)
        assert word is not None, text
        ids.append(WORDS.index(word))
        text = text[len(word) :]
    return ids


def model(likely: str = "yes") -> HarnessModel:
    """Says ``likely`` after every question with 80 %."""

    def log_probs(ids: Sequence[int], scored: int) -> tuple[np.ndarray, np.ndarray]:
        right = np.array([token in (WORDS.index(likely), 8) for token in ids[-scored:]])
        return np.log(np.where(right, 0.8, 0.02)), right

    def answer(ids: Sequence[int], most: int) -> list[int]:
        return encode(f" {likely}\nwater is wet", False)[:most]

    return HarnessModel(encode, lambda ids: "".join(WORDS[i] for i in ids), log_probs, answer, str, 32, 0)


@pytest.mark.parametrize(
    ("text", "why"),
    [("x: 1\n", "no line task"), ("task: t\nprocess_docs: !function utils.f\n", "runs Python"), (None, "no such file")],
)
def test_local_tasks_that_are_none_are_refused(tmp_path: Path, text: str | None, why: str) -> None:
    if text is not None:
        (tmp_path / "t.yaml").write_text(text)
    found = refusal(local_task, "file:t.yaml", tmp_path)
    assert found.code == "TF-EVL-027" and why in str(found)


def test_local_tasks_lie_below_the_recipe(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(TASK)
    (tmp_path / "below").mkdir()
    assert local_task("file:t.yaml", tmp_path) == ("wetness", tmp_path / "t.yaml")
    assert local_task("mmlu", tmp_path) is None
    assert refusal(local_task, "file:../t.yaml", tmp_path / "below").code == "TF-EVL-027"


def test_without_the_package_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(harness, "installed", lambda: False)
    require_installed(())
    assert refusal(require_installed, ["mmlu"]).code == "TF-EVL-026"
    samples = Samples("harness", {}, out=tmp_path, scratch=tmp_path)
    assert refusal(run_tasks, model(), ["mmlu"], tmp_path, samples).code == "TF-EVL-026"
    samples.add("mmlu", {"results": {}, "documents": {}})
    assert len(run_tasks(model(), ["mmlu"], tmp_path, samples)) == 1, "what was measured needs no package"


def test_answers_end_at_the_first_stop() -> None:
    assert cut("a\n\nb. c", ["\n\n", ". "]) == "a" and cut("abc", ["", "x"]) == "abc"


def record(values: dict[str, float]) -> dict[str, Any]:
    return {"documents": {"t acc": values}}


def test_metrics_are_paired_by_document() -> None:
    before = {str(i): float(i < 30) for i in range(40)}
    after = {str(i): float(i < 20) for i in range(40)}
    found = compare_harness([record(before)], [record(after)])["t acc"]
    assert (found["documents"], found["baseline"], found["candidate"]) == (40, 0.75, 0.5)
    assert found["mcnemar"]["lost"] == 10 and found["change"]["high"] < 0
    soft = compare_harness([record({"0": 0.25, "1": 0.5})], [record({"0": 0.5, "1": 0.75})])["t acc"]
    assert soft["mcnemar"] is None and soft["change"]["value"] == 0.25


def instance(*arguments: Any) -> SimpleNamespace:
    return SimpleNamespace(args=arguments)


def test_the_class_answers_what_the_harness_asks() -> None:
    pytest.importorskip("lm_eval", reason="pip install 'trtforge[harness]'")
    lm = make_lm(model())
    [(yes, greedy), (no, other)] = lm.loglikelihood(
        [instance("is water wet?", " yes"), instance("is water wet?", " no")], disable_tqdm=True
    )
    assert greedy and not other and yes == pytest.approx(2 * np.log(0.8)) and no < yes
    assert lm.generate_until([instance("is water wet?", {"until": ["\n"], "max_gen_toks": 8})]) == [" yes"]
    assert lm.loglikelihood_rolling([instance("yes yes")])[0] == pytest.approx(3 * np.log(0.8))


def test_a_local_task_is_scored_document_by_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lm_eval", reason="pip install 'trtforge[harness]'")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    lines = [{"question": "is water wet?", "answer": 0}, {"question": "is fire wet?", "answer": 1}]
    (tmp_path / "wet.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "t.yaml").write_text(TASK)
    samples = Samples("harness", {}, out=tmp_path / "out", scratch=tmp_path / "scratch")
    [found] = run_tasks(model(), ["file:t.yaml"], tmp_path, samples)
    assert found["results"]["wetness"]["acc"] == 0.5
    assert found["documents"]["wetness acc"] == {"0": 1.0, "1": 0.0}
    unknown = Samples("harness", {}, out=tmp_path / "o", scratch=tmp_path / "s")
    assert refusal(run_tasks, model(), ["no_such_task_at_all"], tmp_path, unknown).code == "TF-EVL-028"
