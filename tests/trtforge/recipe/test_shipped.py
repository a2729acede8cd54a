"""Recipes that ship are found by their names, wherever the command runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.refusals import refusal
from trtforge.cli.main import invoke
from trtforge.recipe.load import load_recipe
from trtforge.recipe.shipped import is_shipped, recipe_file, shipped

CONFIGS = Path(__file__).parents[3] / "configs"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.yaml"))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_that_ships_loads_by_its_name(name: str) -> None:
    loaded = load_recipe(name)
    assert loaded.path == CONFIGS / f"{name}.yaml" and loaded.directory == CONFIGS
    assert loaded.resolved == load_recipe(CONFIGS / f"{name}.yaml").resolved


def test_the_names_are_those_of_the_files() -> None:
    assert list(shipped()) == NAMES and "smollm2-135m-fp8" in NAMES


def test_what_lies_in_the_working_directory_comes_first(elsewhere: Path) -> None:
    (elsewhere / "smollm2-135m-fp8").write_text("name: mine\nmodel: {source: ./model}\n")
    assert load_recipe("smollm2-135m-fp8").recipe.name == "mine"
    assert not is_shipped("smollm2-135m-fp8") and is_shipped("smollm2-135m-nvfp4")


@pytest.mark.parametrize("path", ["smollm2-135m-fp8.yaml", "smollm2-135m-fp8.yml", "configs/smollm2-135m-fp8"])
def test_what_is_written_as_a_path_is_one(path: str) -> None:
    assert recipe_file(Path(path)) == Path(path)
    error = refusal(load_recipe, path)
    assert error.code == "TF-RCP-001" and "cannot read" in error.message


def test_an_unknown_name_gets_the_nearest() -> None:
    error = refusal(load_recipe, "smolm2-135m-fp8")
    assert error.code == "TF-RCP-001" and error.exit_code == 2
    assert error.remedies == ["did you mean smollm2-135m-fp8?"]
    assert error.numbers["recipes that ship"] == NAMES
    assert refusal(load_recipe, "zzzzzz").remedies == ["name the recipe's YAML file, or one of those that ship"]


@pytest.mark.parametrize(
    "words",
    [
        ["check", "smollm2-135m-bf16", "--no-model"],
        ["explain", "smollm2-135m-bf16"],
        ["plan", "smollm2-135m-bf16", "--gpu", "h200", "--config", "config.json"],
    ],
)
def test_commands_take_a_name(words: list[str], elsewhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = json.loads((CONFIGS / "heads" / "smollm2-135m-eagle3" / "config.json").read_text())
    (elsewhere / "config.json").write_text(json.dumps(SMOLLM2 | {"vocab_size": head["vocab_size"]}))
    assert invoke([*words, "--json", "--store", "store"][: None if words[0] != "plan" else -2]) == 0
    assert "smollm2-135m-bf16" in capsys.readouterr().out
    assert list(CONFIGS.glob("*recommended*")) == []


def test_stage_commands_take_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    from trtforge.cli.stages import recipe_for

    assert recipe_for("smollm2-135m-nvfp4", {"quantize.kv_cache": "none"}, []).recipe.name == "smollm2-135m-nvfp4"


SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}
