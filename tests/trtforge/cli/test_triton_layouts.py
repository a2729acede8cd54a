"""``trtforge triton emit`` and ``explain`` for the layouts of TensorRT-LLM."""

import json

import pytest
import yaml

from launcher import plans
from tests.support.tiny import write_tiny_llama
from tests.triton_repo.test_ifb_layout import engine_config
from tests.trtforge.drafting import checkpoints
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
    (tmp_path / "hollow").mkdir()
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
    assert sorted(path.name for path in place.iterdir()) == ["checkpoint", "engine", "hollow", "r.yaml"]


def test_emit_llmapi_from_a_checkpoint(call, place):
    code, document = call("triton", "emit", "checkpoint", "out", "--layout", "llmapi", "--set", "build.parallel.tp=2")
    assert code == 0, document
    assert document["arguments"]["tensor_parallel_size"] == 2
    model = place / "out" / "tensorrt_llm" / document["arguments"]["model"]
    assert model.resolve() == place / "checkpoint"


def test_emit_llmapi_names_a_drafter_that_loads_as_it_stands(call, place, monkeypatch):
    monkeypatch.setattr(checkpoints, "VOCAB", 512)
    target = write_tiny_llama(place / "target", layers=checkpoints.TARGET_LAYERS, width=checkpoints.WIDTH)
    for dialect in ("specforge", "tensorrt-llm"):
        checkpoints.write(place / dialect, checkpoints.Spec(dialect, taps=(2, 5, 9)))
    options = ("--layout", "llmapi", "--set", "speculation.method=eagle3", "--set", "speculation.max_draft_len=3")
    code, document = call("triton", "emit", "target", "out", *options, "--set", "speculation.draft=specforge")
    assert (code, document["error"]["code"]) == (2, "TF-TRI-264")
    assert any("trtforge draft convert" in way for way in document["error"]["remedies"])
    assert not (place / "out").exists()
    code, document = call("triton", "emit", "target", "out", *options, "--set", "speculation.draft=tensorrt-llm")
    assert code == 0, document
    config = yaml.safe_load((place / "out" / "tensorrt_llm" / "1" / "model.yaml").read_text())["speculative_config"]
    assert config["eagle3_layers_to_capture"] == [2, 5, 9]
    folder = place / "out" / "tensorrt_llm" / config["speculative_model"]
    assert folder.resolve() == (place / "tensorrt-llm").resolve() and target.is_dir()


