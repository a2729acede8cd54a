"""Canonical JSON: equal data has one text; what JSON cannot hold is refused, never guessed."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtforge.ground.files import copy_tree, tree_bytes, walk_files, write_json_atomic
from trtforge.ground.hashing import canonical_json, hash_bytes, hash_file, hash_json

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)


def shuffled(value: Any, rng: random.Random) -> Any:
    if isinstance(value, dict):
        items = [(key, shuffled(item, rng)) for key, item in value.items()]
        rng.shuffle(items)
        return dict(items)
    return [shuffled(item, rng) for item in value] if isinstance(value, list) else value


@given(values, st.integers())
def test_order_of_keys_does_not_matter_and_nothing_is_lost(value: Any, seed: int) -> None:
    assert hash_json(value) == hash_json(shuffled(value, random.Random(seed)))
    assert json.loads(canonical_json(value)) == value


@given(values, values)
def test_different_data_has_different_text(left: Any, right: Any) -> None:
    assert (canonical_json(left) == canonical_json(right)) == (
        json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
    )


def test_what_json_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="Out of range"):
        canonical_json({"x": float("nan")})
    with pytest.raises(TypeError, match="object has no canonical JSON"):
        canonical_json({"x": object()})
    assert canonical_json([Path("a/b"), {2, 1}, (1, 2)]) == '["a/b",[1,2],[1,2]]'


@given(st.binary(max_size=3000))
def test_file_hash_is_the_hash_of_its_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "data"
    path.write_bytes(data)
    seen: list[float] = []
    assert hash_file(path, seen.append) == hash_bytes(data)
    assert sum(seen) == len(data)


def test_copy_keeps_content_links_and_empty_directories(tmp_path: Path) -> None:
    source = tmp_path / "a"
    (source / "deep" / "empty").mkdir(parents=True)
    (source / "deep" / "file").write_bytes(b"x" * 100)
    (source / "deep" / "link").symlink_to("file")
    (source / "manifest.json").write_text("{}")
    assert copy_tree(source, tmp_path / "b", exclude=("manifest.json",)) == 100
    assert [name for name, _ in walk_files(tmp_path / "b")] == ["deep/empty", "deep/file", "deep/link"]
    assert tree_bytes(tmp_path / "b") == 100
    assert (tmp_path / "b" / "deep" / "file").stat().st_nlink == 1


def test_atomic_write_leaves_no_temporary_file(tmp_path: Path) -> None:
    write_json_atomic(tmp_path / "x.json", {"a": 1})
    with pytest.raises(TypeError):
        write_json_atomic(tmp_path / "x.json", {"a": object()})
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": 1}
