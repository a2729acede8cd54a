"""The head that ships for the demo model: what its card says of it is so."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from trtforge.drafting.inspection import inspect_folder

HEAD = Path(__file__).resolve().parents[3] / "configs" / "heads" / "smollm2-135m-eagle3"


def test_it_is_a_clean_head_of_at_most_16_mb() -> None:
    found = inspect_folder(HEAD)
    assert [item.code for item in found.findings] == []
    assert found.dialect is not None and found.dialect.name == "specforge"
    assert found.head is not None
    assert (found.head.hidden_size, found.head.draft_vocab_size, found.head.vocab_size) == (576, 4096, 49152)
    assert found.head.taps == (1, 14, 26) and found.head.rope.explicit
    assert {path.name for path in HEAD.iterdir()} == {"config.json", "model.safetensors", "README.md"}
    assert (HEAD / "model.safetensors").stat().st_size <= 16_000_000


def test_its_card_names_these_weights_and_figures_of_every_class() -> None:
    card = (HEAD / "README.md").read_text(encoding="utf-8")
    assert hashlib.sha256((HEAD / "model.safetensors").read_bytes()).hexdigest() in card
    assert "Apache-2.0" in card and "trtforge speculate train" in card
    for kind in ("chat", "code", "copy", "open"):
        row = re.search(rf"^\| {kind} \| (\d+) \| ([\d.]+) \[([\d.]+), ([\d.]+)\] \|", card, re.MULTILINE)
        assert row is not None, kind
        prompts, length, low, high = (float(value) for value in row.groups())
        assert prompts >= 24 and 1 < low < length < high < 5