REFUSED = [
    ("TF-TRI-068", ("checkpoint/..", "out", "--layout", "llmapi")),
    ("TF-TRI-070", ("checkpoint", "out", "--recipe", "r.yaml")),
    ("TF-TRI-070", ("engine", "out", "--layout", "llmapi")),
    ("TF-TRI-070", ("engine", "out", "--layout", "native")),
    ("TF-TRI-070", ("checkpoint", "out", "--layout", "native")),
    ("TF-TRI-068", ("hollow", "out", "--layout", "llmapi")),
    ("TF-TRI-063", ("hollow", "out", "--recipe", "r.yaml")),
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
    write_tiny_llama(place / "draft")
    for name in ("adapters/a", "adapters/b"):
        (place / name).mkdir(parents=True)
    recipe = yaml.safe_load((place / "r.yaml").read_text())
    recipe["build"]["trtllm"] = {"lora": {"adapters": {"a": "adapters/a", "b": "adapters/b"}}}
    recipe["speculation"] = {"method": "draft_target", "draft": "draft"}
    (place / "r.yaml").write_text(yaml.safe_dump(recipe))
    code, document = call("triton", "emit", "checkpoint", "out", "--recipe", "r.yaml", "--layout", "llmapi")
    assert code == 0, document
    folder = place / "out" / "tensorrt_llm"
    settings = yaml.safe_load((folder / "1" / "model.yaml").read_text())
    assert (folder / settings["speculative_config"]["speculative_model"]).resolve() == place / "draft"
    assert (folder / settings["triton_config"]["lora_directory"]).resolve() == place / "adapters"
    assert [(folder / path).resolve().name for path in settings["lora_config"]["lora_dir"]] == ["a", "b"]


def test_explain_one_all_and_a_misspelt_one(call, capsys):
    code, document = call("triton", "explain", "kv_cache_free_gpu_mem_fraction")
    assert code == 0
    row = document["parameters"][0]
    assert (row["default"], row["values"], row["recipe"]) == ("0.9", "over 0, up to 1", "build.kv_cache.free_fraction")
    code, document = call("triton", "explain")
    assert len(document["parameters"]) > 90
    code, document = call("triton", "explain", "max_beam_widht")
    assert code == 2
    assert document["error"]["remedies"] == ["trtforge triton explain max_beam_width"]
    assert invoke(["triton", "explain", "medusa_choices"]) == 0
    text = capsys.readouterr().out
    assert "decoding_mode medusa" in text
    assert "speculation.choices" in text


@pytest.fixture
def bundle(place):
    """What ``triton launch`` reads of a bundle."""
    (place / "bundle" / "repository").mkdir(parents=True)
    (place / "r.yaml").rename(place / "bundle" / "recipe.yaml")
    return place / "bundle"


def test_launch_writes_scripts_for_other_nodes_and_ports(call, bundle, monkeypatch):
    monkeypatch.setattr(plans, "visible_devices", lambda: None)
    code, document = call("triton", "launch", "bundle", "two", "--nodes", "2", "--port", "9000")
    assert code == 0, document
    assert document["files"] == ["plan.json", "slurm.sh"] and document["plan"]["nodes"] == 2
    text = (bundle.parent / "two" / "slurm.sh").read_text()
    assert "../bundle" in text and "--http-port=9003" in text
    assert call("triton", "launch", "bundle", "two")[1]["error"]["code"] == "TF-TRI-003"


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("bundle", "out", "--nodes", "3"), "TF-LCH-042"),
        (("bundle", "out", "--nodes", "0"), "TF-LCH-042"),
        (("bundle", "out", "--port", "65534"), "TF-LCH-044"),
        (("bundle", "out", "--host", "a b"), "TF-LCH-045"),
        (("bundle", "my out"), "TF-LCH-045"),
        (("bundle", "bundle/launch2"), "TF-LCH-048"),
        (("engine", "out"), "TF-LCH-047"),
        (("nowhere", "out"), "TF-LCH-047"),
        (("bundle", "out"), "TF-LCH-040"),
    ],
)
def test_launch_refuses_and_writes_nothing(call, bundle, monkeypatch, arguments, code):
    monkeypatch.setattr(plans, "visible_devices", lambda: ["0"] if code == "TF-LCH-040" else None)
    if "my out" in arguments:
        bundle = bundle.rename(bundle.parent / "my bundle")
        arguments = ("my bundle", "out")
    before = sorted(path.name for path in bundle.parent.iterdir())
    exit_code, document = call("triton", "launch", *arguments)
    assert (exit_code, document["error"]["code"]) == (2, code)
    assert document["error"]["remedies"]
    assert sorted(path.name for path in bundle.parent.iterdir()) == before


def artifact(place, target, **parts):
    """An engine folder of a target of TensorRT-LLM, as a bundle holds it."""
    folder = place / "artifact"
    folder.mkdir()
    limits = {"max_batch_size": 1, "max_num_tokens": 64, "max_seq_len": 64, "max_input_len": 63}
    (folder / "engine.json").write_text(json.dumps({"version": 1, "target": target, "limits": limits}))
    for name, origin in parts.items():
        (place / origin).rename(folder / name)
    if "trtllm" in parts:
        for file in ("tokenizer.json", "tokenizer_config.json"):
            (folder / "trtllm" / file).rename(folder / file)
    return folder


@pytest.mark.parametrize("layout", ["native", "llmapi", "inflight_batcher_llm"])
def test_an_engine_folder_of_trtllm_engine_names_the_compiled_engine(call, place, layout):
    artifact(place, "trtllm-engine", trtllm="engine")
    code, document = call("triton", "emit", "artifact", "out", "--recipe", "r.yaml", "--layout", layout)
    assert (code, document["error"]["code"]) == (2, "TF-TRI-070")
    words = document["error"]["remedies"][0].split()
    assert words[:5] == ["trtforge", "triton", "emit", "artifact/trtllm", "OUT"]
    code, document = call(*["out" if word == "OUT" else word for word in words[1:]], "--recipe", "r.yaml")
    assert code == 0, document


def test_an_engine_that_is_not_compiled_is_first_to_be_compiled(call, place):
    artifact(place, "trtllm-engine")
    remedies = call("triton", "emit", "artifact", "out", "--recipe", "r.yaml")[1]["error"]["remedies"]
    assert remedies[0].startswith("compile it first: sh artifact/container.sh")


