"""``trtforge quantize advise`` through the parser, and ``trtforge quantize`` with other commands beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.tiny import write_tiny_llama
from trtforge.machine.gpus import Gpus


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    write_tiny_llama(tmp_path / "model")
    data = {
        "name": "tiny",
        "model": {"source": "model"},
        "quantize": {"format": "int4_awq", "group_size": 64, "kv_cache": "fp8"},
        "build": {"target": "trtllm-llmapi", "limits": {"max_batch_size": 4, "max_seq_len": 512}},
        "triton": {"layout": "llmapi"},
        "bench": {"concurrency": [1]},
    }
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    return path


def test_the_answer_comes_first_then_why_then_what_was_ruled_out(run: Any, recipe: Path) -> None:
    code, out, err = run("quantize", "advise", str(recipe), "--gpu", "h100-sxm")
    assert (code, err) == (0, "")
    places = [out.index(text) for text in ("format ", "KV cache ", "group ", "scope ", "Why", "Lines of the recipe")]
    assert places == sorted(places)
    assert "TB/s" in out and "evals.perplexity.gate" in out and "Ruled out" in out


def test_check_accepts_the_recipe_that_is_written_and_the_lines_that_are_printed(
    run: Any, recipe: Path, tmp_path: Path
) -> None:
    code, out, _ = run("quantize", "advise", str(recipe), "--gpu", "l4", "-o", "advised.yaml", "--json")
    document = json.loads(out)
    assert code == 0 and document["written"] == "advised.yaml"
    assert run("check", "advised.yaml", "--quiet")[0] == 0
    written = yaml.safe_load((tmp_path / "advised.yaml").read_text(encoding="utf-8"))
    assert written["quantize"]["format"] == document["advice"]["format"]
    assert written["build"]["architectures"] == ["sm_89"]
    given = [text for text in document["lines"] if not text.startswith("remove ")]
    removed = [text for text in document["lines"] if text.startswith("remove ")]
    assert removed == ["remove quantize.group_size"]
    sets = [part for text in [*given, "quantize.group_size: null"] for part in ("--set", text.replace(": ", "=", 1))]
    assert run("check", str(recipe), "--quiet", *sets)[0] == 0
    code, _, err = run("quantize", "advise", str(recipe), "--gpu", "l4", "-o", "advised.yaml")
    assert code == 2 and "TF-RCP-015" in err


def test_the_document_has_every_number(run: Any, recipe: Path) -> None:
    code, out, _ = run("quantize", "advise", str(recipe), "--gpu", "a100", "--isl", "100", "--osl", "20", "--json")
    document = json.loads(out)
    assert code == 0
    assert sum(document["binds"]["shares"].values()) == pytest.approx(1)
    assert document["advice"]["fits"] and document["advice"]["seconds_per_request"] > 0
    assert {item["format"] for item in document["considered"]} | set(document["ruled_out"]) >= {"none", "fp8"}
    assert "sm_80" in document["ruled_out"]["fp8"]


def test_without_a_gpu_one_must_be_named(run: Any, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtforge.machine.gpus.gpus", lambda: Gpus(lacking="no driver"))
    code, _, err = run("quantize", "advise", str(recipe))
    assert code == 2 and "TF-CLI-061" in err and "--gpu" in err
    assert "TF-PLN-001" in run("quantize", "advise", str(recipe), "--gpu", "h1000")[2]


class TestBesideTheCommand:
    @pytest.mark.parametrize("name", ["advise", "sensitivity"])
    def test_others_have_their_own_help(self, run: Any, name: str) -> None:
        code, out, _ = run("quantize", name, "--help")
        assert code == 0 and f"trtforge quantize {name} [OPTIONS] {{RECIPE}}" in out
        assert f"quantize {name}:" in run("quantize", "--help")[1]
        for option in ("--json", "--quiet", "--debug"):
            assert option in out

    def test_the_command_keeps_its_arguments(self, run: Any, recipe: Path) -> None:
        code, out, _ = run("quantize", "--help")
        assert code == 0 and "trtforge quantize [OPTIONS] {RECIPE|SOURCE}" in out and "--group-size" in out
        code, _, err = run("quantize", "--format", "fp9", str(recipe))
        assert code == 2 and "fp9" in err
        assert "TF-CLI-001" in run("quantize")[2]
        assert run("quantize", "advise")[0] == 2
        assert "TF-CLI-016" in run("quantize", "advise", "")[2]

    def test_a_folder_of_that_name_is_named_with_its_path(self, run: Any, tmp_path: Path) -> None:
        (tmp_path / "advise").mkdir()
        code, _, err = run("quantize", "./advise", "--format", "fp8")
        assert code == 2 and "advise" in err and "TF-CLI-001" not in err
