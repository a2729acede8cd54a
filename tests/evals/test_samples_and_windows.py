"""Samples are measured once, whatever is killed or asked anew; divergences are those of the definition."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from evals.samples import Samples, packed, read_samples, unpacked
from evals.windows import TOP, measure_windows, merged_kl

TOKENS = torch.randint(0, 40, (90,), generator=torch.Generator().manual_seed(1)).tolist()


def bigram(seed: int, vocab: int = 40) -> torch.Tensor:
    return torch.randn(vocab, vocab, generator=torch.Generator().manual_seed(seed))


def opened(folder: Path, identity: str = "a", earlier: list[Path] | None = None, run: str = "out") -> Samples:
    return Samples("s", {"model": identity}, out=folder / run, scratch=folder / "scratch", earlier=earlier or [])


def test_arrays_come_back_bit_by_bit() -> None:
    for array in (np.array([0.1, np.nextafter(1, 2)]), np.arange(6, dtype=np.int32).reshape(2, 3), np.array([True])):
        assert np.array_equal(unpacked(json.loads(json.dumps(packed(array)))), array)
    for bad in ({"dtype": "|O", "shape": [1], "base64": ""}, {}, None, {"dtype": "<f8", "shape": [2], "base64": "AA"}):
        with pytest.raises(ValueError):
            unpacked(bad)


def test_a_killed_measurement_goes_on_where_it_was(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.add("a", {"x": 1})
    first.add("b", {"x": "line end \u2028 inside"})
    first.close()
    with (tmp_path / "scratch/samples/s.jsonl").open("a") as file:
        file.write('{"id": "c", "x"')  # torn by the kill
    second = opened(tmp_path)
    assert second.get("b") == {"id": "b", "x": "line end \u2028 inside"} and second.get("c") is None
    second.add("c", {"x": 3})
    assert [s["id"] for s in second.finish(["c", "a", "b"])] == ["c", "a", "b"] and second.measured == 1
    assert [s["id"] for s in read_samples(tmp_path / "out", "s")] == ["c", "a", "b"]


def test_samples_of_another_model_are_no_samples(tmp_path: Path) -> None:
    one = opened(tmp_path)
    one.add("a", {"x": 1})
    one.finish(["a"])
    assert opened(tmp_path, "b", [tmp_path / "out"]).get("a") is None
    assert opened(tmp_path / "else", "a", [tmp_path / "out"]).get("a") == {"id": "a", "x": 1}


def test_a_model_is_asked_for_the_rows_that_are_scored(tmp_path: Path) -> None:
    """The vocabulary's rows are a fifth of a small model's work; those before the scored tokens are not needed."""
    table, asked = bigram(0), []

    def logits(ids: torch.Tensor, last: int) -> torch.Tensor:
        asked.append((len(ids), last))
        return table[ids][-last:]

    found = measure_windows(logits, TOKENS[:36], window=16, stride=8)
    assert asked == [(15, 15), (15, 8), (15, 8), (15, 4)]
    assert np.array_equal(
        found.scores.nll, measure_windows(lambda ids, _: table[ids], TOKENS[:36], window=16, stride=8).scores.nll
    )


def test_more_tokens_measure_new_windows_only(tmp_path: Path) -> None:
    table, calls = bigram(0), []

    def logits(ids: torch.Tensor, last: int) -> torch.Tensor:
        calls.append(len(ids))
        return table[ids][-last:]

    short = opened(tmp_path, run="short")
    measure_windows(logits, TOKENS[:48], window=16, stride=8, samples=short)
    before = len(calls)
    longer = opened(tmp_path / "next", earlier=[tmp_path / "short"], run="long")
    found = measure_windows(logits, TOKENS, window=16, stride=8, samples=longer)
    fresh = measure_windows(lambda ids, _: table[ids], TOKENS, window=16, stride=8)
    assert longer.measured == len(calls) - before < 8
    assert np.array_equal(found.scores.nll, fresh.scores.nll)


def test_divergence_is_the_whole_one_where_every_token_is_kept() -> None:
    base, other = bigram(0), bigram(2)
    kept = measure_windows(lambda ids, _: base[ids], TOKENS, window=16, stride=8, keep=True)
    found = measure_windows(lambda ids, _: other[ids], TOKENS, window=16, stride=8, against=kept.references)
    log_p, log_q = base.log_softmax(-1).double(), other.log_softmax(-1).double()
    whole = (log_p.exp() * (log_p - log_q)).sum(-1)[torch.tensor(TOKENS[:-1])]
    assert found.divergence is not None
    np.testing.assert_allclose(found.divergence.kl, whole, rtol=1e-4, atol=1e-5)
    same = (base.argmax(-1) == other.argmax(-1))[torch.tensor(TOKENS[:-1])]
    assert np.array_equal(found.divergence.same, same.numpy())


def test_merged_outcomes_never_say_more_than_all_of_them_and_little_less() -> None:
    draw = torch.Generator().manual_seed(3)
    base = 4 * torch.randn(200, 3000, generator=draw)
    other = base + 0.3 * torch.randn(200, 3000, generator=draw)
    log_p, log_q = base.log_softmax(-1), other.log_softmax(-1)
    whole = (log_p.exp() * (log_p - log_q)).sum(-1).numpy()
    top = log_p.topk(TOP).indices
    merged = merged_kl(log_p.gather(1, top).numpy(), log_q.gather(1, top).numpy())
    assert (merged <= whole + 1e-5).all()
    assert merged.mean() > 0.8 * whole.mean()


def test_a_model_is_no_distance_from_itself() -> None:
    base = bigram(0)
    kept = measure_windows(lambda ids, _: base[ids], TOKENS, window=16, stride=8, keep=True)
    found = measure_windows(lambda ids, _: base[ids], TOKENS, window=16, stride=8, against=kept.references)
    assert found.divergence is not None and found.divergence.same.all() and found.divergence.kl.max() < 1e-6
