"""Paths that lead to the same engine are no difference between repositories; paths to another one are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.triton_repo.corpus import add, parameters
from triton_repo.diff import Comparison, diff_repositories

MODEL = {"model.py": "class TritonPythonModel: pass\n"}


def engine(folder: Path, text: str = '{"sha256": {"model.onnx": "aa"}}') -> Path:
    folder.mkdir(parents=True)
    (folder / "engine.json").write_text(text)
    return folder


def repository(root: Path, reference: str, name: str = "engine_dir", **more: str) -> Path:
    add(root, "m", 'backend: "python"\n' + parameters({name: reference, **more}), MODEL)
    return root


def kinds(comparison: Comparison) -> list[tuple[str, str]]:
    return [(item.kind, item.field) for item in comparison.differences]


@pytest.mark.parametrize("name", ["engine_dir", "gpt_model_path"])
def test_a_relative_and_a_full_path_to_one_engine(tmp_path: Path, name: str) -> None:
    place = engine(tmp_path / "bundle" / "engine")
    a = repository(tmp_path / "bundle" / "repository", "../../engine", name)
    b = repository(tmp_path / "emitted", str(place), name)
    found = diff_repositories(a, b)
    assert kinds(found) == [("location", f"parameters[{name}]")] and found.same


def test_a_copy_of_the_engine_is_the_same_and_another_engine_is_not(tmp_path: Path) -> None:
    engine(tmp_path / "bundle" / "engine")
    a = repository(tmp_path / "bundle" / "repository", "../../engine")
    copy, other = engine(tmp_path / "copy"), engine(tmp_path / "other", '{"sha256": {"model.onnx": "bb"}}')
    assert diff_repositories(a, repository(tmp_path / "b", str(copy))).same
    found = diff_repositories(a, repository(tmp_path / "c", str(other)))
    assert kinds(found) == [("changed", "parameters[engine_dir]")] and not found.same


def test_an_engine_below_its_description(tmp_path: Path) -> None:
    for name in ("one", "two"):
        engine(tmp_path / name)
        for folder in ("trtllm", "draft"):
            (tmp_path / name / folder).mkdir()
    a = repository(tmp_path / "a", str(tmp_path / "one" / "trtllm"), "gpt_model_path")
    assert diff_repositories(a, repository(tmp_path / "b", str(tmp_path / "two" / "trtllm"), "gpt_model_path")).same
    c = repository(tmp_path / "c", str(tmp_path / "two" / "draft"), "gpt_model_path")
    assert not diff_repositories(a, c).same


def test_paths_to_nowhere_and_other_parameters_are_differences(tmp_path: Path) -> None:
    place = engine(tmp_path / "engine")
    a = repository(tmp_path / "a", str(place))
    assert not diff_repositories(a, repository(tmp_path / "b", "/nowhere")).same
    c = repository(tmp_path / "c", str(place), somewhere=str(place))
    d = repository(tmp_path / "d", str(place), somewhere=f"{place}/.")
    assert kinds(diff_repositories(c, d)) == [("changed", "parameters[somewhere]")]
    assert not diff_repositories(a, c).same, "a parameter more"
