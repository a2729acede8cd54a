"""The parameter tables: well-formed, explained, checked, and the document that is written from them."""

from pathlib import Path

import pytest
import yaml

from triton_repo import parameters
from triton_repo.parameters import Parameter, checked, explain, load_parameters
from trtforge.ground.errors import ForgeError
from trtforge.recipe.keys import find_key
from trtforge.rules.tables import rewrite
from trtforge.targets.layouts import LAYOUTS

ROOT = Path(__file__).resolve().parents[2]
ROWS = [(layout, row) for layout in LAYOUTS for row in load_parameters(layout).rows]


def test_46_parameters_of_the_engine_s_model():
    assert len(load_parameters("inflight_batcher_llm").of_model("tensorrt_llm")) == 46


@pytest.mark.parametrize(("layout", "row"), ROWS, ids=[f"{layout}-{row.name}" for layout, row in ROWS])
def test_rows_are_well_formed(layout, row):
    assert row.meaning
    assert not row.meaning.endswith(".")
    assert load_parameters(layout).sources[row.source].startswith("https://")
    assert bool(row.values) == (row.kind == "choice")
    if row.recipe is not None:
        assert find_key(tuple(row.recipe.split("."))) is not None, f"{row.recipe} is no key of the recipe"
    if row.default:
        assert row.fault(row.default) is None
    assert row.fault("${" + row.name + "}") is not None
    assert (row.fault("") is not None) == row.required


def test_a_table_with_a_wrong_default_or_twice_the_same_row_is_refused():
    text = (Path(parameters.__file__).parent / "tables" / "native.yaml").read_text()
    document = yaml.safe_load(text)
    document["rows"].append(document["rows"][0])
    with pytest.raises(ValueError, match="twice"):
        parameters.Table.model_validate(document)
    document = yaml.safe_load(text)
    document["rows"][5]["default"] = "yes"
    with pytest.raises(ValueError, match="neither true nor false"):
        parameters.Table.model_validate(document)


def one(kind, **more):
    return Parameter(name="p", kind=kind, meaning="m", source="s", **more)


VALUES = [
    (one("integer", minimum=1), ["1", "30"], ["0", "-1", "1.5", "x", "²"]),
    (one("integers"), ["1", "1,2, 3"], ["1,", "a"]),
    (one("fraction"), ["0", "0.9", "1.0"], ["1.1", "-0.1", "90%", "nan"]),
    (one("share"), ["0.9", "1.0", "1e-3"], ["0", "0.0", ".0", "-0", "0e5", "1.1", "nan"]),
    (one("boolean"), ["true", "false"], ["True", "1", "yes"]),
    (one("choice", values=("a", "b")), ["a"], ["A", "c"]),
    (one("devices"), ["0", "0,1", "0,1;2,3"], ["0,", ";", "0 1", "a"]),
    (one("choices"), ["{0}", "{0}, {0, 1}", "{0},{1}"], ["[[0]]", "{}", "{0} {1}"]),
    (one("path"), ["engine", "/a b"], ["${engine_dir}"]),
]


@pytest.mark.parametrize(("row", "good", "bad"), VALUES, ids=[row.kind for row, _, _ in VALUES])
def test_values_are_what_their_kind_says(row, good, bad):
    assert [value for value in good if row.fault(value) is not None] == []
    assert [value for value in bad if row.fault(value) is None] == []
    assert row.allowed


def test_explain_finds_a_parameter_by_each_of_its_names():
    found = explain("batching_strategy")
    assert [row["name"] for row in found] == ["gpt_model_type"]
    assert {row["layout"] for row in explain("exclude_input_in_output")} == {"native", "inflight_batcher_llm"}
    share = explain("kv_cache_free_gpu_mem_fraction")[0]
    assert share["elsewhere"] == ["kv_cache_config.free_gpu_memory_fraction (llmapi)"]
    assert share["versions"] == "0.5 to 1.2.1"
    assert explain("enable_trt_overlap")[0]["versions"].endswith("0.12")
    assert explain("free_gpu_memory_fraction")[0]["layout"] == "llmapi"
    assert len(explain()) == len(ROWS)


@pytest.mark.parametrize("name", ["kv_cache_free_gpu_memory_fraction", "max_beam_widht", "gpt_model_pat"])
def test_a_misspelt_name_gets_the_nearest(name):
    with pytest.raises(ForgeError) as caught:
        explain(name)
    assert caught.value.code == "TF-TRI-060"
    assert len(caught.value.remedies) == 1
    assert explain(caught.value.remedies[0].rsplit(" ", 1)[-1])


def test_every_fault_of_a_model_is_told_at_once():
    with pytest.raises(ForgeError) as caught:
        checked("inflight_batcher_llm", "tensorrt_llm", {"max_beam_width": "0", "multi_block_mode": "on"})
    assert caught.value.code == "TF-TRI-062"
    assert caught.value.message.startswith("3 parameters")  # gpt_model_path is missing too
    assert len(caught.value.remedies) == 3


def test_the_document_is_current(tmp_path):
    text = (ROOT / "docs" / "triton.md").read_text(encoding="utf-8")
    copy = tmp_path / "triton.md"
    copy.write_text(text, encoding="utf-8")
    rewrite(copy, parameters.BEGIN, parameters.render(), parameters.END)
    assert copy.read_text(encoding="utf-8") == text, "run python -m triton_repo.parameters docs/triton.md"