@pytest.mark.parametrize("layout", ["native", "llmapi", "inflight_batcher_llm"])
def test_an_engine_folder_of_trtllm_llmapi_names_its_checkpoint(call, place, layout):
    artifact(place, "trtllm-llmapi", checkpoint="checkpoint")
    document = call("triton", "emit", "artifact", "out", "--layout", layout)[1]
    words = document["error"]["remedies"][0].split()
    assert words[:5] == ["trtforge", "triton", "emit", "artifact/checkpoint", "OUT"]
    assert call(*["out" if word == "OUT" else word for word in words[1:]])[0] == 0


def test_what_the_check_says_names_the_folder_that_was_asked_for(call, place):
    (place / "engine" / "rank1.engine").unlink()
    error = call("triton", "emit", "engine", "out", "--recipe", "r.yaml")[1]["error"]
    assert error["asked"] == "out"
    assert ".out-" not in json.dumps(error)


def test_links_as_the_place_of_a_repository(call, place):
    (place / "dangling").symlink_to(place / "nowhere")
    code, document = call("triton", "emit", "engine", "dangling", "--recipe", "r.yaml")
    assert (code, document["error"]["code"]) == (2, "TF-TRI-003")
    code, document = call("triton", "upgrade", "engine", "-o", "dangling", "--to", "1.2.1")
    assert code == 2 and document["error"]["code"] != "TF-INTERNAL"
    assert not (place / "nowhere").exists()
    (place / "empty").mkdir()
    (place / "link").symlink_to(place / "empty")
    assert call("triton", "emit", "engine", "link", "--recipe", "r.yaml")[0] == 0
    assert (place / "link").is_symlink() and (place / "empty" / "ensemble").is_dir()
    config = read_config(place / "empty" / "preprocessing" / "config.pbtxt")
    tokenizer = place / "empty" / "preprocessing" / config.parameters["tokenizer_dir"].string_value
    assert (tokenizer / "tokenizer.json").is_file()


@pytest.mark.parametrize("out", ["r.yaml/below", "r.yaml", "engine"])
def test_a_place_that_cannot_be_is_refused(call, place, out):
    code, document = call("triton", "emit", "engine", out, "--recipe", "r.yaml")
    assert (code, document["error"]["code"]) == (2, "TF-TRI-003")


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("max_tokens_in_paged_kv_cache", "64", "TF-TRI-064"),
        ("max_tokens_in_paged_kv_cache", "0", "TF-TRI-062"),
        ("max_attention_window_size", "0", "TF-TRI-062"),
        ("max_attention_window_size", "128,0", "TF-TRI-062"),
        ("kv_cache_host_memory_bytes", "9" * 23, "TF-TRI-062"),
        ("kv_cache_host_memory_bytes", "9223372036854775808", "TF-TRI-062"),
        ("kv_cache_host_memory_bytes", "9" * 5000, "TF-TRI-062"),
    ],
)
def test_values_that_no_engine_can_load_are_refused(call, place, name, value, code):
    exit_code, document = call(
        "triton", "emit", "engine", "out", "--recipe", "r.yaml", "--set", f'triton.parameters.{name}="{value}"'
    )
    assert (exit_code, document["error"]["code"]) == (2, code), document
    assert not (place / "out").exists()


def test_the_least_that_one_request_takes_is_accepted(call, place):
    facts = engine_config()["build_config"]
    window = "triton.parameters.max_attention_window_size='64'"
    plain = ("build.trtllm.paged_context_attention=false", "build.trtllm.chunked_context=false")
    for out, paged, tokens, more in (
        ("a", True, facts["max_seq_len"], ()),
        ("b", False, 64 + 32, (window, *plain)),  # the window, and a block beside
        ("c", True, facts["max_seq_len"], (window,)),  # a chunk of the prompt may be as long
    ):
        plugins = {**facts["plugin_config"], "use_paged_context_fmha": paged}
        (place / "engine" / "config.json").write_text(json.dumps(engine_config(plugin_config=plugins)))
        sets = [f"triton.parameters.max_tokens_in_paged_kv_cache='{tokens}'", *more]
        code, document = call(
            "triton", "emit", "engine", out, "--recipe", "r.yaml", *[word for text in sets for word in ("--set", text)]
        )
        assert code == 0, document
