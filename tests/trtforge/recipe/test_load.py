"""Recipe files: what loads, and every refusal with its code, place and way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.refusals import refusal
from trtforge.ground.errors import ExitCode, ForgeError
from trtforge.recipe.load import LoadedRecipe, load_recipe, recipe_from_mapping
from trtforge.recipe.text import parse_scalar

CONFIGS = Path(__file__).parents[3] / "configs"
MINIMAL = "name: x\nmodel: {source: here}\n"


def write(folder: Path, text: str, name: str = "r.yaml") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def refused(path: Path, *overrides: str) -> ForgeError:
    with pytest.raises(ForgeError) as caught:
        load_recipe(path, overrides)
    assert caught.value.exit_code == ExitCode.BAD_INPUT
    assert caught.value.remedies, "a refusal names a way out"
    return caught.value


def test_defaults_and_the_place_of_keys(tmp_path: Path) -> None:
    loaded = load_recipe(write(tmp_path, MINIMAL + "quantize:\n  format: fp8\n"))
    assert loaded.recipe.quantize.format == "fp8"
    assert loaded.recipe.build.limits.max_batch_size == 32
    assert loaded.place("quantize.format") == f"{tmp_path}/r.yaml:4"
    assert loaded.place("build.target") is None
    assert loaded.directory == tmp_path.resolve()
    assert loaded.written == {"name": "x", "model": {"source": "here"}, "quantize": {"format": "fp8"}}


def test_resolved_loads_back_to_the_same_recipe(tmp_path: Path) -> None:
    text = MINIMAL + "build: {kv_cache: {memory: 0.5GiB}}\nbench: {slo: {ttft_p99: 1.5s, itl_p99: 200ms}}\n"
    text += "evals: {perplexity: {gate: {max_increase: 150%}}}\n"
    loaded = load_recipe(write(tmp_path, text))
    again = load_recipe(write(tmp_path, yaml.safe_dump(loaded.resolved), "again.yaml"))
    assert again.recipe == loaded.recipe
    assert again.resolved == loaded.resolved


def test_overrides_are_laid_on_top(tmp_path: Path) -> None:
    loaded = load_recipe(write(tmp_path, MINIMAL), ["quantize.format=nvfp4", "bench.concurrency=[2]"])
    assert loaded.recipe.quantize.format == "nvfp4"
    assert loaded.recipe.bench.concurrency == (2,)
    assert loaded.place("quantize.format") == "--set"


class TestUnreadable:
    def test_missing(self, tmp_path: Path) -> None:
        assert refused(tmp_path / "no.yaml").code == "TF-RCP-001"

    def test_a_folder(self, tmp_path: Path) -> None:
        assert refused(tmp_path).code == "TF-RCP-001"

    def test_too_large(self, tmp_path: Path) -> None:
        error = refused(write(tmp_path, MINIMAL + "# " + "x" * (1 << 20)))
        assert error.code == "TF-RCP-002"
        assert error.numbers["limit"] == 1 << 20

    def test_not_utf8(self, tmp_path: Path) -> None:
        path = tmp_path / "r.yaml"
        path.write_bytes(b"name: \xff\xfe\n")
        assert refused(path).code == "TF-RCP-003"

    def test_a_byte_order_mark_is_fine(self, tmp_path: Path) -> None:
        path = tmp_path / "r.yaml"
        path.write_bytes(b"\xef\xbb\xbf" + MINIMAL.encode())
        assert load_recipe(path).recipe.name == "x"

    @pytest.mark.parametrize(
        "text", ["name: [", "name: 'x", "a: b: c", "\tname: x", "name: x\n---\nname: y\n", "name: *gone", "name: \x07"]
    )
    def test_syntax(self, tmp_path: Path, text: str) -> None:
        error = refused(write(tmp_path, text))
        assert error.code == "TF-RCP-004"
        assert str(tmp_path / "r.yaml") in error.message

    def test_syntax_names_the_line(self, tmp_path: Path) -> None:
        assert refused(write(tmp_path, "name: x\nmodel:\n  source: [\n")).numbers["line"] == 4

    @pytest.mark.parametrize("text", ["", "# only a comment", "- a\n- b", "just text", "null", "42"])
    def test_no_mapping(self, tmp_path: Path, text: str) -> None:
        assert refused(write(tmp_path, text)).code == "TF-RCP-006"

    @pytest.mark.parametrize("text", ["on: 1", "1: x", "? [a]\n: x", "name: x\n<<: {a: 1}", "null: x"])
    def test_keys_that_are_no_text(self, tmp_path: Path, text: str) -> None:
        assert refused(write(tmp_path, text)).code == "TF-RCP-006"

    @pytest.mark.parametrize(
        "tag", ["!!python/object/apply:os.system ['true']", "!!binary '%'", "!!binary aGVsbG8=", "!mine x", "!!set {a}"]
    )
    def test_tags_construct_nothing(self, tmp_path: Path, tag: str) -> None:
        assert refused(write(tmp_path, f"name: {tag}\nmodel: {{source: x}}\n")).code.startswith("TF-RCP-0")

    def test_duplicate_keys_name_both_lines(self, tmp_path: Path) -> None:
        error = refused(write(tmp_path, MINIMAL + "quantize:\n  format: fp8\n  format: nvfp4\n"))
        assert error.code == "TF-RCP-005"
        assert error.numbers == {"first": f"{tmp_path}/r.yaml:4", "second": f"{tmp_path}/r.yaml:5"}
        assert "quantize.format" in error.message

    def test_anchors_cannot_grow_a_small_file(self, tmp_path: Path) -> None:
        layers = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
        layers += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
        assert refused(write(tmp_path, "\n".join(layers))).code == "TF-RCP-006"

    def test_an_anchor_inside_itself(self, tmp_path: Path) -> None:
        assert refused(write(tmp_path, "name: &a [*a]")).code in ("TF-RCP-004", "TF-RCP-006")

    def test_deep_nesting(self, tmp_path: Path) -> None:
        assert refused(write(tmp_path, "name: " + "[" * 60 + "]" * 60)).code == "TF-RCP-006"

    def test_plain_anchors_work(self, tmp_path: Path) -> None:
        loaded = load_recipe(write(tmp_path, "name: &n x\nmodel: {source: *n}\n"))
        assert loaded.recipe.model.source == "x"

    @pytest.mark.parametrize("value", ["1:30", "-2:00", "1:30.5", "010", "0b1"])
    def test_what_looks_like_a_number_to_old_yaml_is_text(self, tmp_path: Path, value: str) -> None:
        assert parse_scalar(value, "here") == value

    @pytest.mark.parametrize(
        ("text", "value"), [("0", 0), ("-12", -12), ("1_000", 1000), ("0x10", 16), ("1.5", 1.5), ("-.5e+3", -500.0)]
    )
    def test_numbers(self, text: str, value: float) -> None:
        assert parse_scalar(text, "here") == value

    def test_a_date_is_text(self, tmp_path: Path) -> None:
        assert load_recipe(write(tmp_path, "name: 2026-01-31\nmodel: {source: x}\n")).recipe.name == "2026-01-31"


class TestInheritance:
    def test_the_base_is_merged_under(self, tmp_path: Path) -> None:
        write(tmp_path, MINIMAL + "quantize: {format: fp8, kv_cache: fp8}\nbench: {concurrency: [1, 2]}\n", "base.yaml")
        loaded = load_recipe(
            write(tmp_path, "extends: base.yaml\nname: y\nquantize: {kv_cache: none}\nbench: {concurrency: [9]}\n")
        )
        recipe = loaded.recipe
        assert (recipe.name, recipe.quantize.format, recipe.quantize.kv_cache) == ("y", "fp8", "none")
        assert recipe.bench.concurrency == (9,)
        assert [path.name for path in loaded.files] == ["base.yaml", "r.yaml"]
        assert loaded.place("quantize.format") == f"{tmp_path}/base.yaml:3"

    def test_a_chain_through_a_subfolder(self, tmp_path: Path) -> None:
        write(tmp_path, MINIMAL, "common/root.yaml")
        write(tmp_path, "extends: root.yaml\nstack: torch-2.13\n", "common/mid.yaml")
        loaded = load_recipe(write(tmp_path, "extends: common/mid.yaml\nname: z\n"))
        assert (loaded.recipe.name, loaded.recipe.stack) == ("z", "torch-2.13")

    def test_a_base_of_the_base_may_go_up_inside_the_folder(self, tmp_path: Path) -> None:
        write(tmp_path, MINIMAL, "root.yaml")
        write(tmp_path, "extends: ../root.yaml\n", "sub/mid.yaml")
        assert load_recipe(write(tmp_path, "extends: sub/mid.yaml\n")).recipe.name == "x"

    @pytest.mark.parametrize("base", ["../base.yaml", "sub/../../base.yaml", "/etc/hostname"])
    def test_a_base_outside_the_folder(self, tmp_path: Path, base: str) -> None:
        write(tmp_path, MINIMAL, "base.yaml")
        path = write(tmp_path / "inner", f"extends: {base}\nname: y\n")
        (tmp_path / "inner" / "sub").mkdir()
        error = refused(path)
        assert error.code == "TF-RCP-008"
        assert error.numbers["folder"] == str((tmp_path / "inner").resolve())

    def test_a_link_out_of_the_folder(self, tmp_path: Path) -> None:
        write(tmp_path, MINIMAL, "base.yaml")
        path = write(tmp_path / "inner", "extends: link.yaml\n")
        (tmp_path / "inner" / "link.yaml").symlink_to(tmp_path / "base.yaml")
        assert refused(path).code == "TF-RCP-008"

    def test_a_circle(self, tmp_path: Path) -> None:
        write(tmp_path, "extends: r.yaml\n", "b.yaml")
        error = refused(write(tmp_path, "extends: b.yaml\n" + MINIMAL))
        assert error.code == "TF-RCP-009"
        assert error.numbers["chain"] == ["r.yaml", "b.yaml", "r.yaml"]

    def test_itself(self, tmp_path: Path) -> None:
        assert refused(write(tmp_path, "extends: ./r.yaml\n")).code == "TF-RCP-009"

    def test_a_chain_without_end(self, tmp_path: Path) -> None:
        for index in range(40):
            write(tmp_path, f"extends: b{index + 1}.yaml\n", f"b{index}.yaml")
        assert refused(tmp_path / "b0.yaml").code == "TF-RCP-009"

    @pytest.mark.parametrize("value", ["[a.yaml]", "7", "''", "true"])
    def test_not_one_file(self, tmp_path: Path, value: str) -> None:
        assert refused(write(tmp_path, f"extends: {value}\n")).code == "TF-RCP-007"

    def test_a_recipe_that_ships_by_its_name(self, tmp_path: Path) -> None:
        recipe = load_recipe(write(tmp_path, "extends: smollm2-135m-fp8\nname: y\n")).recipe
        shipped = load_recipe("smollm2-135m-fp8").recipe
        assert recipe == shipped.model_copy(update={"name": "y"})

    def test_the_draft_of_a_recipe_that_ships_stays_where_it_lies(self, tmp_path: Path) -> None:
        draft = load_recipe(write(tmp_path, "extends: smollm2-135m-eagle3\nname: y\n")).recipe.speculation.draft
        assert draft is not None and Path(draft).is_dir() and Path(draft).is_absolute()

    def test_a_file_beside_comes_before_a_name_that_ships(self, tmp_path: Path) -> None:
        write(tmp_path, MINIMAL, "smollm2-135m-fp8")
        assert load_recipe(write(tmp_path, "extends: smollm2-135m-fp8\nname: y\n")).recipe.quantize.format == "none"

    def test_a_name_that_is_neither(self, tmp_path: Path) -> None:
        error = refused(write(tmp_path, "extends: smollm2-135m-fp9\nname: y\n"))
        assert error.code == "TF-RCP-001" and "did you mean smollm2-135m-fp8?" in error.remedies

    def test_a_missing_base(self, tmp_path: Path) -> None:
        assert refused(write(tmp_path, "extends: gone.yaml\n")).code == "TF-RCP-001"


class TestValues:
    def test_an_unknown_key_names_the_nearest_and_its_place(self, tmp_path: Path) -> None:
        error = refused(write(tmp_path, MINIMAL + "quantize:\n  fromat: fp8\n"))
        assert error.code == "TF-RCP-011"
        (offender,) = error.numbers["offenders"]
        assert offender["key"] == "quantize.fromat"
        assert offender["nearest"] == "quantize.format"
        assert offender["where"] == f"{tmp_path}/r.yaml:4"
        assert "quantize.format" in error.remedies[0]

    def test_a_value_where_a_section_stands_is_refused_in_the_recipes_words(self, tmp_path: Path) -> None:
        error = refused(write(tmp_path, MINIMAL), "build.parallel=2")
        assert error.message == "--set: build.parallel: a section of keys is wanted, not 2"

    def test_a_key_in_the_wrong_section_is_found_elsewhere(self, tmp_path: Path) -> None:
        error = refused(write(tmp_path, MINIMAL + "build: {max_batch_size: 4}\n"))
        assert error.numbers["offenders"][0]["nearest"] == "build.limits.max_batch_size"

    def test_a_key_like_nothing_lists_what_is_known(self, tmp_path: Path) -> None:
        error = refused(write(tmp_path, MINIMAL + "speculation: {zzzzzz: 1}\n"))
        assert error.numbers["offenders"][0]["nearest"] is None
        assert "method" in error.remedies[0]

    def test_unknown_keys_by_override(self, tmp_path: Path) -> None:
        error = refused(write(tmp_path, MINIMAL), "quantise.format=fp8")
        assert error.code == "TF-RCP-011"
        assert error.numbers["offenders"][0]["nearest"] == "quantize"
        assert error.numbers["offenders"][0]["where"] == "--set"

    def test_every_offender_is_listed(self, tmp_path: Path) -> None:
        text = MINIMAL + "quantize: {kv_cache: fp9, group_size: 0, nope: 1}\nbuild: {limits: {max_seq_len: many}}\n"
        error = refused(write(tmp_path, text))
        assert {item["key"] for item in error.numbers["offenders"]} == {
            "quantize.kv_cache",
            "quantize.group_size",
            "quantize.nope",
            "build.limits.max_seq_len",
        }
        assert len(error.remedies) == 4

    @pytest.mark.parametrize(
        ("text", "key", "remedy"),
        [
            ("build: {parallel: 2}", "build.parallel", "a section of keys: tp, pp, ep;"),
            ("quantize: fp8", "quantize", "a section of keys: format, "),
            ("quantize: {kv_cache: fp9}", "quantize.kv_cache", "use fp8"),
            ("build: {target: torhc}", "build.target", "use torch"),
            ("build: {limits: {max_batch_size: 0}}", "build.limits.max_batch_size", "above 0"),
            ("build: {limits: {max_batch_size: 4.5}}", "build.limits.max_batch_size", "whole number"),
            ("build: {limits: {max_batch_size: true}}", "build.limits.max_batch_size", "whole number"),
            ("build: {limits: {max_batch_size: '8'}}", "build.limits.max_batch_size", "whole number"),
            ("build: {kv_cache: {memory: 1073741824}}", "build.kv_cache.memory", "leave it out"),
            ("build: {kv_cache: {memory: 1gb}}", "build.kv_cache.memory", "message"),
            ("build: {kv_cache: {block_size: 24}}", "build.kv_cache.block_size", "16, 32, 64"),
            ("triton: {version: 2.51}", "triton.version", "quote"),
            ("quantize: {exclude: lm_head}", "quantize.exclude", "[lm_head]"),
            ("evals: {perplexity: {gate: {max_increase: 5}}}", "evals.perplexity.gate.max_increase", "0.05"),
            ("bench: {slo: {ttft_p99: 2}}", "bench.slo.ttft_p99", "message"),
            ("bench: {concurrency: []}", "bench.concurrency", "message"),
            ("model: {source: x, sha256: abc}", "model.sha256", "message"),
            ("name: a/b", "name", "letters"),
            ("name: ../up", "name", "letters"),
        ],
    )
    def test_values_name_what_would_work(self, tmp_path: Path, text: str, key: str, remedy: str) -> None:
        base = yaml.safe_load(MINIMAL)
        error = refused(write(tmp_path, yaml.safe_dump({**base, **yaml.safe_load(text)})))
        assert error.code == "TF-RCP-012"
        (offender,) = error.numbers["offenders"]
        assert offender["key"] == key
        assert remedy in error.remedies[0]

    def test_missing_keys(self, tmp_path: Path) -> None:
        error = refused(write(tmp_path, "stack: x\n"))
        assert {item["key"] for item in error.numbers["offenders"]} == {"name", "model"}

    def test_rules_across_keys_have_a_place(self, tmp_path: Path) -> None:
        error = refused(write(tmp_path, MINIMAL + "evals:\n  perplexity: {window: 100, stride: 200}\n"))
        (offender,) = error.numbers["offenders"]
        assert offender["key"] == "evals.perplexity"
        assert "stride 200" in offender["problem"]
        assert offender["where"].endswith(":4")

    @pytest.mark.parametrize("key", ["quantize.calibration.corpus", "evals.perplexity.corpus", "bench.prompts"])
    @pytest.mark.parametrize("spec", ["file:../secret.txt", "file:/etc/passwd", "file:a/../../b"])
    def test_texts_stay_in_the_folder(self, tmp_path: Path, key: str, spec: str) -> None:
        error = refused(write(tmp_path, MINIMAL), f"{key}={spec}")
        assert error.code == "TF-RCP-013"
        assert key in str(error.asked)

    def test_texts_below_the_folder_are_fine(self, tmp_path: Path) -> None:
        loaded = load_recipe(write(tmp_path, MINIMAL), ["evals.perplexity.corpus=file:texts/a.txt"])
        assert loaded.recipe.evals.perplexity.corpus == "file:texts/a.txt"


@pytest.mark.parametrize("opening", ["[", "{a: ", "- "])
def test_nesting_deeper_than_the_reader_can_go(tmp_path: Path, opening: str) -> None:
    text = opening * 5000
    assert refused(write(tmp_path, MINIMAL + f"report: {text}\n")).code in ("TF-RCP-004", "TF-RCP-006")
    assert refused(write(tmp_path, MINIMAL), f"name={'[' * 5000}").code == "TF-RCP-006"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (MINIMAL + 'evals: {perplexity: {corpus: "file:a\\0b"}}\n', "TF-RCP-013"),
        (MINIMAL + 'bench: {prompts: "file:a\\0b"}\n', "TF-RCP-013"),
        (MINIMAL + 'extends: "a\\0b"\n', "TF-RCP-008"),
    ],
)
def test_nul_in_paths(tmp_path: Path, text: str, code: str) -> None:
    assert refused(write(tmp_path, text)).code == code


def test_recipes_built_in_memory(tmp_path: Path) -> None:
    data: dict[str, Any] = {"name": "x", "model": {"source": "m"}}
    loaded = recipe_from_mapping(data, tmp_path, ["quantize.format=fp8"])
    assert isinstance(loaded, LoadedRecipe)
    assert (loaded.path, loaded.directory) == (None, tmp_path.resolve())
    assert data == {"name": "x", "model": {"source": "m"}}
    with pytest.raises(ForgeError) as caught:
        recipe_from_mapping({"name": "x"}, tmp_path)
    assert caught.value.numbers["offenders"][0]["where"] == "the command line"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_recipes_load_and_bear_their_file_name(path: Path) -> None:
    assert load_recipe(path).recipe.name == path.stem


def test_a_waiver_without_a_justification_says_so(tmp_path: Path) -> None:
    error = refused(write(tmp_path, MINIMAL), "waive.TF-K6-004=")
    assert "no justification" in error.message
    assert list(error.remedies) == ["waive.TF-K6-004: why this is fine here"]


class TestSpeculation:
    def test_lengths_by_batch_are_keyed_by_numbers(self, tmp_path: Path) -> None:
        text = MINIMAL + 'speculation: {method: ngram, max_draft_len: 4, draft_len_schedule: {4: 4, "16": 1}}\n'
        loaded = load_recipe(write(tmp_path, text))
        assert loaded.recipe.speculation.draft_len_schedule == {4: 4, 16: 1}
        again = load_recipe(write(tmp_path, yaml.safe_dump(loaded.resolved), "again.yaml"))
        assert again.recipe == loaded.recipe
        more = load_recipe(tmp_path / "r.yaml", ["speculation.draft_len_schedule.8=2"])
        assert more.recipe.speculation.draft_len_schedule == {4: 4, 16: 1, 8: 2}

    @pytest.mark.parametrize(
        "keys",
        [
            "choices: [[0]], dynamic_tree: {depth: 2, top_k: 2, total: 4}",
            "dynamic_tree: {depth: 2, top_k: 2, total: 7}",
            "dynamic_tree: {depth: 5, top_k: 4, total: 4}",
            "dynamic_tree: {depth: 3, top_k: 4, total: 64}",
            "max_draft_len: 4, dynamic_tree: {depth: 3, top_k: 2, total: 6}",
            "ngram: {max_matching_ngram_size: 2, min_matching_ngram_size: 3}",
            "max_concurrency: 4, draft_len_schedule: {4: 4}",
            "draft_len_schedule: {}",
            "draft_len_schedule: {0: 4}",
            "max_draft_len: 4, draft_len_schedule: {4: 5}",
            "acceptance_rate_threshold: 20%",
            "acceptance_rate_window_size: 20",
            "acceptance_rate_threshold: 0%, acceptance_rate_window_size: 20",
        ],
    )
    def test_keys_that_contradict_each_other(self, tmp_path: Path, keys: str) -> None:
        error = refused(write(tmp_path, MINIMAL + f"speculation: {{method: eagle3, draft: head, {keys}}}\n"))
        assert "speculation" in f"{error.message} {error.asked}"

    def test_number_keys_elsewhere_are_unknown_keys(self, tmp_path: Path) -> None:
        assert "build.4" in str(refused(write(tmp_path, MINIMAL + "build: {4: x}\n")).message)


@pytest.mark.parametrize(
    "evals",
    [
        {"perplexity": {"gate": {"max_kl": float("inf")}}},
        {"perplexity": {"gate": {"max_kl": float("nan")}}},
        {"speculation": {"gate": {"min_accepted_length": float("inf")}}},
        {"suite": {"samples": 4, "tasks": ["recall", "recall"]}},
        {"long_context": {"lengths": [256, 256]}},
        {"long_context": {"lengths": [256], "depths": [0.5, "50%"]}},
        {"tasks": ["arc_easy", "arc_easy"]},
        {"perplexity": {"window": 512, "stride": 256, "noise_tokens": 100}},
    ],
)
def test_what_measures_nothing_or_counts_twice_is_refused(evals: dict[str, Any], tmp_path: Path) -> None:
    written = {"name": "x", "model": {"source": "m"}, "evals": evals}
    assert refusal(recipe_from_mapping, written, tmp_path).code == "TF-RCP-012"
