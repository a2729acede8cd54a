import json
import shutil
import subprocess
import sys

import pytest

from runtime.frontend.asking import READ
from runtime.frontend.offered import NOT_OFFERED, WITHOUT_EFFECT
from triton_repo.configs import print_config, read_config
from triton_repo.layouts.ifb_tensors import BLS_INPUTS, BLS_OUTPUTS, ENGINE_INPUTS, ENGINE_OUTPUTS
from triton_repo.layouts.native import emit
from triton_repo.layouts.native_names import CLIENT_NAMES
from triton_repo.layouts.native_tensors import FROM_ENGINE, INPUTS, OUTPUTS
from triton_repo.validate import require_valid, validate_repository
from trtforge.ground.errors import ForgeError

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
    names, outputs = [row.name for row in INPUTS], [row.name for row in OUTPUTS]
    assert len(set(names)) == len(names)
    assert len(set(outputs)) == len(outputs)
    assert {row.name for row in BLS_INPUTS} <= set(names)
    assert {FROM_ENGINE.get(row.name, row.name) for row in ENGINE_INPUTS} <= set(names)
    assert {row.name for row in (*BLS_OUTPUTS, *ENGINE_OUTPUTS)} <= set(outputs)


def test_what_is_declared_is_read_or_refused_or_known_to_change_nothing():
    """Triton's count of required inputs does not say which is missing, so none is required: the model refuses."""
    assert {row.name for row in INPUTS} == READ | NOT_OFFERED.keys() | WITHOUT_EFFECT
    assert not READ & NOT_OFFERED.keys()
    assert not (READ | NOT_OFFERED.keys()) & WITHOUT_EFFECT
    assert all(row.optional for row in INPUTS)


def test_names_that_clients_fix_hand_every_tensor_on(tmp_path, bundle):
    emit(bundle / "engine", tmp_path / "named", name="demo", client_names=True, decoupled=False)
    assert validate_repository(tmp_path / "named", bundle / "engine") == []
    core = read_config(tmp_path / "named/demo/config.pbtxt")
    assert not core.model_transaction_policy.decoupled
    assert core.max_batch_size == LIMITS["max_batch_size"]
    for name in CLIENT_NAMES:
        config = read_config(tmp_path / "named" / name / "config.pbtxt")
        assert config.platform == "ensemble"
        [step] = config.ensemble_scheduling.step
        assert step.model_name == "demo"
        assert set(step.input_map.values()) == {i.name for i in config.input}
        assert set(step.input_map) <= {i.name for i in core.input}
        assert set(step.output_map.values()) == {o.name for o in config.output}
        assert set(step.output_map) <= {o.name for o in core.output}
        assert not {i.name for i in config.input} & {o.name for o in config.output}, "one tensor a name"
        types = {i.name: i.data_type for i in core.input}
        assert all(
            types[inner] == i.data_type
            for inner, outer in step.input_map.items()
            for i in config.input
            if i.name == outer
        )
    token = read_config(tmp_path / "named/tensorrt_llm/config.pbtxt")
    assert {i.name for i in token.input} >= {row.name for row in ENGINE_INPUTS}


def test_a_model_with_a_name_that_clients_fix_cannot_stand_beside_it(tmp_path, bundle):
    with pytest.raises(ForgeError) as caught:
        emit(bundle / "engine", tmp_path / "named", name="ensemble", client_names=True)
    assert caught.value.code == "TF-TRI-090"
    assert not (tmp_path / "named").exists()
    emit(bundle / "engine", tmp_path / "plain", name="ensemble")
    assert [path.name for path in (tmp_path / "plain").iterdir()] == ["ensemble"]


FAULTS = [
    ("TF-TRI-102", lambda t: t.replace("max_batch_size: 8", "max_batchsize: 8")),
    ("TF-TRI-001", lambda t: t + "\ninput ["),
    ("TF-TRI-101", lambda t: t.replace("max_batch_size: 8", "max_batch_size: ${max_batch_size}")),
    ("TF-TRI-023", lambda t: t.replace('name: "demo"', 'name: "other"', 1)),
    ("TF-TRI-024", lambda t: t.replace('name: "top_k"', 'name: "top_p"', 1)),
    ("TF-TRI-024", lambda t: t.replace("dims: 1", "dims: 0", 1)),
    ("TF-TRI-027", lambda t: t.replace("../../engine", "${engine_dir}")),
    ("TF-TRI-027", lambda t: t.replace("../../engine", "../../nowhere")),
    ("TF-TRI-028", lambda t: t.replace('string_value: "256"', 'string_value: "512"')),
]


