"""Repositories moved between versions: names, defaults, batching, what is left, and what is never touched."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from tests.triton_repo.corpus import CORPUS, PY, PYTHON, add, parameters, step, steps, tensors
from tests.triton_repo.corpus_llm import chain, engine_config, engine_folder
from triton_repo.configs import read_config
from triton_repo.diff import diff_repositories, infer_versions
from triton_repo.edits import Editor
from triton_repo.history import load_history
from triton_repo.lint.repository import read_repository
from triton_repo.upgrade import upgrade_repository
from trtforge.ground.errors import ForgeError


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A repository of 0.9 with hand edits."""
    root = tmp_path / "old"
    values = {
        "worker_path": "/opt/tritonserver/backends/tensorrtllm/triton_tensorrtllm_worker",
        "enable_trt_overlap": "true",
        "gpt_model_type": "V1",
        "kv_cache_free_gpu_mem_fraction": "0.7",
    }
    chain(root, values=values)
    path = root / "tensorrt_llm/config.pbtxt"
    path.write_text("# ours: do not touch the fraction\n" + path.read_text())
    return root


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*")) if p.is_file()}


def values(root: Path, model: str = "tensorrt_llm") -> dict[str, str]:
    config = read_config(root / model / "config.pbtxt")
    return {name: config.parameters[name].string_value for name in config.parameters}


def test_names_move_the_rest_stays_and_the_old_one_is_not_touched(old, tmp_path):
    before = snapshot(old)
    result = upgrade_repository(old, tmp_path / "new", to="1.2.1")
    assert snapshot(old) == before
    assert result.passed and (result.old_version, result.new_version) == ("0.9", "1.2.1")
    new = values(tmp_path / "new")
    assert new["executor_worker_path"] == "/opt/tritonserver/backends/tensorrtllm/trtllmExecutorWorker"
    assert "worker_path" not in new and "enable_trt_overlap" not in new
    assert new["gpt_model_type"] == "inflight_fused_batching"
    assert new["kv_cache_free_gpu_mem_fraction"] == "0.7"
    text = (tmp_path / "new/tensorrt_llm/config.pbtxt").read_text()
    assert text.startswith("# ours: do not touch the fraction\n")
    said = {(step.action, step.what.split(":")[0].split(" ")[0]) for step in result.done}
    assert {("renamed", "worker_path"), ("removed", "enable_trt_overlap"), ("set", "gpt_model_type")} <= said
    assert any("paged KV cache" in step.meaning for step in result.done)


def test_a_default_that_moved_is_written_out(old, tmp_path):
    upgrade_repository(old, tmp_path / "new", to="0.19")
    assert values(tmp_path / "new")["enable_kv_cache_reuse"] == "false"
    upgrade_repository(old, tmp_path / "below", to="0.16")
    assert "enable_kv_cache_reuse" not in values(tmp_path / "below")


def test_a_default_left_as_a_placeholder_is_written_out_too(tmp_path):
    root = tmp_path / "old"
    chain(root, values={"enable_kv_cache_reuse": "${enable_kv_cache_reuse}", "worker_path": "/w"})
    upgrade_repository(root, tmp_path / "new", to="1.2.1")
    assert values(tmp_path / "new")["enable_kv_cache_reuse"] == "false"


def test_tensors_are_renamed_in_the_engine_and_in_the_ensemble(tmp_path):
    root = tmp_path / "old"
    chain(root)
    engine, ensemble = root / "tensorrt_llm/config.pbtxt", root / "ensemble/config.pbtxt"
    engine.write_text(
        engine.read_text()
        .replace('"temperature"', '"random_seed"')
        .replace("TYPE_FP32 dims: [ 1 ]", "TYPE_UINT64 dims: [ 1 ]")
    )
    text = ensemble.read_text().replace(
        'name: "temperature" data_type: TYPE_FP32', 'name: "random_seed" data_type: TYPE_UINT64'
    )
    ensemble.write_text(
        text.replace(
            'key: "temperature"\n        value: "temperature"', 'key: "random_seed"\n        value: "random_seed"'
        )
    )
    (root / "tensorrt_llm_bls/1/model.py").write_text(PYTHON + '    name = "random_seed"\n')
    result = upgrade_repository(root, tmp_path / "new", to="1.2.1", since="0.19")
    assert result.passed, [f.message for f in result.findings if f.severity == "error"]
    assert "seed" in {i.name for i in read_config(tmp_path / "new/tensorrt_llm/config.pbtxt").input}
    second = read_config(tmp_path / "new/ensemble/config.pbtxt").ensemble_scheduling.step[1]
    assert second.input_map["seed"] == "random_seed"
    assert any("random_seed" in step.meaning for step in result.left if step.model == "tensorrt_llm_bls")


