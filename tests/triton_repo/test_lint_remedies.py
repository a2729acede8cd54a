"""Every remedy that lint prints is tried: its edits are made, the rules run again, and the finding must be gone.

No other finding may come in its place, unless the remedy says that it does (``leaves``). What has no edits is for a
person, and there is a reason for each: it needs what no repository holds.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.edits import carry_out
from tests.triton_repo import corpus_llm, corpus_published, corpus_triton  # noqa: F401 - they fill the corpus
from tests.triton_repo.corpus import CORPUS
from tests.triton_repo.test_lint_faults import PLANTS
from triton_repo.lint.rules import Finding
from triton_repo.lint.run import lint_repository

CASES: list[tuple[str, Callable[[Path], object]]] = [
    *((f"{plant.code}-{plant.name}".replace(" ", "-"), plant.plant) for plant in PLANTS),
    *((f"corpus-{item.name}", item.build) for item in CORPUS),
]


def identity(finding: Finding) -> tuple[str, str, str]:
    """What makes two findings the same one before and after an edit; numbers in messages may move."""
    return finding.code, finding.model, finding.severity


@pytest.mark.parametrize(("name", "build"), CASES, ids=[name for name, _ in CASES])
def test_every_remedy_clears_its_finding_and_raises_no_other(tmp_path, name, build):
    here = tmp_path / "first"
    here.mkdir()
    root = here / "repository"
    build(root)
    kept = tmp_path / "kept"
    shutil.copytree(here, kept, symlinks=True)
    before = lint_repository(root).findings
    for finding in before:
        assert finding.remedies and all(remedy.text for remedy in finding.remedies), finding
        for remedy in finding.remedies:
            if not remedy.edits:
                continue
            carry_out(remedy)
            after = Counter(identity(f) for f in lint_repository(root).findings)
            allowed = Counter(identity(f) for f in before)
            allowed[identity(finding)] -= 1
            new = [f for f in (after - allowed).elements() if f[0] not in remedy.leaves]
            assert not new, f"{finding.code} {finding.message!r}: {remedy.text!r} leaves {new}"
            for path in here.iterdir():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            shutil.copytree(kept, here, symlinks=True, dirs_exist_ok=True)


def test_most_remedies_are_edits_and_the_rest_say_that_a_person_is_needed(tmp_path):
    edits, persons = 0, 0
    for index, plant in enumerate(PLANTS):
        root = tmp_path / str(index) / "repository"
        root.parent.mkdir()
        plant.plant(root)
        for finding in lint_repository(root).findings:
            if finding.code == plant.code:
                made = any(remedy.edits for remedy in finding.remedies)
                edits, persons = edits + made, persons + (not made)
                document = finding.to_json()["remedies"]
                assert [item["by"] for item in document] == ["edit" if r.edits else "person" for r in finding.remedies]
                assert finding.remedy == ", or ".join(item["text"] for item in document)
    assert edits > 2 * persons, (edits, persons)
