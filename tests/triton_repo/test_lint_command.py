"""The commands lint, diff and upgrade as a user runs them, the generated document, and the rules' own form."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.triton_repo import corpus_llm, corpus_triton
from triton_repo.history import load_history
from triton_repo.lint.docs import BEGIN, END, render
from triton_repo.lint.run import all_rules, lint_repository
from triton_repo.parameters import load_parameters
from triton_repo.validate import require_valid, validate_repository
from trtforge.cli.triton import app
from trtforge.ground.errors import ForgeError

ROOT = Path(__file__).resolve().parents[2]
RUNNER = CliRunner()


@pytest.fixture
def faulty(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    root = Path("models")
    corpus_triton.simple_add_sub(root)
    path = root / "simple/config.pbtxt"
    path.write_text(path.read_text().replace("max_batch_size: 8", "max_batch_size: ${size}"))
    return root


def run(*arguments: str):
    return RUNNER.invoke(app, list(arguments))


def test_the_table_names_file_and_line_and_the_command_fails(faulty):
    result = run("lint", str(faulty))
    assert result.exit_code == 1
    assert "TF-TRI-101" in result.output and "models/simple/config.pbtxt:2" in result.output
    assert "refused (1 models, 1 error, 0 warnings, 0 notes)" in result.output


def test_json_is_one_document(faulty):
    result = run("lint", str(faulty), "--json")
    document = json.loads(result.stdout)
    assert document["passed"] is False and document["counts"]["error"] == 1
    finding = document["findings"][0]
    assert finding["line"] == 2 and finding["why"] and finding["source"].startswith("https://")


def test_sarif_and_github_forms(faulty):
    result = run("lint", str(faulty), "--format", "sarif")
    assert result.exit_code == 1
    run_ = json.loads(result.stdout)["runs"][0]
    location = run_["results"][0]["locations"][0]["physicalLocation"]
    assert location["artifactLocation"]["uri"] == "models/simple/config.pbtxt"
    assert location["region"]["startLine"] == 2
    result = run("lint", str(faulty), "--format", "github")
    assert result.stdout.startswith("::error file=models/simple/config.pbtxt,line=2,col=17,title=TF-TRI-101 ")
    assert result.exit_code == 1


def test_a_valid_repository_passes_in_every_form(tmp_path):
    root = tmp_path / "models"
    corpus_triton.simple_add_sub(root)
    for form in ("table", "sarif", "github"):
        assert run("lint", str(root), "--format", form).exit_code == 0


def test_bad_input_is_refused_with_a_code(tmp_path):
    result = run("lint", str(tmp_path / "nowhere"))
    assert result.exit_code == 2 and "TF-TRI-100" in result.output
    result = run("lint", str(tmp_path), "--format", "sarfi")
    assert result.exit_code == 2 and "--format sarif" in result.output


def test_a_folder_that_is_not_there_is_a_finding_in_every_form(tmp_path):
    missing = tmp_path / "nowhere"
    result = run("lint", str(missing), "--format", "sarif")
    (found,) = json.loads(result.stdout)["runs"][0]["results"]
    assert result.exit_code == 2 and found["ruleId"] == "TF-TRI-100"
    assert found["locations"][0]["physicalLocation"]["artifactLocation"]["uri"].endswith("nowhere")
    result = run("lint", str(missing), "--format", "github")
    assert result.exit_code == 2
    assert result.stdout.startswith(f"::error file={missing},title=TF-TRI-100 ")


@pytest.mark.parametrize("form", ["sarif", "github"])
def test_two_forms_at_once_are_refused(faulty, form):
    result = run("lint", str(faulty), "--format", form, "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["error"]["code"] == "TF-CLI-020"


def test_diff_and_upgrade_run(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    corpus_llm.chain(old, values={"max_num_sequences": "8"})
    result = run("upgrade", str(old), "--to", "1.2.1", "-o", str(new), "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["from"] == "0.7.2"
    result = run("diff", str(old), str(new), "--json")
    assert result.exit_code == 1 and len(json.loads(result.stdout)["differences"]) >= 1
    assert run("diff", str(old), str(old)).exit_code == 0
    assert "no difference" in run("diff", str(old), str(old)).output
    assert run("upgrade", str(old), "--to", "1.2.1", "-o", str(new)).exit_code == 2


def test_validation_raises_with_every_fault_and_its_line(faulty):
    assert [f.code for f in validate_repository(faulty)] == ["TF-TRI-101"]
    with pytest.raises(ForgeError) as caught:
        require_valid(faulty)
    assert caught.value.code == "TF-TRI-021" and "config.pbtxt:2:" in (caught.value.why or "")


# the rules and the tables ---------------------------------------------------------------------------
def test_the_document_holds_the_rules():
    text = (ROOT / "docs/lint.md").read_text(encoding="utf-8")
    inside = text.split(BEGIN)[1].split(END)[0].strip()
    assert inside == render().strip(), "python -m triton_repo.lint.docs docs/lint.md"


def test_every_rule_is_complete_and_in_the_document():
    rules = all_rules()
    assert len({rule.code for rule in rules}) == len(rules)
    for rule in rules:
        assert re.fullmatch(r"TF-TRI-\d{3}", rule.code)
        assert rule.severity in ("error", "warning", "note")
        assert rule.title and rule.why.endswith(".") and rule.source.startswith("https://")
        assert render().count(f"| {rule.code} |") == 1


def test_history_and_parameter_table_agree():
    history = load_history()
    names = {
        row.name
        for row in load_parameters("inflight_batcher_llm").rows
        if row.place == "parameter" and "tensorrt_llm" in row.models
    }
    added = {name for models in history.added.values() for name in models.get("tensorrt_llm", ())}
    assert added <= names
    assert set(history.llmapi) == names
    renamed = {change.to for change in history.changes if change.kind == "renamed" and change.model == "tensorrt_llm"}
    assert renamed <= names


def test_llmapi_counterparts_are_arguments_that_lint_knows(tmp_path):
    known = {row.name.split(" ")[0].split(".")[0] for row in load_parameters("llmapi").rows}
    for name, counterpart in load_history().llmapi.items():
        if counterpart.to is not None:
            assert counterpart.to.split(".")[0] in known | {"parameters", *_TOP_LEVEL}, name


_TOP_LEVEL = {"iter_stats_max_iterations", "request_stats_max_iterations"}


def test_fifty_models_are_read_once_each(tmp_path):
    root = tmp_path / "models"
    for index in range(50):
        corpus_llm.add(root, f"engine_{index}", corpus_llm.engine_config(name=f"engine_{index}"), corpus_llm.PY)
    report = lint_repository(root)
    assert report.models == 50 and report.count("error") == 0
