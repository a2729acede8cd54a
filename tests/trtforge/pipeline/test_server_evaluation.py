"""A live server is held against its bundle over each layout's tensors, and the bundle says so afterwards."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from evals.generation import PROMPTS, answers_to_json, inspect_answer
from evals.perplexity import tokens_digest
from evals.samples import Samples
from evals.scorers import Scorer
from evals.server.clients import open_server
from evals.server.measure import agreement
from evals.suite import suite_items
from evals.tasks import Item, answer_items
from evals.windows import measure_windows
from runtime.offline import Engine
from runtime.sampling.params import SamplingParams
from tests.support.http_layouts import LayoutServer
from tests.support.refusals import refusal
from trtforge.cli.app import invoke
from trtforge.ground.progress import SilentProgress
from trtforge.pipeline.server_evaluation import evaluate_live
from trtforge.pipeline.stages.bundle import write_recipe
from trtforge.pipeline.stages.subject import item_tokens, prompt_tokens
from trtforge.recipe.load import recipe_from_mapping
from trtforge.store.artifact import GateResult, StageResult
from trtforge.store.store import Store
from trtforge.store.verify import verify_bundle

TARGETS = {"native": "torch", "inflight_batcher_llm": "trtllm-engine", "llmapi": "trtllm-llmapi"}
NOT_RUN = {"parity": {"reason": "no GPU", "gates": ["top1_agreement", "engine_sanity"]}}
TOKENS, WINDOW, STRIDE, MAX_NEW = 200, 64, 32, 12


@pytest.fixture(scope="module")
def engine(tiny_engine: Path) -> Iterator[Engine]:
    with Engine.load(tiny_engine) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def evidence(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a run of the pipeline leaves in ``evidence``: here the engine stands for all three models."""
    from quantize.corpora import load_corpus, take_tokens

    folder = tmp_path_factory.mktemp("evidence")
    tokenizer = engine.tokenizer
    assert tokenizer is not None

    def written(ids: list[int], most: int) -> list[int]:
        return list(engine.generate([ids], SamplingParams(max_tokens=most, temperature=0.0))[0].token_ids)

    answers = []
    for prompt in PROMPTS[:2]:
        ids = written(prompt_tokens(tokenizer, prompt), MAX_NEW)
        answers.append(inspect_answer(prompt, ids, tokenizer.decode(ids)))
    for name in ("baseline", "quantized"):
        (folder / f"generation-{name}.json").write_text(json.dumps(answers_to_json(answers)))
    samples = Samples("tasks", {}, out=folder, scratch=folder)

    def said(item: Item) -> str:
        return tokenizer.decode(written(item_tokens(tokenizer, item), item.max_tokens))

    # random weights answer nothing right: what they write is the right answer here, so that there is one to lose
    items = [replace(i, answer=said(i).split("\n", 1)[0], scorer=Scorer("exact")) for i in suite_items(2)]
    answer_items(lambda batch: [said(item) for item in batch], items, samples=samples)
    needles = Samples("needles", {}, out=folder, scratch=folder)
    found = [Item("needle", f"The number is {size}. " * size, r"^\s*7", Scorer("regex"), 4) for size in (1, 500)]
    answer_items(lambda batch: [" 7" for _ in batch], found, samples=needles)
    for name in ("baseline", "quantized"):
        shutil.copy(folder / "samples/tasks.jsonl", folder / f"tasks-{name}.jsonl")
        shutil.copy(folder / "samples/needles.jsonl", folder / f"needles-{name}.jsonl")
    shutil.rmtree(folder / "samples")
    tokens = take_tokens(load_corpus("builtin:python-topics", folder, "evaluation"), tokenizer.backend, TOKENS).tolist()
    scores = measure_windows(
        lambda ids, _: torch.from_numpy(engine.logits(ids.tolist())), tokens, window=WINDOW, stride=STRIDE
    ).scores
    for name in ("baseline", "quantized"):
        np.save(folder / f"nll-{name}.npy", scores.nll)
    (folder / "perplexity-quantized.json").write_text(json.dumps({"tokens_sha256": tokens_digest(tokens)}))
    return folder


def make_bundle(folder: Path, tiny_engine: Path, evidence: Path, layout: str = "native", **more: Any) -> Path:
    """A sealed bundle whose engine nobody has run."""
    recipe = recipe_from_mapping(
        {
            "name": "tiny",
            "model": {"source": "m"},
            "build": {"target": TARGETS[layout], "limits": {"max_seq_len": 512, "max_num_tokens": 512}},
            "triton": {"layout": layout},
            "evals": {
                "perplexity": {"tokens": TOKENS, "window": WINDOW, "stride": STRIDE},
                "generation": {"prompts": 2, "max_tokens": MAX_NEW, "gate": {"min_sane": 0}},
                "suite": {"samples": 2, "gate": {"max_drop": "40%"}},
                "long_context": {"lengths": [256]},
            },
            "bench": {"concurrency": [2], "requests_per_level": 2, "max_tokens": 4, "prompts": "builtin:short"},
        },
        folder,
    ).recipe
    store = Store(folder / "store", durable=False)
    key = "a" * 64
    out = store.begin("bundle", key)
    shutil.copytree(tiny_engine, out / "engine")
    shutil.copytree(evidence, out / "evidence")
    write_recipe(recipe, out / "recipe.yaml")
    result = StageResult(
        summary={"not_run": NOT_RUN},
        gates=more.get("gates", []),
        stamps={"target": TARGETS[layout], **more.get("stamps", {})},
    )
    ingredients: dict[str, Any] = {"section": {}, "inputs": {}, "tools": {}, "host": {}, "code_version": "1"}
    return store.publish(
        out, stage="bundle", key=key, ingredients=ingredients, inputs={}, result=result, seconds=1.0
    ).path


