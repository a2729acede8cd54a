"""GGUF models in several files: shards of gguf-split, and files cut into pieces, are what the whole file is."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantize.intake import fetch_checkpoint, fingerprint_source, inspect_source
from quantize.intake.gguf_parts import GgufFile, is_gguf_name, parts_of
from tests.support.tiny import write_tiny_llama
from tests.support.tiny_gguf import write_tiny_gguf
from trtforge.ground.errors import ForgeError


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_tiny_llama(folder)
    return folder


@pytest.fixture(scope="module")
def whole(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("whole") / "m.gguf", checkpoint, matrix_type="Q8_0")


@pytest.fixture(scope="module")
def fetched(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fetched") / "out"
    fetch_checkpoint(whole.name, out, base_dir=whole.parent, cache_dir=out.parent / "cache")
    return out


def cut(whole: Path, folder: Path, names: list[str]) -> list[Path]:
    data = whole.read_bytes()
    size = -(-len(data) // len(names))
    written = []
    for number, name in enumerate(names):
        path = folder / name
        path.write_bytes(data[number * size : (number + 1) * size])
        written.append(path)
    return written


def shards(checkpoint: Path, folder: Path) -> list[Path]:
    write_tiny_gguf(folder / "m.gguf", checkpoint, matrix_type="Q8_0", tensors_a_shard=7)
    found = sorted(folder.glob("m-*-of-*.gguf"))
    assert len(found) >= 3
    return found


def same(out: Path, fetched: Path) -> None:
    names = {path.name for path in fetched.iterdir()} - {"checkpoint.json"}
    assert names == {path.name for path in out.iterdir()} - {"checkpoint.json"}
    for name in names:
        assert (out / name).read_bytes() == (fetched / name).read_bytes(), name


@pytest.mark.parametrize(
    "names",
    [
        ["m.gguf.part1", "m.gguf.part2", "m.gguf.part3"],
        ["m.gguf.00", "m.gguf.01", "m.gguf.02", "m.gguf.03"],
        ["m.gguf-split-a", "m.gguf-split-b"],
        ["m.gguf.partaa", "m.gguf.partab", "m.gguf.partac"],
        [f"m.gguf.part{number}" for number in range(1, 12)],
    ],
)
def test_pieces_are_the_file(names: list[str], whole: Path, fetched: Path, tmp_path: Path) -> None:
    pieces = cut(whole, tmp_path, names)
    (tmp_path / "m.gguf.txt").write_text("about the pieces")
    assert parts_of(pieces[-1]) == tuple(pieces)
    info = inspect_source(names[0], tmp_path, cache_dir=tmp_path / "cache")
    assert info is not None and info.model.parameters > 0
    fetch_checkpoint(names[0], tmp_path / "out", base_dir=tmp_path, cache_dir=tmp_path / "cache")
    same(tmp_path / "out", fetched)


def test_shards_are_the_file(checkpoint: Path, fetched: Path, tmp_path: Path) -> None:
    found = shards(checkpoint, tmp_path)
    for named in (found[0], found[-1]):
        out = tmp_path / f"out-{named.stem}"
        fetch_checkpoint(named.name, out, base_dir=tmp_path, cache_dir=tmp_path / "cache")
        same(out, fetched)
    before = fingerprint_source(found[0].name, tmp_path, cache_dir=tmp_path / "cache")
    data = bytearray(found[1].read_bytes())
    data[-1] ^= 1
    found[1].write_bytes(data)
    assert fingerprint_source(found[0].name, tmp_path, cache_dir=tmp_path / "cache") != before


def refused(path: Path) -> ForgeError:
    with pytest.raises(ForgeError) as caught:
        GgufFile.open(path)
    return caught.value


def test_missing_and_foreign_parts_are_refused(checkpoint: Path, whole: Path, tmp_path: Path) -> None:
    found = shards(checkpoint, tmp_path)
    kept = found[1].read_bytes()
    found[1].unlink()
    error = refused(found[0])
    assert error.code == "TF-SRC-050" and found[1].name in error.message
    found[1].write_bytes(found[2].read_bytes())
    assert "calls itself number 2" in refused(found[0]).message
    found[1].write_bytes(kept)
    lone = tmp_path / "renamed.gguf"
    lone.write_bytes(found[0].read_bytes())
    assert "its name does not say where the others are" in refused(lone).message
    pieces = cut(whole, tmp_path, [f"m.gguf.part{number}" for number in range(1, 5)])
    pieces[1].unlink()
    assert "number 2" in refused(pieces[0]).message
    pieces[3].unlink()
    pieces[2].unlink()
    assert refused(pieces[0]).code == "TF-SRC-014"  # the end is missing: the header says so


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("m.gguf", True),
        ("m.gguf.part1", True),
        ("m.gguf.aa", True),
        ("m-00001-of-00002.gguf", True),
        ("m.gguf.txt", False),
        ("m.gguf.json", False),
        ("m.bin", False),
        ("m.safetensors", False),
    ],
)
def test_names(name: str, is_one: bool) -> None:
    assert is_gguf_name(name) is is_one
