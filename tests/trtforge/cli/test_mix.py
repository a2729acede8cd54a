"""``trtforge quantize mix`` on a tiny checkpoint: chosen within the bits, written as a recipe, and run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.tiny_recipe import write_tiny_recipe
from trtforge.cli.main import invoke
from trtforge.cli.mix import _options
from trtforge.recipe.load import load_recipe


def _mix(run: Any, recipe: Path, *options: str) -> tuple[int, str, str]:
    found: tuple[int, str, str] = run("quantize", "mix", str(recipe), "--tokens", "128", *options)
    return found


def _document(tmp_path: Path) -> dict[str, Any]:
    paths = sorted((tmp_path / ".trtforge").rglob("mixing.json"), key=lambda path: path.stat().st_mtime)
    document: dict[str, Any] = json.loads(paths[-1].read_text(encoding="utf-8"))
    return document


@pytest.mark.slow
def test_chosen_within_the_bits_written_and_quantized(run: Any, tmp_path: Path) -> None:
    recipe, out = write_tiny_recipe(tmp_path, format="nvfp4", kv_cache="none"), tmp_path / "mixed.yaml"
    code, shown, err = _mix(run, recipe, "--bits", "6", "--exclude", "o_proj", "-o", str(out))
    assert code == 0, err
    found = _document(tmp_path)
    formats = {group["name"]: group["format"] for group in found["groups"]}
    assert set(formats.values()) == {"nvfp4", "fp8"}
    assert {text for name, text in formats.items() if name.endswith("o_proj")} == {"nvfp4"}
    assert 4.5 < found["bits"] <= 6 and f"{found['bits']:.2f}" in shown
    kl = {"mixed": found["kl"]["value"], **{name: one["kl"]["value"] for name, one in found["uniform"].items()}}
    assert kl["fp8"] < kl["mixed"] < kl["nvfp4"]
    bits = sum(group["choices"][group["format"]]["bits"] for group in found["groups"])
    for group in found["groups"]:  # what was taken was measured, what has no choice was not
        measured = group["choices"][group["format"]]["kl"] is not None
        assert measured is not group["name"].endswith("o_proj")
    assert found["bits"] == pytest.approx(bits / found["weights"], rel=1e-4)

    written = yaml.safe_load(out.read_text(encoding="utf-8"))["quantize"]
    named = sorted(name for names in written["mixed"].values() for name in names)
    (other,) = written["mixed"]
    assert {written["format"], other} == {"nvfp4", "fp8"}
    modules = [module for group in found["groups"] for module in group["modules"] if group["format"] == other]
    assert named == sorted(modules)
    assert invoke(["check", str(out)]) == 0
    code, _, err = run("run", str(out), "--until", "quantize")
    assert code == 0, err

    # a second question of the same measurements loads no model
    code, shown, err = _mix(run, recipe, "--bits", "6", "--exclude", "o_proj", "-o", str(out), "--overwrite")
    assert code == 0 and "cached" in shown


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--bits", "5", "--formats", "fp8"], "TF-CLI-065"),
        (["--bits", "16"], "TF-CLI-065"),
        (["--bits", "0"], "TF-CLI-065"),
        (["--bits", "5", "--formats", "fp8,int4_awq:64"], "TF-QNT-017"),
        (["--bits", "5", "--set", "build.target=trtllm-engine"], "TF-QNT-017"),
        (["--bits", "5", "--formats", "fp8,fp9"], "TF-QNT-001"),
        (["--bits", "5", "--set", "quantize.format=nvfp4"], "TF-CLI-063"),
        (["--bits", "5", "--set", "quantize.mixed={fp8: [o_proj]}"], "TF-CLI-063"),
    ],
)
def test_what_cannot_be_chosen_from_is_refused(run: Any, tmp_path: Path, options: list[str], code: str) -> None:
    status, _, err = _mix(run, write_tiny_recipe(tmp_path, format="fp8", kv_cache="none"), *options)
    assert status == 2 and code in err


def test_one_format_beside_none_mixes_nothing(tmp_path: Path) -> None:
    """What is left unquantized is no other format: searches can be asked, and targets of one algorithm."""
    recipe = load_recipe(write_tiny_recipe(tmp_path, format="fp8"), ["build.target=trtllm-engine"])
    assert _options(recipe, 8, "int4_awq,none", None, None, 64).formats == ("int4_awq", "none")


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--include", "--exclude"])
def test_a_pattern_that_names_no_linear_is_refused(run: Any, tmp_path: Path, option: str) -> None:
    recipe = write_tiny_recipe(tmp_path, format="fp8", kv_cache="none")
    status, _, err = _mix(run, recipe, "--bits", "6", option, "down_proj", option, "down_prj")
    assert status == 2 and "TF-QNT-045" in err and "down_prj" in err


@pytest.mark.slow
def test_bits_that_no_choice_has_are_refused_with_the_least(run: Any, tmp_path: Path) -> None:
    recipe = write_tiny_recipe(tmp_path, format="fp8", kv_cache="none")
    status, _, err = _mix(run, recipe, "--bits", "4.2", "--formats", "fp8,int8_wo")
    assert status == 2 and "TF-QNT-044" in err and "8.0" in err
