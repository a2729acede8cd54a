"""One fault is one finding: what rests on a statement that could not be read is not judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.triton_repo import corpus_llm, corpus_triton
from triton_repo.lint.run import lint_repository

CONFIG = "ensemble_model/config.pbtxt"


def errors(root: Path) -> list[tuple[str, int | None]]:
    return [(found.code, found.line) for found in lint_repository(root).findings if found.severity == "error"]


@pytest.mark.parametrize("before", [True, False], ids=["before the steps", "after the steps"])
def test_a_scheduler_beside_the_steps_of_an_ensemble_is_one_finding(tmp_path: Path, before: bool) -> None:
    root = tmp_path / "repository"
    corpus_triton.image_ensemble(root)
    path = root / CONFIG
    text, added = path.read_text(encoding="utf-8"), "dynamic_batching { preferred_batch_size: [ 4 ] }"
    text = text.replace("max_batch_size: 1\n", f"max_batch_size: 1\n{added}\n") if before else f"{text}\n{added}\n"
    path.write_text(text, encoding="utf-8")
    line = text.split("\n").index(added) + 1
    assert errors(root) == [("TF-TRI-133", line)]


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("input_map {", "input_mapp {", "TF-TRI-102"),
        ("output_map {", "output_mop {", "TF-TRI-102"),
        ("output [", "outputt [", "TF-TRI-102"),
    ],
)
def test_a_map_that_cannot_be_read_leaves_its_tensors_alone(tmp_path: Path, old: str, new: str, code: str) -> None:
    root = tmp_path / "repository"
    corpus_triton.image_ensemble(root)
    path = root / CONFIG
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    found = errors(root)
    assert code in {item for item, _ in found}
    assert not {item for item, _ in found} & {"TF-TRI-167", "TF-TRI-169"}


def test_the_engine_of_a_bundle_is_found_from_the_folder_that_its_server_starts_in(tmp_path: Path) -> None:
    root = tmp_path / "bundle" / "repository"
    corpus_llm.chain(root, values={"gpt_model_path": "engine/trtllm"})
    assert [f.severity for f in lint_repository(root).findings if f.code == "TF-TRI-188"] == ["note"]
    engine = corpus_llm.engine_folder(tmp_path / "bundle/engine/trtllm")
    assert [f.code for f in lint_repository(root).findings if f.code == "TF-TRI-188"] == []
    (engine / "rank0.engine").unlink()
    assert [f.severity for f in lint_repository(root).findings if f.code == "TF-TRI-188"] == ["error"]
