"""What lies in a folder and on the machine: files that lack, that are cut, that are no weights; links, pipes, disks."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

import quantize.intake.disk as disk
from quantize.intake import fingerprint_source, inspect_source
from quantize.intake.hashing import folder_digest, sha256_file
from tests.quantize.intake.folders import both_refuse, edit, fetch
from tests.support.refusals import refusal
from tests.support.tiny import write_tiny_llama
from trtforge.ground.errors import ExitCode
from trtforge.ground.safetensors_header import read_headers

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 269060552\n"


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_lfs_pointers(model: Path, tmp_path: Path, name: str) -> None:
    (model / name).write_text(POINTER)
    error = both_refuse(model, tmp_path)
    assert error.code == "TF-SRC-004" and name in error.message


def test_truncated_weights(model: Path, tmp_path: Path) -> None:
    path = model / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    error = both_refuse(model, tmp_path)
    assert error.code == "TF-SRC-005" and error.numbers


def test_missing_shard(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path / "model", shards=3)
    (model / "model-00002-of-00003.safetensors").unlink()
    error = both_refuse(model, tmp_path)
    assert error.code == "TF-SRC-006" and error.numbers == {"missing": 1, "needed": 3}


def test_missing_tokenizer(model: Path, tmp_path: Path) -> None:
    (model / "tokenizer.json").unlink()
    assert both_refuse(model, tmp_path).code == "TF-SRC-008"
    (model / "tokenizer.model").write_bytes(b"sentencepiece")
    assert "tokenizer.model" in both_refuse(model, tmp_path).message


def test_remote_code(model: Path, tmp_path: Path) -> None:
    (model / "modeling_custom.py").write_text("raise SystemExit('run')\n")
    assert both_refuse(model, tmp_path).code == "TF-SRC-010"
    info = fetch("model", tmp_path, allow_remote_code=True)
    assert "modeling_custom.py" in {record.name for record in info.files}


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_auto_map_is_remote_code(model: Path, tmp_path: Path, name: str) -> None:
    edit(model / name, auto_map={"AutoModel": "modeling_custom.Model"})
    error = both_refuse(model, tmp_path)
    assert error.code == "TF-SRC-010" and name in error.message


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth"])
def test_pickle_weights(model: Path, tmp_path: Path, name: str) -> None:
    (model / "model.safetensors").rename(model / name)
    error = both_refuse(model, tmp_path)
    assert error.code == "TF-SRC-011" and name in error.message
    assert refusal(fetch, "model", tmp_path, allow_remote_code=True).code == "TF-SRC-011"


def test_pickles_beside_safetensors_stay_behind(model: Path, tmp_path: Path) -> None:
    (model / "pytorch_model.bin").write_bytes(b"\x80\x04")
    fetch("model", tmp_path)
    assert not (tmp_path / "out" / "pytorch_model.bin").exists()


def test_no_checkpoint(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert both_refuse(empty, tmp_path).code == "TF-SRC-028"
    (empty / "x.gguf").write_bytes(b"GGUF")
    assert "x.gguf" in both_refuse(empty, tmp_path).remedies[0]
    (empty / "adapter_config.json").write_text("{}")
    assert "merge" in both_refuse(empty, tmp_path).remedies[0]
    edit_free = write_tiny_llama(tmp_path / "weightless")
    (edit_free / "model.safetensors").unlink()
    refused = both_refuse(edit_free, tmp_path)
    assert refused.code == "TF-SRC-028"
    assert any("trtforge plan" in remedy for remedy in refused.remedies)


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_links_out_of_the_folder(model: Path, tmp_path: Path, name: str) -> None:
    (model / name).rename(tmp_path / f"outside-{name}")
    (model / name).symlink_to(tmp_path / f"outside-{name}")
    assert both_refuse(model, tmp_path).code == "TF-SRC-003"
    assert refusal(fingerprint_source, "model", tmp_path).code == "TF-SRC-003"


def test_links_inside_the_folder_become_files(model: Path, tmp_path: Path) -> None:
    (model / "model.safetensors").rename(model / "real.bin")
    (model / "model.safetensors").symlink_to("real.bin")
    fetch("model", tmp_path)
    assert not (tmp_path / "out" / "model.safetensors").is_symlink()


def test_too_little_disk(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "free_bytes", lambda path: 1 << 20)
    error = refusal(fetch, "model", tmp_path)
    assert error.code == "TF-SRC-012"
    assert error.numbers["free_bytes"] == 1 << 20 < error.numbers["needed_bytes"]
    assert not (tmp_path / "out").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_disk_that_fills_up(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "model.safetensors").symlink_to("/dev/full")
    error = refusal(fetch, "model", tmp_path)
    assert (error.code, error.exit_code) == ("TF-SRC-012", ExitCode.ENVIRONMENT)


def test_a_limit_on_file_sizes_is_no_bug(tmp_path: Path) -> None:
    def write() -> None:
        with disk.system_answers(tmp_path, "fetching x"):
            raise OSError(errno.EFBIG, "File too large")

    assert refusal(write).code == "TF-SRC-012"


def test_what_the_system_does_not_allow(model: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file in the folder's place")
    assert refusal(fetch, "model", tmp_path).code == "TF-SRC-031"
    assert refusal(inspect_source, "x" * 300, tmp_path).code == "TF-SRC-001"
    (model / "tokenizer.json").unlink()
    (model / "tokenizer.json").mkdir()
    assert refusal(inspect_source, "model", tmp_path).code == "TF-SRC-008"
    (tmp_path / "circle").symlink_to("circle")
    assert refusal(inspect_source, "circle", tmp_path).code == "TF-SRC-003"


def test_hash_of_a_directory(model: Path, tmp_path: Path) -> None:
    names = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
    digest = folder_digest({name: sha256_file(model / name) for name in names})
    assert fetch("model", tmp_path, sha256=digest).sha256 == digest
    error = refusal(fetch, "model", tmp_path, sha256="0" * 64)
    assert error.code == "TF-SRC-013" and digest in error.numbers.values()
    assert fingerprint_source("model", tmp_path, cache_dir=tmp_path / "cache")["sha256"] == digest


@pytest.mark.parametrize("name", ["model.safetensors", "other.safetensors"])
def test_pipes_are_not_waited_for(model: Path, tmp_path: Path, name: str) -> None:
    (model / "model.safetensors").unlink()
    os.mkfifo(model / name)
    assert both_refuse(model, tmp_path).code == "TF-SRC-032"
    assert refusal(fingerprint_source, "model", tmp_path).code == "TF-SRC-032"
    assert refusal(read_headers, model).code == "TF-SRC-032"


def test_a_pipe_called_gguf(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.gguf")
    for call in (inspect_source, fingerprint_source):
        assert refusal(call, "m.gguf", tmp_path).code == "TF-SRC-032"


def test_fingerprint_follows_content(model: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    before = fingerprint_source("model", tmp_path, cache_dir=cache)
    assert json.loads(json.dumps(before)) == before
    (model / "notes.txt").write_text("not part of the model")
    assert fingerprint_source("model", tmp_path, cache_dir=cache) == before
    edit(model / "generation_config.json", temperature=0.5)
    assert fingerprint_source("model", tmp_path, cache_dir=cache) != before


def test_hashes_are_remembered_for_settled_files(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import quantize.intake.hashing as hashing

    reads: list[str] = []
    real = hashing.sha256_file

    def counted(path: Path, on_bytes: Any = None) -> str:
        reads.append(path.name)
        return real(path, on_bytes)

    monkeypatch.setattr(hashing, "sha256_file", counted)
    for path in model.iterdir():
        os.utime(path, (1_700_000_000, 1_700_000_000))
    first = fingerprint_source("model", tmp_path, cache_dir=tmp_path / "cache")
    assert len(reads) == 5
    assert fingerprint_source("model", tmp_path, cache_dir=tmp_path / "cache") == first
    assert len(reads) == 5, "unchanged files are not read again"
    edit(model / "config.json", note="x")  # just written: within the clock's granularity, so never remembered
    for count in (6, 7):
        fingerprint_source("model", tmp_path, cache_dir=tmp_path / "cache")
        assert len(reads) == count
    (tmp_path / "cache" / "hashes").joinpath(next((tmp_path / "cache" / "hashes").iterdir()).name).write_text("{broken")
    assert fingerprint_source("model", tmp_path, cache_dir=tmp_path / "cache")["kind"] == "directory"


def test_inspection_needs_no_heavy_import(model: Path, tmp_path: Path) -> None:
    import subprocess
    import sys

    code = (
        "import sys; from pathlib import Path; from quantize.intake import inspect_source\n"
        f"inspect_source({str(model)!r}, Path({str(tmp_path)!r}))\n"
        "print([m for m in ('torch', 'transformers', 'numpy', 'gguf', 'tokenizers') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "name",
    [
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
        "chat_template.json", "model.safetensors.index.json",
    ],
)  # fmt: skip
def test_a_giant_in_the_place_of_a_small_file_is_not_read(model: Path, tmp_path: Path, name: str) -> None:
    """A sparse file of a terabyte costs nothing on disk, and all memory when it is read."""
    if name == "model.safetensors.index.json":
        (model / "model.safetensors").unlink()
    if name == "chat_template.json":
        (model / "tokenizer_config.json").write_text("{}")
    with (model / name).open("wb") as file:
        file.truncate(2**40)
    assert refusal(fetch, "model", tmp_path).code in {"TF-SRC-021", "TF-SRC-023", "TF-SRC-007"}
