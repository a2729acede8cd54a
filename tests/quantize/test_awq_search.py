"""AWQ's search goes on after a kill, and ends with the bytes of an undisturbed run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from quantize import awq_search, ptq
from quantize.awq_search import STATE_FILE
from quantize.checkpoint import quantize_checkpoint
from tests.support.tiny import write_tiny_llama
from trtforge.ground.progress import SilentProgress
from trtforge.recipe.schema import Quantize

pytestmark = pytest.mark.slow

SECTION = Quantize(format="int4_awq", kv_cache="fp8", group_size=64, calibration={"samples": 4, "sequence_length": 64})


class Kill(SilentProgress):
    """Ends the run after so many layers of the search, and counts the layers that were searched."""

    def __init__(self, after: int | None = None) -> None:
        self.after, self.layers, self.searching, self.notes = after, 0, False, ""

    def start(self, description: str, total: float | None = None) -> None:
        self.searching = "pass 2" in description

    def advance(self, amount: float = 1.0) -> None:
        if self.searching:
            self.layers += 1
            if self.after is not None and self.layers > self.after:
                raise KeyboardInterrupt

    def note(self, text: str) -> None:
        self.notes += text + "\n"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("source"), layers=3)


@pytest.fixture(scope="module")
def undisturbed(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ptq, "_TOKENS_A_PASS_AWQ", 128)  # two batches
        quantize_checkpoint(source, out, section=SECTION, base_dir=source)
    return out


@pytest.mark.parametrize("after", [0, 1, 2, 3, 4, 5])
def test_a_killed_search_goes_on(
    source: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.setattr(ptq, "_TOKENS_A_PASS_AWQ", 128)
    scratch = tmp_path / "scratch"
    with pytest.raises(KeyboardInterrupt):
        quantize_checkpoint(
            source, tmp_path / "a", section=SECTION, base_dir=source, scratch=scratch, progress=Kill(after)
        )
    assert list((tmp_path / "a").iterdir()) == []
    searched: list[int] = []
    keep = awq_search.AwqSearch.keep

    def counted(self: awq_search.AwqSearch, model: object, batch: int, layers: int) -> None:
        searched.append(layers)
        keep(self, model, batch, layers)

    monkeypatch.setattr(awq_search.AwqSearch, "keep", counted)
    progress = Kill()
    quantize_checkpoint(source, tmp_path / "b", section=SECTION, base_dir=source, scratch=scratch, progress=progress)
    assert len([layers for layers in searched if layers]) == 6 - (after + 1), "a layer was searched twice, or never"
    assert "AWQ's search goes on after" in progress.notes
    for path in undisturbed.iterdir():
        assert (tmp_path / "b" / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("damage", ["cut", "foreign", "empty"])
def test_a_kept_search_that_does_not_fit_is_not_used(
    source: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr(ptq, "_TOKENS_A_PASS_AWQ", 128)
    scratch = tmp_path / "scratch"
    with pytest.raises(KeyboardInterrupt):
        quantize_checkpoint(source, tmp_path / "a", section=SECTION, base_dir=source, scratch=scratch, progress=Kill(3))
    state = scratch / STATE_FILE
    if damage == "foreign":
        np.savez(state, names=np.array(["other"]), losses=np.zeros((1, 11)), steps=np.zeros(1), place=[1, 1])
    else:
        state.write_bytes(state.read_bytes()[: 0 if damage == "empty" else 300])
    quantize_checkpoint(source, tmp_path / "b", section=SECTION, base_dir=source, scratch=scratch)
    for path in undisturbed.iterdir():
        assert (tmp_path / "b" / path.name).read_bytes() == path.read_bytes(), path.name
