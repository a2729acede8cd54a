"""No false alarms: repositories of published, working settings give neither errors nor warnings."""

from __future__ import annotations

import pytest

from tests.triton_repo import corpus_llm, corpus_published, corpus_triton  # noqa: F401 - they fill the corpus
from tests.triton_repo.corpus import CORPUS, Repository
from triton_repo.lint.run import lint_repository


def test_the_corpus_is_large_and_every_repository_has_its_source():
    assert len(CORPUS) >= 20
    assert len({item.name for item in CORPUS}) == len(CORPUS)
    assert all(item.source.startswith("https://") or item.source.endswith("of this repository") for item in CORPUS)


@pytest.mark.parametrize("item", CORPUS, ids=lambda item: item.name)
def test_a_valid_repository_raises_no_alarm(tmp_path, item: Repository):
    root = tmp_path / "repository"
    item.build(root)
    report = lint_repository(root)
    assert [f"{f.code} {f.path}:{f.line} {f.message}" for f in report.findings if f.severity != "note"] == []
    assert report.models >= 1 and report.passed