@pytest.mark.parametrize("kind", ["native", "inflight_batcher_llm", "llmapi", "openai"])
def test_a_right_server_turns_an_incomplete_bundle_into_a_passed_one(
    kind: str, engine: Engine, tiny_engine: Path, evidence: Path, tmp_path: Path
) -> None:
    bundle = make_bundle(tmp_path, tiny_engine, evidence, "llmapi" if kind == "openai" else kind)
    assert verify_bundle(bundle, stamps=False).verdict == "INCOMPLETE"
    with LayoutServer(engine, kind) as address:
        result = evaluate_live(bundle, address, SilentProgress(), load=kind == "native")
    missed = [gate for gate in result.found.gates if not gate.passed]
    assert not missed and result.verdict == "PASSED"
    names = {gate.name.partition(":")[0] for gate in result.found.gates}
    assert {"server_agreement", "server_sanity", "server_task_suite", "server_smoke"} <= names
    assert ("server_perplexity_increase" in names) is (kind == "openai"), "only one of them gives log-probabilities"
    assert ("perplexity" in result.found.left_out) is (kind != "openai")
    assert ("server_failed_requests" in names) is (kind == "native")
    if kind == "openai":
        assert abs(result.found.figures["perplexity"]["against_quantized"]["value"]) < 1e-3
    found = result.found.figures
    assert found["answers"]["agreed"] == found["answers"]["tokens"] and found["suite"]["overall"]["lost"] == 0
    assert found["needles"]["items"] == 1 == found["needles"]["lost"], "the baseline on record found it"
    assert result.found.left_out["long contexts"] == "1 of 2 needles: their prompts are over the 511 tokens of one"
    report = verify_bundle(bundle, stamps=False)
    assert report.ok and report.verdict == "PASSED", report.to_json()