def test_to_the_llm_api(old, tmp_path):
    result = upgrade_repository(old, tmp_path / "new", to="1.3.0rc22", checkpoint="/models/llama")
    assert result.layout == "llmapi" and result.passed
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["tensorrt_llm"]
    document = yaml.safe_load((tmp_path / "new/tensorrt_llm/1/model.yaml").read_text())
    assert document["model"] == "/models/llama" and document["backend"] == "pytorch"
    assert document["kv_cache_config"]["free_gpu_memory_fraction"] == 0.7
    assert document["triton_config"]["decoupled"] is False
    left = {step.what.split(":")[0] for step in result.left}
    assert {"gpt_model_path", "gpt_model_type", "limits"} <= left
    assert any("sampling_param_max_tokens" in step.what for step in result.left)


def test_to_the_llm_api_with_an_engine_that_can_be_read(tmp_path):
    root = tmp_path / "old"
    engine = engine_folder(tmp_path / "engine", tp_size=2, max_batch_size=48)
    chain(root, values={"gpt_model_path": str(engine), "gpu_device_ids": "0,1", "enable_chunked_context": "true"})
    result = upgrade_repository(root, tmp_path / "new", to="1.3")
    document = yaml.safe_load((tmp_path / "new/tensorrt_llm/1/model.yaml").read_text())
    assert (document["tensor_parallel_size"], document["max_batch_size"], document["max_seq_len"]) == (2, 48, 2048)
    assert document["enable_chunked_prefill"] is True
    assert document["model"] == "/app/tensorrt_llm/examples/gpt/gpt2"
    assert any("tokenizer_dir" in step.meaning for step in result.left)
    assert values(tmp_path / "new")["gpu_device_ids"] == "0,1"


@pytest.mark.parametrize(("to", "lost"), [("1.2.1", "tokenizer_dir: ../../engine"), ("1.3", "model: ../../engine")])
def test_relative_paths_that_lead_nowhere_from_the_new_place_are_named(tmp_path, to, lost):
    bundle = tmp_path / "bundle"
    (bundle / "engine").mkdir(parents=True)
    chain(bundle / "old", values={"worker_path": "x"})
    for name in ("preprocessing", "postprocessing"):
        path = bundle / "old" / name / "config.pbtxt"
        stated = next(line for line in path.read_text().splitlines() if "gpt/gpt2" in line)
        path.write_text(
            path.read_text().replace(
                stated.strip(), stated.strip().replace("/app/tensorrt_llm/examples/gpt/gpt2", "../../engine")
            )
        )
    away = upgrade_repository(bundle / "old", tmp_path / "elsewhere" / "deep" / "new", to=to)
    named = [step for step in away.left if step.what == lost and "leads nowhere" in step.meaning]
    assert named and str(bundle / "engine") in named[0].meaning
    beside = upgrade_repository(bundle / "old", bundle / "new", to=to)
    assert not [step for step in beside.left if "leads nowhere" in step.meaning]


def refused(*arguments: object, **options: object) -> str:
    with pytest.raises(ForgeError) as caught:
        upgrade_repository(*arguments, **options)
    assert caught.value.remedies
    return caught.value.code


def test_refusals_leave_nothing_behind(old, tmp_path):
    out = tmp_path / "new"
    assert refused(old, out, to="25.12") == "TF-TRI-240"
    assert refused(old, out, to="nonsense") == "TF-TRI-240"
    assert refused(old, out, to="0.5") == "TF-TRI-241"
    assert refused(old, old / "new", to="1.2.1") == "TF-TRI-244"
    assert refused(old, old, to="1.2.1") == "TF-TRI-244"
    assert refused(tmp_path / "nowhere", out, to="1.2.1") == "TF-TRI-100"
    plain = tmp_path / "plain"
    add(plain, "m", 'backend: "python"\n', PY)
    assert refused(plain, out, to="1.2.1") == "TF-TRI-241"
    out.mkdir()
    (out / "x").touch()
    assert refused(old, out, to="1.2.1") == "TF-TRI-003"
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_what_cannot_be_copied_or_parsed_is_refused(old, tmp_path):
    fifo = old / "tensorrt_llm/1/pipe"
    os.mkfifo(fifo)
    assert refused(old, tmp_path / "new", to="1.2.1") == "TF-TRI-242"
    fifo.unlink()
    path = old / "preprocessing/config.pbtxt"
    path.write_text(path.read_text() + "\ninput [")
    assert refused(old, tmp_path / "new", to="1.2.1") == "TF-TRI-243"
    assert not (tmp_path / "new").exists()


