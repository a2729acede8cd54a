"""Everything that speculation cannot do with is a coded refusal of the recipe, on every target that drafts so."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.preflight import SMOL, report
from tests.support.tiny import write_tiny_llama
from tests.trtforge.drafting import checkpoints
from tests.trtforge.drafting.checkpoints import WIDTH, Spec, write
from tests.trtforge.drafting.test_traps import write_target, write_tokenizer
from tests.trtforge.preflight.settings import API, ENGINE, GPU, build, merged, speculation, trtllm
from trtforge.cli.main import invoke
from trtforge.ground.errors import ForgeError

TARGETS = {"torch": {}, "tensorrt": GPU, "trtllm-llmapi": API}
OWN = ("torch", "tensorrt")
HEAD = {"method": "eagle3", "draft": "draft"}
NGRAM = {"method": "ngram", "max_draft_len": 4}
#: the drafter's target has 12 layers, a width of 16 and 40 tokens
MODEL = {"model": {"source": "model"}}
SHAPE = replace(SMOL, hidden=WIDTH, vocab=40, layers=12)
Write = Callable[[Path], Any]


def head(**more: Any) -> Write:
    spec = Spec(more.pop("dialect", "specforge"), **more.pop("spec", {}))
    return lambda root: write(root / "draft", spec, **more)


def tokenizers(**more: Any) -> Write:
    def lay(root: Path) -> None:
        write(root / "draft", Spec("specforge"))
        write_tokenizer(root / "draft", 3, **more)

    return lay


WIDE = [[rank] for rank in range(17)]
LONG = [[0] * depth for depth in range(1, 18)]
MANY = [*([rank] for rank in range(8)), *([a, b] for a in range(8) for b in range(7))]

#: name → what lies there, what the recipe says, its code, the targets that it is refused on
BAD: dict[str, tuple[Write, dict[str, Any], str, tuple[str, ...]]] = {
    "deeper than the head": (
        head(config={"num_lookahead_tokens": 3}),
        speculation(**HEAD, max_draft_len=4, choices=[[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]]),
        "TF-K12-040",
        OWN,
    ),
    "a chain deeper than the head": (
        head(config={"num_lookahead_tokens": 3}),
        speculation(**HEAD, max_draft_len=4),
        "TF-K12-040",
        tuple(TARGETS),
    ),
    "no tree: a parent is missing": (
        head(),
        speculation(**HEAD, max_draft_len=2, choices=[[0], [1, 0]]),
        "TF-K12-011",
        OWN,
    ),
    "no tree: a node twice": (head(), speculation(**HEAD, max_draft_len=2, choices=[[0], [0]]), "TF-K12-011", OWN),
    "more nodes than the mask": (head(), speculation(**HEAD, max_draft_len=2, choices=MANY), "TF-K12-032", OWN),
    "more levels than the operators": (head(), speculation(**HEAD, max_draft_len=17, choices=LONG), "TF-K12-032", OWN),
    "more children than the operators": (head(), speculation(**HEAD, max_draft_len=1, choices=WIDE), "TF-K12-032", OWN),
    "a static tree deeper than max_draft_len": (
        head(),
        speculation(**HEAD, max_draft_len=1, choices=[[0], [0, 0]]),
        "TF-K12-012",
        OWN,
    ),
    "a static tree on the LLM API": (
        head(),
        speculation(**HEAD, max_draft_len=1, choices=[[0], [1]]),
        "TF-K12-036",
        ("trtllm-llmapi",),
    ),
    "beams": (
        head(),
        merged(speculation(**HEAD, max_draft_len=4), trtllm(max_beam_width=4)),
        "TF-K12-003",
        tuple(TARGETS),
    ),
    "a tree over max_num_tokens": (
        head(),
        merged(
            speculation(**HEAD, dynamic_tree={"depth": 4, "top_k": 8, "total": 32}),
            build(limits={"max_num_tokens": 32, "max_batch_size": 1, "max_seq_len": 512}),
        ),
        "TF-K12-033",
        tuple(TARGETS),
    ),
    "another width": (
        head(config={"hidden_size": 24, "target_hidden_size": 24}),
        speculation(**HEAD, max_draft_len=4),
        "TF-K12-007",
        tuple(TARGETS),
    ),
    "another vocabulary": (
        head(config={"vocab_size": 41}),
        speculation(**HEAD, max_draft_len=4),
        "TF-K12-006",
        tuple(TARGETS),
    ),
    "another tokenizer by what it does": (
        tokenizers(normalizer={"type": "Lowercase"}),
        speculation(**HEAD, max_draft_len=4),
        "TF-K12-027",
        tuple(TARGETS),
    ),
    "a tap behind the last layer": (
        head(spec={"taps": (1, 5, 12)}),
        speculation(**HEAD, max_draft_len=4),
        "TF-K12-027",
        tuple(TARGETS),
    ),
    "a quantized head": (
        head(lm_head__weight=("F8_E4M3", np.zeros((14, WIDTH), dtype=np.uint8))),
        speculation(**HEAD, max_draft_len=4),
        "TF-K12-027",
        tuple(TARGETS),
    ),
    "lengths for batches that never run": (
        head(),
        merged(speculation(**NGRAM, draft_len_schedule={8: 4, 16: 2}), build(limits={"max_batch_size": 8})),
        "TF-K12-038",
        tuple(TARGETS),
    ),
    "EAGLE-1": (head(), speculation(method="eagle", draft="draft", max_draft_len=4), "TF-K12-001", tuple(TARGETS)),
    "Medusa": (head(), speculation(method="medusa", draft="draft", max_draft_len=4), "TF-K12-001", tuple(TARGETS)),
    "lookahead": (head(), speculation(method="lookahead"), "TF-K12-001", tuple(TARGETS)),
}


@pytest.mark.parametrize(("name", "target"), [(name, target) for name, row in BAD.items() for target in row[3]])
def test_it_is_refused_before_a_weight_is_loaded(name: str, target: str, tmp_path: Path) -> None:
    lay, settings, code, _ = BAD[name]
    write_target(tmp_path / "model", words=3)
    lay(tmp_path)
    found = report(merged(TARGETS[target], MODEL, settings), directory=tmp_path, model=SHAPE).findings
    blocking = {finding.code: finding for finding in found if finding.blocks}
    assert code in blocking, [(finding.code, finding.message) for finding in found]
    assert blocking[code].numbers and blocking[code].remedies


@pytest.mark.parametrize("target", TARGETS)
def test_a_sound_head_is_not_refused(target: str, tmp_path: Path) -> None:
    write_target(tmp_path / "model", words=3)
    tokenizers()(tmp_path)
    asked = merged(TARGETS[target], MODEL, speculation(**HEAD, max_draft_len=4))
    found = report(asked, directory=tmp_path, model=SHAPE).findings
    assert [finding.code for finding in found if finding.code.startswith("TF-K12") and finding.blocks] == []


@pytest.mark.parametrize(
    "asked",
    [
        {**HEAD, "dynamic_tree": {"depth": 17, "top_k": 2, "total": 20}},
        {**HEAD, "dynamic_tree": {"depth": 4, "top_k": 17, "total": 20}},
        {**HEAD, "dynamic_tree": {"depth": 4, "top_k": 8, "total": 64}},
        {**HEAD, "dynamic_tree": {"depth": 4, "top_k": 1, "total": 5}},
        {**HEAD, "dynamic_tree": {"depth": 4, "top_k": 2, "total": 8}, "max_draft_len": 3},
        {**HEAD, "dynamic_tree": {"depth": 4, "top_k": 2, "total": 8}, "choices": [[0]]},
        {**NGRAM, "ngram": {"max_matching_ngram_size": 2, "min_matching_ngram_size": 3}},
        {**NGRAM, "draft_len_schedule": {4: 5}},
        {**NGRAM, "draft_len_schedule": {0: 4}},
        {**NGRAM, "draft_len_schedule": {4: 4}, "max_concurrency": 4},
        {**NGRAM, "acceptance_rate_threshold": 1.2, "acceptance_rate_window_size": 8},
        {**NGRAM, "acceptance_rate_threshold": -0.1, "acceptance_rate_window_size": 8},
        {**NGRAM, "acceptance_rate_threshold": 0.3},
    ],
)
def test_what_contradicts_itself_is_no_recipe(asked: dict[str, Any]) -> None:
    with pytest.raises(ForgeError) as caught:
        report(speculation(**asked))
    assert caught.value.code.startswith("TF-RCP-") and caught.value.remedies


DEEP = [[0] * depth for depth in range(1, 200)]
#: what costs far more than the recipe is long where a remedy is worked out: target, section, code
LARGE: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "layers of a tree that is not there": (
        ENGINE,
        speculation(method="eagle", draft="draft", heads=10**9, max_draft_len=63, choices=[[0]]),
        "TF-K12-012",
    ),
    "one path of many nodes": (GPU, speculation(**HEAD, max_draft_len=4, choices=[[0], [0] * 60_000]), "TF-K12-011"),
    "many nodes twice": (GPU, speculation(**HEAD, max_draft_len=4, choices=[[0]] * 40_000), "TF-K12-011"),
    "a deep tree": (GPU, speculation(**HEAD, max_draft_len=200, choices=DEEP), "TF-K12-032"),
    "a schedule of many batches": (
        {},
        speculation(**NGRAM, draft_len_schedule=dict.fromkeys(range(1, 5000), 4)),
        "TF-K12-038",
    ),
    "a draft whose name is too long": (
        GPU,
        speculation(method="draft_target", draft="x" * 5000, max_draft_len=4),
        "TF-K12-005",
    ),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_refusal_stays_small_however_large_the_numbers_are(name: str, tmp_path: Path) -> None:
    target, asked, code = LARGE[name]
    head()(tmp_path)
    try:
        found = [
            (item.code, item.message, item.to_json())
            for item in report(merged(target, asked), directory=tmp_path).findings
        ]
    except ForgeError as error:
        found = [(error.code, error.message, error.to_json())]
    assert code in [item for item, _, _ in found]
    for item, message, document in found:
        assert len(message) < 1000 and len(json.dumps(document)) < 20_000, item


@pytest.mark.parametrize("command", ["check", "run", "build"])
def test_what_check_refuses_no_command_builds(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checkpoints, "VOCAB", 512)
    write_tiny_llama(tmp_path / "model", layers=checkpoints.TARGET_LAYERS, width=WIDTH)
    write(tmp_path / "draft", Spec("speculators", qk_norm=True))
    recipe = merged({"name": "x", **MODEL}, API, speculation(**HEAD, max_draft_len=4))
    (tmp_path / "r.yaml").write_text(json.dumps(recipe))
    assert invoke([command, "r.yaml", "--json"]) != 0
    assert "TF-K12-035" in capsys.readouterr().out
    assert not list(tmp_path.rglob("engine.json"))
