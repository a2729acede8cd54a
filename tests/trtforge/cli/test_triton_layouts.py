"""``trtforge triton emit`` and ``explain`` for the layouts of TensorRT-LLM."""

import json

import pytest
import yaml

from tests.support.tiny import write_tiny_llama
from tests.triton_repo.test_ifb_layout import engine_config
from triton_repo.configs import read_config
from trtforge.cli.main import invoke


@pytest.fixture
def call(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        code = invoke([*arguments, "--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


@pytest.fixture
def place(tmp_path):
    """An engine directory with its tokenizer, a checkpoint, and a recipe beside them."""
    engine = write_tiny_llama(tmp_path / "checkpoint").rename(tmp_path / "engine")
    write_tiny_llama(tmp_path / "checkpoint")
    (engine / "config.json").write_text(json.dumps(engine_config()))
    for rank in range(2):
        (engine / f"rank{rank}.engine").write_bytes(b"plan")
    recipe = {
        "name": "x",
        "model": {"source": "checkpoint"},
        "build": {"target": "trtllm-engine", "parallel": {"tp": 2}, "limits": {"max_batch_size": 64}},
        "triton": {"layout": "inflight_batcher_llm", "decoupled": False},
    }
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(recipe))
    return tmp_path


def test_emit_follows_the_recipe_and_the_engine(call, place):
    code, document = call("triton", "emit", "engine", "out", "--recipe", "r.yaml")
    assert code == 0, document
    assert document["layout"] == "inflight_batcher_llm"
    assert document["limits"]["max_batch_size"] == 64
    assert document["decoupled"] is False
    assert document["parameters"]["gpt_model_path"] == str(place / "engine")
    config = read_config(place / "out" / "preprocessing" / "config.pbtxt")
    folder = place / "out" / "preprocessing" / config.parameters["tokenizer_dir"].string_value
    assert (folder / "tokenizer.json").is_file()
    code, document = call("triton", "lint", "out")
    assert [finding for finding in document["findings"] if finding["severity"] == "error"] == []


def test_a_repository_that_its_check_refuses_is_not_left_behind(call, place):
    (place / "engine" / "rank1.engine").unlink()
    code, document = call("triton", "emit", "engine", "out", "--recipe", "r.yaml")
    assert (code, document["error"]["code"]) == (2, "TF-TRI-021")
    assert sorted(path.name for path in place.iterdir()) == ["checkpoint", "engine", "r.yaml"]


def test_emit_llmapi_from_a_checkpoint(call, place):
    code, document = call("triton", "emit", "checkpoint", "out", "--layout", "llmapi", "--set", "build.parallel.tp=2")
    assert code == 0, document
    assert document["arguments"]["tensor_parallel_size"] == 2
    model = place / "out" / "tensorrt_llm" / document["arguments"]["model"]
    assert model.resolve() == place / "checkpoint"


REFUSED = [
    ("TF-TRI-068", ("checkpoint/..", "out", "--layout", "llmapi")),
    ("TF-TRI-063", ("checkpoint", "out", "--recipe", "r.yaml")),
    ("TF-TRI-064", ("engine", "out", "--recipe", "r.yaml", "--set", "build.parallel.tp=1")),
    ("TF-TRI-068", ("engine", "out", "--recipe", "r.yaml", "--tokenizer", "nowhere")),
    ("TF-TRI-069", ("checkpoint", "out", "--layout", "llmapi", "--set", "speculation.draft=nowhere")),
    ("TF-CLI-004", ("engine", "out", "--layout", "inflight_batcher")),
]


@pytest.mark.parametrize(("expected", "arguments"), REFUSED)
def test_refusals_write_nothing(call, place, expected, arguments):
    code, document = call("triton", "emit", *arguments)
    assert code == 2
    assert document["error"]["code"] == expected
    assert document["error"]["remedies"]
    assert not (place / "out").exists()


def test_an_adapter_and_a_draft_are_referred_to_where_they_lie(call, place):
    for name in ("draft", "adapters/a", "adapters/b"):
        (place / name).mkdir(parents=True)
    recipe = yaml.safe_load((place / "r.yaml").read_text())
    recipe["build"]["trtllm"] = {"lora": {"adapters": {"a": "adapters/a", "b": "adapters/b"}}}
    recipe["speculation"] = {"method": "draft_target", "draft": "draft"}
    (place / "r.yaml").write_text(yaml.safe_dump(recipe))
    code, document = call("triton", "emit", "checkpoint", "out", "--recipe", "r.yaml", "--layout", "llmapi")
    assert code == 0, document
    folder = place / "out" / "tensorrt_llm"
    settings = yaml.safe_load((folder / "1" / "model.yaml").read_text())
    assert (folder / settings["speculative_config"]["speculative_model_dir"]).resolve() == place / "draft"
    assert (folder / settings["triton_config"]["lora_directory"]).resolve() == place / "adapters"
    assert [(folder / path).resolve().name for path in settings["lora_config"]["lora_dir"]] == ["a", "b"]


def test_explain_one_all_and_a_misspelt_one(call, capsys):
    code, document = call("triton", "explain", "kv_cache_free_gpu_mem_fraction")
    assert code == 0
    row = document["parameters"][0]
    assert (row["default"], row["values"], row["recipe"]) == ("0.9", "0 to 1", "build.kv_cache.free_fraction")
    code, document = call("triton", "explain")
    assert len(document["parameters"]) > 90
    code, document = call("triton", "explain", "max_beam_widht")
    assert code == 2
    assert document["error"]["remedies"] == ["trtforge triton explain max_beam_width"]
    assert invoke(["triton", "explain", "medusa_choices"]) == 0
    text = capsys.readouterr().out
    assert "decoding_mode medusa" in text
    assert "speculation.choices" in text
