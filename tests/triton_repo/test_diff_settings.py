"""Repositories of the LLM API and of vLLM: what their settings mean is compared, not how they are written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.triton_repo.corpus import add
from triton_repo.diff import Comparison, Difference, diff_repositories
from triton_repo.settings_files import changes, read_settings
from trtforge.cli.main import invoke

CONFIG = 'backend: "python"\nmax_batch_size: 0\n'
SETTINGS = """model: ../../checkpoint
backend: pytorch
tensor_parallel_size: 2
kv_cache_config:
  enable_block_reuse: true
  free_gpu_memory_fraction: 0.9
triton_config: {max_batch_size: 0, decoupled: true}
lora_config:
  lora_target_modules: [attn_q, attn_v]
"""
REWRITTEN = """# the same, by another hand
triton_config:
  decoupled: True   # streams
  max_batch_size: 0
lora_config: {lora_target_modules: ["attn_q", "attn_v"]}

"tensor_parallel_size": 2
kv_cache_config: {free_gpu_memory_fraction: .90, enable_block_reuse: yes}
backend: 'pytorch'
model: "../../checkpoint"
"""


def repository(root: Path, text: str, name: str = "model.yaml") -> Path:
    add(root, "tensorrt_llm", CONFIG, {"1/model.py": "class TritonPythonModel: pass\n", f"1/{name}": text})
    return root


def compare(tmp_path: Path, old: str, new: str, name: str = "model.yaml") -> Comparison:
    return diff_repositories(repository(tmp_path / "old", old, name), repository(tmp_path / "new", new, name))


def shown(item: Difference) -> tuple[Any, ...]:
    return item.kind, item.field, item.old, item.new, item.line


def test_order_comments_and_style_say_nothing(tmp_path: Path) -> None:
    assert compare(tmp_path, SETTINGS, SETTINGS + "# and a comment\n").differences == ()
    assert compare(tmp_path / "b", SETTINGS, REWRITTEN).differences == ()


def test_a_change_of_meaning_has_its_key_file_and_line(tmp_path: Path) -> None:
    changed = REWRITTEN.replace(".90", "0.5").replace('"tensor_parallel_size": 2\n', "max_num_tokens: 64\n")
    found = compare(tmp_path, SETTINGS, changed)
    assert not found.same
    assert [shown(item) for item in found.differences] == [
        ("changed", "1/model.yaml:kv_cache_config.free_gpu_memory_fraction", "0.9", "0.5", 8),
        ("added", "1/model.yaml:max_num_tokens", None, "64", 7),
        ("removed", "1/model.yaml:tensor_parallel_size", "2", None, 3),
    ]
    first, _, last = found.differences
    assert first.path == str(tmp_path / "new" / "tensorrt_llm" / "1" / "model.yaml")
    assert last.path == str(tmp_path / "old" / "tensorrt_llm" / "1" / "model.yaml")
    assert first.meaning.startswith("Share of the GPU memory")


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("a: 1", "a: 1.0", True),
        ("a: 1", "a: true", False),
        ("a: 1", "a: '1'", False),
        ("a: null", "a: ~", True),
        ("a: null", "b: null", False),
        ("a: [1, 2]", "a: [2, 1]", False),
        ("a: [{b: 1, c: 2}]", "a: [{c: 2, b: 1}]", True),
        ("a: [{b: 1}]", "a: [{b: 2}]", False),
        ("a: {}", "a: []", False),
        ("a: .nan", "a: .nan", True),
        ("a: 1\na: 2", "a: 2", True),  # the last one holds
        ("a: yes", "a: true", True),
        ("a: &x {c: 1}\nb: *x", "a: {c: 1}\nb: {c: 1}", True),
    ],
)
def test_values_are_compared_as_they_are_read(old: str, new: str, same: bool) -> None:
    one, other = read_settings("model.yaml", old), read_settings("model.yaml", new)
    assert one is not None and other is not None
    assert (not list(changes(one, other))) is same


@pytest.mark.parametrize(
    "broken", ["a: [", "- a", "a: &x {b: 1}\nc: {<<: *x}", "a: !!python/name:os.system ''", "? [a]\n: 1"]
)
def test_what_cannot_be_read_is_compared_as_a_file(tmp_path: Path, broken: str) -> None:
    found = compare(tmp_path, SETTINGS, broken)
    assert [(item.kind, item.field) for item in found.differences] == [("changed", "1/model.yaml")]


def test_paths_to_one_checkpoint_are_one_place(tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    full = SETTINGS.replace("../../checkpoint", str(checkpoint))
    relative = SETTINGS.replace("../../checkpoint", "../../checkpoint/.")
    found = compare(tmp_path, relative, full)
    assert [(item.kind, item.field, item.line) for item in found.differences] == [("location", "1/model.yaml:model", 1)]
    assert found.same
    elsewhere = compare(tmp_path / "b", relative, SETTINGS.replace("../../checkpoint", "meta-llama/Llama-3.1-8B"))
    assert not elsewhere.same


def test_the_engine_of_vllm_too(tmp_path: Path) -> None:
    old = json.dumps({"model": "a/b", "gpu_memory_utilization": 0.9, "options": {"x": [1], "y": "1e5"}})
    new = json.dumps({"options": {"y": "1e5", "x": [1]}, "gpu_memory_utilization": 0.90, "model": "a/b"}, indent=2)
    assert compare(tmp_path, old, new, "model.json").differences == ()
    found = compare(tmp_path / "b", old, new.replace('"1e5"', "1e5"), "model.json")
    assert [shown(item) for item in found.differences] == [
        ("changed", "1/model.json:options.y", "1e5", "100000.0", 3),
    ]


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8))
DOCUMENTS = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1, max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(min_size=1, max_size=5), DOCUMENTS, max_size=4), st.booleans(), st.booleans())
def test_however_a_document_is_written_it_says_the_same(document: dict[str, Any], flow: bool, order: bool) -> None:
    one = read_settings("model.yaml", yaml.safe_dump(document, sort_keys=True))
    other = read_settings("model.yaml", yaml.safe_dump(document, default_flow_style=flow, sort_keys=order))
    assert one is not None and other is not None and not list(changes(one, other))


def test_the_command_names_file_key_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = repository(tmp_path / "old", SETTINGS)
    same = repository(tmp_path / "same", REWRITTEN)
    assert invoke(["triton", "diff", str(old), str(same)]) == 0
    assert "no difference" in capsys.readouterr().out
    other = repository(tmp_path / "other", SETTINGS.replace("tensor_parallel_size: 2", "tensor_parallel_size: 4"))
    assert invoke(["triton", "diff", str(old), str(other), "--json"]) == 1
    (difference,) = json.loads(capsys.readouterr().out)["differences"]
    assert (difference["field"], difference["line"]) == ("1/model.yaml:tensor_parallel_size", 3)