def test_a_wrong_server_fails_the_bundle_and_a_mended_one_passes_it(
    engine: Engine, tiny_engine: Path, evidence: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = make_bundle(tmp_path, tiny_engine, evidence)
    server = LayoutServer(engine, "native")
    server.spoil = lambda text: text[::-1]
    with server as address:
        assert invoke(["eval", "--server", address, "--bundle", str(bundle), "--no-bench", "--json"]) == 1
        said = json.loads(capsys.readouterr().out)
        assert said["verdict"] == "FAILED"
        missed = {gate["name"] for gate in said["gates"] if not gate["passed"]}
        assert "server_agreement" in missed
        assert invoke(["verify", str(bundle), "--no-stamps", "--json"]) == 1
        assert "TF-BND-041" in capsys.readouterr().out
        server.spoil = lambda text: text
        assert invoke(["eval", "--server", address, "--bundle", str(bundle), "--no-bench"]) == 0
    assert verify_bundle(bundle, stamps=False).verdict == "PASSED"
    assert len(list((bundle / "addenda").iterdir())) == 2


def addendum(folder: Path, engine: Engine, tiny_engine: Path, evidence: Path) -> tuple[Path, Path]:
    bundle = make_bundle(folder, tiny_engine, evidence)
    with LayoutServer(engine, "native") as address:
        evaluate_live(bundle, address, SilentProgress(), load=False)
    return bundle, next((bundle / "addenda").iterdir())


def codes(bundle: Path) -> set[str]:
    return {item.code for item in verify_bundle(bundle, stamps=False).findings}


def test_an_addendum_that_was_touched_moved_or_taken_away_is_found(
    engine: Engine, tiny_engine: Path, evidence: Path, tmp_path: Path
) -> None:
    bundle, path = addendum(tmp_path / "a", engine, tiny_engine, evidence)
    good = path.read_text()
    path.write_text(good.replace('"passed": true', '"passed": false', 1))
    assert codes(bundle) == {"TF-BND-037"} and verify_bundle(bundle, stamps=False).verdict == "INCOMPLETE"
    path.write_text(good)
    assert codes(bundle) == set()
    other = make_bundle(tmp_path / "b", tiny_engine, evidence, gates=[GateResult("g", True, 1.0, 1.0, "g")])
    (other / "addenda").mkdir()
    shutil.copy(path, other / "addenda" / path.name)
    assert codes(other) == {"TF-BND-038"}, "it speaks of another bundle's bytes"
    path.rename(path.with_name(f"0002{path.name[4:]}"))
    assert codes(bundle) == {"TF-BND-037"}, "the first is missing"
    (bundle / "addenda" / "notes.txt").write_text("x")
    assert "TF-BND-006" in codes(bundle)


def test_an_engine_that_was_compiled_later_is_the_one_that_was_evaluated(
    engine: Engine, tiny_engine: Path, evidence: Path, tmp_path: Path
) -> None:
    bundle = make_bundle(tmp_path, tiny_engine, evidence, "inflight_batcher_llm", stamps={"compiled": False})
    (bundle / "engine/trtllm").mkdir()
    plan = bundle / "engine/trtllm/rank0.engine"
    plan.write_bytes(b"compiled on the GPU machine")
    with LayoutServer(engine, "inflight_batcher_llm") as address:
        evaluate_live(bundle, address, SilentProgress(), load=False)
        assert codes(bundle) == {"TF-BND-030"} and verify_bundle(bundle, stamps=False).verdict == "PASSED"
        plan.write_bytes(b"compiled once more, otherwise")
        assert codes(bundle) == {"TF-BND-030", "TF-BND-039"}
        evaluate_live(bundle, address, SilentProgress(), load=False)
    assert codes(bundle) == {"TF-BND-030"}


def test_a_link_is_no_addendum(engine: Engine, tiny_engine: Path, evidence: Path, tmp_path: Path) -> None:
    bundle, path = addendum(tmp_path, engine, tiny_engine, evidence)
    path.rename(tmp_path / path.name)
    path.symlink_to(tmp_path / path.name)
    assert "TF-BND-006" in codes(bundle)


def test_what_is_no_bundle_or_no_server_is_refused(
    engine: Engine, tiny_engine: Path, evidence: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = make_bundle(tmp_path, tiny_engine, evidence)
    progress = SilentProgress()
    assert refusal(evaluate_live, bundle, "127.0.0.1:9", progress).code == "TF-EVL-018"
    with LayoutServer(engine, "openai") as address:
        assert refusal(evaluate_live, bundle, address, progress, model="other").code == "TF-EVL-020"
    with LayoutServer(engine, "llmapi") as address:
        assert refusal(evaluate_live, bundle, address, progress).code == "TF-EVL-020", "tiny is not its model"
    (bundle / "recipe.yaml").write_text("name: x\n")
    assert refusal(evaluate_live, bundle, "127.0.0.1:9", progress).code == "TF-EVL-021"
    for wrong in (["eval"], ["eval", "--server", "h:1"], ["eval", "--bundle", str(bundle)],
                  ["eval", "x.yaml", "--server", "h:1", "--bundle", str(bundle)],
                  ["eval", "x.yaml", "--model", "m"], ["eval", "x.yaml", "--no-bench"]):  # fmt: skip
        assert invoke([*wrong, "--json"]) == 2
        assert "TF-EVL-022" in capsys.readouterr().out


def test_tokens_after_the_first_difference_are_no_trials() -> None:
    assert agreement([1, 2, 3], [1, 2, 3]) == (3, 3)
    assert agreement([1, 2, 3], [1, 9, 9]) == (1, 2)
    assert agreement([1, 2, 3], [1, 2]) == (2, 3), "an answer that ends early differs where it ends"
    assert agreement([], [4]) == (0, 1)


MINIMAL = {"name": "x", "model": {"source": "m"}}


@pytest.mark.parametrize(
    "address",
    [
        "nonsense",
        "127.0.0.1:99999",
        "127.0.0.1:0",
        "http://127.0.0.1:8000",
        "127.0.0.1:8000/x",
        "u:p@h:80",
        ":80",
        "h:-1",
    ],
)
def test_an_address_is_a_host_and_a_port(address: str) -> None:
    assert refusal(open_server, address, recipe_from_mapping(MINIMAL).recipe.layout, None, "x").code == "TF-EVL-029"


@pytest.mark.parametrize(
    "change",
    [{"gates": []}, {"made_later": [1, 2]}, {"figures": "none"}, {"server": [1]}],
    ids=["no gate", "made_later", "figures", "server"],
)
def test_an_addendum_of_nonsense_is_a_finding_and_makes_no_bundle_pass(
    change: dict[str, Any], engine: Engine, tiny_engine: Path, evidence: Path, tmp_path: Path
) -> None:
    bundle, path = addendum(tmp_path, engine, tiny_engine, evidence)
    content = {**json.loads(path.read_text()), **change}
    if not content["gates"]:
        content["passed"] = True
    raw = json.dumps(content).encode()
    path.unlink()
    (path.parent / f"0001-{hashlib.sha256(raw).hexdigest()}.json").write_bytes(raw)
    assert codes(bundle) == {"TF-BND-037"}
    assert verify_bundle(bundle, stamps=False).verdict == "INCOMPLETE"
