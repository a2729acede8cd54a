"""A drafter of another target: by what its folder says, by the tokenizer's file, and by what the tokenizers do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.trtforge.drafting.checkpoints import Spec, write
from tests.trtforge.drafting.test_traps import write_target, write_tokenizer
from trtforge.drafting.conversion import convert
from trtforge.drafting.inspection import inspect_folder
from trtforge.drafting.statements import RECORD, tokenizer_identity, tokenizers_differ

LOWER = {"normalizer": {"type": "Lowercase"}}


def codes(folder: Path, target: Path) -> list[str]:
    return [finding.code for finding in inspect_folder(folder, target).errors]


def verifier(*names: str) -> dict[str, Any]:
    return {"speculators_config": {"algorithm": "eagle3", "verifier": {"architectures": list(names)}}}


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return write_target(tmp_path / "target", words=3)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (verifier("Qwen3ForCausalLM"), ["TF-DRF-031"]),
        (verifier("Qwen3ForCausalLM", "LlamaForCausalLM"), []),
        (verifier("LlamaForCausalLM"), []),
        (verifier(), []),
        ({"speculators_config": {"algorithm": "eagle3"}}, []),
    ],
)
def test_the_class_that_a_head_was_trained_beside(
    said: dict[str, Any], expected: list[str], target: Path, tmp_path: Path
) -> None:
    assert codes(write(tmp_path / "d", Spec("speculators"), config=said), target) == expected


def test_a_model_around_the_language_model_is_known_by_its_inner_class(tmp_path: Path) -> None:
    inner = {"architectures": ["LlamaForCausalLM"], "hidden_size": 16, "vocab_size": 40, "num_hidden_layers": 12}
    target = write_target(tmp_path / "t", architectures=["LlavaForConditionalGeneration"], text_config=inner)
    assert codes(write(tmp_path / "d", Spec("speculators"), config=verifier("LlamaForCausalLM")), target) == []


def test_a_record_names_its_target_s_tokenizer_by_file_and_by_what_it_does(target: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    convert(write(tmp_path / "d", Spec("speculators")), "modelopt", made, target=target)
    said = json.loads((made / RECORD).read_text())["target"]["tokenizer"]
    assert said == tokenizer_identity(target) and not (made / "tokenizer.json").exists()
    assert codes(made, target) == []
    # the same tokenizer in a file of other bytes
    path = target / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()), indent=4))
    assert tokenizer_identity(target) != said and codes(made, target) == []
    # other ids
    write_tokenizer(target, 7)
    assert codes(made, target) == ["TF-DRF-032"]
    # a second conversion, without the target, carries the statement
    again = tmp_path / "again"
    convert(made, "tensorrt-llm", again)
    assert codes(again, target) == ["TF-DRF-032"]


@pytest.mark.parametrize("record", ["{", "[]", '{"target": 3}', '{"target": {"tokenizer": "x"}}', '{"target": null}'])
def test_a_record_that_says_nothing_is_no_statement(record: str, target: Path, tmp_path: Path) -> None:
    folder = write(tmp_path / "d", Spec("specforge"))
    (folder / RECORD).write_text(record)
    assert codes(folder, target) == []


def test_tokenizers_are_told_apart_by_what_they_do(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "same", "lower", "shifted", "none")]
    for folder in folders:
        folder.mkdir()
    one, same, lower, shifted, none = folders
    write_tokenizer(one, 3)
    write_tokenizer(same, 3, truncation=None)
    write_tokenizer(lower, 3, **LOWER)
    write_tokenizer(shifted, 4)
    assert tokenizers_differ(one, same) is None and tokenizers_differ(one, none) is None
    assert "has other token ids" in (tokenizers_differ(one, lower) or "")
    assert tokenizers_differ(one, shifted) is not None
    # a token that no probe has
    vocabulary = json.loads((one / "tokenizer.json").read_text())
    vocabulary["model"]["vocab"] |= {"zebra": 20, "yak": 21}
    (one / "tokenizer.json").write_text(json.dumps(vocabulary))
    vocabulary["model"]["vocab"] |= {"zebra": 21, "yak": 20}
    (same / "tokenizer.json").write_text(json.dumps(vocabulary))
    assert tokenizers_differ(one, same) == "'yak' is 21 and 20"
