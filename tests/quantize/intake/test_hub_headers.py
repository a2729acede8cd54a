"""Hub models by ranges, against a hub on loopback: what is fetched, retried, refused, and what is never said."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from quantize.audit import audit_files
from quantize.intake import default_cache_dir, hub_headers, inspect_source
from quantize.intake.opened import open_files
from quantize.intake.source import parse_source
from tests.quantize.forensics import checkpoints as made
from tests.support.fake_hub import COMMIT, FakeHub, serving
from tests.support.refusals import refusal
from tests.support.tiny import write_tiny_llama
from trtforge.ground.errors import EnvironmentLacks
from trtforge.ground.progress import SilentProgress
from trtforge.ground.safetensors_header import read_headers

TOKEN = "hf_" + "Zq7" * 11
Served = Callable[..., FakeHub]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Serves a folder as org/tiny; the process's caches are empty, and there is no login."""
    for name, place in (("HF_HUB_CACHE", "hub"), ("TRTFORGE_CACHE", "cache"), ("HF_HOME", "home")):
        monkeypatch.setenv(name, str(tmp_path / place))
    for name in ("HF_HUB_OFFLINE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(hub_headers, "PAUSE", 0.0)
    with ExitStack() as running:

        def start(folder: Path, **options: Any) -> FakeHub:
            found = running.enter_context(serving(FakeHub(folder, **options)))
            monkeypatch.setenv("HF_ENDPOINT", found.endpoint)
            return found

        yield start


def opened(asked: str = "hf:org/tiny") -> hub_headers.HubFolder:
    return hub_headers.open_hub(parse_source(asked, Path.cwd()), default_cache_dir(), SilentProgress())


def big_model(folder: Path) -> Path:
    """A model whose weights are much more than its headers."""
    return write_tiny_llama(folder, width=256, ffn=2048, layers=4, shards=2)


def test_the_headers_are_those_of_the_whole_and_the_weights_stay_there(tmp_path: Path, hub: Served) -> None:
    folder = big_model(tmp_path / "model")
    served = hub(folder)
    found = opened()
    assert read_headers(found.path) == read_headers(folder) and found.commit == COMMIT
    assert (found.path / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    whole = sum(file.stat().st_size for file in folder.iterdir())
    assert served.sent < whole / 3
    on_disk = sum(file.stat().st_blocks * 512 for file in found.path.glob("*.safetensors"))
    assert on_disk < whole / 3, "what was not fetched is a hole"


def test_check_judges_a_model_that_is_not_downloaded(tmp_path: Path, hub: Served) -> None:
    hub(write_tiny_llama(tmp_path / "model"))
    assert inspect_source("hf:org/tiny", tmp_path) is None
    info = inspect_source("hf:org/tiny", tmp_path, early=True)
    assert info is not None and info.model.layers == 2 and info.model.architecture == "LlamaForCausalLM"


def run(*arguments: str) -> Any:
    from trtforge.cli.app import app

    return CliRunner().invoke(app, list(arguments))


def test_the_check_command_reads_the_headers(tmp_path: Path, hub: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    hub(write_tiny_llama(tmp_path / "model"))
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        yaml.safe_dump({"name": "r", "model": {"source": "hf:org/tiny"}, "quantize": {"format": "int4_awq"}})
    )
    result = run("check", str(recipe), "--json")
    document = json.loads(result.stdout)
    assert "its headers were read from the Hub" in document["model_absent"]
    codes = {finding["code"] for finding in document["findings"]}
    assert "TF-K4-001" in codes, "groups of 128 do not divide a width of 64: known from the headers alone"


def test_the_audit_command_reads_the_headers(tmp_path: Path, hub: Served) -> None:
    hub(made.write(tmp_path / "model", *made.fp8_blocks()))
    result = run("audit", "hf:org/tiny", "--format", "github")
    assert (result.exit_code, result.stdout) == (0, "")
    result = run("audit", "hf:org/none", "--json")
    assert result.exit_code == 2 and json.loads(result.stdout)["error"]["code"] == "TF-SRC-020"


def test_a_bare_configuration_is_checked(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    assert refusal(inspect_source, str(folder), tmp_path).code == "TF-SRC-028"
    info = inspect_source(str(folder), tmp_path, early=True)
    assert info is not None and info.model.layers == 2 and "configuration alone" in info.notes[0]


def test_the_audit_fetches_scales_and_finds_what_is_wrong_with_them(tmp_path: Path, hub: Served) -> None:
    tensors, sections = made.modelopt("FP8", kv=True)
    tensors["model.layers.1.mlp.up_proj.weight_scale"] = made.scale("F32", seed="x", low=-1, high=-0.5)
    served = hub(made.write(tmp_path / "model", tensors, sections, shards=2))
    report = audit_files(open_files("hf:org/tiny", SilentProgress()))
    assert [(finding.code, finding.names) for finding in report.findings] == [
        ("TF-K7-103", ("model.layers.1.mlp.up_proj.weight_scale",))
    ]
    assert report.read["left_out"] == 0 and report.checkpoint == "hf:org/tiny"
    ranges = [asked for path, asked, _ in served.requests if path.endswith(".safetensors")]
    assert len(ranges) <= 12 and all(ranges), "neighbouring scales are one request"


def test_large_scales_stay_there_and_are_said_to(tmp_path: Path, hub: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    from quantize.forensics import checkpoint

    monkeypatch.setattr(checkpoint, "BROUGHT", 64)
    hub(made.write(tmp_path / "model", *made.modelopt("NVFP4")))
    report = audit_files(open_files("hf:org/tiny", SilentProgress()))
    assert report.findings == [] and report.read["left_out"] == 14


def test_a_second_look_needs_no_network(tmp_path: Path, hub: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served = hub(write_tiny_llama(tmp_path / "model"))
    opened()
    count = len(served.requests)
    opened()
    assert len(served.requests) == count + 1, "only whether the revision moved"
    opened(f"hf:org/tiny@{COMMIT}")
    assert len(served.requests) == count + 1
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    opened()
    assert len(served.requests) == count + 1


def test_a_busy_hub_is_asked_again(tmp_path: Path, hub: Served) -> None:
    hub(write_tiny_llama(tmp_path / "model"), flaky=2)
    assert opened().commit == COMMIT


def test_a_hub_that_stays_busy_is_no_fault_of_the_model(tmp_path: Path, hub: Served) -> None:
    hub(write_tiny_llama(tmp_path / "model"), flaky=100)
    with pytest.raises(EnvironmentLacks) as caught:
        opened()
    assert caught.value.code == "TF-SRC-019" and "503" in str(caught.value.why)
    assert inspect_source("hf:org/tiny", tmp_path, early=True) is None


def test_a_hub_that_is_not_there_is_asked_once(tmp_path: Path, hub: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    hub(write_tiny_llama(tmp_path / "model"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(hub_headers.time, "sleep", lambda seconds: pytest.fail("waited") if seconds else None)
    with pytest.raises(EnvironmentLacks) as caught:
        opened()
    assert caught.value.code == "TF-SRC-019" and inspect_source("hf:org/tiny", tmp_path, early=True) is None


def test_a_hub_that_answers_too_slowly_is_given_up(
    tmp_path: Path, hub: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub(write_tiny_llama(tmp_path / "model"), slow=0.5)
    monkeypatch.setattr(hub_headers, "READ", 0.05)
    with pytest.raises(EnvironmentLacks) as caught:
        opened()
    assert caught.value.code == "TF-SRC-019"


def test_a_hub_without_ranges_is_read_up_to_the_header(tmp_path: Path, hub: Served) -> None:
    folder = big_model(tmp_path / "model")
    hub(folder, whole=True)
    assert read_headers(opened().path) == read_headers(folder)


def test_a_gated_model_is_refused_and_opened_with_the_token(
    tmp_path: Path, hub: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = hub(write_tiny_llama(tmp_path / "model"), gated=TOKEN)
    error = refusal(opened)
    assert error.code == "TF-SRC-020" and "gated" in error.message
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert opened().commit == COMMIT
    assert served.requests[-1][2] == f"Bearer {TOKEN}"


def test_the_token_reaches_no_message_and_no_other_host(
    tmp_path: Path, hub: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    served = hub(write_tiny_llama(tmp_path / "model"), elsewhere=True)
    found = opened()
    there = [authorization for path, _, authorization in served.requests if path.startswith("/cdn/")]
    assert there and set(there) == {None}
    written = b"".join(file.read_bytes() for file in found.path.iterdir())
    assert TOKEN.encode() not in written
    served.flaky, served.repo = 0, "org/other"
    error = refusal(opened, "hf:org/tiny@v2")
    assert TOKEN not in json.dumps(error.to_json())


def test_a_model_that_is_not_there(tmp_path: Path, hub: Served) -> None:
    hub(write_tiny_llama(tmp_path / "model"))
    error = refusal(opened, "hf:org/none")
    assert error.code == "TF-SRC-020" and "no such model" in error.message


def test_an_answer_that_ends_early_is_no_header(tmp_path: Path, hub: Served) -> None:
    hub(write_tiny_llama(tmp_path / "model"), cut=100)
    error = refusal(opened)
    assert error.code == "TF-SRC-019" and "ended after 100" in str(error.why)
    assert hub_headers.cached_folder(parse_source("hf:org/tiny", tmp_path), default_cache_dir()) is None


def test_holes_are_never_taken_for_scales(tmp_path: Path, hub: Served) -> None:
    from trtforge.preflight.sources import SourceFiles

    hub(made.write(tmp_path / "model", *made.modelopt("FP8", kv=True)))
    files = SourceFiles(opened().path)
    assert files.tensors and list(files.scalars(("k_scale",))) == []


def test_files_that_are_not_read_stand_there_as_holes(tmp_path: Path, hub: Served) -> None:
    folder = write_tiny_llama(tmp_path / "model")
    (folder / "modeling_tiny.py").write_text("import os")
    hub(folder)
    error = refusal(inspect_source, "hf:org/tiny", tmp_path, early=True)
    assert error.code == "TF-SRC-010"
    assert b"import" not in (opened().path / "modeling_tiny.py").read_bytes()
