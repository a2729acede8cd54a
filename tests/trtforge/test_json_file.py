"""Files of others: whatever lies there, reading ends at once with one of two kinds of error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trtforge.json_file import read_json_file


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
