"""What the machine shows, and where in the files a finding lies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny import write_tiny_llama
from tests.trtforge.preflight.folders import POINTER, scale, write_model, write_weights
from trtforge.cli.common import locate
from trtforge.cli.main import invoke
from trtforge.preflight.places import keys_of, place_of
from trtforge.preflight.sources import SourceFiles, is_bad_scale
from trtforge.recipe.load import load_recipe
from trtforge.rules.rule import Place

RECIPE = """name: x
model: {source: model}
build:
  limits:
    max_seq_len: 128
    max_num_tokens: 16
    max_batch_size: 32
  kv_cache: {memory: 8MiB}
evals:
  perplexity:
    stride: 256
    window: 4096
"""


def test_keys_of_a_finding() -> None:
    assert list(keys_of("build.limits: {max_num_tokens: 16, max_batch_size: 32}")) == [
        "build.limits.max_num_tokens",
        "build.limits.max_batch_size",
        "build.limits",
    ]
    assert list(keys_of("stack: x, build.target: torch")) == ["stack", "build.target"]
    assert list(keys_of("config.json of m: rope_type: x")) == []


class TestFormats:
    @pytest.fixture
    def recipe(self, tmp_path: Path) -> Path:
        write_tiny_llama(tmp_path / "model")
        path = tmp_path / "r.yaml"
        path.write_text(RECIPE)
        return path

    def test_github_annotations_have_file_and_line(self, recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert invoke(["check", str(recipe), "--format", "github"]) == 1
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith(f"::error file={recipe},line=6,title=TF-K9-003")
        assert any(f"file={recipe},line=12,title=TF-K9-005" in line for line in lines)

    def test_sarif_has_the_rules_and_regions(self, recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert invoke(["check", str(recipe), "--format", "sarif"]) == 1
        (run,) = json.loads(capsys.readouterr().out)["runs"]
        results: dict[str, Any] = {item["ruleId"]: item for item in run["results"]}
        region = results["TF-K9-003"]["locations"][0]["physicalLocation"]["region"]
        assert region["startLine"] == 6
        rule = next(item for item in run["tool"]["driver"]["rules"] if item["id"] == "TF-K9-003")
        assert rule["helpUri"].startswith("https://github.com/NVIDIA/TensorRT-LLM/issues/")

    def test_a_waived_finding_is_suppressed(self, recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
        recipe.write_text(
            RECIPE.replace("max_num_tokens: 16", "max_num_tokens: 64") + "waive: {TF-K9-005: measured elsewhere}\n"
        )
        assert invoke(["check", str(recipe), "--format", "sarif"]) == 0
        (run,) = json.loads(capsys.readouterr().out)["runs"]
        assert run["results"][0]["suppressions"][0]["justification"] == "measured elsewhere"

    def test_what_intake_refuses_is_annotated_too(self, recipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (recipe.parent / "model" / "model.safetensors").write_text(POINTER)
        assert invoke(["check", str(recipe), "--format", "github"]) == 2
        lines = capsys.readouterr().out.splitlines()
        assert lines[0].startswith(f"::error file={recipe},line=2,title=TF-SRC-004")
        assert any("TF-K18-004" in line for line in lines)

    @pytest.mark.parametrize("options", [["--format", "xml"], ["--format", "sarif", "--json"]])
    def test_formats_that_cannot_be_are_refused(
        self, recipe: Path, options: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert invoke(["check", str(recipe), *options]) == 2
        captured = capsys.readouterr()
        assert "TF-CLI-014" in captured.out + captured.err

    def test_an_override_has_no_line_and_falls_back_to_its_section(self, recipe: Path) -> None:
        loaded = load_recipe(recipe, ["build.limits.max_seq_len=64"])
        assert place_of(loaded, "build.limits.max_seq_len: 64") == Place(str(recipe), 4)
        assert place_of(loaded, "quantize.format: none") == Place(str(recipe), 1)


class TestSources:
    def test_where_sources_lie(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        write_model(tmp_path / "model")
        assert locate("model", tmp_path).folder == tmp_path / "model"
        assert "leaves the recipe's folder" in str(locate("../outside", tmp_path).problem)
        assert "does not exist" in str(locate("nothing", tmp_path).problem)
        assert locate("hf:a/b", tmp_path).absent
        assert not locate("pypi:a==1#b.gguf", tmp_path).absent
        snapshot = tmp_path / "hub" / "models--a--b" / "snapshots" / "c0"
        write_model(snapshot)
        (tmp_path / "hub" / "models--a--b" / "refs").mkdir()
        (tmp_path / "hub" / "models--a--b" / "refs" / "main").write_text("c0")
        assert locate("hf:a/b", tmp_path).folder == snapshot

    def test_damaged_small_files_say_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{ not json")
        (tmp_path / "tokenizer.json").write_text("[1, 2]")
        files = SourceFiles(tmp_path)
        assert (dict(files.config), dict(files.tokenizer), files.eos_ids()) == ({}, {}, ())
        assert files.largest_token is None
        assert files.weights_error is not None
        assert not files.tensors

    def test_links_out_of_the_folder_are_not_followed(self, tmp_path: Path) -> None:
        write_model(tmp_path / "elsewhere", config={"hidden_size": 4096})
        folder = tmp_path / "model"
        folder.mkdir()
        for name in ("config.json", "model.safetensors"):
            (folder / name).symlink_to(tmp_path / "elsewhere" / name)
        (folder / "tokenizer.json").symlink_to(folder / "tokenizer.json")
        files = SourceFiles(folder)
        assert not files.config
        assert not files.has("tokenizer.json")
        assert files.weights_error is not None
        assert files.weights_error.code == "TF-SRC-003"

    def test_links_into_the_hubs_own_blobs_are_followed(self, tmp_path: Path) -> None:
        repository = tmp_path / "models--a--b"
        write_model(repository / "blobs", config={"hidden_size": 4096})
        snapshot = repository / "snapshots" / "c0"
        snapshot.mkdir(parents=True)
        for name in ("config.json", "model.safetensors"):
            (snapshot / name).symlink_to(Path("../../blobs") / name)
        files = SourceFiles(snapshot)
        assert files.config["hidden_size"] == 4096
        assert files.weights_error is None

    def test_scalars_are_read_and_matrices_are_not(self, tmp_path: Path) -> None:
        import numpy as np

        half = np.array(1.5, dtype=np.float16)
        write_weights(
            tmp_path,
            {"a.k_scale": scale(0.25), "b.k_scale": ("F16", half), "c.k_scale": ("F32", np.zeros(2, np.float32))},
        )
        assert dict(SourceFiles(tmp_path).scalars(("k_scale",))) == {"a.k_scale": 0.25, "b.k_scale": 1.5}

    @pytest.mark.parametrize(
        ("value", "bad"), [(0.0, True), (-1.0, True), (float("nan"), True), (float("inf"), True), (1e-9, False)]
    )
    def test_scales_that_no_calibration_gives(self, value: float, bad: bool) -> None:
        assert is_bad_scale(value) is bad