def test_several_engines_and_unknown_checkpoints_are_refused(tmp_path):
    root = tmp_path / "old"
    add(root, "a", engine_config(name="a"), PY)
    assert refused(root, tmp_path / "new", to="1.3") == "TF-TRI-245"
    add(root, "b", engine_config(name="b"), PY)
    assert refused(root, tmp_path / "new", to="1.3") == "TF-TRI-246"


def test_links_are_kept_and_those_that_leave_are_not_followed(old, tmp_path):
    (tmp_path / "engine").mkdir()
    (old / "tensorrt_llm/1/engine").symlink_to("../../../engine")
    (old / "tensorrt_llm/2").symlink_to("1")
    upgrade_repository(old, tmp_path / "deep/er/new", to="1.2.1")
    new = tmp_path / "deep/er/new"
    assert (new / "tensorrt_llm/2").readlink() == Path("1")
    assert (new / "tensorrt_llm/1/engine").readlink() == tmp_path / "engine"


def test_placeholders_survive_an_upgrade(tmp_path):
    root = tmp_path / "old"
    chain(root, values={"worker_path": "${worker}"})
    path = root / "tensorrt_llm/config.pbtxt"
    path.write_text(path.read_text().replace("max_batch_size: 4", "max_batch_size: ${triton_max_batch_size}"))
    result = upgrade_repository(root, tmp_path / "new", to="1.2.1")
    assert not result.passed and {f.code for f in result.findings if f.severity == "error"} == {"TF-TRI-101"}
    text = (tmp_path / "new/tensorrt_llm/config.pbtxt").read_text()
    assert "max_batch_size: ${triton_max_batch_size}" in text and '"executor_worker_path"' in text


# diff -----------------------------------------------------------------------------------------------
def test_a_repository_does_not_differ_from_itself(tmp_path):
    for item in CORPUS:
        root = tmp_path / item.name / "repository"
        root.parent.mkdir()
        item.build(root)
        assert diff_repositories(root, root).differences == (), item.name


def test_differences_carry_field_line_and_meaning(tmp_path):
    chain(tmp_path / "a", batch=4)
    chain(tmp_path / "b", batch=8, decoupled=True, values={"max_beam_width": "2"})
    found = {(d.model, d.field): d for d in diff_repositories(tmp_path / "a", tmp_path / "b").differences}
    batch = found["tensorrt_llm", "max_batch_size"]
    assert (batch.old, batch.new, batch.line) == ("4", "8", 3) and "request" in batch.meaning
    beams = found["tensorrt_llm", "parameters[max_beam_width]"]
    assert (beams.kind, beams.old, beams.new) == ("changed", "1", "2") and beams.meaning and beams.line
    assert found["tensorrt_llm", "model_transaction_policy.decoupled"].new == "true"


