"""Files of others: whatever lies there, reading ends at once with one of two kinds of error."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from trtforge.ground.json_file import MAX_DEPTH, read_bytes_file, read_json_file, read_json_object


def test_a_value_is_read(tmp_path: Path) -> None:
    (tmp_path / "a").write_text('{"x": [1, "ü"]}', encoding="utf-8")
    assert read_json_file(tmp_path / "a") == {"x": [1, "ü"]}
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert read_json_file(tmp_path / "link")["x"][0] == 1


def test_what_is_no_regular_file_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "loop", tmp_path / "none", Path("/dev/zero")):
        with pytest.raises(OSError):
            read_json_file(path)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[" * 200_000, b'{"a":' * 200_000, b"9" * 5000])
def test_what_is_no_json_is_a_value_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a").write_bytes(data)
    with pytest.raises(ValueError):
        read_json_file(tmp_path / "a")


def test_the_size_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("[1, 2, 3]")
    with pytest.raises(ValueError, match="more than 4 bytes"):
        read_json_file(tmp_path / "a", 4)


def test_nesting_is_bounded_so_that_whoever_walks_the_value_may_recurse(tmp_path: Path) -> None:
    for depth, fits in ((MAX_DEPTH, True), (MAX_DEPTH + 2, False)):
        (tmp_path / "a").write_text("[" * depth + "1" + "]" * depth)
        if fits:
            read_json_file(tmp_path / "a")
        else:
            with pytest.raises(ValueError, match="too deeply"):
                read_json_file(tmp_path / "a")


def test_a_sparse_giant_and_a_socket_cost_nothing(tmp_path: Path) -> None:
    with (tmp_path / "giant").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match="more than"):
        read_bytes_file(tmp_path / "giant")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        with pytest.raises(OSError):
            read_bytes_file(tmp_path / "s")


def test_an_object_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("[]")
    with pytest.raises(ValueError, match="no JSON object"):
        read_json_object(tmp_path / "a")
    (tmp_path / "a").write_text("{}")
    assert read_json_object(tmp_path / "a") == {}
