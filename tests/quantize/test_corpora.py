"""Corpora: disjoint slices, stable order, and refusals with numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantize import corpora
from tests.support.refusals import refusal
from tests.support.tiny import write_tiny_llama
from trtforge.ground.errors import EnvironmentLacks, ForgeError

BUILTIN = "builtin:python-topics"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory):
    return corpora.load_tokenizer(write_tiny_llama(tmp_path_factory.mktemp("tiny")))


def paragraphs(text: str) -> list[str]:
    return text.split("\n\n")


def test_builtin_slices_share_no_paragraph(tmp_path: Path) -> None:
    calibration = corpora.load_corpus(BUILTIN, tmp_path, "calibration")
    evaluation = corpora.load_corpus(BUILTIN, tmp_path, "evaluation")
    assert not set(paragraphs(calibration.text)) & set(paragraphs(evaluation.text))
    assert min(len(calibration.text), len(evaluation.text)) > 100_000
    assert calibration.sha256 != evaluation.sha256


def test_builtin_is_the_same_every_time(tmp_path: Path) -> None:
    first, second = (corpora.load_corpus(BUILTIN, tmp_path, "evaluation") for _ in range(2))
    assert first == second
    assert len(first.sha256) == 64


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text("abc ", min_size=1, max_size=12).filter(str.strip), min_size=1, max_size=40))
def test_slices_are_disjoint_whatever_the_source_repeats(tmp_path_factory: pytest.TempPathFactory, parts) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "text.txt").write_text("\n\n".join(parts), encoding="utf-8")
    both = [corpora.load_corpus("file:text.txt", folder, role) for role in ("calibration", "evaluation")]
    kept = [set(paragraphs(corpus.text)) - {""} for corpus in both]
    assert not kept[0] & kept[1]
    assert kept[0] | kept[1] == set(parts)


def test_json_lines(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"paragraph {i}\n\nand more {i}"}) for i in range(4)]
    (tmp_path / "c.jsonl").write_text("\n".join(lines), encoding="utf-8")
    assert "paragraph 0" in corpora.load_corpus("file:c.jsonl", tmp_path, "calibration").text
    assert "and more 3" in corpora.load_corpus("file:c.jsonl", tmp_path, "evaluation").text


@pytest.mark.parametrize("spec", ["builtin:nothing", "python-topics", "file:", "hf:", "ftp:x"])
def test_unknown_corpus(tmp_path: Path, spec: str) -> None:
    with pytest.raises(ForgeError) as caught:
        corpora.load_corpus(spec, tmp_path, "calibration")
    assert caught.value.code == "TF-QNT-020"
    assert BUILTIN in caught.value.remedies


@pytest.mark.parametrize("name", ["a\0b", "x" * 300])
def test_names_that_no_file_can_have(tmp_path: Path, name: str) -> None:
    assert refusal(corpora.load_corpus, f"file:{name}", "evaluation", tmp_path).code == "TF-QNT-021"


def test_file_outside_the_recipe_folder(tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text("text", encoding="utf-8")
    inner = tmp_path / "recipes"
    inner.mkdir()
    (inner / "link.txt").symlink_to(tmp_path / "outside.txt")
    for spec in ("file:../outside.txt", f"file:{tmp_path / 'outside.txt'}", "file:link.txt", "file:missing.txt"):
        with pytest.raises(ForgeError) as caught:
            corpora.load_corpus(spec, inner, "evaluation")
        assert caught.value.code == "TF-QNT-021"


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b'{"text": 3}\n', b'{"other": "x"}\n', b"not json\n"])
def test_unreadable_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "c.jsonl").write_bytes(content)
    with pytest.raises(ForgeError) as caught:
        corpora.load_corpus("file:c.jsonl", tmp_path, "evaluation")
    assert caught.value.code == "TF-QNT-022"


def test_dataset_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # the variables are read when the modules are imported, and that another test may have done
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    with pytest.raises(EnvironmentLacks) as caught:
        corpora.load_corpus("hf:nobody/no-such-dataset@test", tmp_path, "calibration")
    assert caught.value.code == "TF-QNT-023"
    assert any(BUILTIN in remedy for remedy in caught.value.remedies)


def batch(tokenizer, folder: Path, *, samples: int = 4, length: int = 32, seed: int = 0, context: int = 1024):
    return corpora.calibration_batch(
        corpora.load_corpus(BUILTIN, folder, "calibration"),
        tokenizer,
        samples=samples,
        sequence_length=length,
        seed=seed,
        max_positions=context,
    )


def test_calibration_batch_depends_on_the_seed_only(tmp_path: Path, tokenizer) -> None:
    first = batch(tokenizer, tmp_path)
    assert first.shape == (4, 32)
    assert first.dtype == np.int64
    assert np.array_equal(first, batch(tokenizer, tmp_path))
    assert not np.array_equal(first, batch(tokenizer, tmp_path, seed=1))


def test_calibration_windows_do_not_repeat(tmp_path: Path, tokenizer) -> None:
    rows = batch(tokenizer, tmp_path, samples=64)
    assert len({row.tobytes() for row in rows}) == 64


def test_prompts_over_the_context(tmp_path: Path, tokenizer) -> None:
    with pytest.raises(ForgeError) as caught:
        batch(tokenizer, tmp_path, length=2048, context=1024)
    assert caught.value.code == "TF-QNT-027"
    assert caught.value.numbers == {"sequence_length": 2048, "max_position_embeddings": 1024}
    assert caught.value.remedies == ["quantize.calibration.sequence_length: 512"]


def test_corpus_too_short_says_what_would_fit(tmp_path: Path, tokenizer) -> None:
    (tmp_path / "short.txt").write_text("\n\n".join(f"word {i}" for i in range(200)), encoding="utf-8")
    corpus = corpora.load_corpus("file:short.txt", tmp_path, "calibration")
    have = len(corpora.corpus_tokens(corpus, tokenizer))
    with pytest.raises(ForgeError) as caught:
        corpora.calibration_batch(corpus, tokenizer, samples=64, sequence_length=128, seed=0, max_positions=None)
    error = caught.value
    assert error.code == "TF-QNT-026"
    assert error.numbers["tokens_wanted"] == 64 * 128
    assert error.numbers["tokens_available"] == have
    fits = have // 128
    assert error.remedies[0] == f"quantize.calibration.samples: {fits} (at 128 tokens each)"
    # what it offers works
    corpora.calibration_batch(corpus, tokenizer, samples=fits, sequence_length=128, seed=0, max_positions=None)
    shorter = have // 64
    corpora.calibration_batch(corpus, tokenizer, samples=64, sequence_length=shorter, seed=0, max_positions=None)


def test_take_tokens(tmp_path: Path, tokenizer) -> None:
    corpus = corpora.load_corpus(BUILTIN, tmp_path, "evaluation")
    assert len(corpora.take_tokens(corpus, tokenizer, 100)) == 100
    with pytest.raises(ForgeError) as caught:
        corpora.take_tokens(corpus, tokenizer, 10**7)
    assert caught.value.code == "TF-QNT-026"


def test_missing_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ForgeError) as caught:
        corpora.load_tokenizer(tmp_path)
    assert caught.value.code == "TF-QNT-025"