def test_order_and_comments_are_no_difference(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    rows = [("x", "FP32", (1,)), ("y", "FP32", (2,))]
    add(a, "m", 'backend: "python"\n' + tensors("input", rows) + parameters({"p": "1", "q": "2"}), PY)
    add(b, "m", "# c\n" + parameters({"q": "2", "p": "1"}) + tensors("input", rows[::-1]) + 'backend: "python"\n', PY)
    assert diff_repositories(a, b).differences == ()


def test_models_tensors_steps_and_files_that_come_and_go(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    io = tensors("input", [("x", "FP32", (1,))]) + tensors("output", [("y", "FP32", (1,))])
    add(a, "gone", 'backend: "python"\n' + io, PY)
    for root in (a, b):
        add(root, "m", 'backend: "python"\n' + io, PY)
    path = b / "m/config.pbtxt"
    path.write_text(path.read_text() + tensors("input", [("z", "INT32", (-1, 2))]))
    (b / "m/1/model.py").write_text("class TritonPythonModel: pass\n")
    (b / "m/1/more.py").write_text("")
    add(b, "e", 'platform: "ensemble"\n' + io + steps(step("m", {"x": "x"}, {"y": "y"})))
    found = {(d.kind, d.model, d.field) for d in diff_repositories(a, b).differences}
    assert found == {
        ("removed", "gone", ""),
        ("added", "e", ""),
        ("added", "m", "input[z]"),
        ("changed", "m", "1/model.py"),
        ("added", "m", "1/more.py"),
    }


def test_renames_and_moved_defaults_between_versions(old, tmp_path):
    new = tmp_path / "new"
    chain(new, values={"executor_worker_path": "/w", "num_nodes": "1"})
    comparison = diff_repositories(old, new)
    assert comparison.old_versions == ("0.9", "0.9") and comparison.new_versions == ("0.19", "1.2.1")
    kinds = {(d.kind, d.field) for d in comparison.differences if d.model == "tensorrt_llm"}
    assert ("renamed", "parameters[executor_worker_path]") in kinds
    assert ("meaning", "parameters[enable_kv_cache_reuse]") in kinds
    assert ("removed", "parameters[enable_trt_overlap]") in kinds


def test_versions_are_told_from_the_parameters(tmp_path):
    def versions(name: str, **settings: str) -> tuple[str, str] | None:
        add(tmp_path / name, "tensorrt_llm", engine_config(values=settings), PY)
        return infer_versions(read_repository(tmp_path / name))

    assert versions("a", max_num_sequences="4", enable_kv_cache_reuse="true") == ("0.7.2", "0.7.2")
    assert versions("b", eagle_choices="{0}") == ("0.16", "1.2.1")
    assert versions("c") == ("0.5", "1.2.1")
    history = load_history()
    assert history.index("1.0.3") == history.index("1.0") and history.is_llmapi("v1.3.0rc1")


def test_edits_keep_what_they_do_not_touch():
    text = 'name: "a" # keep\n\n  parameters { key: "x" value { string_value: "1" } }\nmax_batch_size: 4'
    editor = Editor(text)
    node = editor.text.find("max_batch_size")
    assert node is not None
    editor.value(node, "8")
    editor.append('backend: "python"\n')
    assert editor.apply() == text.replace("4", "8") + '\nbackend: "python"\n'


# repositories with models of their owner's ---------------------------------------------------------------
TALKER = (
    "class TritonPythonModel:\n    def execute(self, requests):\n        request = pb_utils.InferenceRequest(\n"
    '            model_name="tensorrt_llm",\n            requested_output_names=["output_ids", "sequence_length"],\n'
    '            inputs=[tensor("input_ids"), tensor("input_lengths"), tensor("request_output_len"), tensor(SEED)],\n'
    "        )\n        return []\n"
)


def speech(root: Path, version: str = "0.20.0", seed: str = '"temperature"') -> None:
    """A text-to-speech repository as CosyVoice2's: the engine, a talker that asks it by token ids, a vocoder."""
    engine = engine_folder(root.parent / "engine")
    document = json.loads((engine / "config.json").read_text())
    (engine / "config.json").write_text(json.dumps({**document, "version": version}))
    config = engine_config(values={"gpt_model_path": str(engine), "kv_cache_free_gpu_mem_fraction": "0.6"})
    add(root, "tensorrt_llm", config, {"1/.keep": ""})
    rows = tensors("input", [("text", "STRING", (1,))]) + tensors("output", [("waveform", "FP32", (-1,))])
    add(root, "talker", f'backend: "python"\n{rows}', {"1/model.py": TALKER.replace("SEED", seed)})
    add(root, "vocoder", f'backend: "python"\n{rows}', PY)


def test_other_models_stay_and_those_that_ask_the_engine_are_named(tmp_path):
    root = tmp_path / "old"
    speech(root)
    result = upgrade_repository(root, tmp_path / "new", to="1.3", checkpoint="/models/qwen2")
    assert result.passed and result.old_version == "0.20"
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["talker", "tensorrt_llm", "vocoder"]
    for model in ("talker", "vocoder"):
        assert snapshot(root / model) == snapshot(tmp_path / "new" / model)
    assert {step.model for step in result.done if step.action == "copied"} == {"talker", "vocoder"}
    (asked,) = [step for step in result.left if step.model == "talker"]
    assert "model.py:4 asks tensorrt_llm with" in asked.meaning and "input_ids" in asked.meaning
    assert "text_input" in asked.meaning
    assert any(step.what.startswith("engine") and "checkpoint" in step.meaning for step in result.left)


@pytest.mark.parametrize("seed", ['"temperature"', '"random_seed"'])
def test_within_the_engine_versions_the_engine_is_rebuilt_and_callers_with_renamed_tensors_are_named(tmp_path, seed):
    root = tmp_path / "old"
    speech(root, seed=seed)
    path = root / "tensorrt_llm/config.pbtxt"
    path.write_text(path.read_text().replace('"temperature"', seed))
    result = upgrade_repository(root, tmp_path / "new", to="1.2.1")
    assert result.passed and (result.old_version, result.new_version) == ("0.20", "1.2.1")
    assert sorted(p.name for p in (tmp_path / "new").iterdir()) == ["talker", "tensorrt_llm", "vocoder"]
    (engine,) = [step for step in result.left if step.what.startswith("engine ")]
    assert "built by TensorRT-LLM 0.20.0" in engine.meaning and "rebuild the engine" in engine.meaning
    callers = [step for step in (*result.left, *result.done) if step.model == "talker"]
    assert [step.action for step in callers] == ["left" if "seed" in seed else "kept"]
    assert callers[0].what == "model.py:4" and ("random_seed → seed" in callers[0].meaning) == ("seed" in seed)


def test_nothing_is_rebuilt_where_the_engine_is_of_the_version(tmp_path):
    root = tmp_path / "old"
    speech(root, version="1.2.1")
    result = upgrade_repository(root, tmp_path / "new", to="1.2.1")
    assert result.left == [] and result.old_version == "1.2.1"


def test_the_version_is_the_engines_wherever_it_lies(tmp_path):
    root = tmp_path / "old"
    chain(root, values={"gpt_model_path": "${engine_dir}"})
    engine_folder(root / "tensorrt_llm/1")
    config = root / "tensorrt_llm/1/config.json"
    config.write_text(config.read_text().replace('"1.2.1"', '"0.17.0.post1"'))
    assert infer_versions(read_repository(root)) == ("0.17", "0.17")
    config.write_text(config.read_text().replace('"0.17.0.post1"', '"of no form"'))
    assert infer_versions(read_repository(root)) == ("0.9", "1.2.1")  # of its BLS model


def test_no_model_vanishes_however_many_there_are(tmp_path):
    root = tmp_path / "old"
    chain(root)
    for index in range(40):
        add(
            root,
            f"own_{index}",
            'backend: "python"\n',
            {"1/model.py": PYTHON + f"    asks = 'postprocessing'  # {index}\n"},
        )
    io = tensors("input", [("text_input", "STRING", (1,))]) + tensors("output", [("text_output", "STRING", (-1,))])
    first = step("preprocessing", {"QUERY": "text_input"}, {"INPUT_ID": "_i"})
    mixed = steps(first, step("own_0", {"x": "_i"}, {"y": "text_output"}))
    add(root, "mixed", f'platform: "ensemble"\nmax_batch_size: 4\n{io}{mixed}')
    result = upgrade_repository(root, tmp_path / "new", to="1.3", checkpoint="/m")
    expected = {"tensorrt_llm", "mixed", *(f"own_{index}" for index in range(40))}
    assert {p.name for p in (tmp_path / "new").iterdir()} == expected
    left = {step.model: step.meaning for step in result.left if step.what == "its calls"}
    assert set(left) == {"mixed", *(f"own_{index}" for index in range(40))}
    assert "step 1 asks preprocessing with INPUT_ID, QUERY" in left["mixed"]
    gone = {d.model: d.meaning for d in diff_repositories(root, tmp_path / "new").differences if d.kind == "removed"}
    assert "own_0" in gone["postprocessing"] and "mixed" in gone["preprocessing"]


def test_the_one_model_takes_the_engines_name_where_its_own_is_taken(tmp_path):
    root = tmp_path / "old"
    add(root, "llm", engine_config(name="llm"), {"1/.keep": ""})
    rows = tensors("input", [("x", "FP32", (1,))]) + tensors("output", [("y", "FP32", (1,))])
    add(root, "tensorrt_llm", f'backend: "python"\n{rows}', PY)
    result = upgrade_repository(root, tmp_path / "new", to="1.3", checkpoint="/m")
    assert result.passed and sorted(p.name for p in (tmp_path / "new").iterdir()) == ["llm", "tensorrt_llm"]
    assert snapshot(root / "tensorrt_llm") == snapshot(tmp_path / "new/tensorrt_llm")
    assert read_config(tmp_path / "new/llm/config.pbtxt").name == "llm"