@pytest.mark.parametrize(("code", "change"), FAULTS)
def test_planted_faults_are_found(bundle, code, change):
    _edit(bundle, change)
    assert code in {f.code for f in validate_repository(bundle / "repository")}
    with pytest.raises(ForgeError) as caught:
        require_valid(bundle / "repository")
    assert caught.value.code == "TF-TRI-021"
    assert code in (caught.value.why or "")


def test_a_model_written_before_the_choice_must_be_decoupled(bundle):
    _edit(bundle, lambda t: t.replace("decoupled: true", "decoupled: false"))
    assert validate_repository(bundle / "repository") == []
    code = bundle / "repository/demo/1/model.py"
    code.write_text(f"from runtime.triton_frontend import request_from_tensors\n{code.read_text()}")
    assert [f.code for f in validate_repository(bundle / "repository")] == ["TF-TRI-029"]


def _record(method, **more):
    ngram = {"max_matching_ngram_size": 8, "min_matching_ngram_size": 2} if method == "ngram" else None
    draft = None if method == "ngram" else "draft"
    taps = [1, 2, 3] if method == "eagle3" else []
    base = {"version": 1, "method": method, "max_draft_len": 4, "ngram": ngram, "draft": draft, "taps": taps}
    return base | more


def _engine(folder, record, draft_limits=None):
    folder.mkdir(parents=True)
    (folder / "engine.json").write_text(json.dumps({"version": 1, "limits": LIMITS, "speculation": record}))
    if draft_limits is not None:
        (folder / "draft").mkdir()
        (folder / "draft/engine.json").write_text(json.dumps({"version": 1, "limits": draft_limits}))
    return folder


def test_a_repository_says_how_its_engine_drafts(tmp_path, bundle):
    engine = _engine(tmp_path / "drafting", _record("ngram"))
    assert emit(engine, tmp_path / "out", name="demo", engine_reference="../../drafting")["speculation"] == "ngram"
    config = read_config(tmp_path / "out/demo/config.pbtxt")
    assert config.parameters["speculation"].string_value == "ngram"
    assert validate_repository(tmp_path / "out") == []
    assert "speculation" not in read_config(bundle / "repository/demo/config.pbtxt").parameters


@pytest.mark.parametrize(("stated", "found"), [("ngram", None), (None, "ngram"), ("eagle3", "ngram")])
def test_another_speculation_than_the_engines_is_found(tmp_path, stated, found):
    stating = _engine(tmp_path / "stating", stated and _record(stated), LIMITS)
    emit(stating, tmp_path / "out", name="demo", engine_reference="../../serving")
    _engine(tmp_path / "serving", found and _record(found))
    [finding] = validate_repository(tmp_path / "out")
    assert finding.code == "TF-TRI-030"
    assert f"{stated or 'none'} here and {found or 'none'} in the engine" in finding.message
    code = tmp_path / "out/demo/1/model.py"
    code.write_text(code.read_text().replace("runtime.speculation", "runtime.other"))
    earlier = [f.code for f in validate_repository(tmp_path / "out")]
    assert earlier == (["TF-TRI-030"] if stated else []), "code that does not look at it takes any engine"


@pytest.mark.parametrize("method", ["eagle3", "draft_target"])
def test_an_engine_that_drafts_with_weights_has_them_beside_it(tmp_path, method):
    emit(_engine(tmp_path / "whole", _record(method), LIMITS), tmp_path / "out", name="demo")
    alone = _engine(tmp_path / "alone", _record(method))
    other = _engine(tmp_path / "other", _record(method), {**LIMITS, "max_seq_len": 256})
    for engine, why in ((alone, "draft/engine.json"), (other, "max_seq_len")):
        with pytest.raises(ForgeError) as caught:
            emit(engine, tmp_path / "new", name="demo")
        assert caught.value.code == "TF-TRI-002"
        assert why in caught.value.why
    (tmp_path / "engine").symlink_to(alone)
    assert [f.code for f in validate_repository(tmp_path / "out")] == ["TF-TRI-027"]


def test_a_record_of_another_version_is_an_engine_that_cannot_be_read(tmp_path):
    with pytest.raises(ForgeError) as caught:
        emit(_engine(tmp_path / "later", _record("ngram", version=2)), tmp_path / "out", name="demo")
    assert caught.value.code == "TF-TRI-002"
    assert "speculation.version" in caught.value.why


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
