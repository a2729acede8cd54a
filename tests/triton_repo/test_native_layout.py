import json
import shutil
import subprocess
import sys

import pytest

from triton_repo.configs import print_config, read_config
from triton_repo.layouts.native import emit
from triton_repo.tensors import INPUTS, OUTPUTS
from triton_repo.validate import require_valid, validate_repository
from trtforge.errors import ForgeError

LIMITS = {"max_batch_size": 8, "max_num_tokens": 256, "max_seq_len": 512, "max_input_len": 511}


@pytest.fixture
def bundle(tmp_path):
    engine = tmp_path / "engine"
    engine.mkdir()
    (engine / "engine.json").write_text(json.dumps({"version": 1, "limits": LIMITS}))
    emit(engine, tmp_path / "repository", name="demo")
    return tmp_path


def _edit(bundle, change):
    path = bundle / "repository" / "demo" / "config.pbtxt"
    text = path.read_text()
    edited = change(text)
    assert edited != text
    path.write_text(edited)


def test_emitted_repository_is_valid_reproducible_and_carries_the_limits(bundle):
    assert validate_repository(bundle / "repository") == []
    config = read_config(bundle / "repository" / "demo" / "config.pbtxt")
    assert config.model_transaction_policy.decoupled
    assert [i.name for i in config.input] == [row.name for row in INPUTS]
    assert [o.name for o in config.output] == [row.name for row in OUTPUTS]
    assert {k: config.parameters[k].string_value for k in LIMITS} == {k: str(v) for k, v in LIMITS.items()}
    emit(bundle / "engine", bundle / "again", name="demo")
    for name in ("config.pbtxt", "1/model.py"):
        assert (bundle / "again/demo" / name).read_bytes() == (bundle / "repository/demo" / name).read_bytes()
    assert print_config(config) == (bundle / "repository/demo/config.pbtxt").read_text()


def test_ensemble_clients_find_their_tensor_names():
    names = {row.name for row in INPUTS}
    assert {
        "text_input", "max_tokens", "bad_words", "stop_words", "end_id", "pad_id", "top_k", "top_p", "temperature",
        "repetition_penalty", "min_tokens", "presence_penalty", "frequency_penalty", "random_seed", "seed",
        "length_penalty", "return_log_probs", "beam_width", "stream", "exclude_input_in_output",
    } <= names  # fmt: skip
    assert {"text_output", "cum_log_probs", "output_log_probs"} <= {row.name for row in OUTPUTS}
    assert [row.name for row in INPUTS if not row.optional] == ["text_input", "max_tokens"]


FAULTS = [
    ("TF-TRI-102", lambda t: t.replace("max_batch_size: 1", "max_batchsize: 1")),
    ("TF-TRI-001", lambda t: t + "\ninput ["),
    ("TF-TRI-101", lambda t: t.replace("max_batch_size: 1", "max_batch_size: ${max_batch_size}")),
    ("TF-TRI-023", lambda t: t.replace('name: "demo"', 'name: "other"', 1)),
    ("TF-TRI-024", lambda t: t.replace('name: "top_k"', 'name: "top_p"', 1)),
    ("TF-TRI-024", lambda t: t.replace("dims: 1", "dims: 0", 1)),
    ("TF-TRI-027", lambda t: t.replace("../../engine", "${engine_dir}")),
    ("TF-TRI-027", lambda t: t.replace("../../engine", "../../nowhere")),
    ("TF-TRI-028", lambda t: t.replace('string_value: "256"', 'string_value: "512"')),
    ("TF-TRI-029", lambda t: t.replace("decoupled: true", "decoupled: false")),
]


@pytest.mark.parametrize(("code", "change"), FAULTS)
def test_planted_faults_are_found(bundle, code, change):
    _edit(bundle, change)
    assert code in {f.code for f in validate_repository(bundle / "repository")}
    with pytest.raises(ForgeError) as caught:
        require_valid(bundle / "repository")
    assert caught.value.code == "TF-TRI-021"
    assert code in (caught.value.why or "")


def test_importing_the_model_leaves_no_bytecode_in_the_bundle(bundle):
    code = bundle / "repository/demo/1/model.py"
    code.write_text("VALUE = 1\n", encoding="utf-8")
    before = sorted(path.relative_to(bundle) for path in bundle.rglob("*"))
    command = [sys.executable, "-c", "import model; print(model.VALUE)"]
    done = subprocess.run(command, cwd=code.parent, capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
    assert sorted(path.relative_to(bundle) for path in bundle.rglob("*")) == before


def test_missing_pieces_are_found(bundle):
    (bundle / "repository/demo/1/model.py").unlink()
    assert [f.code for f in validate_repository(bundle / "repository")] == ["TF-TRI-025"]
    shutil.rmtree(bundle / "repository/demo/1")
    assert [f.code for f in validate_repository(bundle / "repository")] == ["TF-TRI-025"]
    (bundle / "repository/demo/config.pbtxt").unlink()
    assert [f.code for f in validate_repository(bundle / "repository")] == ["TF-TRI-022"]
    shutil.rmtree(bundle / "repository/demo")
    assert [f.code for f in validate_repository(bundle / "repository")] == ["TF-TRI-020"]


def test_emit_refuses_a_folder_in_use_and_a_broken_engine(bundle):
    with pytest.raises(ForgeError) as caught:
        emit(bundle / "engine", bundle / "repository", name="demo")
    assert caught.value.code == "TF-TRI-003"
    (bundle / "engine/engine.json").write_text("{")
    with pytest.raises(ForgeError) as caught:
        emit(bundle / "engine", bundle / "new", name="demo")
    assert caught.value.code == "TF-TRI-002"
    assert not (bundle / "new").exists()
